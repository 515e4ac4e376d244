//! The HTTP surface: `/mcp`, `DELETE /sessions/{id}`, probes and metrics, with who may come in and how large and slow a
//! request may be.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Router, body};
use cli_mcp_serving::auth::review::Review;
use cli_mcp_serving::auth::{Caller, Guard};
use cli_mcp_serving::listener::Cut;
use cli_mcp_serving::metrics::{self, SharedRegistry};
use cli_mcp_serving::probes::{self, Health};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Body as _;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use crate::allocation::Allocator;
use crate::audit::Audit;
use crate::budget::Budget;
use crate::cancellation::{self, CallKey, Canceller};
use crate::ending::Ending;
use crate::host::{self, HostPolicy};
use crate::session::{SESSION_HEADER, SessionId};
use crate::tool::BashServer;

/// The largest request body: as much as the agent takes.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// How long a client may take to send its request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything that the router needs.
pub struct Surface<H> {
    /// The tool.
    pub server: BashServer,
    /// Ends sessions.
    pub allocator: Arc<Allocator>,
    /// Takes note of that.
    pub audit: Audit,
    /// For `/health`.
    pub health: Arc<H>,
    /// For `/metrics`.
    pub registry: SharedRegistry,
    /// Accepted names.
    pub hosts: HostPolicy,
    /// Stops calls that their clients cancel.
    pub canceller: Canceller,
}

/// The router. With a guard, only `/live` and `/health` are open to everyone.
pub fn router<H: Health, R: Review>(surface: Surface<H>, guard: Option<Guard<R>>) -> Router {
    let Surface {
        server,
        allocator,
        audit,
        health,
        registry,
        hosts,
        canceller,
    } = surface;
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        // Host and Origin are checked for every path, below.
        .disable_allowed_hosts()
        .with_max_request_body_bytes(MAX_BODY_BYTES);
    let ending = Ending::new(allocator, audit, server.running());
    let mcp = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let mut guarded = Router::new()
        .route_service("/mcp", mcp)
        .layer(middleware::from_fn_with_state(
            (canceller, Budget::default()),
            whole_body,
        ))
        .route("/sessions/{id}", delete(Ending::handle).with_state(ending))
        .route(
            "/metrics",
            get(move || std::future::ready(metrics::response(&registry))),
        );
    if let Some(guard) = guard {
        guarded = guarded.layer(middleware::from_fn_with_state(guard, Guard::<R>::check));
    }
    guarded
        .merge(probes::liveness(health))
        .fallback(|| std::future::ready(error_response(StatusCode::NOT_FOUND, "no such path: MCP is at /mcp")))
        .layer(host::cors())
        .layer(middleware::from_fn_with_state(Arc::new(hosts), HostPolicy::check))
}

/// The router of a server that is told to stop: its answers close their connections, so that clients come back to another
/// replica and not to a listener that ends between two of their requests.
pub fn closing(router: Router, stopping: CancellationToken) -> Router {
    router.layer(middleware::map_response(move |mut response: Response| {
        if stopping.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        std::future::ready(response)
    }))
}

/// An error with a JSON body.
pub(crate) fn error_response(status: StatusCode, text: &str) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        serde_json::json!({"error": text}).to_string(),
    )
        .into_response()
}

/// Takes a body whole before anything works on it, so that a slow client costs a connection and nothing else.
async fn whole_body(
    State((canceller, budget)): State<(Canceller, Budget)>,
    request: Request,
    next: Next,
) -> Result<Response, Infallible> {
    if request.method() != Method::POST {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    // A length that is not told may be any.
    let most = body.size_hint().upper().unwrap_or(u64::MAX);
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(MAX_BODY_BYTES);
    let Some(held) = budget.request(most).await else {
        let mut busy = error_response(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many large requests are in progress: retry in some seconds",
        );
        busy.headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return Ok(busy);
    };
    Ok(match arrived(body).await {
        Ok(bytes) => {
            held.arrived(bytes.len());
            let cut = parts.extensions.get::<Cut>().cloned();
            let held = held.over(cut.unwrap_or_default());
            // Not in a task of its own: a client then has as many on their way as it has connections.
            if let Some((session, call)) = cancelled_call(&parts, &bytes) {
                canceller.cancel(&session, &call).await;
            }
            parts.extensions.insert(held.clone());
            let answer = next.run(Request::from_parts(parts, Body::from(bytes))).await;
            answer.map(|body| held.until_written(body))
        }
        Err((status, text)) => error_response(status, &text),
    })
}

/// A body, or what its client is told.
async fn arrived(body: Body) -> Result<Bytes, (StatusCode, String)> {
    match tokio::time::timeout(BODY_TIMEOUT, body::to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body is longer than {MAX_BODY_BYTES} bytes, or did not arrive whole"),
        )),
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            "the request body took too long to arrive".to_owned(),
        )),
    }
}

/// The call that a request cancels, if it is a notification of that.
fn cancelled_call(parts: &Parts, body: &[u8]) -> Option<(SessionId, CallKey)> {
    let request = cancellation::cancelled_request(body)?;
    let session: SessionId = parts.headers.get(SESSION_HEADER)?.to_str().ok()?.parse().ok()?;
    let user = parts.extensions.get::<Caller>().map(|caller| caller.0.name.as_str());
    let call = CallKey::new(user, &session, &request);
    Some((session, call))
}

#[cfg(test)]
mod tests {
    use axum::Extension;
    use axum::routing::post;
    use cli_mcp_serving::listener::{self, Limits, Plain};
    use futures::{FutureExt, StreamExt};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tower::ServiceExt;

    use super::*;
    use crate::budget::Held;
    use crate::cancellation::RunningCalls;
    use crate::fixtures::{Api, Replica};
    use crate::store::fixtures::pod;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_whole_or_in_time_is_not_served() {
        let frame = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        let stream = |frames: Vec<std::io::Result<Bytes>>| futures::stream::iter(frames);
        let whole = stream(vec![frame("a"), frame("b")]);
        assert_eq!(arrived(Body::from_stream(whole)).await.unwrap(), "ab");
        let slow = stream(vec![frame("a")]).chain(futures::stream::pending());
        let (status, _) = arrived(Body::from_stream(slow)).await.unwrap_err();
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
        let broken = stream(vec![frame("a"), Err(std::io::Error::other("reset"))]);
        let (status, _) = arrived(Body::from_stream(broken)).await.unwrap_err();
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_is_answered_when_it_is_done_and_holds_no_memory_until_then() {
        let replica = Replica::new(Api::new(|_| None));
        replica.watched(&pod("p", "u", 1, Some("s1")));
        let canceller = Canceller::new(RunningCalls::default(), replica.cluster.clone(), replica.cache.clone());
        let budget = Budget::default();
        let layer = middleware::from_fn_with_state((canceller, budget.clone()), whole_body);
        let accepted = || std::future::ready(StatusCode::ACCEPTED);
        let router = Router::new().route("/mcp", post(accepted)).layer(layer);
        let cancel = || {
            let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
            // Its length is not told, so it may be any.
            let body = Body::from_stream(futures::stream::iter([Ok::<_, Infallible>(text)]));
            let request = Request::post("/mcp").header(SESSION_HEADER, "s1").body(body).unwrap();
            router.clone().oneshot(request)
        };
        let mut cancels = std::pin::pin!(futures::future::join_all([(); 8].map(|()| cancel())));
        // The paused clock goes on when nothing else can.
        let soon = tokio::time::timeout(Duration::from_secs(1), &mut cancels).await;
        assert!(soon.is_err(), "the API server has not answered");
        assert!(budget.request(MAX_BODY_BYTES).now_or_never().flatten().is_some());
        for answer in cancels.await {
            assert_eq!(answer.unwrap().status(), StatusCode::ACCEPTED);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_take_their_large_results_do_not_keep_others_from_theirs() {
        let canceller = {
            let replica = Replica::new(Api::willing());
            Canceller::new(RunningCalls::default(), replica.cluster.clone(), replica.cache.clone())
        };
        let layer = middleware::from_fn_with_state((canceller, Budget::default()), whole_body);
        let large = |Extension(held): Extension<Held>| async move {
            held.large_result().await;
            // More than any socket buffers.
            vec![b'x'; 32 * 1024 * 1024]
        };
        let router = Router::new().route("/mcp", post(large)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (limits, never) = (Limits::default(), CancellationToken::new());
        tokio::spawn(listener::serve(listener, Plain, router, limits, never, Duration::ZERO));
        let request = async || {
            let mut client = TcpStream::connect(address).await.unwrap();
            let head = b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
            client.write_all(head).await.unwrap();
            client
        };
        let mut slow = Vec::new();
        for _ in 0..32 {
            let mut client = request().await;
            // Its result is on its way.
            client.read_u8().await.unwrap();
            slow.push(client);
        }
        let mut next = request().await;
        // The paused clock goes on when nothing else can.
        let first = tokio::time::timeout(Duration::from_secs(600), next.read_u8()).await;
        assert_eq!(first.expect("it waits for ever").unwrap(), b'H');
    }

    #[tokio::test]
    async fn a_kept_connection_is_closed_by_the_first_answer_after_the_stop() {
        let stopping = CancellationToken::new();
        let router = closing(Router::new().route("/", get(|| async { "served" })), stopping.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (limits, never) = (Limits::default(), CancellationToken::new());
        tokio::spawn(listener::serve(listener, Plain, router, limits, never, Duration::ZERO));
        let mut kept = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        kept.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"served") {
            assert_ne!(kept.read_buf(&mut answer).await.unwrap(), 0, "it was closed");
        }
        stopping.cancel();
        kept.write_all(request).await.unwrap();
        let mut last = String::new();
        kept.read_to_string(&mut last).await.unwrap();
        assert!(last.contains("connection: close") && last.ends_with("served"), "{last}");
    }
}
