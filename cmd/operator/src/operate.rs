//! `operator run`: puts client, fence, election, controllers and listeners together, and takes them down in order.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_controllers::controller::{Controller, WatchEnded};
use cli_mcp_controllers::error::text;
use cli_mcp_controllers::metrics::Metrics;
use cli_mcp_controllers::{Scope, Settings};
use cli_mcp_serving::metrics::register_runtime;
use cli_mcp_serving::{probes as listener, shutdown};
use kube::api::ListParams;
use kube::{Api, Client, Config};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api_server::{self, ApiServerError};
use crate::fence::{self, Fence};
use crate::invocation::Invocation;
use crate::lease::{Elector, Lost};
use crate::metrics::{self, MetricsError};
use crate::namespaces::{self, NamespacesError};
use crate::probes;

/// How long the reconciles in progress may take after SIGTERM. The pod's termination grace is longer.
const DRAIN: Duration = Duration::from_secs(20);

/// Longer than any watch is silent, so that only a dead connection is cut.
const READ_TIMEOUT: Duration = Duration::from_secs(330);

/// How the API server's audit log names the operator.
const USER_AGENT: &str = concat!("cli-mcp-operator/", env!("CARGO_PKG_VERSION"));

/// Why the operator stopped.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// No way to the cluster is configured.
    #[error("no cluster: {0}. In a pod its ServiceAccount is used, elsewhere the current context of the kubeconfig")]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// The client cannot be made.
    #[error("the client of the API server cannot be made: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The API server refuses what the operator needs.
    #[error("{0}")]
    Cluster(String),
    /// The API server's address is not known.
    #[error(transparent)]
    ApiServer(#[from] ApiServerError),
    /// An address is taken, or is not ours.
    #[error("--{flag}: cannot listen on {address}: {source}")]
    Listen {
        /// The flag.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The metrics cannot be served as the flags say.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be handled.
    #[error("signals cannot be handled: {0}")]
    Signals(#[source] std::io::Error),
    /// Another replica leads.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// A watch ended.
    #[error(transparent)]
    Watch(#[from] WatchEnded),
    /// `WATCH_NAMESPACE` cannot be followed.
    #[error(transparent)]
    Namespaces(#[from] NamespacesError),
}

/// Runs until SIGTERM, SIGINT, the loss of the Lease or the end of a watch.
///
/// # Errors
///
/// Why it could not start, or had to stop.
pub async fn operate(invocation: Invocation) -> Result<(), OperateError> {
    // Two providers in one process would make rustls ask which: it is told before anybody asks.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("A crypto provider is already installed");
    }
    let security = match &invocation.metrics {
        Some(exposure) => Some((exposure.address(), exposure.secure()?)),
        None => None,
    };
    let stop = shutdown::on_signal().map_err(OperateError::Signals)?;
    let mut config = Config::infer()
        .await
        .map_err(|error| OperateError::Config(Box::new(error)))?;
    config.read_timeout = Some(READ_TIMEOUT);
    config
        .headers
        .push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
    let own = invocation
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let scopes = namespaces::scopes(&invocation.watch, &own)?;
    let plain = Client::try_from(config.clone()).map_err(|error| OperateError::Client(Box::new(error)))?;
    let fence = if invocation.leader_elect {
        Fence::default()
    } else {
        Fence::open()
    };
    let fenced = fence::client(config, &fence).map_err(|error| OperateError::Client(Box::new(error)))?;

    find_definition(&plain, &scopes).await?;
    let settings = Settings {
        server_image: invocation.server_image.clone(),
        proxy_image: invocation.proxy_image.clone(),
        sandbox_image: invocation.sandbox_image.clone(),
        api_server: api_server::address(&plain).await?,
        openshift: is_openshift(&plain).await?,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        namespace = own,
        ?scopes,
        ?settings,
        "Starting operator"
    );

    let identity = invocation.pod_name.clone().unwrap_or_else(random_identity);
    let mut registry = Registry::default();
    register_runtime(
        registry.sub_registry_with_prefix("cli_mcp_operator"),
        &Handle::current(),
    );
    let counters = Metrics::register(&mut registry);
    let (controller, mut watches) =
        Controller::start(fenced, settings, scopes, counters.clone(), Some(identity.clone()));

    let mut listeners = JoinSet::new();
    let listeners_stop = CancellationToken::new();
    if let Some(address) = invocation.health {
        let socket = bind("health-probe-bind-address", address).await?;
        let router = probes::router(controller.readiness());
        listeners.spawn(listener::serve(socket, router, listeners_stop.clone()));
    }
    if let Some((address, security)) = security {
        let socket = bind("metrics-bind-address", address).await?;
        let serving = metrics::serve(socket, security, registry, plain.clone(), listeners_stop.clone());
        listeners.spawn(serving);
    }

    let stop = stop.child_token();
    let working = async {
        if invocation.leader_elect {
            let elector = Elector::new(plain, &own, names::LEADER_LEASE, identity, fence);
            lead(elector, controller, counters, &stop).await
        } else {
            counters.leader.set(1);
            work(controller, &stop).await;
            Ok(())
        }
    };
    let result = watching(working, watches.ended(), &stop).await;
    listeners_stop.cancel();
    listeners.shutdown().await;
    tracing::info!("Stopped");
    result
}

/// Works until the work is done. When a watch ends before that the work is told to stop: what it goes by grows old.
async fn watching(
    working: impl Future<Output = Result<(), OperateError>>,
    ended: impl Future<Output = WatchEnded>,
    stop: &CancellationToken,
) -> Result<(), OperateError> {
    tokio::pin!(working);
    let ended = tokio::select! {
        done = &mut working => return done,
        ended = ended => ended,
    };
    tracing::error!(%ended, "Stopping");
    stop.cancel();
    working.await.and(Err(ended.into()))
}

/// Leads, works while leading, and gives the Lease back after the last write.
async fn lead(
    mut elector: Elector,
    controller: Controller,
    counters: Metrics,
    stop: &CancellationToken,
) -> Result<(), OperateError> {
    if !elector.acquire(stop).await {
        return Ok(());
    }
    counters.leader.set(1);
    // The Lease is kept until the drain is over, not until the signal: nobody else writes while this replica does.
    let drained = CancellationToken::new();
    let mut lost = None;
    {
        let working = async {
            work(controller, stop).await;
            drained.cancel();
        };
        let keeping = elector.keep(&drained);
        tokio::pin!(working, keeping);
        tokio::select! {
            () = &mut working => {}
            kept = &mut keeping => lost = kept.err(),
        }
    }
    counters.leader.set(0);
    match lost {
        // Without drain: what is in progress can write no more.
        Some(lost) => Err(lost.into()),
        None => {
            elector.release().await;
            Ok(())
        }
    }
}

/// Reconciles until the signal, then for the drain at most.
async fn work(controller: Controller, stop: &CancellationToken) {
    let running = controller.run(stop.clone());
    tokio::pin!(running);
    tokio::select! {
        () = &mut running => return,
        () = stop.cancelled() => {}
    }
    if tokio::time::timeout(DRAIN, running).await.is_err() {
        tracing::warn!(after = ?DRAIN, "Reconciles did not finish in time and are cut off");
    }
}

async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, OperateError> {
    match TcpListener::bind(address).await {
        // A host without IPv6.
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            let address = SocketAddr::from(([0, 0, 0, 0], address.port()));
            TcpListener::bind(address)
                .await
                .map_err(|source| OperateError::Listen { flag, address, source })
        }
        bound => bound.map_err(|source| OperateError::Listen { flag, address, source }),
    }
}

/// The definition must be installed: an operator without it would look well and do nothing.
async fn find_definition(client: &Client, scopes: &[Scope]) -> Result<(), OperateError> {
    for scope in scopes {
        let api: Api<CliMcpInstance> = match scope {
            Scope::All => Api::all(client.clone()),
            Scope::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        };
        match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                return Err(OperateError::Cluster(
                    "the cluster has no CustomResourceDefinition climcpinstances.cli-mcp.redhat.com: install it with \
                     kubectl apply -k config/crd"
                        .to_owned(),
                ));
            }
            Err(error) => {
                return Err(OperateError::Cluster(format!(
                    "CliMcpInstances cannot be listed ({scope:?}): {}",
                    text(&error)
                )));
            }
        }
    }
    Ok(())
}

/// No answer is no "no": Services would lose the annotation by which OpenShift makes their certificates.
async fn is_openshift(client: &Client) -> Result<bool, OperateError> {
    let answer = client.list_api_groups().await.map_err(|error| {
        OperateError::Cluster(format!(
            "API groups, which tell OpenShift from plain Kubernetes, cannot be listed: {}",
            text(&error)
        ))
    })?;
    Ok(answer.groups.iter().any(|group| group.name == "config.openshift.io"))
}

/// Host name and a random suffix, as client-go has it.
fn random_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{:016x}", host.trim(), rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;

    use super::*;

    /// A client of an API server that gives every request this answer.
    fn answering(code: StatusCode, body: &'static str) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| {
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.as_bytes().to_vec()));
            std::future::ready(Ok::<_, Infallible>(response.unwrap()))
        });
        Client::new(service, "ns")
    }

    #[tokio::test]
    async fn a_cluster_is_no_plain_one_because_it_does_not_say_what_it_is() {
        let openshift = r#"{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "config.openshift.io", "versions": []}]}"#;
        let plain = r#"{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}"#;
        assert!(is_openshift(&answering(StatusCode::OK, openshift)).await.unwrap());
        assert!(!is_openshift(&answering(StatusCode::OK, plain)).await.unwrap());
        let error = is_openshift(&answering(StatusCode::INTERNAL_SERVER_ERROR, "{}")).await;
        assert!(error.unwrap_err().to_string().contains("API groups"));
    }

    #[tokio::test]
    async fn the_end_of_a_watch_stops_the_work_and_is_why_it_ended() {
        let stop = CancellationToken::new();
        let working = async {
            stop.cancelled().await;
            Ok(())
        };
        let ended = std::future::ready(WatchEnded("the test says so".to_owned()));
        let result = watching(working, ended, &stop).await;
        assert!(matches!(result, Err(OperateError::Watch(_))), "{result:?}");

        let stop = CancellationToken::new();
        let result = watching(async { Ok(()) }, std::future::pending(), &stop).await;
        assert!(result.is_ok() && !stop.is_cancelled());
    }
}
