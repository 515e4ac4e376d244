//! What the operator watches: one reflector a kind, each with its own back-off, so that one broken watch stalls no
//! other. Reconciles read from here; the API server sees no LIST after the start.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_api::{labels, names};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{ApiResource, DynamicObject, PartialObjectMeta, TypeMeta};
use kube::core::Resource;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::build::{ChildKind, is_auth_delegator};
use crate::controller::Scope;
use crate::difference::is_foreign;
use crate::trigger::Trigger;
use crate::trouble;

mod departed;

pub use departed::Departed;
use departed::Shown;

/// Selects every child that the operator makes.
const MANAGED: &str = "app.kubernetes.io/managed-by=cli-mcp-operator";

/// The reflectors of one scope: a namespace, or the whole cluster.
pub struct Caches {
    /// Instances.
    pub instances: Store<CliMcpInstance>,
    /// Children by kind.
    pub children: BTreeMap<ChildKind, Store<DynamicObject>>,
    /// Names and versions of Secrets; their contents are read one by one.
    pub secrets: Store<PartialObjectMeta<Secret>>,
    /// Pods of servers, proxies and sandboxes, without their spec.
    pub pods: Store<Pod>,
    /// Whose sandboxes left the labels by which `pods` are watched.
    pub departed: Departed,
    /// Addresses of proxies.
    pub endpoint_slices: Store<EndpointSlice>,
    /// The one shared binding.
    pub auth_delegator: Store<ClusterRoleBinding>,
    pending: Arc<AtomicUsize>,
}

impl Caches {
    /// Starts the watches of a scope on `tasks`. What changes asks for a reconcile on `trigger`.
    #[must_use]
    pub fn start(client: &Client, scope: &Scope, trigger: &Trigger, tasks: &mut JoinSet<()>) -> Self {
        let pending = Arc::new(AtomicUsize::new(0));
        let mut starter = Starter {
            client,
            scope,
            trigger,
            tasks,
            pending: pending.clone(),
        };
        let (instances, instances_writer) = reflector(());
        let instances: Store<CliMcpInstance> = instances;
        starter.spawn(
            instances_writer,
            scope.api(client),
            watcher::Config::default(),
            |instance: &CliMcpInstance| {
                instance_ref(instance.namespace(), &instance.name_any())
                    .into_iter()
                    .collect()
            },
        );
        let children = ChildKind::ALL
            .into_iter()
            .map(|kind| {
                let resource = kind.api_resource();
                let (store, writer) = reflector(resource.clone());
                let api = scope.dynamic_api(client, &resource);
                starter.children(writer, api, resource);
                (kind, store)
            })
            .collect();
        let (secrets, secrets_writer) = reflector(());
        let known = instances.clone();
        starter.spawn(
            secrets_writer,
            scope.api(client),
            watcher::Config::default(),
            move |secret: &PartialObjectMeta<Secret>| users_of_secret(&known, secret),
        );
        let (pods, pods_writer) = reflector(());
        let departed = Departed::default();
        starter.pods(pods_writer, departed.clone());
        let (endpoint_slices, slices_writer) = reflector(());
        starter.spawn(
            slices_writer,
            scope.api(client),
            watcher::Config::default().labels(MANAGED),
            |slice: &EndpointSlice| labelled(slice).into_iter().collect(),
        );
        let (auth_delegator, binding_writer) = reflector(());
        let known = instances.clone();
        starter.spawn(
            binding_writer,
            Api::all(client.clone()),
            watcher::Config::default().fields(&format!("metadata.name={}", names::AUTH_DELEGATOR_BINDING)),
            move |binding: &ClusterRoleBinding| keepers_of(binding, &known.state()),
        );
        Self {
            instances,
            children,
            secrets,
            pods,
            departed,
            endpoint_slices,
            auth_delegator,
            pending,
        }
    }

    /// Caches that hold these objects, for tests.
    #[cfg(test)]
    pub(crate) fn holding(
        instances: Vec<CliMcpInstance>,
        children: Vec<(ChildKind, Vec<DynamicObject>)>,
        secrets: Vec<PartialObjectMeta<Secret>>,
        pods: Vec<Pod>,
        endpoint_slices: Vec<EndpointSlice>,
        auth_delegator: Option<ClusterRoleBinding>,
    ) -> Self {
        fn filled<K>(dynamic_type: K::DynamicType, objects: Vec<K>) -> Store<K>
        where
            K: Resource + Clone + 'static,
            K::DynamicType: Eq + Hash + Clone,
        {
            let (store, mut writer) = reflector(dynamic_type);
            objects
                .into_iter()
                .for_each(|object| writer.apply_watcher_event(&watcher::Event::Apply(object)));
            store
        }
        Self {
            instances: filled((), instances),
            children: children
                .into_iter()
                .map(|(kind, list)| (kind, filled(kind.api_resource(), list)))
                .collect(),
            secrets: filled((), secrets),
            pods: filled((), pods),
            departed: Departed::default(),
            endpoint_slices: filled((), endpoint_slices),
            auth_delegator: filled((), auth_delegator.into_iter().collect()),
            pending: Arc::default(),
        }
    }

    /// Whether every watch has delivered its first list.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Pods of an instance.
    #[must_use]
    pub fn pods_of(&self, namespace: &str, instance: &str) -> Vec<Arc<Pod>> {
        self.pods.state_filter(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.labels().get(labels::INSTANCE).is_some_and(|name| name == instance)
        })
    }
}

fn reflector<K>(dynamic_type: K::DynamicType) -> (Store<K>, Writer<K>)
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let writer = Writer::new(dynamic_type);
    (writer.as_reader(), writer)
}

struct Starter<'a> {
    client: &'a Client,
    scope: &'a Scope,
    trigger: &'a Trigger,
    tasks: &'a mut JoinSet<()>,
    pending: Arc<AtomicUsize>,
}

impl Starter<'_> {
    fn spawn<K>(
        &mut self,
        writer: Writer<K>,
        api: Api<K>,
        config: watcher::Config,
        affected: impl Fn(&K) -> Vec<ObjectRef<CliMcpInstance>> + Send + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        let stream = watcher(api, config).modify(|object| object.managed_fields_mut().clear());
        self.run(writer, stream, move |event| match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) | watcher::Event::Delete(object) => {
                affected(object)
            }
            watcher::Event::Init | watcher::Event::InitDone => Vec::new(),
        });
    }

    fn children(&mut self, writer: Writer<DynamicObject>, api: Api<DynamicObject>, resource: ApiResource) {
        let stream =
            watcher(api, watcher::Config::default().labels(MANAGED)).modify(move |child| keep_child(child, &resource));
        self.run(writer, stream, |event| match event {
            watcher::Event::Apply(child) | watcher::Event::InitApply(child) | watcher::Event::Delete(child) => {
                owner(child).into_iter().collect()
            }
            watcher::Event::Init | watcher::Event::InitDone => Vec::new(),
        });
    }

    /// Pods change often. Only what a decision depends on asks for a reconcile: activity of a session does not.
    fn pods(&mut self, writer: Writer<Pod>, departed: Departed) {
        let config = watcher::Config::default().labels(&format!("{},{}", labels::INSTANCE, labels::COMPONENT));
        let stream = watcher(self.scope.api::<Pod>(self.client), config).modify(|pod| {
            pod.managed_fields_mut().clear();
            pod.spec = None;
        });
        let mut shown = Shown::new(departed);
        self.run(writer, stream, move |event| shown.affected(event));
    }

    fn run<K>(
        &mut self,
        mut writer: Writer<K>,
        stream: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
        mut affected: impl FnMut(&watcher::Event<K>) -> Vec<ObjectRef<CliMcpInstance>> + Send + 'static,
    ) where
        K: Resource + Clone + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        let pending = self.pending.clone();
        let trigger = self.trigger.clone();
        pending.fetch_add(1, Ordering::AcqRel);
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream.default_backoff());
            let mut first_list = true;
            while let Some(event) = stream.next().await {
                match event {
                    Ok(event) => {
                        writer.apply_watcher_event(&event);
                        if first_list && matches!(event, watcher::Event::InitDone) {
                            first_list = false;
                            pending.fetch_sub(1, Ordering::AcqRel);
                        }
                        affected(&event).into_iter().for_each(|instance| trigger.ask(instance));
                    }
                    Err(error) => {
                        tracing::warn!(kind = std::any::type_name::<K>(), %error, "Watch failed, starting it again");
                    }
                }
            }
        });
    }
}

/// What is kept of a child. An item of a list does not say its kind, as an object of a watch does: without it every child
/// would differ from what it should be. Of the managed fields only what others have set is kept: it is what apply must
/// take back.
pub(crate) fn keep_child(child: &mut DynamicObject, resource: &ApiResource) {
    child.types = Some(TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    });
    child.managed_fields_mut().retain(is_foreign);
}

fn instance_ref(namespace: Option<String>, name: &str) -> Option<ObjectRef<CliMcpInstance>> {
    Some(ObjectRef::new(name).within(&namespace?))
}

/// The instance that an object's labels name.
fn labelled(object: &impl ResourceExt) -> Option<ObjectRef<CliMcpInstance>> {
    instance_ref(object.namespace(), object.labels().get(labels::INSTANCE)?)
}

/// The instance that controls a child; by its label when somebody took the reference away.
fn owner(child: &DynamicObject) -> Option<ObjectRef<CliMcpInstance>> {
    child
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "CliMcpInstance" && owner.controller == Some(true))
        .and_then(|owner| instance_ref(child.namespace(), &owner.name))
        .or_else(|| labelled(child))
}

/// Who looks at the shared binding after a change: each instance would repair it, so one is enough. One of somebody else
/// concerns all.
fn keepers_of(binding: &ClusterRoleBinding, instances: &[Arc<CliMcpInstance>]) -> Vec<ObjectRef<CliMcpInstance>> {
    let live = instances
        .iter()
        .filter(|instance| instance.metadata.deletion_timestamp.is_none())
        .map(|instance| ObjectRef::from_obj(&**instance));
    if is_auth_delegator(binding) {
        live.take(1).collect()
    } else {
        live.collect()
    }
}

fn users_of_secret(
    instances: &Store<CliMcpInstance>,
    secret: &PartialObjectMeta<Secret>,
) -> Vec<ObjectRef<CliMcpInstance>> {
    let name = secret.name_any();
    instances
        .state_filter(|instance| instance.namespace() == secret.namespace() && secret_names(instance).contains(&name))
        .iter()
        .map(|instance| ObjectRef::from_obj(&**instance))
        .collect()
}

/// Names of the Secrets that an instance uses.
fn secret_names(instance: &CliMcpInstance) -> Vec<String> {
    let name = instance.name_any();
    let mut used = vec![names::proxy_ca(&name), names::hmac(&name), names::tls(&name)];
    used.extend(instance.kubeconfig_secret());
    used
}

/// Annotations of a pod that decisions depend on. Its `last-activity` only moves a time further away, and what servers
/// tell each other is theirs.
const DECISIVE: [&str; 5] = [
    labels::CREATED_AT,
    labels::SPEC_HASH,
    labels::MOUNTS_HASH,
    labels::INPUTS_HASH,
    labels::EGRESS,
];

/// What of a pod decisions depend on.
fn fingerprint(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    let annotations = pod.annotations();
    for key in DECISIVE {
        annotations.get(key).hash(&mut hasher);
    }
    pod.labels().hash(&mut hasher);
    pod.owner_references()
        .iter()
        .for_each(|owner| owner.uid.hash(&mut hasher));
    pod.metadata.deletion_timestamp.is_some().hash(&mut hasher);
    trouble::phase(pod).hash(&mut hasher);
    trouble::is_ready(pod).hash(&mut hasher);
    trouble::of(pod).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotation: (&str, &str), ready: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "annotations": {annotation.0: annotation.1}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn activity_of_a_session_asks_for_no_reconcile() {
        let before = fingerprint(&pod((labels::LAST_ACTIVITY, "2026-01-01T00:00:00Z"), "True"));
        assert_eq!(
            before,
            fingerprint(&pod((labels::LAST_ACTIVITY, "2026-01-01T00:00:15Z"), "True"))
        );
        assert_ne!(
            before,
            fingerprint(&pod((labels::LAST_ACTIVITY, "2026-01-01T00:00:00Z"), "False"))
        );
        assert_ne!(before, fingerprint(&pod((labels::SPEC_HASH, "1"), "True")));
    }

    #[test]
    fn one_instance_looks_after_the_shared_binding_and_all_hear_of_a_foreign_one() {
        let instances: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let mut instance = crate::validate::fixtures::instance();
                instance.metadata.name = Some(name.to_owned());
                Arc::new(instance)
            })
            .into();
        let binding = |role: &str| -> ClusterRoleBinding {
            serde_json::from_value(serde_json::json!({"metadata": {}, "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}}))
            .unwrap()
        };
        assert_eq!(keepers_of(&binding(names::AUTH_DELEGATOR_ROLE), &instances).len(), 1);
        assert_eq!(keepers_of(&binding("cluster-admin"), &instances).len(), 3);
    }

    #[test]
    fn a_child_leads_to_its_instance_also_without_its_reference() {
        let child = |metadata: serde_json::Value| {
            owner(&serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()).map(|found| found.name)
        };
        let reference = serde_json::json!([{"apiVersion": "cli-mcp.redhat.com/v1alpha1", "kind": "CliMcpInstance",
            "name": "a", "uid": "u", "controller": true}]);
        assert_eq!(
            child(serde_json::json!({"namespace": "ns", "name": "c", "ownerReferences": reference})),
            Some("a".to_owned())
        );
        assert_eq!(
            child(serde_json::json!({"namespace": "ns", "name": "c", "labels": {labels::INSTANCE: "b"}})),
            Some("b".to_owned())
        );
        assert_eq!(child(serde_json::json!({"namespace": "ns", "name": "c"})), None);
    }
}
