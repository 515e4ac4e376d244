//! Python programs on this machine, as clients of a server that know no rules.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs a program with this standard input, and returns what it printed.
///
/// # Errors
///
/// When it does not end with exit code 0.
pub fn run(program: &str, stdin: &str) -> Result<String> {
    let mut python = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = python.stdin.take().context("no stdin")?;
    input.write_all(stdin.as_bytes())?;
    drop(input);
    let output = python.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}
