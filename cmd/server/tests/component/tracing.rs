//! Spans to a collector of OpenTelemetry, and the trace context of callers and sandboxes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, bash, structured};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<(HeaderMap, ExportTraceServiceRequest)>>>,
}

impl Collector {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/v1/traces", post(Self::take))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    async fn take(State(collector): State<Self>, headers: HeaderMap, body: Bytes) {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        collector.requests.lock().unwrap().push((headers, request));
    }

    /// The spans so far by name.
    fn spans(&self) -> BTreeMap<String, Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|(_, request)| &request.resource_spans);
        let spans = resources
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| &scope.spans);
        spans.map(|span| (span.name.clone(), span.clone())).collect()
    }
}

async fn stopped(mut server: Server) {
    server.terminate().await;
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_call_is_a_span_of_the_callers_trace_with_its_stages_below() {
    let (cluster, collector) = (Cluster::start().await, Collector::default());
    let endpoint = collector.start().await;
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=demo"),
    ];
    let mut server = Server::start_in(&cluster, &[LOCAL], &environment).await;
    let client = server.client_with("s1", &[("traceparent", CALLER)]).await;
    let seen = structured(&bash(&client, "traceparent").await)["stdout"]
        .as_str()
        .unwrap()
        .to_owned();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    assert_eq!(server.audit().await["trace_id"], trace);
    drop(client);
    stopped(server).await;

    let spans = collector.spans();
    let call = &spans["tools/call bash"];
    assert_eq!(hex::encode(&call.parent_span_id), "00f067aa0ba902b7");
    assert!(
        call.attributes.iter().any(|attribute| attribute.key == "session"),
        "{call:?}"
    );
    for stage in ["lookup", "create", "ready", "exec"] {
        assert_eq!(hex::encode(&spans[stage].trace_id), trace, "{stage}");
    }
    for stage in ["lookup", "ready", "exec"] {
        assert_eq!(spans[stage].parent_span_id, call.span_id, "{stage}");
    }
    assert_eq!(spans["create"].parent_span_id, spans["lookup"].span_id);
    assert_eq!(seen, format!("00-{trace}-{}-01", hex::encode(&spans["exec"].span_id)));

    let requests = collector.requests.lock().unwrap();
    let (headers, request) = &requests[0];
    assert_eq!(headers["x-tenant"], "demo");
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert!(
        format!("{:?}", resource.attributes).contains("cli-mcp-server"),
        "{resource:?}"
    );
}

#[tokio::test]
async fn what_the_caller_does_not_sample_is_not_sent() {
    let (cluster, collector) = (Cluster::start().await, Collector::default());
    let endpoint = collector.start().await;
    let server = Server::start_in(&cluster, &[LOCAL], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]).await;
    let unsampled = CALLER.replace("-01", "-00");
    let client = server.client_with("s1", &[("traceparent", &unsampled)]).await;
    let seen = structured(&bash(&client, "traceparent").await)["stdout"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        seen.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && seen.ends_with("-00"),
        "{seen}"
    );
    drop(client);
    stopped(server).await;
    assert!(collector.spans().is_empty());
}

#[tokio::test]
async fn a_collector_that_is_not_there_disturbs_no_call() {
    let cluster = Cluster::start().await;
    let nobody = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    let server = Server::start_in(&cluster, &[LOCAL], &nobody).await;
    let client = server.client("s1").await;
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    drop(client);
    stopped(server).await;
}
