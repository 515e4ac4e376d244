//! One sandbox as the server needs it, read from its pod: some hundred bytes in place of some kilobytes.

use std::net::IpAddr;
use std::sync::Arc;

use cli_mcp_api::labels;
use cli_mcp_sandbox::pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::cancellation::CANCELLED_ANNOTATION;
use crate::session::SessionId;

/// Annotation on a sandbox that is deleted on purpose, so that no replica reports its end as a loss.
pub const ENDED_ANNOTATION: &str = "cli-mcp.redhat.com/ended";

/// Annotation on a sandbox that was made because the session lost its earlier one: why. It stands until a result has told
/// the client, whichever replica that comes from.
pub const REPLACES_ANNOTATION: &str = "cli-mcp.redhat.com/replaces";

/// Where a sandbox is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running yet; the reason the kubelet or scheduler gives for that, if any.
    Starting(Option<String>),
    /// Its container runs.
    Running,
    /// Its container ended, or the pod failed; the reason.
    Dead(String),
    /// It is being deleted; the time when it should be gone.
    Terminating(Option<Timestamp>),
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The pod's resourceVersion, for a claim that must not overwrite another's.
    pub resource_version: String,
    /// Its session; none in the pool.
    pub session: Option<SessionId>,
    /// Whether it came from the pool rather than being created for the session.
    pub claimed: bool,
    /// Hash of the template it was built from.
    pub spec_hash: Option<String>,
    /// The pod's address, as soon as it has one.
    pub address: Option<IpAddr>,
    /// Where it is in its life.
    pub phase: Phase,
    /// Whether the kubelet found it ready.
    pub ready: bool,
    /// Whether a server found its network open. The mark stays: of one that is ready it says nothing.
    pub egress_open: bool,
    /// Whether its end was asked for by a client or by the server itself.
    pub ended: bool,
    /// Why the session lost its earlier sandbox, until its client was told.
    pub replaces: Option<String>,
    /// When its session was last active, as a replica wrote it.
    pub last_activity: Option<Timestamp>,
    /// The call that its client cancelled last, as [`CANCELLED_ANNOTATION`] says.
    pub cancelled: Option<String>,
}

impl Sandbox {
    /// Reads a pod. None for an object without name or UID, and for a label that is no session id.
    #[must_use]
    pub fn from_pod(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let name = metadata.name.clone()?;
        let instance = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(labels::INSTANCE))
            .cloned()
            .unwrap_or_default();
        let session = match metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(labels::SESSION_ID))
        {
            None => None,
            Some(text) => Some(text.parse::<SessionId>().ok()?),
        };
        let annotation = |key: &str| {
            metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(key))
                .cloned()
        };
        let status = pod.status.clone().unwrap_or_default();
        let claimed = session
            .as_ref()
            .is_some_and(|id| pod::session_pod_name(&instance, id.as_str()) != name);
        Some(Self {
            uid: metadata.uid.clone()?,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            claimed,
            session,
            spec_hash: annotation(labels::SPEC_HASH),
            address: status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()),
            phase: phase(metadata.deletion_timestamp.as_ref().map(|time| time.0), &status),
            ready: condition(&status, "Ready"),
            egress_open: annotation(labels::EGRESS).is_some_and(|value| value == labels::EGRESS_NOT_ENFORCED),
            ended: annotation(ENDED_ANNOTATION).is_some(),
            replaces: annotation(REPLACES_ANNOTATION),
            last_activity: annotation(labels::LAST_ACTIVITY).and_then(|at| at.parse().ok()),
            cancelled: annotation(CANCELLED_ANNOTATION),
            name,
        })
    }

    /// Whether a command may be sent to it, now or once it has started. One that is marked as ended may live on where its
    /// deletion failed: whoever uses it would lose it without a word.
    #[must_use]
    pub fn usable(&self) -> bool {
        !self.ended && matches!(self.phase, Phase::Starting(_) | Phase::Running)
    }

    /// Whether it runs and shows that the cluster's network does not hold it back.
    #[must_use]
    pub fn shows_open(&self) -> bool {
        self.egress_open && !self.ready && self.phase == Phase::Running
    }

    /// Whether the store has another state of this sandbox by now, or none.
    #[must_use]
    pub fn changed(&self, now: Option<&Arc<Self>>) -> bool {
        now.is_none_or(|now| now.uid != self.uid || now.resource_version != self.resource_version)
    }

    /// Why it is gone, for the session's next call.
    #[must_use]
    pub fn loss(&self) -> String {
        match &self.phase {
            Phase::Dead(reason) => reason.clone(),
            Phase::Terminating(_) => "its pod was deleted".to_owned(),
            Phase::Starting(_) | Phase::Running => "its pod disappeared".to_owned(),
        }
    }

    /// The pod's resourceVersion as a number, so that it can be compared
    /// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
    #[must_use]
    pub fn version(&self) -> Option<u128> {
        self.resource_version.parse().ok()
    }

    /// Whether this state is later than the other's. What is no number is taken as older, so that the watch always wins.
    #[must_use]
    pub fn newer_than(&self, other: &Self) -> bool {
        match (self.version(), other.version()) {
            (Some(mine), Some(theirs)) => mine > theirs,
            _ => false,
        }
    }
}

fn phase(deletion: Option<Timestamp>, status: &PodStatus) -> Phase {
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        return Phase::Dead(death(status));
    }
    if deletion.is_some() {
        return Phase::Terminating(deletion);
    }
    let container = container(status);
    if container
        .and_then(|container| container.state.as_ref())
        .is_some_and(|state| state.terminated.is_some())
    {
        return Phase::Dead(death(status));
    }
    if status.phase.as_deref() == Some("Running") {
        return Phase::Running;
    }
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let why = match waiting.and_then(|waiting| waiting.reason.clone().map(|reason| (reason, waiting.message.clone()))) {
        // What the kubelet reports of every start; it explains nothing.
        Some((reason, _)) if reason == "ContainerCreating" || reason == "PodInitializing" => None,
        Some((reason, Some(message))) => Some(format!("{reason}: {message}")),
        Some((reason, None)) => Some(reason),
        None => unschedulable(status),
    };
    Phase::Starting(why)
}

fn unschedulable(status: &PodStatus) -> Option<String> {
    let condition = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
    Some(format!(
        "{reason}: {}",
        condition.message.as_deref().unwrap_or("no node takes the pod")
    ))
}

/// Why a sandbox is dead, as far as its pod's status says. Of an eviction the kubelet may report the container's end before
/// the reason, and then knows it from the condition `DisruptionTarget`
/// (<https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions>) or not yet.
fn death(status: &PodStatus) -> String {
    let told = |reason: &str, message: Option<&str>| match message.map(str::trim) {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason.to_owned(),
    };
    if let Some(reason) = &status.reason {
        return told(reason, status.message.as_deref());
    }
    let mut conditions = status.conditions.iter().flatten();
    if let Some(target) = conditions.find(|c| c.type_ == "DisruptionTarget" && c.status == "True") {
        return told(
            target.reason.as_deref().unwrap_or("Disrupted"),
            target.message.as_deref(),
        );
    }
    let terminated = container(status).and_then(|container| container.state.as_ref()?.terminated.as_ref());
    match terminated {
        // The agent ends so when it is told to end: "Completed" would say that the session's work was done.
        Some(end) if end.exit_code == 0 => "it was told to end, and its pod does not say why".to_owned(),
        Some(end) => {
            let reason = end.reason.as_deref().unwrap_or("Terminated");
            format!("{reason}: its container ended with exit code {}", end.exit_code)
        }
        None => "its pod ended".to_owned(),
    }
}

fn container(status: &PodStatus) -> Option<&ContainerStatus> {
    status
        .container_statuses
        .iter()
        .flatten()
        .find(|container| container.name == pod::CONTAINER)
}

fn condition(status: &PodStatus, kind: &str) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use cli_mcp_sandbox::pod::CONTAINER;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::store::fixtures::pod;

    #[test]
    fn a_death_has_the_reason_that_the_status_gives_and_no_other() {
        let death = |status: serde_json::Value| {
            let mut dead = pod("p", "u", 1, Some("s1"));
            dead.status = Some(serde_json::from_value(status).unwrap());
            Sandbox::from_pod(&dead).unwrap().loss()
        };
        let ended = |reason: &str, code: i32| {
            json!([{"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"reason": reason, "exitCode": code}}}])
        };
        // The kubelet's reports of one eviction, in their order: the container's end, the condition, the phase.
        let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "too much disk "}]);
        for (status, expected) in [
            (
                json!({"phase": "Running", "containerStatuses": ended("Completed", 0)}),
                "it was told to end, and its pod does not say why",
            ),
            (
                json!({"phase": "Running", "containerStatuses": ended("Completed", 0), "conditions": condition}),
                "TerminationByKubelet: too much disk",
            ),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "too much disk ", "containerStatuses": ended("Completed", 0), "conditions": condition}),
                "Evicted: too much disk",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": ended("OOMKilled", 137)}),
                "OOMKilled: its container ended with exit code 137",
            ),
            (json!({"phase": "Succeeded"}), "its pod ended"),
        ] {
            assert_eq!(death(status.clone()), expected, "{status}");
        }
    }

    #[test]
    fn a_start_that_takes_long_has_the_reason_that_the_pod_gives() {
        let phase = |status: serde_json::Value| {
            let mut starting = pod("p", "u", 1, Some("s1"));
            starting.status = Some(serde_json::from_value(status).unwrap());
            Sandbox::from_pod(&starting).unwrap().phase
        };
        let waiting = |waiting: serde_json::Value| {
            json!({"phase": "Pending", "containerStatuses": [{"name": CONTAINER, "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": waiting}}]})
        };
        let scheduled = |condition: serde_json::Value| json!({"phase": "Pending", "conditions": [condition]});
        for (status, expected) in [
            (
                waiting(json!({"reason": "ErrImagePull", "message": "not found"})),
                Some("ErrImagePull: not found"),
            ),
            (waiting(json!({"reason": "CrashLoopBackOff"})), Some("CrashLoopBackOff")),
            // Of every start.
            (waiting(json!({"reason": "ContainerCreating"})), None),
            (waiting(json!({"reason": "PodInitializing"})), None),
            (
                scheduled(
                    json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "held"}),
                ),
                Some("SchedulingGated: held"),
            ),
            (
                scheduled(json!({"type": "PodScheduled", "status": "False"})),
                Some("Unschedulable: no node takes the pod"),
            ),
            (scheduled(json!({"type": "PodScheduled", "status": "True"})), None),
        ] {
            let expected = Phase::Starting(expected.map(str::to_owned));
            assert_eq!(phase(status.clone()), expected, "{status}");
        }
    }

    #[test]
    fn how_a_sandbox_went_is_told_where_its_status_does_not_say_it() {
        let mut going = pod("p", "u", 1, Some("s1"));
        assert_eq!(Sandbox::from_pod(&going).unwrap().loss(), "its pod disappeared");
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(Sandbox::from_pod(&going).unwrap().loss(), "its pod was deleted");
    }

    #[test]
    fn what_has_no_version_never_stands_against_the_watch() {
        let with = |version: &str| {
            let mut pod = pod("p", "u", 1, None);
            pod.metadata.resource_version = Some(version.to_owned());
            Sandbox::from_pod(&pod).unwrap()
        };
        assert!(with("10").newer_than(&with("9")), "as numbers");
        for (mine, theirs) in [("9", "10"), ("9", "9"), ("x", "9"), ("10", "x"), ("", "")] {
            assert!(!with(mine).newer_than(&with(theirs)), "{mine} {theirs}");
        }
    }
}
