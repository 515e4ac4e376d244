//! Notices on the watch of pods that a sandbox is not its instance's any more by its labels, and was not deleted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::v1alpha1::CliMcpInstance;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use super::{fingerprint, labelled};

/// Instances that must look for sandboxes that lost a label. Clones are the same.
#[derive(Clone, Default)]
pub struct Departed(Arc<Mutex<HashSet<ObjectRef<CliMcpInstance>>>>);

impl Departed {
    fn insert(&self, instance: ObjectRef<CliMcpInstance>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(instance);
    }

    /// Whether one of this instance's departed since this was asked last.
    #[must_use]
    pub fn take(&self, instance: &ObjectRef<CliMcpInstance>) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(instance)
    }
}

/// What the watch showed of each pod last, by UID.
pub(super) struct Shown {
    pods: HashMap<String, (u64, Option<ObjectRef<CliMcpInstance>>)>,
    departed: Departed,
}

impl Shown {
    pub(super) fn new(departed: Departed) -> Self {
        Self {
            pods: HashMap::new(),
            departed,
        }
    }

    /// The instances that an event concerns.
    pub(super) fn affected(&mut self, event: &Event<Pod>) -> Vec<ObjectRef<CliMcpInstance>> {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let (print, instance) = (fingerprint(pod), sandbox_of(pod));
                let before = self
                    .pods
                    .insert(pod.uid().unwrap_or_default(), (print, instance.clone()));
                let (print_before, instance_before) = before.unzip();
                if print_before == Some(print) {
                    return Vec::new();
                }
                let left = instance_before
                    .flatten()
                    .filter(|before| Some(before) != instance.as_ref());
                self.depart(left, labelled(pod))
            }
            Event::Delete(pod) => {
                let before = self.pods.remove(&pod.uid().unwrap_or_default());
                // One that was deleted has been ending first. One that the watch does not select any more comes as deleted too
                // (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>).
                let left = before.and_then(|(_, instance)| instance);
                self.depart(
                    left.filter(|_| pod.metadata.deletion_timestamp.is_none()),
                    labelled(pod),
                )
            }
            // Who departs before the new list is in none of its events.
            Event::Init => {
                let before = self.pods.drain().filter_map(|(_, (_, instance))| instance);
                before.for_each(|instance| self.departed.insert(instance));
                Vec::new()
            }
            Event::InitDone => Vec::new(),
        }
    }

    fn depart(
        &self,
        left: Option<ObjectRef<CliMcpInstance>>,
        now: Option<ObjectRef<CliMcpInstance>>,
    ) -> Vec<ObjectRef<CliMcpInstance>> {
        if let Some(left) = left.clone() {
            self.departed.insert(left);
        }
        left.into_iter().chain(now).collect()
    }
}

/// The instance whose sandbox a pod is by its labels.
fn sandbox_of(pod: &Pod) -> Option<ObjectRef<CliMcpInstance>> {
    let component = pod.labels().get(labels::COMPONENT)?;
    (component == Component::Sandbox.as_str()).then(|| labelled(pod))?
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(labels: &Value, more: &Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": labels}});
        for (field, value) in more.as_object().unwrap() {
            pod["metadata"][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn instance(name: &str) -> ObjectRef<CliMcpInstance> {
        ObjectRef::new(name).within("ns")
    }

    #[test]
    fn whoever_loses_a_label_is_missed_and_who_ends_is_not() {
        let of = |instance: &str, component: &str| json!({labels::INSTANCE: instance, labels::COMPONENT: component});
        let (ours, none) = (of("demo", "sandbox"), json!({}));
        let ending = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (event, departs) in [
            (Event::Delete(pod(&ours, &none)), true),
            (Event::Delete(pod(&ours, &ending)), false),
            (Event::Apply(pod(&of("other", "sandbox"), &none)), true),
            (Event::Apply(pod(&of("demo", "proxy"), &none)), true),
            (Event::Apply(pod(&ours, &ending)), false),
            (Event::Init, true),
        ] {
            let departed = Departed::default();
            let mut shown = Shown::new(departed.clone());
            assert_eq!(shown.affected(&Event::Apply(pod(&ours, &none))), [instance("demo")]);
            assert!(!departed.take(&instance("demo")));
            let affected = shown.affected(&event);
            assert!(
                matches!(event, Event::Init) || affected.contains(&instance("demo")),
                "{event:?}"
            );
            assert_eq!(departed.take(&instance("demo")), departs, "{event:?}");
            assert!(!departed.take(&instance("demo")), "once");
        }
    }
}
