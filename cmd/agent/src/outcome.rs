//! A finished call put into words: the result, its outcome for metrics and log, and what is said of a replaced shell.

use std::time::Duration;

use cli_mcp_sandbox::wire::ExecResult;

use crate::capture::Capture;
use crate::metrics::CallOutcome;
use crate::reaper::ExitCode;
use crate::running::End;

/// A finished call, before it is put into words.
pub(crate) struct Finished {
    pub(crate) end: End,
    pub(crate) exit_code: ExitCode,
    pub(crate) duration: Duration,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
}

/// Which state the shell that stands in for another one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    /// That in which the other was left.
    AsLeft,
    /// That before the call in which it ended.
    BeforeCall,
    /// As before that call, but for the working directory.
    BeforeCallButDirectory,
    /// An older one.
    Older,
    /// An older one, but for the working directory.
    OlderButDirectory,
    /// None.
    Nothing,
}

/// The one line that says what a replaced shell has lost (shell page, "The shell may end").
pub(crate) fn reset_notice(what: &str, restored: Restored) -> String {
    const STATE: &str = "working directory, variables, functions, aliases, traps and options";
    const LOST: &str = "its job table and open descriptors are lost";
    match restored {
        Restored::AsLeft => format!("The shell {what} and was replaced: {STATE} are restored; {LOST}."),
        Restored::BeforeCall => format!(
            "The shell {what} and was replaced: {STATE} are restored as they were before that call, and what it changed of them is lost; {LOST}."
        ),
        Restored::BeforeCallButDirectory => format!(
            "The shell {what} and was replaced: the working directory is restored as that call left it, variables, functions, aliases, traps and options as they were before it, and what it changed of these is lost; {LOST}."
        ),
        Restored::Older => format!(
            "The shell {what} and was replaced: {STATE} are restored as they were some calls ago, and what changed since is lost; {LOST}."
        ),
        Restored::OlderButDirectory => format!(
            "The shell {what} and was replaced: the working directory is restored as it was last seen, variables, functions, aliases, traps and options as they were some calls ago, and what changed of these since is lost; {LOST}."
        ),
        Restored::Nothing => format!("The shell {what} and was replaced by a fresh one; its state is lost."),
    }
}

pub(crate) fn result_of(
    finished: Finished,
    seconds: u32,
    session_reset: Option<String>,
    shutting_down: bool,
) -> (ExecResult, CallOutcome, (u64, u64)) {
    let stdout = finished.stdout.finish();
    let mut stderr = finished.stderr.finish();
    let (outcome, note) = match &finished.end {
        End::Status(_) if finished.exit_code == 0 => (CallOutcome::Success, None),
        End::Status(_) => (CallOutcome::Failure, None),
        End::Shell(_) => (CallOutcome::ShellEnded, None),
        End::Deadline => (
            CallOutcome::TimedOut,
            Some(format!("cli-mcp: timed out after {seconds} s; the command was ended")),
        ),
        End::Cancelled if shutting_down => (
            CallOutcome::Cancelled,
            Some("cli-mcp: the sandbox is shutting down; the command was ended".to_owned()),
        ),
        End::Cancelled => (
            CallOutcome::Cancelled,
            Some("cli-mcp: cancelled; the command was ended".to_owned()),
        ),
        End::Crowded { most } => (
            CallOutcome::Crowded,
            Some(format!(
                "cli-mcp: the sandbox had more than {most} processes; the command was ended, and with it all that earlier ones had left running"
            )),
        ),
    };
    if let Some(note) = note {
        if !stderr.text.is_empty() && !stderr.text.ends_with('\n') {
            stderr.text.push('\n');
        }
        stderr.text.push_str(&note);
        stderr.text.push('\n');
    }
    let bytes = (stdout.total, stderr.total);
    let result = ExecResult {
        truncated: stdout.truncated || stderr.truncated,
        stdout: stdout.text,
        stderr: stderr.text,
        exit_code: finished.exit_code,
        duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
        timed_out: matches!(finished.end, End::Deadline),
        session_reset,
    };
    (result, outcome, bytes)
}
