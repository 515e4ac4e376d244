//! The listener of `/metrics`: plain HTTP on loopback; anywhere else HTTPS, for callers that Kubernetes lets get the
//! non-resource URL `/metrics`, as kubebuilder's operators have it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use cli_mcp_serving::auth::Guard;
use cli_mcp_serving::auth::review::{KubernetesReview, Right};
use cli_mcp_serving::listener::{self, Accept, Limits, Plain};
use cli_mcp_serving::tls::{Certificate, TlsAccept, TlsError};
use kube::Client;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

const PATH: &str = "/metrics";
const DRAIN: Duration = Duration::from_secs(1);

/// How a scraper gets the right.
const REMEDY: &str = "an administrator must bind the scraper's ServiceAccount to the ClusterRole cli-mcp-operator-metrics-reader, \
    or to another ClusterRole with the verb get on nonResourceURLs /metrics";

/// Scrapers are few.
const LIMITS: Limits = Limits {
    connections: 64,
    per_client: 32,
    handshake: Duration::from_secs(10),
    headers: Duration::from_secs(75),
    stall: Duration::from_secs(60),
};

/// How callers reach the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// In clear, to this machine.
    Loopback(SocketAddr),
    /// Over HTTPS, to whom Kubernetes lets; the folder holds `tls.crt` and `tls.key`.
    Guarded(SocketAddr, Option<PathBuf>),
}

impl Exposure {
    /// What an address calls for.
    #[must_use]
    pub fn of(address: SocketAddr, certificates: Option<PathBuf>) -> Self {
        if address.ip().is_loopback() {
            Self::Loopback(address)
        } else {
            Self::Guarded(address, certificates)
        }
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        match self {
            Self::Loopback(address) | Self::Guarded(address, _) => *address,
        }
    }
}

/// Why the metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The certificate cannot be used.
    #[error(
        "--metrics-cert-path: {0}. Mount a folder with tls.crt and tls.key that belong together, or leave the flag out: the \
         metrics are then served with a self-signed certificate"
    )]
    Certificate(#[from] TlsError),
    /// No certificate could be made.
    #[error("a certificate for the metrics cannot be made: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The TLS settings are refused.
    #[error("TLS for the metrics: {0}")]
    Tls(#[from] rustls::Error),
}

/// How connections are accepted, with the certificate that was found at the start.
pub enum Security {
    /// In clear.
    Plain,
    /// With a certificate that follows its files.
    Files(Arc<Certificate>, TlsAccept),
    /// With a certificate of this process.
    SelfSigned(SelfSigned),
}

impl Exposure {
    /// Reads the certificate, before anything is started: a replica whose metrics nobody can read is not well. A Secret
    /// that is mounted is there before the container starts; one whose volume is optional is there after a restart.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be used.
    pub fn secure(&self) -> Result<Security, MetricsError> {
        Ok(match self {
            Self::Loopback(_) => Security::Plain,
            Self::Guarded(_, Some(folder)) => {
                let certificate = Certificate::load(&folder.join("tls.crt"), &folder.join("tls.key"))?;
                let accept = certificate.acceptor()?;
                Security::Files(certificate, accept)
            }
            Self::Guarded(_, None) => Security::SelfSigned(self_signed()?),
        })
    }
}

/// Serves the registry until `stop`. The client must not be fenced: reviews are asked by every replica.
pub async fn serve(
    socket: TcpListener,
    security: Security,
    registry: Registry,
    client: Client,
    stop: CancellationToken,
) {
    let guarded = |mut registry: Registry| {
        let guard = Guard::new(
            KubernetesReview::new(client, Right::Path(PATH), REMEDY.to_owned()),
            registry.sub_registry_with_prefix("cli_mcp_operator_metrics"),
        );
        router(registry).layer(from_fn_with_state(guard, Guard::<KubernetesReview>::check))
    };
    match security {
        Security::Plain => listener::serve(socket, Plain, router(registry), LIMITS, stop, DRAIN).await,
        Security::Files(certificate, accept) => {
            let following = certificate.follow(stop.clone());
            tokio::join!(
                listener::serve(socket, accept, guarded(registry), LIMITS, stop, DRAIN),
                following
            );
        }
        Security::SelfSigned(accept) => {
            listener::serve(socket, accept, guarded(registry), LIMITS, stop, DRAIN).await;
        }
    }
}

fn router(registry: Registry) -> Router {
    let registry = Arc::new(registry);
    Router::new().route(
        PATH,
        get(move || std::future::ready(cli_mcp_serving::metrics::response(&registry))),
    )
}

/// A certificate of this process alone: scrapers that verify it give the operator one with `--metrics-cert-path`.
fn self_signed() -> Result<SelfSigned, MetricsError> {
    let made = rcgen::generate_simple_self_signed(vec!["cli-mcp-operator".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(SelfSigned(TlsAcceptor::from(Arc::new(config))))
}

/// Accepts TLS connections with a certificate of this process.
#[derive(Clone)]
pub struct SelfSigned(TlsAcceptor);

impl Accept for SelfSigned {
    type Stream = TlsStream<TcpStream>;

    async fn accept(&self, connection: TcpStream) -> std::io::Result<Self::Stream> {
        self.0.accept(connection).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_in_clear() {
        let of = |text: &str| Exposure::of(text.parse().unwrap(), None);
        assert!(matches!(of("127.0.0.1:1"), Exposure::Loopback(_)));
        assert!(matches!(of("[::1]:1"), Exposure::Loopback(_)));
        assert!(matches!(of("[::]:8443"), Exposure::Guarded(_, None)));
        assert!(matches!(of("10.0.0.1:8443"), Exposure::Guarded(_, None)));
    }

    #[test]
    fn a_certificate_can_be_made() {
        assert!(self_signed().is_ok());
    }
}
