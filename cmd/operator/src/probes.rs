//! `/healthz` (the reconciles make progress) and `/readyz` (the caches are filled) for the kubelet.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cli_mcp_controllers::controller::Readiness;
use http::StatusCode;

/// The two probes. A replica that does not lead is ready: it can take over at once.
pub fn router(readiness: Readiness) -> Router {
    let health = readiness.clone();
    Router::new()
        .route(
            "/healthz",
            get(move || std::future::ready(answer(health.stuck().map_or(Ok(()), Err)))),
        )
        .route(
            "/readyz",
            get(move || {
                let synced = if readiness.synced() {
                    Ok(())
                } else {
                    Err("the caches are not filled yet".to_owned())
                };
                std::future::ready(answer(synced))
            }),
        )
}

fn answer(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
