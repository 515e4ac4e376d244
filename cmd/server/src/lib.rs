//! The MCP server of an instance: one tool, bash, whose commands run in the sandbox pod of the caller's session. `run` is
//! the program; the modules are what it is made of, each usable in a test without the others.

pub mod activity;
pub mod agent;
pub mod allocation;
pub mod audit;
mod backoff;
pub mod budget;
pub mod call;
pub mod cancellation;
pub mod cluster;
pub mod config;
mod ending;
pub mod failure;
#[cfg(test)]
mod fixtures;
pub mod gate;
pub mod health;
pub mod host;
pub mod http;
mod program;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod tool;
pub mod trace;
pub mod watch;

pub use program::run;
