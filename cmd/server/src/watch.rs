//! The watches: this instance's sandboxes into the store, and what the gate looks at.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_api::labels;
use futures::{FutureExt, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::agent::AgentClient;
use crate::cancellation::{CallKey, RunningCalls};
use crate::cluster::Cluster;
use crate::config::settings::GateNames;
use crate::gate::{self, Closed, Snapshot};
use crate::store::cache::SandboxCache;

/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// How long a call waits for the gate's first LISTs after the server's start.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Feeds the store until `shutdown` is cancelled.
pub async fn sandboxes(
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    agent: AgentClient,
    activity: Activity,
    calls: RunningCalls,
    shutdown: CancellationToken,
) {
    let config = watcher::Config::default().labels(&cluster.selector());
    let events = watcher(cluster.pods().clone(), config)
        .default_backoff()
        .take_until(shutdown.cancelled_owned());
    let mut events = std::pin::pin!(events);
    let mut troubled = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                troubled = false;
                let cancelled = newly_cancelled(&cache, &event);
                cache.apply(&event);
                if let Some(call) = cancelled {
                    calls.cancel(&call);
                }
                if matches!(event, Event::Delete(_) | Event::InitDone) {
                    let living = cache.read(|store| store.uids());
                    agent.retain(|uid| living.contains(uid));
                    activity.retain(|uid| living.contains(uid));
                }
            }
            Err(error) if !troubled => {
                troubled = true;
                tracing::warn!(%error, "Watching the sandboxes failed, trying again");
            }
            Err(error) => tracing::debug!(%error, "Watching the sandboxes still fails"),
        }
    }
}

/// The call that another replica was told to stop. What stood there before a call began is not about that call.
fn newly_cancelled(cache: &SandboxCache, event: &Event<Pod>) -> Option<CallKey> {
    let Event::Apply(pod) = event else { return None };
    let sandbox = cache.read(|store| store.read(pod))?;
    let told = sandbox.cancelled?;
    let known = cache.read(|store| store.get(&sandbox.name).and_then(|known| known.cancelled.clone()));
    (known.as_ref() != Some(&told))
        .then(|| CallKey::from_annotation(&told))
        .flatten()
}

/// What the gate looks at, fed by watches.
pub struct Gate {
    names: GateNames,
    endpoint_slices: Store<EndpointSlice>,
    policies: Store<NetworkPolicy>,
    config_maps: Store<ConfigMap>,
}

impl Gate {
    /// Begins to watch.
    #[must_use]
    pub fn watch(
        client: &Client,
        namespace: &str,
        instance: &str,
        names: GateNames,
        shutdown: &CancellationToken,
    ) -> Self {
        let of_service = format!("{SERVICE_NAME}={}", names.proxy_service);
        let of_instance = format!("{}={instance}", labels::INSTANCE);
        // A Role can restrict list and watch to one name only in this form.
        let by_name = format!("metadata.name={}", names.config_map);
        let api = (client, namespace);
        Self {
            endpoint_slices: follow(api, watcher::Config::default().labels(&of_service), shutdown),
            policies: follow(api, watcher::Config::default().labels(&of_instance), shutdown),
            config_maps: follow(api, watcher::Config::default().fields(&by_name), shutdown),
            names,
        }
    }

    /// Whether a sandbox may be made now. Just after the server's start this waits for the first LISTs.
    ///
    /// # Errors
    ///
    /// The precondition that fails.
    pub async fn check(&self) -> Result<(), Closed> {
        let all = async {
            let _ = tokio::join!(
                self.endpoint_slices.wait_until_ready(),
                self.policies.wait_until_ready(),
                self.config_maps.wait_until_ready()
            );
        };
        // What is missing after this, the check below names.
        let _ = tokio::time::timeout(FIRST_LIST, all).await;
        gate::check(
            &self.names,
            &Snapshot {
                endpoint_slices: listed(&self.endpoint_slices),
                policies: listed(&self.policies),
                config_maps: listed(&self.config_maps),
            },
        )
    }
}

fn listed<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> Option<Vec<Arc<K>>> {
    store.wait_until_ready().now_or_never().map(|_| store.state())
}

fn follow<K>((client, namespace): (&Client, &str), config: watcher::Config, shutdown: &CancellationToken) -> Store<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let slim = watcher(api, config).map(|event| {
        event.map(|event| {
            event.modify(|object: &mut K| {
                object.managed_fields_mut().clear();
                object.annotations_mut().clear();
            })
        })
    });
    let events = reflector::reflector(writer, slim.default_backoff()).take_until(shutdown.clone().cancelled_owned());
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            if let Err(error) = event {
                tracing::warn!(kind = %K::kind(&()), %error, "Watching a precondition of sandboxes failed, trying again");
            }
        }
    });
    store
}
