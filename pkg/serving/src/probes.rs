//! The plain listener of a program: `/live` and `/health` for the kubelet, `/metrics` for Prometheus.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::{self, SharedRegistry};

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

/// Serves a router of probes until `shutdown` is cancelled; requests in progress are finished.
///
/// # Errors
///
/// When accepting connections fails for good.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
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
    use axum::body::{Body, to_bytes};
    use http::Request;
    use prometheus_client::registry::Registry;
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
}
