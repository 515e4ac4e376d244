//! From a target to a verified TLS connection: resolve once, check every address, dial exactly the address that was
//! checked (`proxy_cases.md`, case 25).

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_kubeconfig::{Authority, Host, refused_for_allowlist, refused_for_kubernetes};
use cli_mcp_serving::socket::tune;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::socket::{STALL, Socket};
use crate::tls;

/// How long name lookup, TCP and TLS handshake may take together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to an upstream.
pub type UpstreamStream = Box<TlsStream<Socket>>;

/// Looks names up. The system's resolver in a pod; tests bring their own.
pub trait Resolve: Send + Sync {
    /// The addresses of a DNS name.
    fn lookup<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// The system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn lookup<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0))
                .await?
                .map(|address| address.ip())
                .collect())
        })
    }
}

/// Which addresses a target may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRule {
    /// Private ones too, but neither loopback nor link-local.
    Kubernetes,
    /// Public ones only.
    Public,
    /// The one that the operator listed as a literal.
    Literal,
}

impl AddressRule {
    /// The name that the resolver is asked for. A public one ends with a dot: it is whole, and none of the pod's search
    /// domains may make another of it. API servers may be names within the cluster.
    fn looked_up(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Public => Cow::Owned(format!("{name}.")),
            Self::Kubernetes | Self::Literal => Cow::Borrowed(name),
        }
    }

    fn refuses(self, address: IpAddr) -> Option<&'static str> {
        match self {
            Self::Kubernetes => refused_for_kubernetes(address),
            Self::Public => refused_for_allowlist(address),
            Self::Literal => None,
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name does not resolve.
    #[error("{host} cannot be resolved: {source}")]
    Lookup {
        /// The name.
        host: Host,
        /// The resolver's error.
        source: io::Error,
    },
    /// It resolves to an address that is never dialled.
    #[error("{host} resolves to {address}, a {reason}, which the credential proxy does not dial")]
    Refused {
        /// The name.
        host: Host,
        /// The address.
        address: IpAddr,
        /// What kind of address it is.
        reason: &'static str,
    },
    /// No address answers.
    #[error("{authority} cannot be reached: {source}")]
    Connect {
        /// The target.
        authority: Authority,
        /// The last address's error.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{0} does not answer: no connection within {seconds} s", seconds = DIAL_TIMEOUT.as_secs())]
    Timeout(Authority),
    /// The server is not the one that the kubeconfig describes, or speaks no usable TLS.
    #[error("{authority}: {why}")]
    Untrusted {
        /// The target.
        authority: Authority,
        /// Cause and remedy.
        why: String,
    },
}

impl DialError {
    /// The status that the client gets.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Timeout(_) => 504,
            _ => 502,
        }
    }
}

/// How a target is dialled.
pub struct Dialer {
    /// Where.
    pub authority: Authority,
    /// Which addresses it may have.
    pub rule: AddressRule,
    /// Who looks its name up.
    pub resolver: Arc<dyn Resolve>,
    /// How it is trusted, and the client certificate.
    pub tls: Arc<ClientConfig>,
    /// The name that its certificate is checked against.
    pub server_name: ServerName<'static>,
}

impl Dialer {
    /// The addresses that may be dialled. One refused address refuses the name: it is not the operator's any more.
    ///
    /// # Errors
    ///
    /// [`DialError::Lookup`] and [`DialError::Refused`].
    pub async fn addresses(&self) -> Result<Vec<SocketAddr>, DialError> {
        let host = &self.authority.host;
        let lookup_error = |source| DialError::Lookup {
            host: host.clone(),
            source,
        };
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let asked = self.rule.looked_up(name);
                self.resolver.lookup(&asked).await.map_err(lookup_error)?
            }
        };
        if addresses.is_empty() {
            return Err(lookup_error(io::Error::new(io::ErrorKind::NotFound, "no address")));
        }
        for address in &addresses {
            if let Some(reason) = self.rule.refuses(*address) {
                return Err(DialError::Refused {
                    host: host.clone(),
                    address: *address,
                    reason,
                });
            }
        }
        Ok(addresses
            .into_iter()
            .map(|address| SocketAddr::new(address.to_canonical(), self.authority.port))
            .collect())
    }

    /// A new connection. Not a byte of a request is sent before the server is verified.
    ///
    /// # Errors
    ///
    /// Whatever stands in the way, with cause and remedy.
    pub async fn dial(&self) -> Result<UpstreamStream, DialError> {
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let timeout = |_| DialError::Timeout(self.authority.clone());
        let addresses = timeout_at(deadline, self.addresses()).await.map_err(timeout)??;
        let tcp = timeout_at(deadline, self.connect(addresses)).await.map_err(timeout)??;
        let handshake =
            TlsConnector::from(self.tls.clone()).connect(self.server_name.clone(), Socket::new(tcp, Vec::new()));
        match timeout_at(deadline, handshake).await.map_err(timeout)? {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(self.handshake_error(error)),
        }
    }

    async fn connect(&self, addresses: Vec<SocketAddr>) -> Result<TcpStream, DialError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
        let share = DIAL_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        for address in addresses {
            // One silent address of several must not use up the time of the others.
            let attempt = tokio::time::timeout(share, TcpStream::connect(address)).await;
            match attempt
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .and_then(|tcp| tune(&tcp, STALL).map(|()| tcp))
            {
                Ok(tcp) => return Ok(tcp),
                Err(error) => last = error,
            }
        }
        if last.kind() == io::ErrorKind::TimedOut {
            return Err(DialError::Timeout(self.authority.clone()));
        }
        Err(DialError::Connect {
            authority: self.authority.clone(),
            source: last,
        })
    }

    fn handshake_error(&self, error: io::Error) -> DialError {
        let name = self.server_name.to_str();
        let why = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>())
            .map_or_else(
                || format!("the TLS handshake failed: {error}"),
                |error| tls::explain(error, &name, self.rule == AddressRule::Kubernetes),
            );
        DialError::Untrusted {
            authority: self.authority.clone(),
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// Answers with these addresses, or never.
    struct Fixed(Option<Vec<IpAddr>>);

    impl Resolve for Fixed {
        fn lookup<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
            Box::pin(async {
                match &self.0 {
                    Some(addresses) => Ok(addresses.clone()),
                    None => std::future::pending().await,
                }
            })
        }
    }

    fn dialer(addresses: Option<Vec<IpAddr>>) -> Dialer {
        let public = tls::public_roots(None).unwrap();
        Dialer {
            authority: Authority::parse("api.test:443").unwrap(),
            rule: AddressRule::Kubernetes,
            resolver: Arc::new(Fixed(addresses)),
            tls: Arc::new(tls::allowlist(&public).unwrap()),
            server_name: "api.test".try_into().unwrap(),
        }
    }

    /// A port whose queue is full: the kernel answers no further attempt.
    fn silent() -> (TcpListener, std::net::TcpStream) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let queued = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener, queued)
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_not_resolved() {
        let error = dialer(Some(Vec::new())).dial().await.err().unwrap();
        assert_eq!(error.status(), 502);
        assert_eq!(error.to_string(), "api.test cannot be resolved: no address");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_whose_resolver_is_silent_is_a_timeout() {
        let error = dialer(None).dial().await.err().unwrap();
        assert_eq!(error.status(), 504);
        assert!(matches!(error, DialError::Timeout(_)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_silent_is_a_timeout_and_leaves_time_for_the_next() {
        let (listener, _queued) = silent();
        let silent = listener.local_addr().unwrap();
        let error = dialer(None).connect(vec![silent]).await.unwrap_err();
        assert_eq!(error.status(), 504);
        assert!(matches!(error, DialError::Timeout(_)), "{error}");

        let next = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let both = vec![silent, next.local_addr().unwrap()];
        let tcp = dialer(None).connect(both).await.unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), next.local_addr().unwrap());
    }

    #[tokio::test]
    async fn the_system_resolves_the_name_of_this_machine() {
        let found = SystemResolver.lookup("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
