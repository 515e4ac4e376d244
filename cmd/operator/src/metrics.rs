//! The listener of `/metrics`: plain HTTP on loopback; anywhere else HTTPS, for callers that Kubernetes lets get the
//! non-resource URL `/metrics`, as kubebuilder's operators have it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use cli_mcp_serving::auth::Guard;
use cli_mcp_serving::auth::review::{KubernetesReview, Right};
use cli_mcp_serving::listener::{self, Accept, Limits, Plain};
use cli_mcp_serving::tls::{Certificate, TlsError};
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
    handshake: Duration::from_secs(10),
    headers: Duration::from_secs(75),
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
    #[error("--metrics-cert-path: {0}")]
    Certificate(#[from] TlsError),
    /// No certificate could be made.
    #[error("a certificate for the metrics cannot be made: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The TLS settings are refused.
    #[error("TLS for the metrics: {0}")]
    Tls(#[from] rustls::Error),
}

/// Serves the registry until `stop`. The client must not be fenced: reviews are asked by every replica.
///
/// # Errors
///
/// When the certificate cannot be used.
pub async fn serve(
    socket: TcpListener,
    exposure: &Exposure,
    mut registry: Registry,
    client: Client,
    stop: CancellationToken,
) -> Result<(), MetricsError> {
    match exposure {
        Exposure::Loopback(_) => {
            listener::serve(socket, Plain, router(registry), LIMITS, stop, DRAIN).await;
        }
        Exposure::Guarded(_, certificates) => {
            let guard = Guard::new(
                KubernetesReview::new(client, Right::Path(PATH), REMEDY.to_owned()),
                registry.sub_registry_with_prefix("cli_mcp_operator_metrics"),
            );
            let router = router(registry).layer(from_fn_with_state(guard, Guard::<KubernetesReview>::check));
            match certificates {
                Some(folder) => {
                    let certificate = load(folder)?;
                    let accept = certificate.acceptor()?;
                    let following = certificate.follow(stop.clone());
                    tokio::join!(listener::serve(socket, accept, router, LIMITS, stop, DRAIN), following);
                }
                None => listener::serve(socket, self_signed()?, router, LIMITS, stop, DRAIN).await,
            }
        }
    }
    Ok(())
}

fn load(folder: &Path) -> Result<Arc<Certificate>, TlsError> {
    Certificate::load(&folder.join("tls.crt"), &folder.join("tls.key"))
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

#[derive(Clone)]
struct SelfSigned(TlsAcceptor);

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
