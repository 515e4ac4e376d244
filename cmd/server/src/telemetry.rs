//! The server's metrics: calls by outcome, time by stage, how sandboxes were got, sessions and pool.

use std::sync::Arc;
use std::time::Duration;

use cli_mcp_serving::metrics::LATENCY_BUCKETS;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::store::cache::SandboxCache;

/// Parts of a call. The time of each is counted however it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Stage {
    /// Finding the session's sandbox, claims and creates included.
    Lookup,
    /// Claiming a pod of the pool.
    Claim,
    /// Creating a pod.
    Create,
    /// Waiting for the sandbox to take a command, or until it is given up.
    Ready,
    /// The agent's work on a command that may have started.
    Exec,
}

/// How a sandbox was got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Claim {
    /// From the pool.
    Pool,
    /// Created: the pool had none.
    Created,
    /// Another server was first.
    Lost,
    /// Given up in favour of another server's.
    GivenUp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClaimLabels {
    result: Claim,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    /// `ok`, `nonzero_exit`, `timed_out`; or why there is no result: `bad_arguments`, `bad_session`, `at_capacity`, `gate_closed`,
    /// `egress_not_enforced`, `not_ready`, `cannot_start`, `busy`, `refused`, `cluster_error`, `lost`, `sandbox_died`, `cancelled`,
    /// `shutting_down`.
    outcome: &'static str,
}

/// The server's metrics. Clones share them.
#[derive(Clone)]
pub struct Telemetry {
    calls: Family<OutcomeLabels, Counter>,
    stages: Family<StageLabels, Histogram, fn() -> Histogram>,
    claims: Family<ClaimLabels, Counter>,
}

impl Telemetry {
    /// Registers the metrics; sessions and pool are read from the store when they are asked for.
    #[must_use]
    pub fn register(registry: &mut Registry, cache: Arc<SandboxCache>) -> Self {
        let telemetry = Self {
            calls: Family::default(),
            stages: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            claims: Family::default(),
        };
        registry.register("calls", "Tool calls by outcome", telemetry.calls.clone());
        registry.register(
            "stage_seconds",
            "Time that the stages of a call took",
            telemetry.stages.clone(),
        );
        registry.register(
            "sandbox_claims",
            "How sandboxes for new sessions were got",
            telemetry.claims.clone(),
        );
        registry.register_collector(Box::new(StoreCollector { cache }));
        telemetry
    }

    /// Counts a call.
    pub fn call(&self, outcome: &'static str) {
        self.calls.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// A stage begins.
    pub fn begin(&self, stage: Stage) -> StageTimer<'_> {
        StageTimer {
            telemetry: self,
            stage,
            began: Instant::now(),
        }
    }

    /// Counts the time of a stage.
    pub fn stage(&self, stage: Stage, took: Duration) {
        self.stages
            .get_or_create(&StageLabels { stage })
            .observe(took.as_secs_f64());
    }

    /// Counts how a sandbox was got.
    pub fn claim(&self, result: Claim) {
        self.claims.get_or_create(&ClaimLabels { result }).inc();
    }
}

/// Counts the time of its stage when it is dropped: what fails, or is given up, took its time too.
#[must_use]
pub struct StageTimer<'a> {
    telemetry: &'a Telemetry,
    stage: Stage,
    began: Instant,
}

impl Drop for StageTimer<'_> {
    fn drop(&mut self) {
        self.telemetry.stage(self.stage, self.began.elapsed());
    }
}

#[derive(Debug)]
struct StoreCollector {
    cache: Arc<SandboxCache>,
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (sessions, pool) = self.cache.read(|store| (store.sessions(), store.ready_pool()));
        for (name, help, value) in [
            ("sessions", "Sessions that have a sandbox", sessions),
            ("pool_ready", "Ready sandboxes of the pool", pool),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
