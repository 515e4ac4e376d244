//! The plain listener of a program: `/live` and `/health` for the kubelet, `/metrics` for Prometheus.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::listener::{self, Limits, Plain};
use crate::metrics::{self, SharedRegistry};

/// Whoever reaches this listener needs no token, and its connections are file descriptors of the program's real work. The
/// kubelet asks twice at one time, on a connection each; Prometheus keeps one between its scrapes, by default a minute apart.
const LIMITS: Limits = Limits {
    connections: 256,
    per_client: 16,
    handshake: Duration::from_secs(10),
    headers: Duration::from_secs(75),
    stall: Duration::from_secs(30),
};

/// How long requests in progress have to end: they take milliseconds, and the program's end waits for them.
const DRAIN: Duration = Duration::from_secs(2);

/// Whether a program can do its work right now.
pub trait Health: Send + Sync + 'static {
    /// The reason why it cannot, as one sentence for `kubectl describe`.
    fn check(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Always healthy: for programs that are well whenever they answer.
#[derive(Clone, Copy, Debug)]
pub struct AlwaysHealthy;

impl Health for AlwaysHealthy {
    async fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// `/live` (the process answers), `/health` (it can work: 200, or 503 with the reason) and `/metrics`.
pub fn router<H: Health>(registry: SharedRegistry, health: Arc<H>) -> Router {
    liveness(health).route(
        "/metrics",
        get(move || std::future::ready(metrics::response(&registry))),
    )
}

/// `/live` and `/health` alone, for a listener that guards its metrics.
pub fn liveness<H: Health>(health: Arc<H>) -> Router {
    Router::new().route("/live", get(|| std::future::ready(ok()))).route(
        "/health",
        get(move || {
            let health = health.clone();
            async move {
                match health.check().await {
                    Ok(()) => ok(),
                    Err(reason) => unavailable(&reason),
                }
            }
        }),
    )
}

/// Serves a router of probes until `shutdown` is cancelled; requests in progress have some seconds to be finished.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    listener::serve(listener, Plain, router, LIMITS, shutdown, DRAIN).await;
}

fn ok() -> Response {
    json(StatusCode::OK, &serde_json::json!({"status": "ok"}))
}

fn unavailable(reason: &str) -> Response {
    json(
        StatusCode::SERVICE_UNAVAILABLE,
        &serde_json::json!({"status": "unavailable", "error": reason}),
    )
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use axum::body::{Body, to_bytes};
    use http::Request;
    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::sync::Notify;
    use tower::ServiceExt;

    use super::*;

    struct Broken;

    impl Health for Broken {
        async fn check(&self) -> Result<(), String> {
            Err("the API server does not answer".to_owned())
        }
    }

    async fn get_from(router: Router, path: &str) -> (StatusCode, String) {
        let response = router
            .oneshot(Request::get(path).body(Body::empty()).unwrap())
            .await
            .unwrap();
        let status = response.status();
        (
            status,
            String::from_utf8(to_bytes(response.into_body(), 65536).await.unwrap().to_vec()).unwrap(),
        )
    }

    #[tokio::test]
    async fn health_says_why_and_live_stays() {
        let router = router(Arc::new(Registry::default()), Arc::new(Broken));
        let (status, body) = get_from(router.clone(), "/health").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("does not answer"), "{body}");
        assert_eq!(get_from(router.clone(), "/live").await.0, StatusCode::OK);
        let (status, body) = get_from(router, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn metrics_are_not_part_of_liveness() {
        let (status, _) = get_from(liveness(Arc::new(AlwaysHealthy)), "/metrics").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }

    async fn start(router: Router) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let serving = tokio::spawn(serve(listener, router, shutdown.clone()));
        (address, shutdown, serving)
    }

    async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Sends a request, and reads until its answer ends so.
    async fn ask(stream: &mut TcpStream, path: &str, end: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let read = stream.read_buf(&mut answer).await.unwrap();
            assert_ne!(read, 0, "it was closed: {}", String::from_utf8_lossy(&answer));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed_and_one_that_is_scraped_each_minute_is_kept() {
        let (address, _shutdown, _serving) =
            start(router(Arc::new(Registry::default()), Arc::new(AlwaysHealthy))).await;
        let mut kept = connect(Ipv4Addr::LOCALHOST, address).await;
        for _ in 0..3 {
            ask(&mut kept, "/metrics", "# EOF\n").await;
            // The paused clock goes on when nothing else can.
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let mut silent = connect(Ipv4Addr::LOCALHOST, address).await;
        for stream in [&mut silent, &mut kept] {
            let closed = tokio::time::timeout(Duration::from_secs(600), stream.read(&mut [0])).await;
            assert_eq!(closed.expect("it stays").unwrap_or(0), 0);
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_all_of_its_connections_keeps_no_other_out() {
        let (address, _shutdown, _serving) = start(liveness(Arc::new(AlwaysHealthy))).await;
        let (greedy, other) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
        let mut held = Vec::new();
        for _ in 0..LIMITS.per_client {
            held.push(connect(greedy, address).await);
        }
        let mut refused = connect(greedy, address).await;
        let closed = tokio::time::timeout(Duration::from_secs(60), refused.read(&mut [0])).await;
        assert_eq!(closed.expect("it stays").unwrap_or(0), 0);
        ask(&mut connect(other, address).await, "/live", "}").await;
    }

    #[tokio::test]
    async fn a_probe_in_progress_is_answered_before_the_listener_ends() {
        struct Slow(Arc<Notify>, Arc<Notify>);
        impl Health for Slow {
            async fn check(&self) -> Result<(), String> {
                self.0.notify_one();
                self.1.notified().await;
                Ok(())
            }
        }
        let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = Slow(asked.clone(), answer.clone());
        let (address, shutdown, serving) = start(liveness(Arc::new(slow))).await;
        let mut idle = connect(Ipv4Addr::LOCALHOST, address).await;
        ask(&mut idle, "/live", "}").await;
        let mut asking = connect(Ipv4Addr::LOCALHOST, address).await;
        let probe = tokio::spawn(async move { ask(&mut asking, "/health", "}").await });
        asked.notified().await;
        shutdown.cancel();
        assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0);
        answer.notify_one();
        probe.await.unwrap();
        serving.await.unwrap();
    }
}
