//! What `/metrics` shows. No label comes from a command, so nothing a command does can make more series.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// How a call ended, in few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// Status 0.
    Success,
    /// Another status.
    Failure,
    /// The shell ended with it.
    ShellEnded,
    /// Its time was up.
    TimedOut,
    /// Cancelled, or its client left.
    Cancelled,
    /// The sandbox had too many processes.
    Crowded,
    /// Never run: its client left while it waited.
    ClientLeft,
    /// Never run: too many waited, or too much.
    QueueFull,
    /// Never run: no shell could be had.
    NoShell,
    /// Never run: the network was not proven closed.
    EgressNotEnforced,
    /// Never run: the agent was going away.
    ShuttingDown,
}

impl CallOutcome {
    /// The word in logs and in the label `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::ShellEnded => "shell_ended",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Crowded => "too_many_processes",
            Self::ClientLeft => "client_left",
            Self::QueueFull => "queue_full",
            Self::NoShell => "no_shell",
            Self::EgressNotEnforced => "egress_not_enforced",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

impl EncodeLabelValue for CallOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    /// `success`, `failure`, `shell_ended`, `timed_out`, `cancelled`, `too_many_processes`; of calls that were never run
    /// `client_left`, `queue_full`, `no_shell`, `egress_not_enforced`, `shutting_down`.
    outcome: CallOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StreamLabels {
    /// `stdout` or `stderr`.
    stream: &'static str,
}

/// The agent's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    calls: Family<OutcomeLabels, Counter>,
    durations: Histogram,
    bytes: Family<StreamLabels, Counter>,
    resets: Counter,
    refused: Counter,
    waiting: Gauge<i64, AtomicI64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cli_mcp_agent");
        let calls = Family::<OutcomeLabels, Counter>::default();
        let bytes = Family::<StreamLabels, Counter>::default();
        let durations = Histogram::new(exponential_buckets(0.001, 4.0, 10));
        let (resets, refused, waiting) = (Counter::default(), Counter::default(), Gauge::default());
        registry.register("calls", "Calls, by outcome", calls.clone());
        registry.register_with_unit(
            "call_duration",
            "Time from start to end of a command",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register_with_unit("output", "What commands wrote, by stream", Unit::Bytes, bytes.clone());
        registry.register("shell_resets", "Shells that ended and were replaced", resets.clone());
        registry.register(
            "refused_calls",
            "Calls refused because the queue was full",
            refused.clone(),
        );
        registry.register("waiting_calls", "Calls that wait for the shell", waiting.clone());
        Self {
            registry: Arc::new(registry),
            calls,
            durations,
            bytes,
            resets,
            refused,
            waiting,
        }
    }
}

impl Metrics {
    /// A call ended; `bytes` are those of stdout and stderr.
    pub fn call(&self, outcome: CallOutcome, duration: Duration, bytes: (u64, u64)) {
        self.calls.get_or_create(&OutcomeLabels { outcome }).inc();
        self.durations.observe(duration.as_secs_f64());
        self.bytes
            .get_or_create(&StreamLabels { stream: "stdout" })
            .inc_by(bytes.0);
        self.bytes
            .get_or_create(&StreamLabels { stream: "stderr" })
            .inc_by(bytes.1);
    }

    /// A call was never run: it counts, and has its line in the log.
    pub fn not_run(&self, outcome: CallOutcome) {
        self.calls.get_or_create(&OutcomeLabels { outcome }).inc();
        if outcome == CallOutcome::QueueFull {
            self.refused.inc();
        }
        tracing::info!(outcome = outcome.as_str(), "Call not run");
    }

    /// A shell ended.
    pub fn reset(&self) {
        self.resets.inc();
    }

    /// The text that `/metrics` answers; `waiting` is the queue's length now.
    #[must_use]
    pub fn encode(&self, waiting: usize) -> String {
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_few_and_named() {
        let metrics = Metrics::default();
        metrics.call(CallOutcome::TimedOut, Duration::from_secs(1), (3, 4));
        metrics.reset();
        let text = metrics.encode(2);
        for line in [
            "cli_mcp_agent_calls_total{outcome=\"timed_out\"} 1",
            "cli_mcp_agent_output_bytes_total{stream=\"stderr\"} 4",
            "cli_mcp_agent_shell_resets_total 1",
            "cli_mcp_agent_waiting_calls 2",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
