//! Counters of the operator.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Upper bounds of a reconcile's duration, in seconds.
const DURATIONS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Why a reconcile failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    error: &'static str,
}

/// What was done to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SandboxLabels {
    action: &'static str,
}

/// Counters of the operator. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    reconciles: Counter,
    failures: Family<FailureLabels, Counter>,
    durations: Histogram,
    writes: Counter,
    sandboxes: Family<SandboxLabels, Counter>,
    /// 1 while this replica leads.
    pub leader: Gauge,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Counter::default(),
            failures: Family::default(),
            durations: Histogram::new(DURATIONS),
            writes: Counter::default(),
            sandboxes: Family::default(),
            leader: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("cli_mcp_operator");
        registry.register("reconciles", "Reconciles of instances", metrics.reconciles.clone());
        registry.register(
            "reconcile_failures",
            "Reconciles that failed, by error",
            metrics.failures.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of a reconcile",
            Unit::Seconds,
            metrics.durations.clone(),
        );
        registry.register(
            "child_writes",
            "Writes of children that were sent",
            metrics.writes.clone(),
        );
        registry.register(
            "sandbox_changes",
            "Sandboxes created and deleted, by action",
            metrics.sandboxes.clone(),
        );
        registry.register("leader", "1 while this replica leads", metrics.leader.clone());
        metrics
    }

    /// Counts a reconcile; its duration is observed when the guard is dropped.
    #[must_use]
    pub fn reconcile(&self) -> Measured {
        self.reconciles.inc();
        Measured {
            since: Instant::now(),
            durations: self.durations.clone(),
        }
    }

    /// Counts a failure.
    pub fn failed(&self, error: &Error) {
        self.failures
            .get_or_create(&FailureLabels { error: error.label() })
            .inc();
    }

    /// Counts writes of children.
    pub fn wrote(&self, writes: usize) {
        self.writes.inc_by(u64::try_from(writes).unwrap_or(u64::MAX));
    }

    /// Counts a sandbox.
    pub fn sandbox(&self, action: &'static str) {
        self.sandboxes.get_or_create(&SandboxLabels { action }).inc();
    }
}

/// Observes the duration of a reconcile, however it ends.
pub struct Measured {
    since: Instant,
    durations: Histogram,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let elapsed: Duration = self.since.elapsed();
        self.durations.observe(elapsed.as_secs_f64());
    }
}
