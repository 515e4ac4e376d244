//! A TLS listener whose certificate follows its files: a renewed Secret is served within seconds, without a restart, and
//! a broken one never replaces one that works.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_parser::extensions::GeneralName;

use crate::listener::Accept;

/// How often the files are looked at. The kubelet itself takes up to a minute to write a changed Secret.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a certificate cannot be served. Names files, never contents.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file holds no PEM of the kind.
    #[error("{}: no {what} in PEM form found", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// Certificate and key are unusable, or do not belong together.
    #[error("{} and {}: {error}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        error: rustls::Error,
    },
}

/// A certificate that is read again when its files change.
#[derive(Debug)]
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    served: ArcSwap<Served>,
}

#[derive(Debug)]
struct Served {
    pair: Arc<CertifiedKey>,
    names: Vec<String>,
    contents: (Vec<u8>, Vec<u8>),
}

impl Certificate {
    /// Reads both files.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let contents = (read(certificate)?, read(key)?);
        let served = ArcSwap::from_pointee(parse(certificate, key, contents, &provider)?);
        Ok(Arc::new(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            provider,
            served,
        }))
    }

    /// The DNS names and addresses of the certificate that is served now.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.served.load().names.clone()
    }

    /// Accepts connections with this certificate: TLS 1.2 and 1.3, HTTP/1.1.
    ///
    /// # Errors
    ///
    /// When the crypto provider supports neither version.
    pub fn acceptor(self: &Arc<Self>) -> Result<TlsAccept, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(self.clone())));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAccept(TlsAcceptor::from(Arc::new(config))))
    }

    /// Looks at the files once. True: they changed, and what they hold now is served.
    ///
    /// # Errors
    ///
    /// When they changed to something that cannot be served; what was served before still is.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let contents = (read(&self.certificate)?, read(&self.key)?);
        if self.served.load().contents == contents {
            return Ok(false);
        }
        let served = parse(&self.certificate, &self.key, contents, &self.provider)?;
        self.served.store(Arc::new(served));
        Ok(true)
    }

    /// Follows the files until `shutdown` is cancelled.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        let mut reported = None;
        while shutdown.run_until_cancelled(look.tick()).await.is_some() {
            match self.refresh() {
                Ok(true) => {
                    tracing::info!(file = %self.certificate.display(), names = ?self.names(), "Serving a new certificate");
                    reported = None;
                }
                Ok(false) => reported = None,
                Err(error) => {
                    let text = error.to_string();
                    // A pair is written one file after the other: half of it is no news for long.
                    if reported.as_ref() != Some(&text) {
                        tracing::warn!(%error, "Still serving the former certificate");
                        reported = Some(text);
                    }
                }
            }
        }
    }
}

#[derive(Debug)]
struct Resolver(Arc<Certificate>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.served.load().pair.clone())
    }
}

/// Accepts TLS connections.
#[derive(Clone)]
pub struct TlsAccept(TlsAcceptor);

impl Accept for TlsAccept {
    type Stream = tokio_rustls::server::TlsStream<TcpStream>;

    async fn accept(&self, connection: TcpStream) -> std::io::Result<Self::Stream> {
        self.0.accept(connection).await
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| TlsError::Read {
        file: file.to_owned(),
        error,
    })
}

fn parse(
    certificate: &Path,
    key: &Path,
    contents: (Vec<u8>, Vec<u8>),
    provider: &CryptoProvider,
) -> Result<Served, TlsError> {
    let pem = |file: &Path, what| TlsError::Pem {
        file: file.to_owned(),
        what,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&contents.0)
        .collect::<Result<_, _>>()
        .map_err(|_| pem(certificate, "certificate"))?;
    let Some(leaf) = chain.first() else {
        return Err(pem(certificate, "certificate"));
    };
    let names = names(leaf);
    let private = PrivateKeyDer::from_pem_slice(&contents.1).map_err(|_| pem(key, "private key"))?;
    let pair = CertifiedKey::from_der(chain, private, provider).map_err(|error| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        error,
    })?;
    Ok(Served {
        pair: Arc::new(pair),
        names,
        contents,
    })
}

fn names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else {
        return Vec::new();
    };
    let Ok(Some(names)) = leaf.subject_alternative_name() else {
        return Vec::new();
    };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes)
                .ok()
                .map(|octets| std::net::Ipv4Addr::from(octets).to_string()),
            16 => <[u8; 16]>::try_from(*bytes)
                .ok()
                .map(|octets| std::net::Ipv6Addr::from(octets).to_string()),
            _ => None,
        },
        _ => None,
    };
    names.value.general_names.iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::routing::get;
    use rustls::RootCertStore;
    use rustls_pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::listener::{Limits, serve};

    struct Files {
        _dir: tempfile::TempDir,
        certificate: PathBuf,
        key: PathBuf,
    }

    impl Files {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self {
                certificate: dir.path().join("tls.crt"),
                key: dir.path().join("tls.key"),
                _dir: dir,
            }
        }

        fn write(&self, name: &str) -> CertificateDer<'static> {
            let made = rcgen::generate_simple_self_signed(vec![name.to_owned(), "10.1.2.3".to_owned()]).unwrap();
            std::fs::write(&self.certificate, made.cert.pem()).unwrap();
            std::fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
            made.cert.der().clone()
        }
    }

    async fn get_over_tls(
        address: SocketAddr,
        name: &'static str,
        trust: &CertificateDer<'static>,
    ) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(trust.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await?;
        let mut tls = TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from(name).unwrap(), tcp)
            .await?;
        tls.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_served_without_a_restart() {
        let files = Files::new();
        let first = files.write("first.example");
        let certificate = Certificate::load(&files.certificate, &files.key).unwrap();
        assert_eq!(certificate.names(), ["first.example", "10.1.2.3"]);

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| std::future::ready("hello")));
        let shutdown = CancellationToken::new();
        let acceptor = certificate.acceptor().unwrap();
        let server = tokio::spawn(serve(
            listener,
            acceptor,
            router,
            Limits::default(),
            shutdown.clone(),
            Duration::from_secs(5),
        ));
        let follower = tokio::spawn(certificate.clone().follow(shutdown.clone()));

        assert!(
            get_over_tls(address, "first.example", &first)
                .await
                .unwrap()
                .ends_with("hello")
        );
        let second = files.write("second.example");
        while get_over_tls(address, "second.example", &second).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(get_over_tls(address, "first.example", &first).await.is_err());
        shutdown.cancel();
        server.await.unwrap();
        follower.await.unwrap();
    }

    #[test]
    fn half_a_change_or_a_broken_one_keeps_what_works() {
        let files = Files::new();
        files.write("first.example");
        let certificate = Certificate::load(&files.certificate, &files.key).unwrap();
        assert!(!certificate.refresh().unwrap());

        let other = rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
        std::fs::write(&files.certificate, other.cert.pem()).unwrap();
        assert!(matches!(certificate.refresh(), Err(TlsError::Pair { .. })));
        assert_eq!(certificate.names(), ["first.example", "10.1.2.3"]);

        std::fs::write(&files.key, other.signing_key.serialize_pem()).unwrap();
        assert!(certificate.refresh().unwrap());
        assert_eq!(certificate.names(), ["other.example"]);

        std::fs::write(&files.certificate, "").unwrap();
        assert!(matches!(
            certificate.refresh(),
            Err(TlsError::Pem {
                what: "certificate",
                ..
            })
        ));
        std::fs::remove_file(&files.certificate).unwrap();
        assert!(matches!(certificate.refresh(), Err(TlsError::Read { .. })));
        assert_eq!(certificate.names(), ["other.example"]);
    }
}
