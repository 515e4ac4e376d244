//! kubectl as a user runs it, for what is shortest said that way: apply, exec, wait.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What a kubectl command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
}

/// Runs kubectl and returns how it ended.
///
/// # Errors
///
/// When kubectl cannot be started.
pub fn run(args: &[&str]) -> Result<Output> {
    let output = Command::new("kubectl")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("cannot start kubectl")?;
    Ok(Output {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
    })
}

/// Runs kubectl and returns its output.
///
/// # Errors
///
/// When it ends with another exit code than 0: the error holds what it printed.
pub fn ok(args: &[&str]) -> Result<String> {
    let output = run(args)?;
    if output.code != 0 {
        bail!(
            "kubectl {}: exit code {}\n{}{}",
            args.join(" "),
            output.code,
            output.stdout,
            output.stderr
        );
    }
    Ok(output.stdout)
}

/// The objects of some kinds with these labels, each as `kind/name`.
///
/// # Errors
///
/// When they cannot be listed.
pub fn names(namespace: &str, kinds: &str, selector: &str) -> Result<Vec<String>> {
    let names = ok(&["-n", namespace, "get", kinds, "-l", selector, "-o", "name"])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Deletes the objects of a kind with these labels, and does not wait for their end.
///
/// # Errors
///
/// When the API server refuses it.
pub fn delete_all(namespace: &str, kind: &str, selector: &str) -> Result<()> {
    ok(&["-n", namespace, "delete", kind, "-l", selector, "--wait=false"]).map(drop)
}

/// Applies a manifest.
///
/// # Errors
///
/// When the API server refuses it.
pub fn apply(manifest: &str) -> Result<()> {
    let mut child = Command::new("kubectl")
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    child.stdin.take().context("no stdin")?.write_all(manifest.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("kubectl apply: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
