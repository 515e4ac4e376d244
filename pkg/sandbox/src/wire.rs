//! Bodies of the agent's HTTP endpoints (contract, section 5). Field order is the order on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The port the agent listens on in a sandbox.
pub const AGENT_PORT: u16 = 8090;

/// Media type of a streamed `/exec` answer: one JSON object a line.
pub const NDJSON: &str = "application/x-ndjson";

/// Seconds a command may run when the caller names none.
pub const DEFAULT_TIMEOUT_SECONDS: u32 = 60;

/// The longest timeout a caller may ask for, in seconds.
pub const MAX_TIMEOUT_SECONDS: u32 = 300;

/// `POST /exec`. Unknown fields are refused by name (case 99).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The command, handed to bash byte for byte.
    pub command: String,
    /// Seconds until the command is ended, 1 to [`MAX_TIMEOUT_SECONDS`]; absent or null means [`DEFAULT_TIMEOUT_SECONDS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

/// The result of a command: the plain answer of `/exec`, the last line of a stream, and the tool's structured content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResult {
    /// What the command wrote to stdout; invalid UTF-8 became U+FFFD.
    pub stdout: String,
    /// What the command wrote to stderr; invalid UTF-8 became U+FFFD.
    pub stderr: String,
    /// Exit status as `$?` shows it, 0 to 255; 124 after a timeout, 130 after a cancel.
    pub exit_code: u8,
    /// Milliseconds from the start of the command to its end.
    pub duration_ms: u64,
    /// The command was ended because its time was up.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed_out: bool,
    /// At least one stream was longer than the limit and was cut.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// The shell was replaced since the last call: one line that says what could not be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_reset: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The two output streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of a streamed `/exec` answer, before the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamChunk {
    /// Which stream the data came from.
    pub stream: OutputStream,
    /// Output as it arrived; UTF-8 sequences are never split between two chunks.
    pub data: String,
}

/// One line of a streamed `/exec` answer: chunks, then the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StreamLine {
    /// Output while the command runs.
    Chunk(StreamChunk),
    /// The last line.
    Result(ExecResult),
}

/// `POST /assign`: gives an unassigned agent its session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignRequest {
    /// The session token the agent will answer to from now on.
    pub token: String,
}

impl std::fmt::Debug for AssignRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AssignRequest { token: [redacted] }")
    }
}

/// Answer of `POST /cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelResponse {
    /// Whether a command was running and was ended.
    pub cancelled: bool,
}

/// Body of every error answer of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what to do.
    pub error: String,
}

/// How an agent proves that its network is closed (contract, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EgressCheck {
    /// Commands run only while a direct connection to the target fails.
    Required,
    /// No check; `/health` says so.
    Disabled,
}

/// Error text prefix of `/health` and `/exec` while the network is not proven closed.
pub const EGRESS_NOT_ENFORCED: &str = "EgressNotEnforced";

/// How long a new sandbox may find its network open: policies are programmed some moments after a pod got its address.
pub const POLICY_SETTLES: Duration = Duration::from_secs(10);

/// What that text begins with where a connection succeeded that must not: the network is open, and not only unproven.
pub const EGRESS_OPEN: &str = "EgressNotEnforced: a direct connection to ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_appear_only_when_they_apply() {
        let plain = ExecResult {
            stdout: "x\n".into(),
            ..ExecResult::default()
        };
        assert_eq!(
            serde_json::to_string(&plain).unwrap(),
            r#"{"stdout":"x\n","stderr":"","exit_code":0,"duration_ms":0}"#
        );
    }

    #[test]
    fn a_line_is_told_by_its_fields() {
        let chunk: StreamLine = serde_json::from_str(r#"{"stream":"stderr","data":"é"}"#).unwrap();
        assert_eq!(
            chunk,
            StreamLine::Chunk(StreamChunk {
                stream: OutputStream::Stderr,
                data: "é".into()
            })
        );
        let last: StreamLine =
            serde_json::from_str(r#"{"stdout":"","stderr":"","exit_code":7,"duration_ms":3,"timed_out":true}"#)
                .unwrap();
        assert!(matches!(
            last,
            StreamLine::Result(ExecResult {
                exit_code: 7,
                timed_out: true,
                ..
            })
        ));
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = serde_json::from_str::<ExecRequest>(r#"{"command":"id","cwd":"/"}"#).unwrap_err();
        assert!(error.to_string().contains("cwd"), "{error}");
    }

    #[test]
    fn debug_hides_the_session_token() {
        let text = format!(
            "{:?}",
            AssignRequest {
                token: "0123456789abcdef".into()
            }
        );
        assert!(!text.contains("0123"), "{text}");
    }
}
