//! The client of the agent in a sandbox (contract, section 5). It keeps connections, and it knows of each failure whether
//! the command may have started: what may have started is never sent again.

mod answer;
pub mod dial;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cli_mcp_sandbox::token::Token;
use cli_mcp_sandbox::wire::{AGENT_PORT, AssignRequest, ErrorBody, ExecRequest, ExecResult, NDJSON, StreamChunk};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use tracing::Span;

use self::dial::{DialError, Dialer};
use self::pool::{Connection, Pool};
use crate::budget::Held;
use crate::store::Sandbox;
use crate::trace::TraceContext;

/// The longest error body that is read.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The longest answer to anything but `/exec`.
const SHORT_ANSWER: Duration = Duration::from_secs(10);

/// What came of a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No connection: the command was not sent.
    #[error("the agent cannot be reached: {0}")]
    NotReached(#[from] DialError),
    /// The request was sent and has no answer of the agent's: the command may have run.
    #[error("the connection to the sandbox broke: {0}")]
    Lost(String),
    /// The agent refused: the command did not run.
    #[error("the agent answered {}: {message}", status.as_u16())]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// The agent's sentence.
        message: String,
    },
}

/// One command on its way: what to send, and whether it has been sent.
#[derive(Debug)]
pub struct Flight {
    /// The command.
    pub request: ExecRequest,
    /// Trace of the caller, carried on.
    pub trace: TraceContext,
    /// Its memory.
    held: Held,
    sent: AtomicBool,
}

impl Flight {
    /// A command that was not sent yet.
    #[must_use]
    pub fn new(request: ExecRequest, trace: TraceContext, held: Held) -> Self {
        Self {
            request,
            trace,
            held,
            sent: AtomicBool::new(false),
        }
    }

    /// Whether the command may have started.
    #[must_use]
    pub fn may_have_started(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }
}

/// Receives output while a command runs.
pub trait OutputSink: Send {
    /// Takes a piece of output. The command's output waits until this is done.
    fn chunk(&mut self, chunk: StreamChunk) -> impl Future<Output = ()> + Send;
}

/// A client of all agents of an instance.
#[derive(Clone)]
pub struct AgentClient {
    dialer: Arc<Dialer>,
    pool: Arc<Pool>,
}

impl AgentClient {
    /// A client that dials as it is told.
    #[must_use]
    pub fn new(dialer: Dialer) -> Self {
        Self {
            dialer: Arc::new(dialer),
            pool: Arc::default(),
        }
    }

    /// Runs a command. Dropping the future closes the connection, and the agent then stops the command.
    ///
    /// # Errors
    ///
    /// See [`AgentError`]; only [`AgentError::Lost`] leaves open whether the command ran.
    pub async fn exec(
        &self,
        sandbox: &Sandbox,
        token: &Token,
        flight: &Flight,
        output: Option<&mut impl OutputSink>,
    ) -> Result<ExecResult, AgentError> {
        let accept = if output.is_some() { NDJSON } else { "application/json" };
        let mut request = self.request(sandbox, "/exec", token, accept, json(&flight.request)?)?;
        flight
            .trace
            .clone()
            .continued(&Span::current())
            .apply(request.headers_mut());
        let (response, connection) = self.send(sandbox, request, &flight.sent).await?;
        if response.status() != StatusCode::OK {
            let refusal = self.refusal(sandbox, response, connection).await;
            if matches!(refusal, AgentError::Refused { .. }) {
                flight.sent.store(false, Ordering::Release);
            }
            return Err(refusal);
        }
        let (result, ended) = match output {
            Some(sink) => answer::streamed(response.into_body(), sink, &flight.held).await?,
            None => (answer::plain(response.into_body(), &flight.held).await?, true),
        };
        if ended {
            self.pool.put(&sandbox.uid, connection);
        }
        Ok(result)
    }

    /// Gives an unassigned agent its session's token. Giving the same twice is no error.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn assign(&self, sandbox: &Sandbox, assign: &Token, session: &Token) -> Result<(), AgentError> {
        let body = json(&AssignRequest {
            token: session.reveal().to_owned(),
        })?;
        let request = self.request(sandbox, "/assign", assign, "application/json", body)?;
        let exchange = async {
            let (response, connection) = self.send(sandbox, request, &AtomicBool::new(false)).await?;
            if response.status() != StatusCode::OK {
                return Err(self.refusal(sandbox, response, connection).await);
            }
            read(response.into_body(), MAX_ERROR_BYTES).await?;
            self.pool.put(&sandbox.uid, connection);
            Ok(())
        };
        tokio::time::timeout(SHORT_ANSWER, exchange)
            .await
            .unwrap_or_else(|_| Err(AgentError::Lost("no answer to /assign".to_owned())))
    }

    /// Whether the agent has no session: it says so before it looks at a token (contract, section 5), so the
    /// token of `/assign` tells the two apart, and the body is no command.
    ///
    /// # Errors
    ///
    /// See [`AgentError`].
    pub async fn is_unassigned(&self, sandbox: &Sandbox, assign: &Token) -> Result<bool, AgentError> {
        let request = self.request(sandbox, "/exec", assign, "application/json", Bytes::from_static(b"{}"))?;
        let exchange = async {
            let (response, connection) = self.send(sandbox, request, &AtomicBool::new(false)).await?;
            Ok(self.refusal(sandbox, response, connection).await)
        };
        let answer = tokio::time::timeout(SHORT_ANSWER, exchange)
            .await
            .unwrap_or_else(|_| Err(AgentError::Lost("no answer to /exec".to_owned())))?;
        Ok(matches!(
            answer,
            AgentError::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                ..
            }
        ))
    }

    /// Forgets the connections of a sandbox that is gone.
    pub fn forget(&self, sandbox: &Sandbox) {
        self.pool.forget(&sandbox.uid);
    }

    /// Forgets the connections of all sandboxes but these.
    pub fn retain(&self, living: impl Fn(&str) -> bool) {
        self.pool.retain(living);
    }

    fn request(
        &self,
        sandbox: &Sandbox,
        path: &str,
        token: &Token,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, AgentError> {
        let internal = |error: &dyn std::fmt::Display| AgentError::NotReached(DialError::new(error.to_string()));
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(|error| internal(&error))?;
        bearer.set_sensitive(true);
        let host = sandbox.address.map_or_else(
            || sandbox.name.clone(),
            |ip| std::net::SocketAddr::new(ip, AGENT_PORT).to_string(),
        );
        Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, accept)
            .header(header::AUTHORIZATION, bearer)
            .body(Full::new(body))
            .map_err(|error| internal(&error))
    }

    /// Sends on a kept connection, or on a new one. A kept connection that turns out to be closed before anything was
    /// written is replaced. `sent` is true from the moment the agent may have read the request.
    async fn send(
        &self,
        sandbox: &Sandbox,
        mut request: Request<Full<Bytes>>,
        sent: &AtomicBool,
    ) -> Result<(http::Response<Incoming>, Connection), AgentError> {
        loop {
            let (mut connection, kept) = match self.pool.take(&sandbox.uid).await {
                Some(kept) => (kept, true),
                None => (Connection::open(self.dialer.dial(sandbox).await?).await?, false),
            };
            sent.store(true, Ordering::Release);
            let mut error = match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(error) => error,
            };
            let unsent = error.take_message();
            let reason = error.into_error().to_string();
            let Some(again) = unsent else {
                return Err(AgentError::Lost(reason));
            };
            sent.store(false, Ordering::Release);
            if !kept {
                return Err(DialError::new(reason).into());
            }
            request = again;
        }
    }

    /// What an answer other than 200 says. All errors of an agent are JSON; a 5xx that is none comes of somebody between,
    /// such as a mesh's proxy, who may have passed the request on.
    async fn refusal(
        &self,
        sandbox: &Sandbox,
        response: http::Response<Incoming>,
        connection: Connection,
    ) -> AgentError {
        let status = response.status();
        let body = read(response.into_body(), MAX_ERROR_BYTES).await.ok();
        if body.is_some() {
            self.pool.put(&sandbox.uid, connection);
        }
        let body = body.unwrap_or_default();
        if let Ok(ErrorBody { error: message }) = serde_json::from_slice(&body) {
            return AgentError::Refused { status, message };
        }
        let text: String = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
        let message = if text.is_empty() {
            format!("HTTP status {} without a reason", status.as_u16())
        } else {
            text
        };
        if status.is_server_error() {
            AgentError::Lost(message)
        } else {
            AgentError::Refused { status, message }
        }
    }
}

fn json(body: &impl serde::Serialize) -> Result<Bytes, AgentError> {
    serde_json::to_vec(body)
        .map(Bytes::from)
        .map_err(|error| DialError::new(error.to_string()).into())
}

async fn read<B>(body: B, limit: usize) -> Result<Bytes, AgentError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let collected = Limited::new(body, limit)
        .collect()
        .await
        .map_err(|error| AgentError::Lost(error.to_string()))?;
    Ok(collected.to_bytes())
}

#[cfg(test)]
mod tests;
