//! Sandboxes that lost what they are found by. Whoever may write pods can take a label off one: then no policy holds it, no list
//! shows it, and it would outlive its session. What nobody can change on a pod tells that it is ours all the same: its name,
//! its ServiceAccount and when it was made.

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_sandbox::pod::is_sandbox_name;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Preconditions};
use kube::{Api, Client, ResourceExt};

/// A sandbox as the search finds it.
pub type Found = PartialObjectMeta<Pod>;

/// What a sandbox has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// One of the labels that policies and lists select by.
    Label,
    /// The reference to its instance.
    Owner,
}

/// What a pod with the ServiceAccount of the instance's sandboxes has lost, if it is one of them. One that is older than the
/// instance is an earlier one's, which may have been deleted without its children.
#[must_use]
pub fn lost(pod: &Found, instance: &CliMcpInstance) -> Option<Lost> {
    let name = instance.name_any();
    let is_older = pod.creation_timestamp() < instance.creation_timestamp();
    if is_older || !is_sandbox_name(&name, &pod.name_any()) {
        return None;
    }
    let labelled = labels::selector(&name, Component::Sandbox)
        .iter()
        .all(|(label, value)| pod.labels().get(label) == Some(value));
    let owned = pod
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == instance.uid().as_ref());
    match (labelled, owned) {
        (false, _) => Some(Lost::Label),
        (true, false) => Some(Lost::Owner),
        (true, true) => None,
    }
}

/// The instance's sandboxes that lost something.
///
/// # Errors
///
/// When the API server refuses or does not answer.
pub async fn find(client: &Client, namespace: &str, instance: &CliMcpInstance) -> kube::Result<Vec<(Found, Lost)>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let account = format!("spec.serviceAccountName={}", names::sandbox(&instance.name_any()));
    let pods = api.list_metadata(&ListParams::default().fields(&account)).await?.items;
    let found = pods
        .into_iter()
        .filter_map(|pod| lost(&pod, instance).map(|lost| (pod, lost)));
    Ok(found.collect())
}

/// Deletes that very pod; one that is gone, or changed since it was found, is no error.
///
/// # Errors
///
/// When the API server refuses or does not answer.
pub async fn delete(client: &Client, namespace: &str, pod: &Found) -> kube::Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: pod.uid(),
        resource_version: None,
    });
    match api.delete(&pod.name_any(), &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::fixtures;

    fn judged(change: impl Fn(&mut Value)) -> Option<Lost> {
        let mut pod = json!({"metadata": {"name": "cli-mcp-demo-0123456789abcdef", "creationTimestamp": "2026-01-02T00:00:00Z",
            "labels": labels::selector("demo", Component::Sandbox),
            "ownerReferences": [{"apiVersion": "v", "kind": "CliMcpInstance", "name": "demo", "uid": "uid-demo"}]}});
        change(&mut pod["metadata"]);
        let mut instance = fixtures::instance();
        instance.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        lost(&serde_json::from_value(pod).unwrap(), &instance)
    }

    #[test]
    fn a_sandbox_is_known_by_what_nobody_can_change() {
        assert_eq!(judged(|_| {}), None);
        for label in [labels::INSTANCE, labels::COMPONENT] {
            assert_eq!(judged(|pod| pod["labels"][label] = json!("other")), Some(Lost::Label));
        }
        assert_eq!(judged(|pod| pod["ownerReferences"] = json!([])), Some(Lost::Owner));
        let stripped = |pod: &mut Value| {
            pod["labels"] = json!({});
            pod["ownerReferences"] = json!([]);
        };
        assert_eq!(judged(stripped), Some(Lost::Label));
        for (field, other) in [
            ("name", "cli-mcp-demo-debug"),
            ("name", "cli-mcp-demo-proxy-0123456789-abcde"),
            ("creationTimestamp", "2025-12-31T00:00:00Z"),
        ] {
            let others = judged(|pod| {
                stripped(pod);
                pod[field] = json!(other);
            });
            assert_eq!(others, None, "{other}");
        }
    }
}
