//! The text of `/metrics`: one registry a program, shown as OpenMetrics.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use prometheus_client::registry::Registry;

/// Media type of the OpenMetrics text format
/// (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md#overall-structure>).
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds, in seconds, that suit the latency of calls within a cluster: half a millisecond to five minutes.
pub const LATENCY_BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0, 300.0,
];

/// The answer to `GET /metrics`.
#[must_use]
pub fn response(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "Failed to encode the metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A filled registry; nothing can be registered any more.
pub type SharedRegistry = Arc<Registry>;

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn the_answer_is_openmetrics() {
        let mut registry = Registry::with_prefix("cli_mcp");
        let calls: Counter = Counter::default();
        registry.register("calls", "Calls", calls.clone());
        calls.inc();
        let response = response(&registry);
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[header::CONTENT_TYPE], OPENMETRICS);
    }
}
