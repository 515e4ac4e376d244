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
use crate::cancellation::{CancelsSeen, RunningCalls, Told};
use crate::cluster::Cluster;
use crate::config::settings::GateNames;
use crate::gate::{self, Closed, Snapshot};
use crate::store::cache::SandboxCache;

/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// How long a call waits for the gate's first LISTs after the server's start.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// A client for watches and the LISTs that they begin with: one that says nothing for too long is begun anew. Without
/// that, a request that is never answered would leave the store and the gate as they are, for ever and without a word.
#[derive(Clone)]
pub struct WatchClient(Client);

impl WatchClient {
    /// A client whose connections may be silent for so long, which must be longer than a watch in which nothing happens.
    ///
    /// # Errors
    ///
    /// When the configuration makes no client.
    pub fn new(mut config: kube::Config, silence: Duration) -> Result<Self, kube::Error> {
        config.read_timeout = Some(silence);
        Client::try_from(config).map(Self)
    }

    /// The pods of a cluster's namespace, to be watched.
    #[must_use]
    pub fn pods(&self, cluster: &Cluster) -> Api<Pod> {
        Api::namespaced(self.0.clone(), cluster.namespace())
    }
}

/// Feeds the store until `shutdown` is cancelled.
pub async fn sandboxes(
    pods: Api<Pod>,
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    agent: AgentClient,
    activity: Activity,
    calls: RunningCalls,
    shutdown: CancellationToken,
) {
    let config = watcher::Config::default().labels(&cluster.selector());
    let events = watcher(pods, config)
        .default_backoff()
        .take_until(shutdown.cancelled_owned());
    let mut events = std::pin::pin!(events);
    let (mut troubled, mut cancels) = (false, CancelsSeen::default());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                troubled = false;
                cache.apply(&event);
                if let Some(told) = newly_cancelled(&mut cancels, &cache, &event) {
                    calls.cancel_told(&told);
                }
                if matches!(event, Event::Delete(_) | Event::InitDone) {
                    let living = cache.read(|store| store.uids());
                    agent.retain(|uid| living.contains(uid));
                    activity.retain(|uid| living.contains(uid));
                    cancels.retain(|uid| living.contains(uid));
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

/// The call that another replica was told to stop.
fn newly_cancelled(seen: &mut CancelsSeen, cache: &SandboxCache, event: &Event<Pod>) -> Option<Told> {
    match event {
        // A watch that was broken tells in its next LIST.
        Event::Apply(pod) | Event::InitApply(pod) => seen.news(&cache.read(|store| store.read(pod))?),
        Event::InitDone => {
            seen.listed();
            None
        }
        Event::Init | Event::Delete(_) => None,
    }
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
        client: &WatchClient,
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

fn follow<K>(
    (client, namespace): (&WatchClient, &str),
    config: watcher::Config,
    shutdown: &CancellationToken,
) -> Store<K>
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
    let api: Api<K> = Api::namespaced(client.0.clone(), namespace);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::{Body, Bytes};
    use axum::response::{IntoResponse, Response};
    use serde_json::json;

    use super::*;

    /// An API server that never answers the first LIST nor the first watch.
    async fn api() -> kube::Config {
        let (lists, watches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let router = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let nth = if watch { &watches } else { &lists }.fetch_add(1, Ordering::SeqCst);
            async move {
                if nth == 0 {
                    std::future::pending::<()>().await;
                }
                if watch {
                    let added = json!({"type": "ADDED", "object": {"apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": {"name": "routes", "resourceVersion": "2"}}});
                    let event = Bytes::from(format!("{added}\n"));
                    let event = futures::stream::iter([Ok::<_, std::convert::Infallible>(event)]);
                    return Response::new(Body::from_stream(event.chain(futures::stream::pending())));
                }
                axum::Json(json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []}))
                    .into_response()
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        kube::Config::new(url.parse().unwrap())
    }

    #[tokio::test]
    async fn a_list_and_a_watch_that_are_never_answered_are_begun_anew() {
        let client = WatchClient::new(api().await, Duration::from_millis(200)).unwrap();
        let shutdown = CancellationToken::new();
        let store = follow::<ConfigMap>((&client, "ns"), watcher::Config::default(), &shutdown);
        let comes = async {
            store.wait_until_ready().await.unwrap();
            while store.state().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), comes)
            .await
            .expect("the watch waits for ever");
    }
}
