//! One JSON line a call, and one a session that a client ends: who ran what where, and what came of it. With the proxy's audit (pod IP and time) it answers which
//! command sent an API request.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use cli_mcp_sandbox::wire::ExecResult;
use cli_mcp_serving::auth::Caller;
use cli_mcp_serving::listener::Ends;
use http::Extensions;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::call::Trail;
use crate::config::AuditCommands;
use crate::failure::Failure;
use crate::session::SessionId;

/// Who calls, as far as the transport knows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Identity {
    /// The user that the API server authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Address of the client's end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
}

impl Identity {
    /// Who sent an HTTP request.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        Self {
            user: extensions.get::<Caller>().map(|caller| caller.0.name.clone()),
            address: extensions.get::<Ends>().map(|ends| ends.remote),
        }
    }
}

/// Where audit lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error, where standard output carries the protocol.
    Stderr,
}

/// Writes audit lines.
#[derive(Clone, Copy, Debug)]
pub struct Audit {
    commands: AuditCommands,
    destination: Destination,
}

/// What is known of a call.
#[derive(Debug, Serialize)]
pub struct Record {
    audit: &'static str,
    time: Timestamp,
    caller: Identity,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_ip: Option<std::net::IpAddr>,
    #[serde(flatten)]
    command: Shown,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_ms: Option<u64>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

/// A command as the audit shows it.
#[derive(Debug, Default, Serialize)]
pub struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_sha256: Option<String>,
}

impl Record {
    /// A call begins.
    #[must_use]
    pub fn call(caller: Identity) -> Self {
        Self::begin("call", caller)
    }

    /// A client ends a session.
    #[must_use]
    pub fn end(caller: Identity, session: &SessionId) -> Self {
        let mut record = Self::begin("end", caller);
        record.session(session);
        record
    }

    fn begin(audit: &'static str, caller: Identity) -> Self {
        Self {
            audit,
            time: Timestamp::now(),
            caller,
            session: None,
            pod: None,
            pod_ip: None,
            command: Shown::default(),
            outcome: "unknown",
            exit_code: None,
            stdout_bytes: None,
            stderr_bytes: None,
            command_ms: None,
            duration_ms: 0,
            trace_id: None,
        }
    }

    /// Its trace.
    pub fn traced(&mut self, trace_id: Option<&str>) {
        self.trace_id = trace_id.map(str::to_owned);
    }

    /// Its command.
    pub fn command(&mut self, command: Shown) {
        self.command = command;
    }

    /// Its session.
    pub fn session(&mut self, session: &SessionId) {
        self.session = Some(session.to_string());
    }

    /// What it touched.
    pub fn trail(&mut self, trail: &Trail) {
        if let Some(sandbox) = &trail.sandbox {
            self.pod = Some(sandbox.name.clone());
            self.pod_ip = sandbox.address;
        }
    }

    /// It has a result.
    pub fn finished(&mut self, result: &ExecResult) {
        self.outcome = match result {
            ExecResult { timed_out: true, .. } => "timed_out",
            ExecResult { exit_code: 0, .. } => "ok",
            _ => "nonzero_exit",
        };
        self.exit_code = Some(result.exit_code);
        self.stdout_bytes = Some(result.stdout.len());
        self.stderr_bytes = Some(result.stderr.len());
        self.command_ms = Some(result.duration_ms);
    }

    /// The session was ended.
    pub fn ended(&mut self) {
        self.outcome = "ended";
    }

    /// It has none.
    pub fn failed(&mut self, failure: &Failure) {
        self.outcome = failure.outcome();
    }

    /// Short name of what came of it.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        self.outcome
    }
}

impl Audit {
    /// A writer.
    #[must_use]
    pub fn new(commands: AuditCommands, destination: Destination) -> Self {
        Self { commands, destination }
    }

    /// What of a command is kept for its line: while it runs, a digest takes the memory of no command.
    #[must_use]
    pub fn shown(&self, command: &str) -> Shown {
        match self.commands {
            AuditCommands::None => Shown::default(),
            AuditCommands::Full => Shown {
                command: Some(command.to_owned()),
                ..Shown::default()
            },
            AuditCommands::Digest => Shown {
                command: None,
                command_bytes: Some(command.len()),
                command_sha256: Some(hex::encode(Sha256::digest(command))),
            },
        }
    }

    /// Writes a line.
    pub fn write(&self, mut record: Record, took: Duration) {
        record.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let line = line(&record);
        let written = match self.destination {
            Destination::Stdout => write_line(&mut std::io::stdout().lock(), &line),
            Destination::Stderr => write_line(&mut std::io::stderr().lock(), &line),
        };
        if let Err(error) = written {
            tracing::error!(%error, "Failed to write an audit line");
        }
    }
}

fn line(record: &Record) -> String {
    // A record of strings and numbers always serializes.
    serde_json::to_string(record).unwrap_or_default()
}

fn write_line(target: &mut impl Write, line: &str) -> std::io::Result<()> {
    writeln!(target, "{line}")?;
    target.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(commands: AuditCommands) -> serde_json::Value {
        let line = written(commands, "kubectl get pods # s3cret");
        serde_json::from_str(&line).unwrap()
    }

    fn written(commands: AuditCommands, command: &str) -> String {
        let mut record = Record::call(Identity {
            user: Some("alice".into()),
            address: None,
        });
        let audit = Audit::new(commands, Destination::Stderr);
        record.command(audit.shown(command));
        record.session(&"s1".parse().unwrap());
        record.finished(&ExecResult {
            stdout: "abc".into(),
            exit_code: 1,
            duration_ms: 7,
            ..ExecResult::default()
        });
        let mut text = Vec::new();
        write_line(&mut text, &line(&record)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_command_that_reads_like_lines_is_in_one_whatever_is_shown_of_it() {
        let forged = r#"{"audit":"call","session":"forged","outcome":"ok"}"#;
        let hostile = format!("# x\n{forged}\r\n\u{2028}{forged}\u{1b}[2J\u{85}\0\"}}\n");
        for commands in [AuditCommands::Full, AuditCommands::Digest, AuditCommands::None] {
            let written = written(commands, &hostile);
            assert_eq!(written.lines().count(), 1, "{written}");
            assert!(
                written.trim_end_matches('\n').chars().all(|c| !c.is_ascii_control()),
                "{written}"
            );
            let line: serde_json::Value = serde_json::from_str(&written).unwrap();
            assert_eq!(line["session"], "s1");
            let shown = line.get("command").and_then(|command| command.as_str());
            assert_eq!(shown, (commands == AuditCommands::Full).then_some(hostile.as_str()));
        }
    }

    #[test]
    fn the_command_is_shown_as_asked() {
        let digest = shown(AuditCommands::Digest);
        assert_eq!(digest["command_bytes"], 25);
        assert_eq!(digest["command_sha256"].as_str().unwrap().len(), 64);
        assert!(digest.get("command").is_none());
        assert_eq!(shown(AuditCommands::Full)["command"], "kubectl get pods # s3cret");
        let none = shown(AuditCommands::None);
        assert!(
            none.as_object()
                .unwrap()
                .keys()
                .all(|key| !key.starts_with("command_s") && key != "command")
        );
    }

    #[test]
    fn a_timeout_is_told_from_a_command_that_ends_with_the_same_code() {
        for (timed_out, exit_code, expected) in [
            (true, 124, "timed_out"),
            (true, 0, "timed_out"),
            (false, 124, "nonzero_exit"),
            (false, 0, "ok"),
        ] {
            let mut record = Record::call(Identity::default());
            record.finished(&ExecResult {
                exit_code,
                timed_out,
                ..ExecResult::default()
            });
            assert_eq!(record.outcome(), expected, "{timed_out} {exit_code}");
        }
    }

    #[test]
    fn it_says_who_where_and_what_came_of_it() {
        let line = shown(AuditCommands::None);
        assert_eq!(line["audit"], "call");
        assert_eq!(line["caller"]["user"], "alice");
        assert_eq!(line["session"], "s1");
        assert_eq!(
            (line["outcome"].as_str(), line["exit_code"].as_u64()),
            (Some("nonzero_exit"), Some(1))
        );
        assert_eq!(line["stdout_bytes"], 3);
    }
}
