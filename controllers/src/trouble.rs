//! Why a pod does not run, in the words of the kubelet and the scheduler: the text of conditions.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodCondition};

/// Reasons of a waiting container that pass by themselves.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The phase of a pod; empty before it has one.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether a pod has ended for good.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

/// Whether a pod is ready and not on its way out.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Whether a pod has a node.
#[must_use]
pub fn is_scheduled(pod: &Pod) -> bool {
    condition(pod, "PodScheduled").is_some_and(|scheduled| scheduled.status == "True")
}

/// When a pod became not ready, as the kubelet reports it.
#[must_use]
pub fn unready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status != "True")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

/// When what an event tells was seen last.
#[must_use]
pub fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let told = series.or(event.event_time.as_ref()).map(|time| time.0);
    told.max(event.last_timestamp.as_ref().map(|time| time.0))
}

/// The latest warning among the events of a pod, for one whose status says nothing: what the kubelet fails at before it
/// makes a container (a volume, the network, a runtime) stands only there.
#[must_use]
pub fn latest_warning(events: &[Event]) -> Option<String> {
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    let latest = warnings.max_by_key(|event| last_seen(event))?;
    Some(joined(
        latest.reason.as_deref().unwrap_or("Warning"),
        latest.message.as_deref(),
    ))
}

/// What keeps a pod from running, as one phrase: the scheduler's message, a waiting container's reason and message,
/// how a container ended. `None` for a pod that runs, or is merely starting.
#[must_use]
pub fn of(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if has_ended(pod) {
        let ended = status.container_statuses.iter().flatten().find_map(ended);
        let own = status
            .reason
            .as_ref()
            .map(|reason| joined(reason, status.message.as_deref()));
        return Some(own.or(ended).unwrap_or_else(|| "the pod has ended".to_owned()));
    }
    let unschedulable = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .filter(|condition| condition.reason.as_deref() != Some("SchedulingGated"))
        .map(|condition| {
            joined(
                condition.reason.as_deref().unwrap_or("Unschedulable"),
                condition.message.as_deref(),
            )
        });
    unschedulable.or_else(|| status.container_statuses.iter().flatten().find_map(waiting))
}

fn waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
    // What the kubelet says of a crash loop is only how long it waits: how the container ended before is the reason.
    let before = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let message = match before {
        Some(ended) => Some(match ended.message.as_deref() {
            Some(message) => format!("exit code {}: {message}", ended.exit_code),
            None => format!("exit code {}", ended.exit_code),
        }),
        None => waiting.message.clone(),
    };
    Some(joined(reason, message.as_deref()))
}

fn ended(container: &ContainerStatus) -> Option<String> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or("Ended");
    Some(joined(
        &format!("{reason} with exit code {}", ended.exit_code),
        ended.message.as_deref(),
    ))
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// `reason: message`, on one line of bounded length.
fn joined(reason: &str, message: Option<&str>) -> String {
    const LONGEST: usize = 300;
    let message = message.map(|message| message.split_whitespace().collect::<Vec<_>>().join(" "));
    let text = match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn the_reason_is_the_pods_own() {
        let waiting = |reason: &str, message: &str| {
            pod(
                json!({"phase": "Pending", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]}),
            )
        };
        assert_eq!(
            of(&waiting("ImagePullBackOff", "Back-off pulling\n image")).unwrap(),
            "ImagePullBackOff: Back-off pulling image"
        );
        assert_eq!(of(&waiting("ContainerCreating", "")), None);
        let unschedulable = pod(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}));
        assert_eq!(of(&unschedulable).unwrap(), "Unschedulable: 0/1 nodes");
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "disk"}));
        assert_eq!(of(&evicted).unwrap(), "Evicted: disk");
    }

    #[test]
    fn a_crash_loop_tells_how_the_container_ended() {
        let crashing = pod(
            json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "lastState": {"terminated": {"exitCode": 2, "message": "error: --tls-cert-file: no such file"}}}]}),
        );
        assert_eq!(
            of(&crashing).unwrap(),
            "CrashLoopBackOff: exit code 2: error: --tls-cert-file: no such file"
        );
    }

    #[test]
    fn the_latest_warning_tells_what_the_status_does_not() {
        let event = |type_: &str, reason: &str, times: Value| -> Event {
            let mut event = json!({"metadata": {}, "involvedObject": {}, "type": type_, "reason": reason,
                "message": "no runtime for \"kata\""});
            event
                .as_object_mut()
                .unwrap()
                .extend(times.as_object().unwrap().clone());
            serde_json::from_value(event).unwrap()
        };
        let events = [
            event(
                "Warning",
                "FailedMount",
                json!({"lastTimestamp": "2026-01-01T00:00:09Z"}),
            ),
            event(
                "Warning",
                "FailedCreatePodSandBox",
                json!({"eventTime": "2026-01-01T00:00:01.000000Z",
                "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:10.000000Z"}}),
            ),
            event("Normal", "Scheduled", json!({"lastTimestamp": "2026-01-01T00:00:11Z"})),
        ];
        assert_eq!(
            latest_warning(&events).unwrap(),
            "FailedCreatePodSandBox: no runtime for \"kata\""
        );
        assert_eq!(latest_warning(&events[2..]), None);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "é".repeat(1000)}));
        assert!(of(&long).unwrap().chars().count() <= 301);
    }
}
