//! From the process that was started to the one that serves: a second `exec` of the same program, whose environment and
//! command line never held a token. `/proc/<agent>/environ` shows the memory a process was started with, and cannot be
//! cleaned from within by safe means; a fresh start can (case 95).

use std::convert::Infallible;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::config::Settings;
use crate::sys;

/// The subcommand that the agent starts itself with; its argument is the number of the settings' descriptor.
pub const SUBCOMMAND: &str = "serve-from-descriptor";

/// What the variables of the agent's own settings begin with, tokens and their digests among them.
pub const OWN_VARIABLES: &str = "SANDBOX_";

/// Starts the program again, in this process, with `settings` in memory.
///
/// # Errors
///
/// Returns only when it cannot.
pub fn start_again(settings: &Settings) -> io::Result<Infallible> {
    // Inherited on purpose: no close-on-exec.
    let memory = memfd_create(c"settings", MFdFlags::empty())?;
    let mut file = std::fs::File::from(memory);
    file.write_all(&serde_json::to_vec(settings)?)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("agent").arg(SUBCOMMAND).arg(file.as_raw_fd().to_string());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(OWN_VARIABLES.as_bytes()) {
            command.env_remove(name);
        }
    }
    Err(command.exec())
}

/// Reads the settings from the descriptor `number`.
///
/// # Errors
///
/// When no such descriptor is open, or it holds something else.
pub fn read_settings(number: RawFd) -> io::Result<Settings> {
    let mut file = std::fs::File::from(sys::adopt(number)?);
    file.rewind()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
