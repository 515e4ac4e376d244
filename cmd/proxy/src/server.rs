//! The program's life: load, bind, accept within limits, drain.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use cli_mcp_serving::metrics::register_runtime;
use cli_mcp_serving::places::{Place, Places};
use cli_mcp_serving::probes;
use prometheus_client::registry::Registry;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Sink;
use crate::connect;
use crate::dial::Resolve;
use crate::health;
use crate::large_heads::LargeHeads;
use crate::memory::Memory;
use crate::metrics::{LimitLabels, Metrics};
use crate::proxy::{Shared, Timeouts};
use crate::reload::{Directories, LoadError, Reloader};

/// How the proxy runs.
pub struct Settings {
    /// Where sandboxes connect.
    pub listen: SocketAddr,
    /// Where the kubelet and Prometheus connect.
    pub health_listen: SocketAddr,
    /// The inputs.
    pub directories: Directories,
    /// Connections in all.
    pub max_connections: usize,
    /// Connections of one client address.
    pub max_connections_per_client: usize,
    /// Bytes that all streams together may hold.
    pub memory_budget: usize,
    /// How long streams may go on after the end of the process was asked for.
    pub drain_timeout: Duration,
    /// How long the parties may take.
    pub timeouts: Timeouts,
    /// Who looks names up.
    pub resolver: Arc<dyn Resolve>,
    /// Where audit lines go.
    pub audit: Sink,
}

/// Why the proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The inputs cannot be served.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A proxy that has loaded its inputs and holds its ports.
pub struct Proxy {
    listener: TcpListener,
    health_listener: TcpListener,
    registry: Registry,
    reloader: Reloader,
    shared: Arc<Shared>,
    limits: Limits,
    drain_timeout: Duration,
}

impl Proxy {
    /// Loads the inputs and binds both ports, so that whatever is wrong shows before anything runs.
    ///
    /// # Errors
    ///
    /// When an input cannot be served or a port cannot be had.
    pub async fn bind(settings: Settings) -> Result<Self, StartError> {
        let (reloader, state) = Reloader::start(settings.directories, settings.resolver)?;
        let mut registry = Registry::with_prefix("cli_mcp_proxy");
        register_runtime(&mut registry, &Handle::current());
        let metrics = Metrics::new(&mut registry);
        let memory = Memory::new(
            settings.memory_budget,
            metrics.held.clone(),
            metrics.over_memory.clone(),
        );
        Ok(Self {
            listener: listen(settings.listen).await?,
            health_listener: listen(settings.health_listen).await?,
            registry,
            reloader,
            shared: Arc::new(Shared {
                state: ArcSwap::from_pointee(state),
                audit: settings.audit,
                metrics,
                drain: CancellationToken::new(),
                timeouts: settings.timeouts,
                large_heads: LargeHeads::default(),
                memory,
            }),
            limits: Limits {
                total: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
                clients: Places::new(settings.max_connections_per_client),
            },
            drain_timeout: settings.drain_timeout,
        })
    }

    /// The address that sandboxes connect to.
    ///
    /// # Errors
    ///
    /// When the socket is broken.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The address of probes and metrics.
    ///
    /// # Errors
    ///
    /// When the socket is broken.
    pub fn health_address(&self) -> io::Result<SocketAddr> {
        self.health_listener.local_addr()
    }

    /// Serves until `shutdown` is cancelled, then drains: not ready, no new connection, open streams go on until they
    /// end or the grace period does.
    ///
    /// # Errors
    ///
    /// When a fault has ended the probes' listener, or the files are followed no more.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let Self {
            listener,
            health_listener,
            registry,
            reloader,
            shared,
            limits,
            drain_timeout,
        } = self;
        let over = CancellationToken::new();
        let router = health::router(Arc::new(registry), reloader.status(), shared.drain.clone());
        let probes = tokio::spawn(probes::serve(health_listener, router, over.clone()));
        let mut reloads = tokio::spawn(reloader.run(shared.clone()));
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let end = tokio::select! {
            () = accept(&listener, &shared, &limits, &connections, &cut) => Ok(()),
            end = until_the_end(&shutdown, &mut reloads) => end,
        };
        shared.drain.cancel();
        drop(listener);
        connections.close();
        tracing::info!(open = connections.len(), timeout = ?drain_timeout, "Draining");
        if tokio::time::timeout(drain_timeout, connections.wait()).await.is_err() {
            tracing::warn!(
                open = connections.len(),
                "The grace period is over, open streams are cut"
            );
            // Each still writes its audit line.
            cut.cancel();
            connections.wait().await;
        }
        reloads.abort();
        over.cancel();
        probes.await.map_err(io::Error::other)?;
        end
    }
}

/// Waits until the proxy is to end: it is asked to, or a fault has ended the task that follows the files. Who watches
/// `/health` would see nothing of that, and a rotated token would never be used.
async fn until_the_end(shutdown: &CancellationToken, reloads: &mut JoinHandle<Infallible>) -> io::Result<()> {
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = reloads => match ended {
            Ok(never) => match never {},
            Err(error) => {
                tracing::error!(%error, "The files are followed no more, the proxy ends");
                Err(io::Error::other(error))
            }
        },
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Bind { address, source })
}

async fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    limits: &Limits,
    connections: &TaskTracker,
    cut: &CancellationToken,
) {
    loop {
        let (tcp, peer) = next(listener).await;
        let client = peer.ip().to_canonical();
        match limits.admit(client) {
            Ok(admitted) => {
                let (shared, cut) = (shared.clone(), cut.clone());
                connections.spawn(async move {
                    cut.run_until_cancelled(connect::serve(tcp, client, &shared)).await;
                    drop(admitted);
                });
            }
            Err(limit) => {
                shared.metrics.over_limit.get_or_create(&LimitLabels { limit }).inc();
                turn_away(tcp);
            }
        }
    }
}

/// The next connection, however often it cannot be accepted.
async fn next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Out of file descriptors, most often: others must end first.
                tracing::warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Says why without costing anything: the answer fits into the empty socket buffer.
fn turn_away(tcp: TcpStream) {
    tokio::spawn(async move {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 41\r\n\
                       Retry-After: 1\r\nConnection: close\r\n\r\nthe proxy has too many open connections.\n";
        let mut tcp = tcp;
        let end = async {
            tcp.write_all(answer).await?;
            tcp.shutdown().await
        };
        // The client may be gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), end).await;
    });
}

/// Places for connections, in all and by client.
struct Limits {
    total: Arc<Semaphore>,
    clients: Places,
}

impl Limits {
    /// What a connection of this client holds while it is served, or the limit that is reached.
    fn admit(&self, client: IpAddr) -> Result<(OwnedSemaphorePermit, Place), &'static str> {
        let place_of_all = self.total.clone().try_acquire_owned().map_err(|_| "total")?;
        let place = self.clients.take(client).ok_or("client")?;
        Ok((place_of_all, place))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[tokio::test]
    async fn a_fault_in_following_the_files_ends_the_proxy() {
        let mut reloads = tokio::spawn(async { panic!("a fault") });
        assert!(until_the_end(&CancellationToken::new(), &mut reloads).await.is_err());
        let mut reloads = tokio::spawn(std::future::pending());
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert!(until_the_end(&shutdown, &mut reloads).await.is_ok());
        reloads.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_fails_for_a_while_is_asked_again() {
        use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
        assert!(
            listener.accept().await.is_err(),
            "the proof needs a listener that fails"
        );
        let recovers = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            listen(&listener, Backlog::new(1).unwrap()).unwrap();
            TcpStream::connect(listener.local_addr().unwrap()).await.unwrap()
        };
        let ((_, peer), client) = tokio::join!(next(&listener), recovers);
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[test]
    fn case_50_limits_hold_in_all_and_by_client_and_are_given_back() {
        let limits = Limits {
            total: Arc::new(Semaphore::new(3)),
            clients: Places::new(2),
        };
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let first = limits.admit(one).map_err(str::to_owned);
        let _second = limits.admit(one).unwrap_or_else(|limit| panic!("{limit}"));
        assert_eq!(limits.admit(one).err(), Some("client"));
        let _third = limits.admit(two).unwrap_or_else(|limit| panic!("{limit}"));
        assert_eq!(limits.admit(two).err(), Some("total"));
        drop(first);
        assert!(limits.admit(two).is_ok());
    }
}
