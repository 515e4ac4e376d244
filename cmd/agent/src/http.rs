//! The endpoints (contract, section 5): who may call, in which order what is wrong is answered, and the two forms of
//! `/exec`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cli_mcp_sandbox::token::TokenDigest;
use cli_mcp_sandbox::wire::{CancelResponse, ErrorBody, NDJSON};
use http::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use crate::egress::Egress;
use crate::metrics::Metrics;
use crate::queue::{Queue, Refusal, Ticket};
use crate::request::{self, MAX_BODY_BYTES};

/// Lines of a stream that wait for a client; more is not read from the command until it takes them.
const STREAM_LINES: usize = 32;
/// How long a client may take to send a body.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// Bytes of a body over the limit that are read and forgotten, so that a client hears why before it finds the door shut.
const FORGIVEN_BYTES: usize = 16 << 20;

/// What the endpoints know.
#[derive(Clone, Debug)]
pub struct Endpoints {
    session: Arc<Mutex<Option<TokenDigest>>>,
    /// None where the agent was started with a session token and cannot be assigned.
    assign: Option<TokenDigest>,
    started_with_session: bool,
    queue: Queue,
    egress: Egress,
    metrics: Metrics,
    shell_alive: Arc<AtomicBool>,
}

/// An answer's body: whole, or line by line.
#[derive(Debug)]
pub enum AnswerBody {
    /// All at once.
    Whole(Option<Bytes>),
    /// As output arrives; dropped early, it ends the call.
    Lines(mpsc::Receiver<Bytes>, Ticket),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Lines(lines, _) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Lines(..) => SizeHint::default(),
        }
    }
}

type Answer = Response<AnswerBody>;
/// An answer that ends a request before its work.
type Refused = Box<Answer>;

fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value).unwrap_or_default();
    whole(status, "application/json", Bytes::from(body))
}

fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(Some(body)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn error(status: StatusCode, text: impl Into<String>) -> Answer {
    json(status, &ErrorBody { error: text.into() })
}

fn refused(status: StatusCode, text: impl Into<String>) -> Refused {
    Box::new(error(status, text))
}

fn refusal(refusal: &Refusal) -> Answer {
    let status = match refusal {
        Refusal::Full => StatusCode::CONFLICT,
        Refusal::NoShell(_) | Refusal::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut answer = error(status, refusal.to_string());
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// The bearer token of a request: none, or one that is well formed.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    value
        .split(';')
        .next()
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

fn wants_lines(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            range
                .split(';')
                .next()
                .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case(NDJSON))
        })
}

impl Endpoints {
    /// Endpoints of an agent with these digests. `shell_alive` follows whether bash runs.
    #[must_use]
    pub fn new(
        session: Option<TokenDigest>,
        assign: Option<TokenDigest>,
        queue: Queue,
        egress: Egress,
        metrics: Metrics,
        shell_alive: Arc<AtomicBool>,
    ) -> Self {
        Self {
            started_with_session: session.is_some(),
            session: Arc::new(Mutex::new(session)),
            assign,
            queue,
            egress,
            metrics,
            shell_alive,
        }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let allowed = match request.uri().path() {
            "/exec" | "/assign" | "/cancel" => Method::POST,
            "/health" | "/metrics" => Method::GET,
            _ => {
                return error(
                    StatusCode::NOT_FOUND,
                    "no such endpoint: use /exec, /assign, /cancel, /health or /metrics",
                );
            }
        };
        if request.method() != allowed {
            let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed} here"));
            if let Ok(value) = HeaderValue::from_str(allowed.as_str()) {
                answer.headers_mut().insert(ALLOW, value);
            }
            return answer;
        }
        match request.uri().path() {
            "/health" => self.health(),
            "/metrics" => whole(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                Bytes::from(self.metrics.encode(self.queue.waiting())),
            ),
            "/exec" => self.exec(request).await,
            "/assign" => self.assign(request).await,
            _ => self.cancel(request).await,
        }
    }

    fn health(&self) -> Answer {
        if let Some(reason) = self.egress.refusal() {
            return error(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        if self.queue.closed() {
            return error(StatusCode::SERVICE_UNAVAILABLE, Refusal::ShuttingDown.to_string());
        }
        if !self.shell_alive.load(Ordering::Relaxed) {
            return error(StatusCode::SERVICE_UNAVAILABLE, "bash is not running");
        }
        let mut status = serde_json::json!({"status": "ok"});
        if self.egress.is_disabled() {
            status["egress_check"] = "Disabled".into();
        }
        json(StatusCode::OK, &status)
    }

    /// Checks the session's bearer token, in the contract's order.
    fn authorize(&self, headers: &HeaderMap) -> Result<(), Refused> {
        one_authorization(headers)?;
        let session = *self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = session else {
            return Err(refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "this sandbox has no session yet: POST /assign first",
            ));
        };
        authenticate(headers, &session)
    }

    async fn exec<B: Body<Data = Bytes> + Unpin>(&self, request: Request<B>) -> Answer {
        if let Err(answer) = self.authorize(request.headers()) {
            return *answer;
        }
        if let Some(reason) = self.egress.refusal() {
            return error(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        let lines = wants_lines(request.headers());
        let body = match json_body(request).await {
            Ok(body) => body,
            Err(answer) => return *answer,
        };
        let request = match request::exec_request(&body) {
            Ok(request) => request,
            Err(text) => return error(StatusCode::BAD_REQUEST, text),
        };
        drop(body);
        let timeout = request
            .timeout
            .unwrap_or(cli_mcp_sandbox::wire::DEFAULT_TIMEOUT_SECONDS);
        let (sender, receiver) = if lines {
            let (sender, receiver) = mpsc::channel(STREAM_LINES);
            (Some(sender), Some(receiver))
        } else {
            (None, None)
        };
        let (ticket, result) = match self.queue.add(request.command, timeout, sender) {
            Ok(added) => added,
            Err(reason) => {
                if reason == Refusal::Full {
                    self.metrics.refuse();
                }
                return refusal(&reason);
            }
        };
        match receiver {
            Some(receiver) => stream(receiver, ticket, result).await,
            None => {
                let answer = match result.await {
                    Ok(Ok(result)) => json(StatusCode::OK, &result),
                    Ok(Err(reason)) => refusal(&reason),
                    Err(_) => refusal(&Refusal::ShuttingDown),
                };
                drop(ticket);
                answer
            }
        }
    }

    async fn assign<B: Body<Data = Bytes> + Unpin>(&self, request: Request<B>) -> Answer {
        if let Err(answer) = one_authorization(request.headers()) {
            return *answer;
        }
        let already = || error(StatusCode::CONFLICT, "this sandbox has another session already");
        let Some(assign) = &self.assign else { return already() };
        if let Err(answer) = authenticate(request.headers(), assign) {
            return *answer;
        }
        let body = match json_body(request).await {
            Ok(body) => body,
            Err(answer) => return *answer,
        };
        let request = match request::assign_request(&body) {
            Ok(request) => request,
            Err(text) => return error(StatusCode::BAD_REQUEST, text),
        };
        if self.started_with_session {
            return error(
                StatusCode::CONFLICT,
                "this sandbox was started with its session and cannot be assigned",
            );
        }
        let digest = TokenDigest::of(request.token.as_bytes());
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match &*session {
            Some(current) if !current.same(&digest) => already(),
            Some(_) => json(StatusCode::OK, &serde_json::json!({"status": "assigned"})),
            None => {
                *session = Some(digest);
                tracing::info!("Assigned to a session");
                json(StatusCode::OK, &serde_json::json!({"status": "assigned"}))
            }
        }
    }

    async fn cancel<B: Body<Data = Bytes> + Unpin>(&self, request: Request<B>) -> Answer {
        if let Err(answer) = self.authorize(request.headers()) {
            return *answer;
        }
        match read_body(request.into_body()).await {
            Ok(body) if body.is_empty() => json(
                StatusCode::OK,
                &CancelResponse {
                    cancelled: self.queue.cancel_running(),
                },
            ),
            Ok(_) => error(StatusCode::BAD_REQUEST, "the body of /cancel must be empty"),
            Err(answer) => *answer,
        }
    }
}

/// The stream begins with the first line, so that a call that is refused meanwhile has its own status.
async fn stream(
    mut lines: mpsc::Receiver<Bytes>,
    ticket: Ticket,
    result: tokio::sync::oneshot::Receiver<Result<cli_mcp_sandbox::wire::ExecResult, Refusal>>,
) -> Answer {
    let mut first = Vec::new();
    if lines.recv_many(&mut first, 1).await == 0 {
        return match result.await {
            Ok(Err(reason)) => refusal(&reason),
            _ => refusal(&Refusal::ShuttingDown),
        };
    }
    let (sender, receiver) = mpsc::channel(STREAM_LINES);
    tokio::spawn(async move {
        first.reverse();
        loop {
            let next = match first.pop() {
                Some(line) => Some(line),
                None => tokio::select! {
                    line = lines.recv() => line,
                    () = sender.closed() => None,
                },
            };
            let Some(line) = next else { return };
            if sender.send(line).await.is_err() {
                return;
            }
        }
    });
    let mut answer = Response::new(AnswerBody::Lines(receiver, ticket));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    answer
}

fn one_authorization(headers: &HeaderMap) -> Result<(), Refused> {
    if headers.get_all(AUTHORIZATION).iter().count() > 1 {
        return Err(refused(StatusCode::BAD_REQUEST, "more than one Authorization header"));
    }
    Ok(())
}

fn authenticate(headers: &HeaderMap, expected: &TokenDigest) -> Result<(), Refused> {
    // An absent token is compared as well: the time says nothing.
    if expected.matches(bearer(headers).unwrap_or_default()) {
        return Ok(());
    }
    let mut answer = error(StatusCode::UNAUTHORIZED, "wrong or missing bearer token");
    answer
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Err(Box::new(answer))
}

async fn json_body<B: Body<Data = Bytes> + Unpin>(request: Request<B>) -> Result<Vec<u8>, Refused> {
    if !is_json(request.headers()) {
        return Err(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must have Content-Type: application/json",
        ));
    }
    read_body(request.into_body()).await
}

async fn read_body<B: Body<Data = Bytes> + Unpin>(mut body: B) -> Result<Vec<u8>, Refused> {
    let too_large = || {
        refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is over {MAX_BODY_BYTES} bytes; write long input to a file in pieces"),
        )
    };
    if body.size_hint().lower() > (MAX_BODY_BYTES + FORGIVEN_BYTES) as u64 {
        return Err(too_large());
    }
    let read = async {
        let mut bytes = Vec::new();
        let mut total = 0_usize;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(refused(StatusCode::BAD_REQUEST, "the body ended early"));
            };
            let Ok(data) = frame.into_data() else { continue };
            total += data.len();
            if total > MAX_BODY_BYTES + FORGIVEN_BYTES {
                return Err(too_large());
            }
            if total <= MAX_BODY_BYTES {
                bytes.extend_from_slice(&data);
            }
        }
        if total > MAX_BODY_BYTES {
            Err(too_large())
        } else {
            Ok(bytes)
        }
    };
    match tokio::time::timeout(BODY_WAIT, read).await {
        Ok(read) => read,
        Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}
