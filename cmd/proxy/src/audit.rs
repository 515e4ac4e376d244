//! The audit line of every request (`proxy.md`, "Audit"). Its type has no place for a header, a query, a body or a
//! token.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::request_info::RequestInfo;

/// Where audit lines go: one call a line, without the newline.
pub type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// Lines on stdout, whole: the lock keeps them apart from log lines.
#[must_use]
pub fn stdout() -> Sink {
    Arc::new(|line| {
        let mut stdout = std::io::stdout().lock();
        if let Err(error) = writeln!(stdout, "{line}") {
            tracing::error!(%error, "Cannot write an audit line");
        }
    })
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It was sent upstream, or would have been.
    Allow,
    /// The proxy refused it.
    Deny,
}

/// One request, or one CONNECT that was refused.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it came.
    pub time: SystemTime,
    /// Address of the sandbox.
    pub client: IpAddr,
    /// `host:port` of the CONNECT.
    pub target: String,
    /// Method; `CONNECT` for a tunnel that was refused.
    pub method: String,
    /// Decoded path without query.
    pub path: String,
    /// What the API server takes it for.
    pub info: RequestInfo,
    /// What was decided.
    pub decision: Verdict,
    /// Why it was refused or failed; empty when all went well.
    pub reason: String,
    /// Status that the client got; 0 when the connection ended before one.
    pub status: u16,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the response's body.
    pub bytes_out: u64,
    /// From the request's head to the last byte of the response.
    pub duration: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    log: &'a str,
    #[serde(serialize_with = "rfc3339")]
    time: SystemTime,
    client: IpAddr,
    target: &'a str,
    method: &'a str,
    path: &'a str,
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    decision: Verdict,
    reason: &'a str,
    status: u16,
    bytes_in: u64,
    bytes_out: u64,
    duration_ms: f64,
}

fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let time = time::OffsetDateTime::from(*time);
    let text = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.millisecond()
    );
    serializer.serialize_str(&text)
}

/// The longest path or method that a line holds, in characters: the client chooses it.
const LONGEST: usize = 2048;

fn bounded(text: &str) -> &str {
    text.char_indices()
        .nth(LONGEST)
        .map_or(text, |(at, _)| text.get(..at).unwrap_or(text))
}

/// JSON in printable ASCII alone. JSON lets the rest stand as it is, but some readers of lines end one at U+0085 or
/// U+2028, terminals obey U+009B, and bidirectional marks show one name as another.
fn printable(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if matches!(character, ' '..='~') {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

impl Record {
    /// The line, JSON without newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let line = Line {
            log: "audit",
            time: self.time,
            client: self.client,
            target: bounded(&self.target),
            method: bounded(&self.method),
            path: bounded(&self.path),
            verb: bounded(&self.info.verb),
            group: bounded(&self.info.group),
            resource: bounded(&self.info.resource),
            subresource: bounded(&self.info.subresource),
            namespace: bounded(&self.info.namespace),
            name: bounded(&self.info.name),
            decision: self.decision,
            reason: bounded(&self.reason),
            status: self.status,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            duration_ms: (self.duration.as_secs_f64() * 1_000_000.0).round() / 1_000.0,
        };
        // A plain struct of strings and numbers always serialises.
        printable(&serde_json::to_string(&line).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_500),
            client: "10.0.0.9".parse().unwrap(),
            target: "api:443".into(),
            method: "GET".into(),
            path: "/api/v1/pods\u{1}\"".into(),
            info: RequestInfo {
                verb: "list".into(),
                ..RequestInfo::default()
            },
            decision: Verdict::Allow,
            reason: String::new(),
            status: 200,
            bytes_in: 0,
            bytes_out: 7,
            duration: Duration::from_micros(1_234),
        }
    }

    #[test]
    fn a_line_is_printable_ascii_and_says_the_same() {
        let text = "\u{1}\u{7f}\u{85}\u{9b}31m\u{2028}\u{202e}\u{e9}\u{1f600}\\\"";
        let record = Record {
            method: text.into(),
            reason: text.into(),
            ..record()
        };
        let line = record.to_line();
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["method"], &value["reason"]), (&text.into(), &text.into()));
    }

    #[test]
    fn a_line_has_exactly_the_fields_of_the_page() {
        let line = record().to_line();
        assert!(!line.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "bytesIn",
                "bytesOut",
                "client",
                "decision",
                "durationMs",
                "group",
                "log",
                "method",
                "name",
                "namespace",
                "path",
                "reason",
                "resource",
                "status",
                "subresource",
                "target",
                "time",
                "verb"
            ]
        );
        assert_eq!(value["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!(value["decision"], "allow");
        assert_eq!(value["durationMs"], 1.234);
    }

    #[test]
    fn a_client_cannot_blow_a_line_up() {
        let text = "é".repeat(10_000);
        assert_eq!(bounded(&text).chars().count(), LONGEST);
    }
}
