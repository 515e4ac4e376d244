//! Reaching an agent: the pod's own address, or the API server's port-forward where that address cannot be reached.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli_mcp_sandbox::wire::AGENT_PORT;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::config::SandboxConnection;
use crate::store::Sandbox;

/// How long a direct connection may take to be established. Within a cluster it takes a millisecond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// After how long another attempt is begun beside the one that has no answer; twice as long for each further one. A network
/// that is being told of a pod's new labels, as it is by a claim, may lose the first packet of a connection, and the kernel
/// sends the next only after a second (RFC 6298, section 2.1). RFC 8305, section 5, allows 100 ms and more.
const ATTEMPT_DELAY: Duration = Duration::from_millis(100);

/// How many attempts are under way at most.
const MAX_ATTEMPTS: usize = 4;

/// How long the API server may take to forward a port.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection: one sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DialError {
    reason: String,
}

impl DialError {
    /// An error with this reason.
    #[must_use]
    pub fn new(reason: String) -> Self {
        Self { reason }
    }
}

/// What a connection needs to be.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection, and whether the far end is known to be the agent: a forwarded port accepts before the agent does.
pub struct Dialed {
    /// The byte stream.
    pub stream: Box<dyn Stream>,
    /// Whether a request written now certainly reaches the agent or fails to be written.
    pub proven: bool,
}

/// Dials agents.
pub struct Dialer {
    mode: SandboxConnection,
    port: u16,
    pods: Api<Pod>,
    /// In mode auto: pods' addresses have been found to be out of reach.
    forward_first: AtomicBool,
}

impl Dialer {
    /// A dialer for the agents of these pods.
    #[must_use]
    pub fn new(mode: SandboxConnection, pods: Api<Pod>) -> Self {
        Self::with_port(mode, pods, AGENT_PORT)
    }

    /// The same for agents that listen on another port.
    #[must_use]
    pub fn with_port(mode: SandboxConnection, pods: Api<Pod>, port: u16) -> Self {
        Self {
            mode,
            port,
            pods,
            forward_first: AtomicBool::new(false),
        }
    }

    /// Connects to a sandbox's agent.
    ///
    /// # Errors
    ///
    /// [`DialError`] with the reason; nothing was sent.
    pub async fn dial(&self, sandbox: &Sandbox) -> Result<Dialed, DialError> {
        match self.mode {
            SandboxConnection::Direct => self.direct(sandbox).await.map_err(|(error, _)| error),
            SandboxConnection::PortForward => self.forward(sandbox).await,
            SandboxConnection::Auto if self.forward_first.load(Ordering::Relaxed) => self.forward(sandbox).await,
            SandboxConnection::Auto => match self.direct(sandbox).await {
                Ok(dialed) => Ok(dialed),
                Err((direct, false)) if !sandbox.ready => Err(direct),
                // The kubelet has reached a sandbox that is ready: what refused was something on the way, or it has just died.
                Err((direct, out_of_reach)) => {
                    let forwarded = self
                        .forward(sandbox)
                        .await
                        .map_err(|forward| DialError::new(format!("{direct}; and by the API server: {forward}")))?;
                    if out_of_reach && !self.forward_first.swap(true, Ordering::Relaxed) {
                        tracing::info!(reason = %direct, "Pod addresses are out of reach, using the API server's port-forward");
                    }
                    Ok(forwarded)
                }
            },
        }
    }

    /// The error comes with whether the address itself is out of reach, rather than the agent not listening yet.
    async fn direct(&self, sandbox: &Sandbox) -> Result<Dialed, (DialError, bool)> {
        let Some(ip) = sandbox.address else {
            return Err((DialError::new("the pod has no address yet".to_owned()), false));
        };
        let address = SocketAddr::new(ip, self.port);
        let failed = |reason: String, unreachable| Err((DialError::new(format!("{address}: {reason}")), unreachable));
        match timeout(CONNECT_TIMEOUT, first_answered(|| TcpStream::connect(address))).await {
            Ok(Ok(stream)) => {
                keep_alive(&stream);
                Ok(Dialed {
                    stream: Box::new(stream),
                    proven: true,
                })
            }
            Ok(Err(error)) => {
                let out_of_reach = matches!(
                    error.kind(),
                    ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut
                );
                failed(error.to_string(), out_of_reach)
            }
            Err(_) => failed(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()), true),
        }
    }

    async fn forward(&self, sandbox: &Sandbox) -> Result<Dialed, DialError> {
        let ports = [self.port];
        let forward = timeout(FORWARD_TIMEOUT, self.pods.portforward(&sandbox.name, &ports));
        let mut forwarder = match forward.await {
            Ok(Ok(forwarder)) => forwarder,
            Ok(Err(error)) => return Err(DialError::new(format!("port-forward to pod {}: {error}", sandbox.name))),
            Err(_) => {
                return Err(DialError::new(format!(
                    "port-forward to pod {}: no answer",
                    sandbox.name
                )));
            }
        };
        match forwarder.take_stream(self.port) {
            Some(stream) => Ok(Dialed {
                stream: Box::new(stream),
                proven: false,
            }),
            None => Err(DialError::new(format!(
                "port-forward to pod {}: no stream",
                sandbox.name
            ))),
        }
    }
}

/// What the first attempt that has an answer comes to. One that is refused is answered. The others end with it.
async fn first_answered<T, F>(mut attempt: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut under_way = FuturesUnordered::from_iter([attempt()]);
    let mut delay = ATTEMPT_DELAY;
    loop {
        let may_try_again = under_way.len() < MAX_ATTEMPTS;
        tokio::select! {
            biased;
            Some(answer) = under_way.next() => return answer,
            () = sleep(delay), if may_try_again => {}
        }
        under_way.push(attempt());
        delay *= 2;
    }
}

/// A node that is gone says nothing: without probes a call to it would wait for ever. Some 30 s.
fn keep_alive(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = SockRef::from(stream);
    if let Err(error) = socket
        .set_tcp_keepalive(&probes)
        .and_then(|()| socket.set_tcp_nodelay(true))
    {
        tracing::debug!(%error, "Failed to set socket options of a connection to an agent");
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    #[derive(Clone, Copy)]
    enum Answer {
        Lost,
        Accepted,
        Refused,
    }

    /// Dials where the first packets come to this and all further ones are accepted: what came of it, how many attempts
    /// were made, and when.
    async fn dialed(first: &[Answer]) -> (io::Result<usize>, usize, Duration) {
        let began = Instant::now();
        let mut attempts = 0;
        let result = first_answered(|| {
            let answer = first.get(attempts).copied().unwrap_or(Answer::Accepted);
            attempts += 1;
            let number = attempts;
            async move {
                match answer {
                    Answer::Lost => pending().await,
                    Answer::Accepted => Ok(number),
                    Answer::Refused => Err(ErrorKind::ConnectionRefused.into()),
                }
            }
        })
        .await;
        (result, attempts, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_taken_without_another_attempt() {
        let (result, attempts, took) = dialed(&[Answer::Accepted]).await;
        assert_eq!((result.unwrap(), attempts, took), (1, 1, Duration::ZERO));
        let (result, attempts, took) = dialed(&[Answer::Refused]).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!((attempts, took), (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_first_packet_costs_a_moment() {
        let (result, attempts, took) = dialed(&[Answer::Lost]).await;
        assert_eq!((result.unwrap(), attempts), (2, 2));
        assert!((ATTEMPT_DELAY..ATTEMPT_DELAY * 2).contains(&took), "{took:?}");
        let (result, attempts, took) = dialed(&[Answer::Lost, Answer::Lost, Answer::Refused]).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(attempts, 3);
        assert!((ATTEMPT_DELAY * 3..ATTEMPT_DELAY * 4).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_attempts_at_an_address_that_says_nothing_are_few() {
        let mut attempts = 0;
        let dial = first_answered(|| {
            attempts += 1;
            pending::<io::Result<()>>()
        });
        assert!(timeout(CONNECT_TIMEOUT, dial).await.is_err());
        assert_eq!(attempts, MAX_ATTEMPTS);
    }
}
