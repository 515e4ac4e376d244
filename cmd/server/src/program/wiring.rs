//! A checked invocation becomes a running server: client, watches, listeners, and their end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cli_mcp_api::names;
use cli_mcp_serving::auth::Guard;
use cli_mcp_serving::auth::review::{KubernetesReview, Object, Right};
use cli_mcp_serving::listener::{self, Limits, Plain};
use cli_mcp_serving::metrics::register_runtime;
use cli_mcp_serving::tls::{Certificate, TlsAccept};
use cli_mcp_serving::{probes, shutdown};
use kube::Client;
use prometheus_client::registry::Registry;
use rmcp::ServiceExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Prepared;
use super::clients::Clients;
use crate::activity::Activity;
use crate::agent::AgentClient;
use crate::agent::dial::Dialer;
use crate::allocation::Allocator;
use crate::audit::{Audit, Destination};
use crate::call::Runner;
use crate::cancellation::{Canceller, RunningCalls};
use crate::cluster::Cluster;
use crate::config::Authorization;
use crate::config::settings::{HttpSettings, Settings, Transport};
use crate::health::ServerHealth;
use crate::http::{Surface, closing, router};
use crate::session::SessionId;
use crate::store::cache::SandboxCache;
use crate::telemetry::Telemetry;
use crate::tool::BashServer;
use crate::watch::{self, Gate, WatchClient};

/// How long new connections are still taken after SIGTERM: endpoints and load balancers learn of it later than the pod.
const LAME_DUCK: Duration = Duration::from_secs(3);

/// How long before connections are cut the calls that still run are stopped, so that their clients learn of it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long calls and ends of sessions whose client has left have to write their audit lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Runs until SIGTERM, SIGINT or, over stdio, the client's end.
pub(super) async fn serve(prepared: Prepared) -> anyhow::Result<()> {
    let Prepared {
        settings,
        certificate,
        hosts,
    } = prepared;
    let Clients { plain: client, watches } = Clients::of(&settings).await?;
    let stopping = shutdown::on_signal().context("signals cannot be handled")?;
    let ended = CancellationToken::new();
    let _end = ended.clone().drop_guard();

    let mut registry = Registry::with_prefix("cli_mcp_server");
    register_runtime(&mut registry, &Handle::current());
    let parts = Parts::build(&settings, &client, &watches, &mut registry, &ended);
    let health = Arc::new(ServerHealth::new(
        parts.cluster.clone(),
        parts.cache.clone(),
        stopping.clone(),
    ));
    let namespace = settings.template.namespace.clone();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), instance = %settings.template.instance, %namespace, "Starting");

    match &settings.transport {
        Transport::Stdio { session } => {
            let registry = Arc::new(registry);
            start_probes(&settings, registry, health, &ended).await?;
            let stop = CancellationToken::new();
            let audit = Audit::new(settings.audit_commands, Destination::Stderr);
            let server = parts.server(&settings, audit, session.clone(), stop.clone());
            stdio(server, stopping, stop, settings.drain_timeout).await
        }
        Transport::Http(http) => {
            let guard = (http.authorization == Authorization::Kubernetes).then(|| {
                let right = Right::Object(object(&settings));
                let review = KubernetesReview::new(client.clone(), right, remedy(&settings));
                Guard::new(review, &mut registry)
            });
            let registry = Arc::new(registry);
            start_probes(&settings, registry.clone(), health.clone(), &ended).await?;
            let stop = CancellationToken::new();
            let audit = Audit::new(settings.audit_commands, Destination::Stdout);
            let server = parts.server(&settings, audit, None, stop.clone());
            let surface = Surface {
                server: server.clone(),
                allocator: parts.allocator.clone(),
                audit,
                health,
                registry,
                hosts: hosts.context("no host policy")?,
                canceller: Canceller::new(parts.calls.clone(), parts.cluster.clone(), parts.cache.clone()),
            };
            let served = Served {
                router: closing(router(surface, guard), stopping.clone()),
                certificate,
                drain: settings.drain_timeout,
                stop,
            };
            served.run(http, stopping, &ended).await?;
            last_lines(&server).await;
            tracing::info!("Stopped");
            Ok(())
        }
    }
}

/// The object that callers need rights on.
fn object(settings: &Settings) -> Object {
    Object {
        group: "cli-mcp.redhat.com".to_owned(),
        resource: "climcpinstances".to_owned(),
        subresource: "mcp".to_owned(),
        namespace: settings.template.namespace.clone(),
        name: settings.template.instance.clone(),
    }
}

/// How a user of MCP gets the right.
fn remedy(settings: &Settings) -> String {
    let role = names::client(&settings.template.instance);
    format!(
        "an administrator must bind that user to the Role {role}, as the RoleBinding of this name does with the ServiceAccount of this name"
    )
}

/// What both transports share.
struct Parts {
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    agent: AgentClient,
    activity: Activity,
    allocator: Arc<Allocator>,
    telemetry: Telemetry,
    calls: RunningCalls,
}

impl Parts {
    fn build(
        settings: &Settings,
        client: &Client,
        watches: &WatchClient,
        registry: &mut Registry,
        ended: &CancellationToken,
    ) -> Self {
        let cache = Arc::new(SandboxCache::of_owner(
            settings.owner.as_ref().map(|owner| owner.uid.clone()),
        ));
        let telemetry = Telemetry::register(registry, cache.clone());
        let template = settings.template.clone();
        let cluster = Cluster::new(
            client.clone(),
            cache.clone(),
            template,
            settings.owner.clone(),
            settings.key.clone(),
        );
        let agent = AgentClient::new(Dialer::new(settings.connection, cluster.pods().clone()));
        let activity = Activity::new(cluster.clone());
        let gate = settings.gate.clone().map(|names| {
            Gate::watch(
                watches,
                &settings.template.namespace,
                &settings.template.instance,
                names,
                ended,
            )
        });
        let allocator = Arc::new(Allocator::new(
            cluster.clone(),
            cache.clone(),
            agent.clone(),
            settings.key.clone(),
            gate,
            settings.max_sessions,
            telemetry.clone(),
        ));
        let calls = RunningCalls::default();
        tokio::spawn(watch::sandboxes(
            watches.pods(&cluster),
            cluster.clone(),
            cache.clone(),
            agent.clone(),
            activity.clone(),
            calls.clone(),
            ended.clone(),
        ));
        Self {
            cluster,
            cache,
            agent,
            activity,
            allocator,
            telemetry,
            calls,
        }
    }

    fn server(
        &self,
        settings: &Settings,
        audit: Audit,
        session: Option<SessionId>,
        stop: CancellationToken,
    ) -> BashServer {
        let runner = Runner::new(
            self.allocator.clone(),
            self.cluster.clone(),
            self.cache.clone(),
            self.agent.clone(),
            settings.key.clone(),
            self.activity.clone(),
            self.telemetry.clone(),
        );
        BashServer::new(runner, audit, self.telemetry.clone(), session, stop, self.calls.clone())
    }
}

async fn start_probes(
    settings: &Settings,
    registry: Arc<Registry>,
    health: Arc<ServerHealth>,
    ended: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = settings.health_address else {
        return Ok(());
    };
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--health-address {address}"))?;
    tokio::spawn(probes::serve(listener, probes::router(registry, health), ended.clone()));
    Ok(())
}

/// Serves one client until it leaves or the process is told to end; then the calls in progress have `drain` to end.
async fn stdio(
    server: BashServer,
    stopping: CancellationToken,
    stop: CancellationToken,
    drain: Duration,
) -> anyhow::Result<()> {
    // A client that closes the stream before it says anything has nothing to be told.
    let Some(started) = stopping
        .run_until_cancelled(server.clone().serve(rmcp::transport::stdio()))
        .await
    else {
        return Ok(());
    };
    let running = match started {
        Ok(running) => running,
        Err(error) => {
            tracing::info!(%error, "No client on standard input");
            return Ok(());
        }
    };
    let end = running.cancellation_token();
    let waiting = running.waiting();
    tokio::pin!(waiting);
    let drained = async {
        stopping.cancelled().await;
        if tokio::time::timeout(drain.saturating_sub(LAST_WORDS), server.finish())
            .await
            .is_err()
        {
            stop.cancel();
            server.finish().await;
        }
    };
    tokio::select! {
        reason = &mut waiting => { reason.context("the stdio transport failed")?; }
        () = drained => {
            // What the calls answered is still written.
            end.cancel();
            waiting.await.context("the stdio transport failed")?;
        }
    }
    last_lines(&server).await;
    Ok(())
}

/// Waits for what goes on without its client: its calls are cancelled by now, each in a task of its own.
async fn last_lines(server: &BashServer) {
    if tokio::time::timeout(LAST_LINES, server.finish()).await.is_err() {
        tracing::warn!("Calls or ends of sessions did not end with their client: they have no audit line");
    }
}

/// The HTTP listener.
struct Served {
    router: axum::Router,
    certificate: Option<Arc<Certificate>>,
    drain: Duration,
    /// Cancelled shortly before connections are cut: what still runs ends with an error of its own.
    stop: CancellationToken,
}

impl Served {
    async fn run(
        self,
        http: &HttpSettings,
        stopping: CancellationToken,
        ended: &CancellationToken,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::bind(http.addresses.as_slice())
            .await
            .context("--address")?;
        let address = listener.local_addr().context("--address")?;
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        tracing::info!(%address, url = format!("{scheme}://{address}/mcp"), "Listening");
        let close = CancellationToken::new();
        let lame_duck = if address.ip().is_loopback() {
            Duration::ZERO
        } else {
            LAME_DUCK
        };
        let closing = close.clone();
        let (drain, stop) = (self.drain, self.stop.clone());
        tokio::spawn(async move {
            stopping.cancelled().await;
            tokio::time::sleep(lame_duck).await;
            closing.cancel();
            tokio::time::sleep(drain.saturating_sub(LAST_WORDS)).await;
            stop.cancel();
        });
        let limits = Limits {
            per_client: http.connections_per_client,
            ..Limits::default()
        };
        match self.certificate {
            None => listener::serve(listener, Plain, self.router, limits, close, self.drain).await,
            Some(certificate) => {
                let accept: TlsAccept = certificate.acceptor().context("TLS")?;
                tokio::spawn(certificate.follow(ended.clone()));
                listener::serve(listener, accept, self.router, limits, close, self.drain).await;
            }
        }
        Ok(())
    }
}
