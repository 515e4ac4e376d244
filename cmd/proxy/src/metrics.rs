//! What the proxy counts. Labels are bounded: targets are those of the configuration, never what a client asked for.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use cli_mcp_serving::metrics::LATENCY_BUCKETS;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// `host:port` of the target; `none` for a CONNECT to anything else.
    pub target: String,
    /// `read`, `watch`, `write`, `connect` or `other`.
    pub verb: &'static str,
    /// `allow` or `deny`.
    pub decision: &'static str,
    /// `2xx` and so on; `none` when the connection ended before a response.
    pub code: &'static str,
}

/// Labels of a duration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DurationLabels {
    /// `host:port` of the target.
    pub target: String,
    /// `read` or `write`.
    pub verb: &'static str,
}

/// Labels of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReloadLabels {
    /// `success` or `failure`.
    pub result: &'static str,
}

/// Labels of a connection that was not served.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabels {
    /// `total` or `client`.
    pub limit: &'static str,
}

/// All metrics of the proxy.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    /// Established tunnels.
    pub tunnels: Gauge<i64, AtomicI64>,
    /// Requests in progress.
    pub streams: Gauge<i64, AtomicI64>,
    /// Reloads by result.
    pub reloads: Family<ReloadLabels, Counter>,
    /// Whether the last reload failed: 1 until the files are right again.
    pub reload_failing: Gauge<i64, AtomicI64>,
    /// Connections over a limit.
    pub over_limit: Family<LimitLabels, Counter>,
    /// Bytes that streams hold, of the memory budget.
    pub held: Gauge<i64, AtomicI64>,
    /// Streams that were ended because the memory budget was used up.
    pub over_memory: Counter,
}

impl Metrics {
    /// Makes and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            tunnels: Gauge::default(),
            streams: Gauge::default(),
            reloads: Family::default(),
            reload_failing: Gauge::default(),
            over_limit: Family::default(),
            held: Gauge::default(),
            over_memory: Counter::default(),
        };
        registry.register(
            "requests",
            "Requests by target, verb class, decision and status class",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "From a request's head to the last byte of its response, watches and logs left out",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register("open_tunnels", "Established tunnels", metrics.tunnels.clone());
        registry.register("open_streams", "Requests in progress", metrics.streams.clone());
        registry.register(
            "reloads",
            "Reloads of routes, kubeconfig and CA by result",
            metrics.reloads.clone(),
        );
        registry.register(
            "reload_failing",
            "1 while the files on disk cannot be served and the earlier ones still are",
            metrics.reload_failing.clone(),
        );
        registry.register(
            "connections_over_limit",
            "Connections refused because a limit was reached",
            metrics.over_limit.clone(),
        );
        registry.register_with_unit(
            "held",
            "What streams hold of the memory budget, the kernel's part included",
            Unit::Bytes,
            metrics.held.clone(),
        );
        registry.register(
            "streams_over_memory",
            "Streams ended because the memory budget was used up and their client held most of it",
            metrics.over_memory.clone(),
        );
        metrics
    }

    /// Counts a finished request. It has no duration when it lasted as long as its client wanted.
    pub fn count(&self, target: &str, verb: &'static str, allowed: bool, status: u16, duration: Option<Duration>) {
        let decision = if allowed { "allow" } else { "deny" };
        let labels = RequestLabels {
            target: target.to_owned(),
            verb,
            decision,
            code: code_class(status),
        };
        self.requests.get_or_create(&labels).inc();
        if let Some(duration) = duration
            && allowed
            && matches!(verb, "read" | "write")
        {
            let labels = DurationLabels {
                target: target.to_owned(),
                verb,
            };
            self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
        }
    }
}

/// One more on a gauge for as long as it lives.
#[derive(Debug)]
pub struct Open(Gauge<i64, AtomicI64>);

impl Open {
    /// Counts one more.
    #[must_use]
    pub fn new(gauge: &Gauge<i64, AtomicI64>) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The class of a verb, to bound the label.
#[must_use]
pub fn verb_class(method: &str, verb: &str) -> &'static str {
    match (verb, method) {
        ("watch", _) => "watch",
        ("get" | "list" | "head", _) | ("", "GET" | "HEAD") => "read",
        ("create" | "update" | "patch" | "delete" | "deletecollection" | "post" | "put", _)
        | ("", "POST" | "PUT" | "PATCH" | "DELETE") => "write",
        _ => "other",
    }
}

const fn code_class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => "none",
    }
}
