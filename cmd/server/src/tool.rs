//! The MCP side: one tool, `bash`, over every revision of the protocol that the SDK serves. Whatever a model can correct
//! is a tool result, never a protocol error (contract, section 4).

mod arguments;
mod definition;
mod progress;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cli_mcp_sandbox::wire::ExecResult;
use http::request::Parts;
use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CallToolResult, ConstString, ContentBlock,
    CustomRequest, CustomResult, ErrorCode, ErrorData, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span, field, info_span};

use self::progress::Progress;
use crate::agent::Flight;
use crate::audit::{Audit, Identity, Record};
use crate::budget::Held;
use crate::call::{Runner, Trail};
use crate::cancellation::{CallKey, RunningCall, RunningCalls};
use crate::failure::Failure;
use crate::session::{SESSION_HEADER, SESSION_META, SessionId};
use crate::telemetry::Telemetry;
use crate::trace::TraceContext;

pub use self::definition::NAME;

/// Serves the tool. Clones share everything; nothing of a client outlives its request.
#[derive(Clone)]
pub struct BashServer {
    inner: Arc<Inner>,
}

struct Inner {
    runner: Runner,
    audit: Audit,
    telemetry: Telemetry,
    /// The session of stdio requests that name none.
    default_session: Option<SessionId>,
    /// Cancelled when calls must end because the process does.
    stop: CancellationToken,
    /// Calls and ends of sessions in progress; closed when no more calls are taken.
    running: TaskTracker,
    /// HTTP calls in progress, for clients that cancel one by a request of its own.
    calls: RunningCalls,
    tool: Tool,
}

impl BashServer {
    /// A server over a runner.
    #[must_use]
    pub fn new(
        runner: Runner,
        audit: Audit,
        telemetry: Telemetry,
        default_session: Option<SessionId>,
        stop: CancellationToken,
        calls: RunningCalls,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                runner,
                audit,
                telemetry,
                default_session,
                stop,
                running: TaskTracker::new(),
                calls,
                tool: definition::tool(),
            }),
        }
    }

    /// Takes no more calls, and waits until those in progress have ended.
    pub async fn finish(&self) {
        self.inner.running.close();
        self.inner.running.wait().await;
    }

    /// Tracks what [`Self::finish`] waits for: the calls, and what else must be whole before the process ends.
    #[must_use]
    pub fn running(&self) -> TaskTracker {
        self.inner.running.clone()
    }

    async fn bash(&self, params: CallToolRequestParams, context: RequestContext<RoleServer>) -> CallToolResult {
        let _running = self.inner.running.token();
        let started = Instant::now();
        let mut record = Record::call(caller(&context));
        // The caller's span is its parent, whatever span the library handles the request in.
        let span = info_span!(
            parent: None,
            "tools/call bash",
            otel.kind = "server",
            session = field::Empty,
            outcome = field::Empty,
            otel.status_code = field::Empty,
        );
        let trace = trace_of(context.extensions.get::<Parts>(), &context).enter(&span);
        record.traced(trace.trace_id());
        let call = self.execute(params, &context, trace, &mut record);
        let outcome = call.instrument(span.clone()).await;
        match &outcome {
            Ok(result) => record.finished(result),
            Err(failure) => record.failed(failure),
        }
        span.record("outcome", record.outcome());
        if outcome.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        drop(span);
        self.inner.telemetry.call(record.outcome());
        self.inner.audit.write(record, started.elapsed());
        match outcome {
            Ok(result) => to_tool_result(&result),
            Err(failure) => CallToolResult::error(vec![ContentBlock::text(failure.to_string())]),
        }
    }

    async fn execute(
        &self,
        params: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        trace: TraceContext,
        record: &mut Record,
    ) -> Result<ExecResult, Failure> {
        if self.inner.running.is_closed() {
            return Err(Failure::ShuttingDown);
        }
        let parts = context.extensions.get::<Parts>();
        let request = arguments::parse(params.arguments.unwrap_or_default())?;
        record.command(self.inner.audit.shown(&request.command));
        let session = self.session(parts, context)?;
        record.session(&session);
        Span::current().record("session", session.as_str());
        let held = parts.and_then(|parts| parts.extensions.get::<Held>().cloned());
        let flight = Flight::new(request, trace, held.unwrap_or_default());
        let mut progress = context
            .meta
            .get_progress_token()
            .map(|token| Progress::new(context.peer.clone(), token));
        let mut trail = Trail::default();
        let call = parts.map(|_| {
            let caller = caller(context).user;
            self.inner
                .calls
                .begin(CallKey::new(caller.as_deref(), &session, &context.id))
        });
        let outcome = tokio::select! {
            outcome = self.inner.runner.run(&session, &flight, progress.as_mut(), &mut trail) => outcome,
            () = cancelled(context, call.as_ref()) => Err(if flight.may_have_started() { Failure::Cancelled } else { Failure::CancelledUnsent }),
            () = self.inner.stop.cancelled() => Err(if flight.may_have_started() { Failure::Stopped } else { Failure::ShuttingDown }),
        };
        record.trail(&trail);
        outcome
    }

    /// The header first; `_meta` serves transports without headers. Two that differ are an error of the client's.
    fn session(&self, parts: Option<&Parts>, context: &RequestContext<RoleServer>) -> Result<SessionId, Failure> {
        let header = match parts {
            Some(parts) => one_header(parts)?,
            None => None,
        };
        let meta = match context.meta.0.get(SESSION_META) {
            None => None,
            Some(value) => Some(
                value
                    .as_str()
                    .ok_or(crate::session::InvalidSessionId)?
                    .parse::<SessionId>()?,
            ),
        };
        match (header, meta) {
            (Some(header), Some(meta)) if header != meta => Err(Failure::TwoSessions),
            (Some(session), _) | (None, Some(session)) => Ok(session),
            (None, None) => self.inner.default_session.clone().ok_or(Failure::NoSession),
        }
    }
}

/// Over stdio nobody says who calls.
fn caller(context: &RequestContext<RoleServer>) -> Identity {
    let parts = context.extensions.get::<Parts>();
    parts.map(|parts| Identity::of(&parts.extensions)).unwrap_or_default()
}

/// Waits until the client leaves, or cancels the call in one of the two ways.
async fn cancelled(context: &RequestContext<RoleServer>, call: Option<&RunningCall>) {
    match call {
        Some(call) => {
            tokio::select! {
                () = context.ct.cancelled() => {}
                () = call.cancelled() => {}
            }
        }
        None => context.ct.cancelled().await,
    }
}

fn one_header(parts: &Parts) -> Result<Option<SessionId>, Failure> {
    let mut found: Option<SessionId> = None;
    for value in parts.headers.get_all(SESSION_HEADER) {
        let session: SessionId = value.to_str().map_err(|_| crate::session::InvalidSessionId)?.parse()?;
        if found.as_ref().is_some_and(|other| *other != session) {
            return Err(Failure::TwoSessions);
        }
        found = Some(session);
    }
    Ok(found)
}

/// From the headers, else from `_meta`, where SEP-414 puts it for transports without headers.
fn trace_of(parts: Option<&Parts>, context: &RequestContext<RoleServer>) -> TraceContext {
    let headers = parts
        .map(|parts| TraceContext::from_headers(&parts.headers))
        .unwrap_or_default();
    if headers.is_empty() {
        TraceContext::new(context.meta.get_traceparent(), context.meta.get_tracestate())
    } else {
        headers
    }
}

fn to_tool_result(result: &ExecResult) -> CallToolResult {
    match serde_json::to_value(result) {
        Ok(value) if result.exit_code == 0 => CallToolResult::structured(value),
        Ok(value) => CallToolResult::structured_error(value),
        Err(error) => CallToolResult::error(vec![ContentBlock::text(format!("The result cannot be shown: {error}"))]),
    }
}

impl ServerHandler for BashServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new("cli-mcp-server", env!("CARGO_PKG_VERSION"))
                    .with_title("Sandboxed bash for Kubernetes"),
            )
            .with_instructions(definition::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.inner.tool.clone()]))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (name == NAME).then(|| self.inner.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != NAME {
            return Err(ErrorData::invalid_params(
                format!("Unknown tool {:?}: there is one, {NAME}", request.name),
                None,
            ));
        }
        Ok(self.bash(request, context).await.into())
    }

    /// A call that does not fit its schema is an unknown method to the library, which would leave its client without a reason.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method != CallToolRequestMethod::VALUE {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None));
        }
        let failure = arguments::misfit(request.params.as_ref());
        let mut record = Record::call(caller(&context));
        if let Ok(session) = self.session(context.extensions.get::<Parts>(), &context) {
            record.session(&session);
        }
        record.failed(&failure);
        self.inner.telemetry.call(record.outcome());
        self.inner.audit.write(record, Duration::ZERO);
        Err(ErrorData::invalid_params(failure.to_string(), None))
    }
}
