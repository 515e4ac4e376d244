//! The text of `/metrics`: one registry a program, shown as OpenMetrics.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::runtime::{Handle, RuntimeMetrics};

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

/// Registers what the async runtime says of itself when it is asked.
pub fn register_runtime(registry: &mut Registry, runtime: &Handle) {
    registry.register_collector(Box::new(Runtime(runtime.metrics())));
}

#[derive(Debug)]
struct Runtime(RuntimeMetrics);

impl Collector for Runtime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let tasks = self.0.num_alive_tasks();
        let (name, help, value) = ("runtime_tasks", "Tasks of the async runtime that have not ended", tasks);
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

/// A filled registry; nothing can be registered any more.
pub type SharedRegistry = Arc<Registry>;

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[tokio::test]
    async fn a_task_is_counted_until_it_ends() {
        let mut registry = Registry::with_prefix("cli_mcp");
        register_runtime(&mut registry, &Handle::current());
        let tasks = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("cli_mcp_runtime_tasks "));
            line.unwrap().parse::<u64>().unwrap()
        };
        let before = tasks();
        let task = tokio::spawn(std::future::pending::<()>());
        assert_eq!(tasks(), before + 1);
        task.abort();
        let _ = task.await;
        assert_eq!(tasks(), before);
    }

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
