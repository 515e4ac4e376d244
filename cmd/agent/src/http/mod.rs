//! The endpoints (contract, section 5): what each does, and in which order what is wrong is answered.

mod answer;
mod intake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use cli_mcp_sandbox::token::TokenDigest;
use cli_mcp_sandbox::wire::CancelResponse;
use http::header::ALLOW;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body::Body;
use tokio::sync::mpsc;

pub use self::answer::AnswerBody;
use self::answer::{Answer, Refused, STREAM_LINES, error, json, leaves, refusal, refused, stream, whole};
use self::intake::{
    authenticate, forget_body, has_token, json_body, one_authorization, read_body, unauthorized, wants_lines,
};
use crate::client::Client;
use crate::connections::Standing;
use crate::egress::Egress;
use crate::metrics::{CallOutcome, Metrics};
use crate::queue::{Queue, Refusal};
use crate::request;

/// A valid token has come over the connection of this request.
fn note_standing<B>(request: &Request<B>) {
    if let Some(standing) = request.extensions().get::<Standing>() {
        standing.prove();
    }
}

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
    pub async fn answer<B>(&self, mut request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let answer = self.answer_by_endpoint(&mut request).await;
        forget_body(&mut request, answer.status()).await;
        answer
    }

    async fn answer_by_endpoint<B>(&self, request: &mut Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let allowed = match request.uri().path() {
            "/exec" | "/assign" | "/cancel" => [Method::POST].as_slice(),
            "/health" | "/metrics" => &[Method::GET, Method::HEAD],
            _ => {
                return error(
                    StatusCode::NOT_FOUND,
                    "no such endpoint: use /exec, /assign, /cancel, /health or /metrics",
                );
            }
        };
        if !allowed.contains(request.method()) {
            let allowed: Vec<&str> = allowed.iter().map(Method::as_str).collect();
            let mut answer = error(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("use {} here", allowed.join(" or ")),
            );
            if let Ok(value) = HeaderValue::from_str(&allowed.join(", ")) {
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
    fn authorize<B>(&self, request: &Request<B>) -> Result<(), Refused> {
        one_authorization(request.headers())?;
        let session = *self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = session else {
            return Err(refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "this sandbox has no session yet: POST /assign first",
            ));
        };
        authenticate(request.headers(), &session)?;
        note_standing(request);
        Ok(())
    }

    async fn exec<B: Body<Data = Bytes> + Unpin>(&self, request: &mut Request<B>) -> Answer {
        if let Err(answer) = self.authorize(request) {
            return *answer;
        }
        if let Some(reason) = self.egress.refusal() {
            self.metrics.not_run(CallOutcome::EgressNotEnforced);
            return error(StatusCode::SERVICE_UNAVAILABLE, reason);
        }
        let lines = wants_lines(request.headers());
        let client = request.extensions().get::<Client>().cloned();
        // Of a call that finds no room nothing is kept.
        let admit = |bytes| {
            self.queue
                .reserve(bytes)
                .map_err(|reason| Box::new(self.refuse(&reason)))
        };
        let (body, place) = match json_body(request, admit).await {
            Ok(admitted) => admitted,
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
        let (ticket, result) = match self.queue.add(place, request.command, timeout, sender) {
            Ok(added) => added,
            Err(reason) => return self.refuse(&reason),
        };
        let answer = async {
            match receiver {
                Some(receiver) => stream(receiver, ticket, result, client.clone()).await,
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
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            never = leaves(client.as_ref()) => match never {},
        }
    }

    /// Answers a call that the queue does not take.
    fn refuse(&self, reason: &Refusal) -> Answer {
        self.metrics.not_run(reason.outcome());
        refusal(reason)
    }

    async fn assign<B: Body<Data = Bytes> + Unpin>(&self, request: &mut Request<B>) -> Answer {
        if let Err(answer) = one_authorization(request.headers()) {
            return *answer;
        }
        let with_session = || {
            error(
                StatusCode::CONFLICT,
                "this sandbox was started with its session and cannot be assigned",
            )
        };
        let Some(assign) = &self.assign else {
            // There is no right token to ask for: nothing of the body is read from anybody.
            return if has_token(request.headers()) {
                with_session()
            } else {
                *unauthorized()
            };
        };
        if let Err(answer) = authenticate(request.headers(), assign) {
            return *answer;
        }
        note_standing(request);
        let body = match json_body(request, |_| Ok(())).await {
            Ok((body, ())) => body,
            Err(answer) => return *answer,
        };
        let request = match request::assign_request(&body) {
            Ok(request) => request,
            Err(text) => return error(StatusCode::BAD_REQUEST, text),
        };
        if self.started_with_session {
            return with_session();
        }
        let digest = TokenDigest::of(request.token.as_bytes());
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match &*session {
            Some(current) if !current.same(&digest) => {
                error(StatusCode::CONFLICT, "this sandbox has another session already")
            }
            Some(_) => json(StatusCode::OK, &serde_json::json!({"status": "assigned"})),
            None => {
                *session = Some(digest);
                tracing::info!("Assigned to a session");
                json(StatusCode::OK, &serde_json::json!({"status": "assigned"}))
            }
        }
    }

    async fn cancel<B: Body<Data = Bytes> + Unpin>(&self, request: &mut Request<B>) -> Answer {
        if let Err(answer) = self.authorize(request) {
            return *answer;
        }
        match read_body(request.body_mut(), |_| {}).await {
            Ok(0) => json(
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
