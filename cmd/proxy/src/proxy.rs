//! What every connection shares: the current state, the audit, the metrics, and the end of it all.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::audit::{Record, Sink, Verdict};
use crate::exchange::Progress;
use crate::large_heads::LargeHeads;
use crate::memory::Memory;
use crate::metrics::{Metrics, verb_class};
use crate::request_info::RequestInfo;
use crate::socket;
use crate::state::State;

/// How long the parties to a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the CONNECT, and for the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, from its first byte; for the first request, from the handshake.
    pub head: Duration,
    /// Between requests of one tunnel. Never while a response is open.
    pub idle: Duration,
    /// Until an upstream begins to answer; not for watches and logs, which may stay silent.
    pub response: Duration,
    /// For which a client may take nothing while something waits for it.
    pub stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(120),
            // Beyond the 60 s after which an API server ends a request by itself.
            response: Duration::from_secs(90),
            stall: socket::STALL,
        }
    }
}

/// Shared by all connections.
pub struct Shared {
    /// Swapped by reloads; read once a request.
    pub state: ArcSwap<State>,
    /// Where audit lines go.
    pub audit: Sink,
    /// What is counted.
    pub metrics: Metrics,
    /// Cancelled when no new request is taken any more.
    pub drain: CancellationToken,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Places for large heads.
    pub large_heads: LargeHeads,
    /// The budget for what all streams hold.
    pub memory: Memory,
}

/// What will be the audit line of one request.
pub struct Entry<'a> {
    shared: &'a Shared,
    started: Instant,
    record: Record,
    metrics_target: &'a str,
    progress: Progress,
    written: bool,
}

impl<'a> Entry<'a> {
    /// Begins an entry for a request that has just come.
    #[must_use]
    pub fn begin(shared: &'a Shared, client: IpAddr, target: &str, metrics_target: &'a str, method: &str) -> Self {
        Self {
            shared,
            started: Instant::now(),
            metrics_target,
            progress: Progress::default(),
            written: false,
            record: Record {
                time: SystemTime::now(),
                client,
                target: target.to_owned(),
                method: method.to_owned(),
                path: String::new(),
                info: RequestInfo::default(),
                decision: Verdict::Allow,
                reason: String::new(),
                status: 0,
                bytes_in: 0,
                bytes_out: 0,
                duration: Duration::ZERO,
            },
        }
    }

    /// What the request is.
    pub fn describe(&mut self, path: String, info: RequestInfo) {
        self.record.path = path;
        self.record.info = info;
    }

    /// Where its exchange notes how far it has come.
    #[must_use]
    pub const fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    /// Ends it as refused by the proxy.
    pub fn deny(mut self, status: u16, reason: &str) {
        self.record.decision = Verdict::Deny;
        self.record.status = status;
        self.record.reason = reason.to_owned();
        self.write();
    }

    /// Ends it as let through, whatever came of it.
    pub fn allow(mut self, status: u16, reason: String) {
        self.record.status = status;
        self.record.reason = reason;
        self.write();
    }

    fn write(&mut self) {
        self.written = true;
        self.record.bytes_in = self.progress.bytes_in;
        self.record.bytes_out = self.progress.bytes_out;
        self.record.duration = self.started.elapsed();
        let record = &self.record;
        let verb = if record.method == "CONNECT" {
            "connect"
        } else {
            verb_class(&record.method, &record.info.verb)
        };
        let allowed = record.decision == Verdict::Allow;
        let duration = (!record.info.is_patient()).then_some(record.duration);
        self.shared
            .metrics
            .count(self.metrics_target, verb, allowed, record.status, duration);
        (self.shared.audit)(&record.to_line());
    }
}

impl Drop for Entry<'_> {
    /// A request that nobody ended has its line too: its task was dropped, or failed.
    fn drop(&mut self) {
        if self.written {
            return;
        }
        let reason = if std::thread::panicking() {
            "the proxy failed while the request was open"
        } else {
            "the proxy ended while the request was open"
        };
        self.record.status = self.progress.status;
        self.record.reason = reason.to_owned();
        self.write();
    }
}
