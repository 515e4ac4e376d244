//! `/healthz` (the reconciles make progress) and `/readyz` (the caches are filled) for the kubelet.

use std::time::Instant;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cli_mcp_controllers::controller::Readiness;
use http::StatusCode;

/// The two probes. A replica that does not lead is ready: it can take over at once.
pub fn router(readiness: Readiness) -> Router {
    let health = readiness.clone();
    of(move || health.stuck(Instant::now()), move || readiness.synced())
}

fn of(
    stuck: impl Fn() -> Option<String> + Clone + Send + Sync + 'static,
    synced: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> Router {
    let ready = move || {
        if synced() {
            Ok(())
        } else {
            Err("the caches are not filled yet".to_owned())
        }
    };
    Router::new()
        .route(
            "/healthz",
            get(move || std::future::ready(answer(stuck().map_or(Ok(()), Err)))),
        )
        .route("/readyz", get(move || std::future::ready(answer(ready()))))
}

fn answer(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn get_from(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 65536).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_reconcile_that_hangs_is_unhealthy_and_caches_that_fill_are_only_unready() {
        let starting = of(|| None, || false);
        assert_eq!(get_from(&starting, "/healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(get_from(&starting, "/readyz").await.0, 503);
        let hanging = of(|| Some("the reconcile of ns/a hangs".to_owned()), || true);
        let (status, body) = get_from(&hanging, "/healthz").await;
        assert!(status == 503 && body.contains("ns/a"), "{status} {body}");
        assert_eq!(get_from(&hanging, "/readyz").await.0, 200);
    }
}
