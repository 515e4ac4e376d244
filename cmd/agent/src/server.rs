//! Puts the parts together: listener, session, signals, egress check; and takes them down in order.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use cli_mcp_sandbox::token::TokenDigest;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::config::Settings;
use crate::connections::{Place, Places, Side};
use crate::crowd::Crowd;
use crate::egress::{self, Egress, EgressTargets};
use crate::http::Endpoints;
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::queue::Queue;
use crate::reaper::Reaper;
use crate::session::{Session, SessionSettings};
use crate::signals::Signals;
use crate::sys;

/// How long a connection may be idle, or take to send the head of a request. The server tries one that was idle for 5 s before
/// it trusts a command to it.
const IDLE: Duration = Duration::from_secs(300);
/// How long one may stay that has sent no valid token: a probe takes milliseconds.
const UNPROVEN: Duration = Duration::from_secs(30);
/// How long answers may take to go out at the end.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the last call and its processes may take to end.
const SESSION_END: Duration = Duration::from_secs(5);

/// One turn of the agent's on the processor: the least that the kernel grants.
const TURN: Duration = Duration::from_micros(100);

/// Serves until a signal ends it.
///
/// # Errors
///
/// When the port cannot be had, or the kernel refuses what the agent needs.
pub fn serve(settings: Settings) -> anyhow::Result<()> {
    let origin = Origin::of_agent(&settings.home);
    harden();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(run(settings, origin))
}

/// Makes this process what a sandbox cannot look into, and the one that its orphans come to.
fn harden() {
    sys::keep_inherited_descriptors();
    sys::return_big_buffers();
    sys::raise_descriptor_limit();
    for (what, result) in [
        ("dumpable", nix::sys::prctl::set_dumpable(false)),
        ("child subreaper", nix::sys::prctl::set_child_subreaper(true)),
        // Started through /proc/self/exe it would be shown as "exe".
        ("name", nix::sys::prctl::set_name(c"agent")),
    ] {
        if let Err(error) = result {
            tracing::warn!(what, %error, "Failed to set a process attribute");
        }
    }
    // Among hundreds of processes that want to run, the one that bounds their number must not come last.
    if let Err(error) = sys::ask_for_short_turns(TURN) {
        tracing::debug!(%error, "Short turns on the processor are not to be had");
    }
    if !sys::no_new_privileges() {
        tracing::info!("Commands are not kept from the agent's process by a filter: no_new_privs is not set");
    }
    // Only with the right to: without it the agent keeps the pod's score, and its children get a higher one.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-999");
}

async fn run(settings: Settings, origin: Origin) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let reaper = Reaper::default();
    let signals = Signals::take_over().context("signals cannot be taken over")?;
    tokio::spawn(signals.watch(reaper.clone(), shutdown.clone()));
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("--listen (SANDBOX_LISTEN) {} cannot be bound", settings.listen))?;
    let egress = match settings.egress_targets {
        Some((target, control)) => {
            let egress = Egress::required();
            tokio::spawn(egress::watch(egress.clone(), EgressTargets { target, control }));
            egress
        }
        None => Egress::disabled(),
    };
    let digest = |text: &Option<String>| text.as_deref().map(TokenDigest::from_hex).transpose();
    let metrics = Metrics::default();
    let queue = Queue::new(metrics.clone());
    let shell_alive = Arc::new(AtomicBool::new(false));
    let endpoints = Endpoints::new(
        digest(&settings.session_digest)?,
        digest(&settings.assign_digest)?,
        queue.clone(),
        egress.clone(),
        metrics.clone(),
        shell_alive.clone(),
    );
    let crowd = Crowd::new(settings.max_processes);
    if let Some(crowd) = crowd.clone() {
        tokio::spawn(crowd.watch(reaper.clone()));
    }
    let session_settings = SessionSettings {
        origin,
        crowd,
        output_limit: settings.output_limit,
        workspace: settings.home.clone(),
        egress,
    };
    let session = Session::new(session_settings, queue.clone(), reaper, metrics, shell_alive);
    let session = tokio::spawn(session.run(shutdown.clone()));
    tracing::info!(address = %listener.local_addr()?, version = env!("CARGO_PKG_VERSION"), "Serving");
    let connections = TaskTracker::new();
    accept(&listener, endpoints, &connections, &shutdown).await;
    drop(listener);
    queue.close();
    if timeout(SESSION_END, session).await.is_err() {
        tracing::warn!("The last call did not end in time");
    }
    connections.close();
    if timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::warn!("A client did not take its answer in time");
    }
    Ok(())
}

async fn accept(listener: &TcpListener, endpoints: Endpoints, connections: &TaskTracker, shutdown: &CancellationToken) {
    let places = Places::default();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (connection, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: others will be given back.
                tracing::warn!(%error, "Failed to accept a connection");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let side = connection
            .local_addr()
            .map_or(Side::Inside, |local| Side::of(peer, local));
        let Some(place) = places.take(side) else {
            tracing::warn!(?side, "Refused a connection: all places are taken");
            continue;
        };
        connections.spawn(serve_connection(connection, place, endpoints.clone(), shutdown.clone()));
    }
}

async fn serve_connection(connection: TcpStream, place: Place, endpoints: Endpoints, shutdown: CancellationToken) {
    // Without it the last piece of an answer may wait for an acknowledgement.
    let _ = connection.set_nodelay(true);
    let standing = place.standing.clone();
    let client = match Client::of(&connection, place.closing.clone()) {
        Ok(client) => client,
        Err(error) => {
            tracing::warn!(%error, "Failed to watch a connection");
            return;
        }
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(standing.clone());
        request.extensions_mut().insert(client.clone());
        let endpoints = endpoints.clone();
        async move { Ok::<_, Infallible>(endpoints.answer(request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(connection), service);
    let unproven = async {
        sleep(UNPROVEN).await;
        if place.standing.proven() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = place.closing.cancelled() => return,
        () = unproven => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "Connection ended");
    }
}
