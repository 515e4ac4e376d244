//! An HTTP/1.1 listener with limits: on connections, on slow handshakes, headers and readers, and on how long a shutdown
//! may take.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::places::Places;
use crate::socket::tune;

/// How long accepting pauses after an error such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one client may take of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; more wait to be accepted.
    pub connections: usize,
    /// Connections at one time of one client address; more are closed at once.
    pub per_client: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time for the head of a request, and for the first after a pause on a kept connection.
    pub headers: Duration,
    /// How long a client may take nothing of what is written to it, or answer no probe.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            per_client: 512,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(75),
            stall: Duration::from_secs(60),
        }
    }
}

/// Both ends of the connection that a request came on; an extension of every request. IPv4 is IPv4 also where the listener
/// is of both families.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client.
    pub remote: SocketAddr,
    /// The address that the client reached.
    pub local: SocketAddr,
}

impl Ends {
    /// The ends as the kernel has them: a listener of both families gets IPv4 addresses in IPv6 form.
    fn new(remote: SocketAddr, local: SocketAddr) -> Self {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self {
            remote: canonical(remote),
            local: canonical(local),
        }
    }
}

/// Ends the connection that a request came on, whatever is still to be written on it; an extension of every request.
#[derive(Clone, Debug, Default)]
pub struct Cut(CancellationToken);

impl Cut {
    /// Ends it.
    pub fn now(&self) {
        self.0.cancel();
    }

    /// Waits until it was ended so.
    pub async fn done(&self) {
        self.0.cancelled().await;
    }
}

/// Turns an accepted connection into the stream that HTTP is spoken on.
pub trait Accept: Clone + Send + Sync + 'static {
    /// The stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Does the handshake, if there is one.
    fn accept(&self, connection: TcpStream) -> impl Future<Output = std::io::Result<Self::Stream>> + Send;
}

/// No TLS.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Accept for Plain {
    type Stream = TcpStream;

    async fn accept(&self, connection: TcpStream) -> std::io::Result<TcpStream> {
        Ok(connection)
    }
}

/// Serves until `shutdown` is cancelled; then no connection is accepted, idle ones are closed, and requests in progress
/// have `drain` to end. What is left then is cut.
pub async fn serve(
    listener: TcpListener,
    accept: impl Accept,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
    drain: Duration,
) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let places = Places::new(limits.per_client);
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    while let Some((connection, ends, permit)) = next(&listener, &permits, &shutdown).await {
        let Some(place) = places.take(ends.remote.ip()) else {
            tracing::debug!(remote = %ends.remote, "Closed a connection: its client has too many");
            continue;
        };
        let (accept, router) = (accept.clone(), router.clone());
        let (shutdown, cut) = (shutdown.clone(), Cut(cut.child_token()));
        connections.spawn(async move {
            let _held = (permit, place);
            tokio::select! {
                () = cut.done() => {}
                () = one(connection, (ends, cut.clone()), accept, router, limits, shutdown) => {}
            }
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(drain, connections.wait()).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "Cut connections that did not end in time"
        );
        cut.cancel();
        connections.wait().await;
    }
}

async fn next(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, Ends, tokio::sync::OwnedSemaphorePermit)> {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return None,
            accepted = async {
                let permit = permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
                let (connection, remote) = listener.accept().await?;
                let local = connection.local_addr()?;
                std::io::Result::Ok((connection, Ends::new(remote, local), permit))
            } => accepted,
        };
        match accepted {
            Ok(accepted) => return Some(accepted),
            Err(error) => {
                tracing::warn!(%error, "Failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn one(
    connection: TcpStream,
    (ends, cut): (Ends, Cut),
    accept: impl Accept,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    if let Err(error) = tune(&connection, limits.stall) {
        return tracing::debug!(%error, remote = %ends.remote, "The connection is broken already");
    }
    let stream = match tokio::time::timeout(limits.handshake, accept.accept(connection)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, remote = %ends.remote, "Handshake failed"),
        Err(_) => return tracing::debug!(remote = %ends.remote, "Handshake took too long"),
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ends);
        request.extensions_mut().insert(cut.clone());
        let router = router.clone();
        async move { Ok::<Response, Infallible>(router.oneshot(request.map(Body::new)).await.unwrap_or_else(never)) }
    });
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.headers)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, remote = %ends.remote, "Connection ended");
    }
}

fn never(impossible: Infallible) -> Response {
    match impossible {}
}

#[cfg(test)]
mod tests {
    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    use super::*;

    async fn start(
        router: Router,
        limits: Limits,
        drain: Duration,
    ) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        (
            address,
            shutdown.clone(),
            tokio::spawn(serve(listener, Plain, router, limits, shutdown, drain)),
        )
    }

    async fn exchange(stream: &mut TcpStream, text: &str) -> String {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn an_ipv4_client_of_a_listener_of_both_families_is_an_ipv4_client() {
        let ends = |remote: &str, local: &str| {
            let ends = Ends::new(remote.parse().unwrap(), local.parse().unwrap());
            (ends.remote.to_string(), ends.local.to_string())
        };
        let ipv4 = ("10.0.0.1:4000".to_owned(), "10.0.0.5:8443".to_owned());
        assert_eq!(ends("[::ffff:10.0.0.1]:4000", "[::ffff:10.0.0.5]:8443"), ipv4);
        let ipv6 = ("[fd00::1]:4000".to_owned(), "[fd00::5]:8443".to_owned());
        assert_eq!(ends("[fd00::1]:4000", "[fd00::5]:8443"), ipv6);
    }

    #[tokio::test]
    async fn a_request_in_progress_ends_and_then_the_listener() {
        let entered = Arc::new(Notify::new());
        let release = Arc::new(Notify::new());
        let (entered_in, release_in) = (entered.clone(), release.clone());
        let router = Router::new().route(
            "/",
            get(move |Extension(ends): Extension<Ends>| async move {
                entered_in.notify_one();
                release_in.notified().await;
                ends.local.port().to_string()
            }),
        );
        let (address, shutdown, server) = start(router, Limits::default(), Duration::from_secs(60)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let client = tokio::spawn(async move { exchange(&mut stream, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await });
        entered.notified().await;
        shutdown.cancel();
        release.notify_one();
        let answer = client.await.unwrap();
        assert!(answer.ends_with(&address.port().to_string()), "{answer}");
        server.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn one_connection_is_cut_and_the_others_go_on() {
        let router = Router::new()
            .route(
                "/cut",
                get(|Extension(cut): Extension<Cut>| async move {
                    cut.now();
                    std::future::pending::<()>().await;
                }),
            )
            .route("/", get(|| async { "served" }));
        let (address, _shutdown, _server) = start(router, Limits::default(), Duration::ZERO).await;
        let mut other = TcpStream::connect(address).await.unwrap();
        let mut cut = TcpStream::connect(address).await.unwrap();
        assert_eq!(exchange(&mut cut, "GET /cut HTTP/1.1\r\nhost: x\r\n\r\n").await, "");
        let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        assert!(exchange(&mut other, request).await.ends_with("served"));
    }

    #[tokio::test]
    async fn what_does_not_end_in_time_is_cut() {
        let entered = Arc::new(Notify::new());
        let entered_in = entered.clone();
        let router = Router::new().route(
            "/",
            get(move || async move {
                entered_in.notify_one();
                std::future::pending::<()>().await;
            }),
        );
        let (address, shutdown, server) = start(router, Limits::default(), Duration::from_millis(10)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let client = tokio::spawn(async move { exchange(&mut stream, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await });
        entered.notified().await;
        shutdown.cancel();
        server.await.unwrap();
        assert_eq!(client.await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_client_that_sends_no_request_is_let_go() {
        let limits = Limits {
            headers: Duration::from_millis(50),
            ..Limits::default()
        };
        let (address, _shutdown, _server) = start(Router::new(), limits, Duration::ZERO).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nx").await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_with_too_many_connections_is_turned_away_until_one_ends() {
        let limits = Limits {
            per_client: 1,
            ..Limits::default()
        };
        let router = Router::new().route("/", get(|| async { "served" }));
        let (address, _shutdown, _server) = start(router, limits, Duration::ZERO).await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        kept.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        kept.read_u8().await.unwrap();
        let once = || async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let mut answer = String::new();
            // A connection that is closed at once may fail to be written to or read from.
            if stream.write_all(request).await.is_ok() {
                let _ = stream.read_to_string(&mut answer).await;
            }
            answer
        };
        assert_eq!(once().await, "");
        drop(kept);
        while !once().await.ends_with("served") {}
    }

    #[tokio::test]
    async fn a_client_that_reads_none_of_its_answers_is_let_go() {
        let limits = Limits {
            stall: Duration::from_millis(500),
            ..Limits::default()
        };
        let router = Router::new().route("/", get(|| async { "x".repeat(64 * 1024) }));
        let (address, shutdown, server) = start(router, limits, Duration::from_secs(600)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        // More than the buffers of both ends take.
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let pipelined = async { while stream.write_all(request).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(60), pipelined)
            .await
            .expect("the connection is never cut");
        shutdown.cancel();
        server.await.unwrap();
    }
}
