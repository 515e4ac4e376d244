//! Spans to an OpenTelemetry collector, by OTLP over HTTP with protobuf, when the usual variables ask for it
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>), and the W3C trace context of callers and callees.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

/// How long the collector may take to answer, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer of a collector that is read.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How long the last spans may take at the end of the program.
const FLUSH: Duration = Duration::from_secs(2);

/// Spans of other crates are none of ours: a client's and a server's HTTP library have their own.
const TARGETS: &str = "cli_mcp_";

/// The variables contradict each other or name what is not there: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtlpError(String);

/// Sends spans until it is shut down.
pub struct Exporter {
    provider: SdkTracerProvider,
    program: &'static str,
}

impl Exporter {
    /// What the environment asks for; none without an endpoint, with `OTEL_SDK_DISABLED=true` and with
    /// `OTEL_TRACES_EXPORTER=none`. To be called within the runtime that will send.
    ///
    /// # Errors
    ///
    /// When a variable has a value that cannot be served.
    pub fn from_env(program: &'static str, version: &'static str) -> Result<Option<Self>, OtlpError> {
        if !wanted() {
            return Ok(None);
        }
        if let Some(protocol) = either("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            return Err(OtlpError(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}: only http/protobuf is served; set that, and an endpoint that takes it, usually on port 4318"
            )));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Sender::new()?)
            .build()
            .map_err(|error| OtlpError(format!("OTEL_EXPORTER_OTLP_ENDPOINT: {error}")))?;
        let mut resource = Resource::builder().with_attribute(KeyValue::new("service.version", version));
        if variable("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(program);
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        Ok(Some(Self { provider, program }))
    }

    /// The layer that turns this project's spans into OpenTelemetry's.
    #[must_use]
    pub fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(self.program))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(|metadata| {
                metadata.is_span() && metadata.target().starts_with(TARGETS)
            }))
            .boxed()
    }

    /// Sends what is left. Blocks for a moment, so to be called outside of the runtime, which must still run.
    pub fn shutdown(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH) {
            tracing::warn!(%error, "The last spans were not sent");
        }
    }
}

/// Makes a span the child of a caller's, given as `traceparent` and `tracestate`. To be called before the span is entered.
pub fn adopt(span: &Span, parent: Option<&str>, state: Option<&str>) {
    let Some(parent) = parent else { return };
    let mut carrier = HashMap::from([("traceparent".to_owned(), parent.to_owned())]);
    if let Some(state) = state {
        carrier.insert("tracestate".to_owned(), state.to_owned());
    }
    // Without an exporter there is nothing to adopt, and that is no error.
    let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier));
}

/// `traceparent` and `tracestate` for who is called within a span; none without an exporter.
#[must_use]
pub fn context(span: &Span) -> Option<(String, Option<String>)> {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    let state = carrier.remove("tracestate").filter(|state| !state.is_empty());
    Some((carrier.remove("traceparent")?, state))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The variable of this signal, else that of all signals.
fn either(suffix: &str) -> Option<String> {
    variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}"))
        .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{suffix}")))
}

fn wanted() -> bool {
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let none = variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    either("ENDPOINT").is_some() && !disabled && !none
}

/// The HTTP client of the exporter, which calls it from a thread of its own.
#[derive(Debug)]
struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

impl Sender {
    fn new() -> Result<Self, OtlpError> {
        let runtime = Handle::try_current().map_err(|error| OtlpError(error.to_string()))?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls()?)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            runtime,
        })
    }
}

/// The public roots, or those of `OTEL_EXPORTER_OTLP_CERTIFICATE`.
fn tls() -> Result<ClientConfig, OtlpError> {
    let mut roots = RootCertStore::empty();
    match either("CERTIFICATE").map(PathBuf::from) {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let refuse = |error: &dyn std::fmt::Display| {
                OtlpError(format!("OTEL_EXPORTER_OTLP_CERTIFICATE {}: {error}", file.display()))
            };
            let certificates = CertificateDer::pem_file_iter(&file).map_err(|error| refuse(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| refuse(&error))?;
                roots.add(certificate).map_err(|error| refuse(&error))?;
            }
            if roots.is_empty() {
                return Err(refuse(&"it holds no PEM certificate"));
            }
        }
    }
    Ok(ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let exchange = async move {
            let response = client.request(request.map(Full::new)).await?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        };
        // The exporter's thread has no runtime: the clock starts within this one.
        let bounded = async move { tokio::time::timeout(TIMEOUT, exchange).await };
        self.runtime.spawn(bounded).await??
    }
}
