//! What the attacks are run from, and against: hostile shells, two instances, and the logs that must stay true.

use std::io::Write;

pub mod arena;
pub mod journal;
pub mod liar;
pub mod network;
pub mod proxy;
pub mod python;
pub mod shell;
pub mod syscalls;
pub mod table;

/// Says what a run does not prove, whether or not it passes: the harness hides what a test prints the usual way.
///
/// # Errors
///
/// When it cannot be printed.
pub fn not_proven(what: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stderr().lock(), "NOT PROVEN: {what}")?)
}
