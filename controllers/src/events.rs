//! Events of an instance: on transitions, never on each reconcile.

use cli_mcp_api::conditions;
use cli_mcp_api::v1alpha1::{CliMcpInstance, CliMcpInstanceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::Resource;
use kube::runtime::events::{Event, EventType};

use crate::context::Context;
use crate::validate::Validated;

/// What to tell about the change from one status to the next.
#[must_use]
pub fn of_transition(
    before: Option<&CliMcpInstanceStatus>,
    after: &CliMcpInstanceStatus,
    validated: &Validated,
) -> Vec<Event> {
    let mut events = Vec::new();
    for type_ in [conditions::READY, conditions::EGRESS_ENFORCED] {
        let find = |status: &CliMcpInstanceStatus| -> Option<Condition> {
            status
                .conditions
                .iter()
                .find(|condition| condition.type_ == type_)
                .cloned()
        };
        let (old, Some(new)) = (before.and_then(find), find(after)) else {
            continue;
        };
        let same = old
            .as_ref()
            .is_some_and(|old| old.status == new.status && old.reason == new.reason);
        // Unknown is not news.
        if same || new.status == "Unknown" {
            continue;
        }
        let well = new.status == "True";
        events.push(Event {
            type_: if well { EventType::Normal } else { EventType::Warning },
            reason: if well { type_.to_owned() } else { new.reason.clone() },
            note: Some(bounded(new.message)),
            action: "Reconcile".to_owned(),
            secondary: None,
        });
    }
    let new_spec = before.and_then(|status| status.observed_generation) != after.observed_generation;
    if new_spec && !validated.reserved_env.is_empty() {
        events.push(Event {
            type_: EventType::Warning,
            reason: "ReservedEnvIgnored".to_owned(),
            note: Some(bounded(format!(
                "spec.sandbox.env: {} is set by the sandbox itself and ignored: remove it",
                validated.reserved_env.join(", ")
            ))),
            action: "Reconcile".to_owned(),
            secondary: None,
        });
    }
    events
}

/// The note of an event has at most 1,024 bytes
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/>).
fn bounded(text: String) -> String {
    const LONGEST: usize = 1000;
    match text.char_indices().find(|(at, _)| *at >= LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Publishes events. A failure is logged: an event is no reason to repeat a reconcile.
pub async fn publish(context: &Context, instance: &CliMcpInstance, events: Vec<Event>) {
    let reference = instance.object_ref(&());
    for event in events {
        if let Err(error) = context.recorder.publish(&event, &reference).await {
            tracing::warn!(reason = event.reason, %error, "Failed to publish an event");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::fixtures;

    fn status(generation: i64, ready: &str, reason: &str) -> CliMcpInstanceStatus {
        let condition = |type_: &str, status: &str, reason: &str| -> Value {
            json!({"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        serde_json::from_value(json!({"observedGeneration": generation, "conditions": [
            condition("Ready", ready, reason), condition("EgressEnforced", "Unknown", "NoSandboxYet")]}))
        .unwrap()
    }

    fn reasons(before: Option<&CliMcpInstanceStatus>, after: &CliMcpInstanceStatus, env: Value) -> Vec<String> {
        let mut instance = fixtures::instance();
        instance.spec.sandbox.env = serde_json::from_value(env).unwrap();
        let validated = fixtures::validated(&instance, &fixtures::observed());
        of_transition(before, after, &validated)
            .into_iter()
            .map(|event| event.reason)
            .collect()
    }

    #[test]
    fn an_event_marks_a_transition_and_nothing_else() {
        let (broken, well) = (status(1, "False", "SecretsNotFound"), status(1, "True", "Available"));
        assert_eq!(reasons(None, &broken, json!([])), ["SecretsNotFound"]);
        assert_eq!(reasons(Some(&broken), &broken, json!([])), [] as [&str; 0]);
        assert_eq!(reasons(Some(&broken), &well, json!([])), ["Ready"]);
        assert_eq!(
            reasons(Some(&well), &status(1, "False", "EgressNotEnforced"), json!([])),
            ["EgressNotEnforced"]
        );
    }

    #[test]
    fn ignored_variables_are_told_once_a_spec() {
        let env = json!([{"name": "HTTPS_PROXY", "value": "http://x"}]);
        let (one, two) = (status(1, "True", "Available"), status(2, "True", "Available"));
        assert_eq!(reasons(Some(&one), &two, env.clone()), ["ReservedEnvIgnored"]);
        assert_eq!(reasons(Some(&two), &two, env), [] as [&str; 0]);
    }

    #[test]
    fn a_note_is_cut_between_characters() {
        assert!(bounded("é".repeat(1000)).len() <= 1024);
    }
}
