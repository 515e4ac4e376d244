//! The sandbox agent: owns one persistent bash and serves it over HTTP (contract, section 5; behaviour: the shell page).
//!
//! [`program`] reads the settings and starts [`server`]; [`http`] turns requests into jobs for the [`queue`];
//! [`session`] runs them one at a time in a [`shell`], ends them through [`stop`] and brings a lost shell back from a
//! [`snapshot`]; `running` reads a command's output until its end, `sink` streams it, `outcome` puts the end into words.

pub mod capture;
pub mod client;
pub mod config;
pub mod connections;
pub mod crowd;
mod echo;
pub mod egress;
mod freeze;
pub mod guard;
pub mod handoff;
pub mod holder;
pub mod http;
pub mod metrics;
pub mod origin;
pub(crate) mod outcome;
pub(crate) mod patience;
pub mod pipes;
pub mod probe;
pub mod processes;
pub mod program;
pub mod queue;
pub mod reaper;
pub mod request;
pub(crate) mod running;
pub mod scope;
pub mod script;
pub mod server;
pub mod session;
pub mod shell;
pub mod signals;
pub(crate) mod sink;
pub mod snapshot;
pub mod spill;
pub mod stop;
pub mod stream;
// The few calls that only the kernel's interface offers: descriptors by number, pre-exec hooks, FIONREAD, mallopt.
#[allow(unsafe_code)]
pub mod sys;
mod torn;
mod trap_table;
