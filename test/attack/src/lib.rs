//! What the attacks are run from, and against: hostile shells, two instances, and the logs that must stay true.

pub mod arena;
pub mod journal;
pub mod network;
pub mod proxy;
pub mod shell;
pub mod syscalls;
pub mod table;
