//! The port for the kubelet and Prometheus, apart from the one for sandboxes.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cli_mcp_serving::metrics::{SharedRegistry, response};
use tokio_util::sync::CancellationToken;

use crate::reload::ReloadStatus;

/// `/health`, `/healthz` and `/live`: 200 while the process works, with the error of the last reload in the body; the
/// earlier files are still served then, and a restart would only lose them. `/readyz`: 503 once the proxy drains.
pub fn router(registry: SharedRegistry, reload: Arc<ReloadStatus>, drain: CancellationToken) -> Router {
    let health = move || {
        let error = reload.error();
        async move {
            match error {
                None => json(StatusCode::OK, &serde_json::json!({"status": "ok"})),
                Some(error) => json(
                    StatusCode::OK,
                    &serde_json::json!({"status": "degraded", "reloadError": error}),
                ),
            }
        }
    };
    let ready = move || {
        let draining = drain.is_cancelled();
        async move {
            if draining {
                json(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &serde_json::json!({"status": "draining"}),
                )
            } else {
                json(StatusCode::OK, &serde_json::json!({"status": "ok"}))
            }
        }
    };
    Router::new()
        .route("/health", get(health.clone()))
        .route("/healthz", get(health.clone()))
        .route("/live", get(health.clone()))
        .route("/livez", get(health))
        .route("/readyz", get(ready.clone()))
        .route("/ready", get(ready))
        .route("/metrics", get(move || std::future::ready(response(&registry))))
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
