//! What the operator counts, and what it tells of the instances.

mod at_scrape;

use std::time::{Duration, Instant};

use cli_mcp_api::v1alpha1::CliMcpInstance;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use self::at_scrape::AtScrape;
use crate::error::Error;

/// Upper bounds of a reconcile's duration, in seconds.
const DURATIONS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Why a reconcile failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailureLabels {
    /// `conflict`, `forbidden`, `api` (another answer of the API server), `transport` (none), `incomplete`, `generate`, `serialize`.
    error: &'static str,
}

/// What was done to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SandboxLabels {
    /// `created` and `deleted` for the pool, `ended` for a session that was over.
    action: &'static str,
}

/// A condition of an instance and one of the statuses that it may have.
#[derive(Clone, Debug, PartialEq, Eq, EncodeLabelSet)]
pub struct ConditionLabels {
    /// That of the instance.
    namespace: String,
    /// That of the instance.
    name: String,
    /// Type of the condition.
    r#type: String,
    /// `true`, `false` or `unknown`.
    status: &'static str,
}

/// Statuses as kube-state-metrics writes them.
const STATUSES: [&str; 3] = ["true", "false", "unknown"];

/// One series a status for every condition of an instance, of which the one that holds is 1.
fn series_of(instance: &CliMcpInstance) -> Vec<(ConditionLabels, i64)> {
    let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flat_map(|condition| STATUSES.map(|status| (condition, status)))
        .map(|(condition, status)| {
            let labels = ConditionLabels {
                namespace: namespace.clone(),
                name: name.clone(),
                r#type: condition.type_.clone(),
                status,
            };
            (labels, i64::from(condition.status.eq_ignore_ascii_case(status)))
        })
        .collect()
}

/// Counters of the operator. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    reconciles: Counter,
    failures: Family<FailureLabels, Counter>,
    durations: Histogram,
    writes: Counter,
    sandboxes: Family<SandboxLabels, Counter>,
    conditions: AtScrape<ConditionLabels>,
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
            conditions: AtScrape::default(),
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
        registry.register(
            "instance_condition",
            "1 for the status that a condition of an instance has, 0 for the others; told by the replica that leads",
            metrics.conditions.clone(),
        );
        registry.register("leader", "1 while this replica leads", metrics.leader.clone());
        metrics
    }

    /// Tells the conditions of these instances at every scrape, while this replica leads: of several replicas one tells
    /// them.
    pub fn tell_conditions(&self, instances: Vec<Store<CliMcpInstance>>) {
        let leader = self.leader.clone();
        self.conditions.read_from(move || {
            if leader.get() != 1 {
                return Vec::new();
            }
            let instances = instances.iter().flat_map(Store::state);
            instances.flat_map(|instance| series_of(&instance)).collect()
        });
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

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn scrape(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        let ours = |line: &&str| line.starts_with("cli_mcp_operator_instance_condition{");
        let mut lines: Vec<String> = text.lines().filter(ours).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn a_condition_is_told_by_the_leader_for_as_long_as_its_instance_lives() {
        let condition = |type_: &str, status: &str| {
            json!({"type": type_, "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let instance: CliMcpInstance = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"proxy": {"targets": [{"type": "kubernetes"}]}},
            "status": {"conditions": [condition("EgressEnforced", "False"), condition("Ready", "Unknown")]},
        }))
        .unwrap();
        let mut writer = Writer::new(());
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.tell_conditions(vec![writer.as_reader()]);
        writer.apply_watcher_event(&Event::Apply(instance.clone()));
        assert_eq!(scrape(&registry), Vec::<String>::new(), "it does not lead");

        metrics.leader.set(1);
        let line = |type_: &str, status: &str, value: u8| {
            format!(
                "cli_mcp_operator_instance_condition{{namespace=\"n\",name=\"a\",type=\"{type_}\",status=\"{status}\"}} {value}"
            )
        };
        assert_eq!(
            scrape(&registry),
            [
                line("EgressEnforced", "false", 1),
                line("EgressEnforced", "true", 0),
                line("EgressEnforced", "unknown", 0),
                line("Ready", "false", 0),
                line("Ready", "true", 0),
                line("Ready", "unknown", 1),
            ]
        );

        writer.apply_watcher_event(&Event::Delete(instance));
        assert_eq!(scrape(&registry), Vec::<String>::new(), "it is gone");
    }
}
