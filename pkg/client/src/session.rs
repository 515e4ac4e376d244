//! One session over streamable HTTP: connect, call `bash`, delete.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, ClientRequest, NotificationMetaObject, ProgressNotificationParam, ProgressToken, ServerResult,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ServiceError, ServiceExt};
use tokio::sync::mpsc;

pub use crate::call::BashResult;
use crate::call::{Unanswered, request, result_of};
use crate::cause;
use crate::stream::{Assembly, Chunk, STREAM_META, Stream};

/// Where an instance is and who calls it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Base URL without `/mcp`, such as `https://localhost:8443`.
    pub base_url: String,
    /// PEM certificates that the server's certificate chains to; none for plain HTTP on loopback.
    pub ca_pem: Option<Vec<u8>>,
    /// Bearer token, if the server asks for one.
    pub token: Option<Token>,
}

/// A bearer token that no `Debug` shows.
#[derive(Clone)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token([redacted])")
    }
}

/// Why a call did not give a result.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The HTTP client could not be built or a request failed.
    #[error("HTTP: {}", cause::chain(_0))]
    Http(#[from] reqwest::Error),
    /// The MCP handshake failed.
    #[error("could not connect to {url}: {}", cause::of_connect(source))]
    Connect {
        /// The MCP endpoint.
        url: String,
        /// What the SDK says.
        #[source]
        source: Box<rmcp::service::ClientInitializeError>,
    },
    /// The call ended as a protocol error.
    #[error("MCP: {}", cause::of_call(_0))]
    Call(#[from] ServiceError),
    /// The tool's structured content is not what its schema says.
    #[error("unexpected tool result: {0}")]
    Result(String),
}

/// What a failed call tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedCall {
    /// The connection broke: nobody can say whether the call was served.
    Unanswered,
    /// An HTTP status with which a server turns a request away before it looks at the call.
    Refused,
    /// An answer that a server should never give to a call.
    Wrong,
}

impl SessionError {
    /// What this tells of the call that it ended.
    #[must_use]
    pub fn tells(&self) -> FailedCall {
        match self {
            Self::Http(_) | Self::Connect { .. } => FailedCall::Unanswered,
            Self::Call(error) => cause::tells(error),
            Self::Result(_) => FailedCall::Wrong,
        }
    }
}

/// A connected session.
pub struct Session {
    service: RunningService<RoleClient, Listener>,
    http: reqwest::Client,
    base_url: String,
    id: String,
}

/// A chunk, and the token of the call that wrote it.
type Notified = (ProgressToken, Chunk);

/// Takes progress notifications for whom it may concern.
#[derive(Clone, Default)]
struct Listener {
    chunks: Arc<Mutex<Option<mpsc::UnboundedSender<Notified>>>>,
}

impl Listener {
    fn set(&self, sender: Option<mpsc::UnboundedSender<Notified>>) {
        *self.chunks.lock().unwrap_or_else(PoisonError::into_inner) = sender;
    }
}

impl ClientHandler for Listener {
    async fn on_progress(&self, params: ProgressNotificationParam, context: NotificationContext<RoleClient>) {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(sender), Some(text)) = (&*chunks, params.message) else {
            return;
        };
        // The SDK (3.11) leaves the notification's `_meta` among the extensions, and `context.meta` empty.
        let meta = context.extensions.get::<NotificationMetaObject>();
        let stream = match meta.and_then(|meta| meta.0.0.get(STREAM_META)) {
            Some(name) if name == "stderr" => Stream::Stderr,
            _ => Stream::Stdout,
        };
        // A number of bytes: whole, and far below the 2^53 up to which an f64 is exact.
        let end = params.progress as u64;
        // The call that asked may have ended.
        let _ = sender.send((params.progress_token, Chunk { stream, text, end }));
    }
}

impl Endpoint {
    /// An HTTP client that trusts the endpoint's CA only, and sends its token and this session id with every request.
    ///
    /// # Errors
    ///
    /// When the CA is no PEM certificate or the token is not legal in a header.
    pub fn http_client(&self, session_id: Option<&str>) -> Result<reqwest::Client, SessionError> {
        let mut builder = self.client_builder(session_id)?;
        if let Some(pem) = &self.ca_pem {
            builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(pem)?);
        }
        Ok(builder.build()?)
    }

    /// The same before it is decided which certificates to trust.
    ///
    /// # Errors
    ///
    /// When the token or the session id is not legal in a header.
    pub fn client_builder(&self, session_id: Option<&str>) -> Result<reqwest::ClientBuilder, SessionError> {
        // ring is the one provider in this process: that it is installed already is no error.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut headers = reqwest::header::HeaderMap::new();
        let illegal = |_| SessionError::Result("the token or session id is not legal in a header".to_owned());
        if let Some(token) = &self.token {
            let mut value: reqwest::header::HeaderValue = format!("Bearer {}", token.0).parse().map_err(illegal)?;
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        if let Some(id) = session_id {
            headers.insert("x-session-id", id.parse().map_err(illegal)?);
        }
        Ok(reqwest::Client::builder()
            .default_headers(headers)
            .connect_timeout(Duration::from_secs(10))
            .timeout(Duration::from_secs(400))
            .no_proxy())
    }

    /// Connects a session.
    ///
    /// # Errors
    ///
    /// When the endpoint cannot be reached, or refuses the handshake.
    pub async fn connect(&self, session_id: &str) -> Result<Session, SessionError> {
        Session::open(self.http_client(Some(session_id))?, &self.base_url, session_id).await
    }
}

impl Session {
    /// Connects a session with a client that sends its headers.
    ///
    /// # Errors
    ///
    /// When the endpoint cannot be reached, or refuses the handshake.
    pub async fn open(http: reqwest::Client, base_url: &str, session_id: &str) -> Result<Self, SessionError> {
        let url = format!("{base_url}/mcp");
        let config = StreamableHttpClientTransportConfig::with_uri(url.clone());
        let transport = StreamableHttpClientTransport::with_client(http.clone(), config);
        let service = Listener::default()
            .serve(transport)
            .await
            .map_err(|source| SessionError::Connect {
                url,
                source: Box::new(source),
            })?;
        Ok(Self {
            service,
            http,
            base_url: base_url.to_owned(),
            id: session_id.to_owned(),
        })
    }

    /// The names of the tools that the server lists.
    ///
    /// # Errors
    ///
    /// When the call ends as a protocol error.
    pub async fn tools(&self) -> Result<Vec<String>, SessionError> {
        Ok(self
            .service
            .list_all_tools()
            .await?
            .into_iter()
            .map(|tool| tool.name.to_string())
            .collect())
    }

    /// Calls `bash` with the default timeout.
    ///
    /// # Errors
    ///
    /// When the call ends as a protocol error, or its content does not follow the tool's output schema.
    pub async fn bash(&self, command: &str) -> Result<BashResult, SessionError> {
        self.call(serde_json::json!({ "command": command })).await
    }

    /// Calls `bash` with these arguments.
    ///
    /// # Errors
    ///
    /// When the call ends as a protocol error, or its content does not follow the tool's output schema.
    pub async fn call(&self, arguments: serde_json::Value) -> Result<BashResult, SessionError> {
        result_of(self.service.call_tool(request(arguments)?).await?)
    }

    /// Calls `bash` with these arguments, and shows its output as it arrives: all of it, each byte once. One call of a
    /// session at a time can be followed.
    ///
    /// # Errors
    ///
    /// When the call ends as a protocol error, or its content does not follow the tool's output schema; and the first
    /// error of `show`, which does not wait for the command's end.
    pub async fn follow<E: From<SessionError>>(
        &self,
        arguments: serde_json::Value,
        mut show: impl FnMut(Stream, &str) -> Result<(), E>,
    ) -> Result<BashResult, E> {
        let (sender, mut chunks) = mpsc::unbounded_channel();
        self.service.service().set(Some(sender));
        let call = ClientRequest::CallToolRequest(CallToolRequest::new(request(arguments)?));
        let options = PeerRequestOptions::no_options();
        let handle = self.service.send_cancellable_request(call, options).await;
        let handle = handle.map_err(SessionError::from)?;
        let mut unanswered = Unanswered::new(&handle);
        let mut assembly = Assembly::default();
        // What an earlier call wrote may be told after its result.
        let ours = handle.progress_token.clone();
        let mut add = |(token, chunk): Notified| match token == ours {
            true => assembly.add(chunk, &mut show),
            false => Ok(()),
        };
        let reply = handle.await_response();
        tokio::pin!(reply);
        let reply = loop {
            tokio::select! {
                biased;
                Some(notified) = chunks.recv() => add(notified)?,
                reply = &mut reply => break reply,
            }
        };
        unanswered.is_answered();
        self.service.service().set(None);
        while let Ok(notified) = chunks.try_recv() {
            add(notified)?;
        }
        let result = match reply.map_err(SessionError::from)? {
            ServerResult::CallToolResult(reply) => result_of(reply)?,
            _ => return Err(SessionError::from(ServiceError::UnexpectedResponse).into()),
        };
        for (stream, text) in assembly.rest(&result.stdout, &result.stderr) {
            if !text.is_empty() {
                show(stream, text)?;
            }
        }
        Ok(result)
    }

    /// Ends the session and its sandbox. Returns the HTTP status: 204, also when nothing was left.
    ///
    /// # Errors
    ///
    /// When the request fails.
    pub async fn delete(self) -> Result<u16, SessionError> {
        let url = format!("{}/sessions/{}", self.base_url, self.id);
        let status = self.http.delete(url).send().await?.status().as_u16();
        // The MCP connection is stateless: ending it tells the server nothing more.
        drop(self.service);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequestParams, CallToolResponse, CancelledNotificationParam, ErrorData, NumberOrString};
    use rmcp::service::RequestContext;
    use rmcp::{RoleServer, ServerHandler};

    use super::*;

    /// Writes once, after what it still had to tell of an earlier call, and then runs on until it is cancelled.
    #[derive(Default)]
    struct Endless {
        cancelled: Arc<tokio::sync::Notify>,
    }

    impl ServerHandler for Endless {
        async fn on_cancelled(&self, _: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
            self.cancelled.notify_one();
        }

        async fn call_tool(
            &self,
            _request: CallToolRequestParams,
            context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            let token: ProgressToken = context.meta.get_progress_token().unwrap();
            let earlier = ProgressToken(NumberOrString::Number(-1));
            for (token, text) in [(earlier, "x"), (token, "y")] {
                let progress = ProgressNotificationParam::new(token, 1.0).with_message(text);
                context.peer.notify_progress(progress).await.unwrap();
            }
            std::future::pending().await
        }
    }

    #[derive(Debug)]
    enum Ended {
        Unread,
        Call(SessionError),
    }

    impl From<SessionError> for Ended {
        fn from(error: SessionError) -> Self {
            Self::Call(error)
        }
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_was_shown_its_own_call_only_and_does_not_wait_for_it() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let endless = Endless::default();
        let cancelled = endless.cancelled.clone();
        let (service, server) = tokio::join!(Listener::default().serve(ours), endless.serve(theirs));
        let _server = server.unwrap();
        let nowhere = Endpoint {
            base_url: String::new(),
            ca_pem: None,
            token: None,
        };
        let session = Session {
            service: service.unwrap(),
            http: nowhere.http_client(None).unwrap(),
            base_url: nowhere.base_url,
            id: "s".to_owned(),
        };
        let followed = session.follow(serde_json::json!({"command": "yes"}), |_, text| {
            assert_eq!(text, "y");
            Err(Ended::Unread)
        });
        match followed.await.unwrap_err() {
            Ended::Unread => {}
            Ended::Call(error) => panic!("{error}"),
        }
        let patience = Duration::from_secs(60);
        let told = tokio::time::timeout(patience, cancelled.notified()).await;
        assert!(told.is_ok(), "the command runs on");
    }
}
