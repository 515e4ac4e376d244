//! TLS towards upstreams: which servers are trusted, and what is said when one is not (`proxy_cases.md`, cases 67
//! and 68).

use std::sync::Arc;

use cli_mcp_kubeconfig::{Credential, Trust};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of roots is no PEM.
    #[error("SSL_CERT_FILE: broken PEM")]
    RootsPem,
    /// The file of roots has none.
    #[error("SSL_CERT_FILE: it holds no usable certificate")]
    NoRoots,
    /// No certificate of the CA data can be an anchor.
    #[error("certificate-authority-data of cluster {0:?} holds no certificate that can be a trust anchor")]
    NoAnchor(String),
    /// rustls refuses the parts.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
    /// The verifier refuses the parts.
    #[error("{0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// ring, with TLS 1.3 and AES-128 first, whose cipher does with fewer rounds. Towards clients this order decides; an
/// upstream may have an order of its own.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            let mut provider = rustls::crypto::ring::default_provider();
            provider.cipher_suites.sort_by_key(|suite| {
                let name = format!("{:?}", suite.suite());
                (!name.starts_with("TLS13"), !name.contains("AES_128"))
            });
            Arc::new(provider)
        })
        .clone()
}

/// The roots for targets whose kubeconfig names no CA: the content of the file of `SSL_CERT_FILE` when it is set, else
/// Mozilla's.
///
/// # Errors
///
/// When it holds no certificate.
pub fn public_roots(ssl_cert_file: Option<&[u8]>) -> Result<Arc<RootCertStore>, TlsError> {
    let Some(pem) = ssl_cert_file else {
        return Ok(Arc::new(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        }));
    };
    let mut roots = RootCertStore::empty();
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| TlsError::RootsPem)?;
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        return Err(TlsError::NoRoots);
    }
    Ok(Arc::new(roots))
}

/// The configuration for an API server.
///
/// # Errors
///
/// When CA or client certificate cannot be used.
pub fn kubernetes(
    cluster: &str,
    trust: &Trust,
    credential: &Credential,
    public: &Arc<RootCertStore>,
) -> Result<ClientConfig, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::System => WebPkiServerVerifier::builder_with_provider(public.clone(), provider()).build()?,
        Trust::Only(certificates) => Arc::new(ClusterVerifier::new(cluster, certificates)?),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match credential {
        Credential::Token(_) => builder.with_no_client_auth(),
        Credential::ClientCertificate { chain, key } => builder.with_client_auth_cert(chain.clone(), key.expose())?,
    };
    Ok(http1(config))
}

/// The configuration for public servers.
///
/// # Errors
///
/// Never with a working provider.
pub fn allowlist(public: &Arc<RootCertStore>) -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(public.clone())
        .with_no_client_auth();
    Ok(http1(config))
}

fn http1(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Trusts what the kubeconfig names: its CAs, and a server's own certificate where that is what stands there, compared
/// byte for byte.
#[derive(Debug)]
struct ClusterVerifier {
    /// `None` when every certificate of the file is a server's own.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    pinned: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClusterVerifier {
    fn new(cluster: &str, certificates: &[CertificateDer<'static>]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        let parsable = certificates.iter().any(|der| X509Certificate::from_der(der).is_ok());
        if added == 0 && !parsable {
            return Err(TlsError::NoAnchor(cluster.to_owned()));
        }
        let webpki = (added > 0)
            .then(|| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build())
            .transpose()?;
        Ok(Self {
            webpki,
            pinned: certificates.to_vec(),
            algorithms: provider().signature_verification_algorithms,
        })
    }

    fn verify_pinned(
        &self,
        end_entity: &CertificateDer<'_>,
        server_name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (_, parsed) = X509Certificate::from_der(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < parsed.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parsed.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }
}

impl ServerCertVerifier for ClusterVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = if self.pinned.iter().any(|pinned| pinned.as_ref() == end_entity.as_ref()) {
            self.verify_pinned(end_entity, server_name, now)
        } else if let Some(webpki) = &self.webpki {
            webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        } else {
            Err(CertificateError::UnknownIssuer.into())
        };
        verdict.map_err(|error| match error {
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) if has_no_san(end_entity) => rustls::Error::General(COMMON_NAME_ONLY.into()),
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

const COMMON_NAME_ONLY: &str = "the server's certificate has only a common name and no subject alternative name: issue \
                                it anew with the server's host or address as subject alternative name";

fn has_no_san(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
        parsed
            .subject_alternative_name()
            .is_ok_and(|extension| extension.is_none())
    })
}

/// What a failed handshake means for the admin: cause and remedy.
#[must_use]
pub fn explain(error: &rustls::Error, server_name: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer => {
                "the server's certificate is not signed by the CA of the kubeconfig: put the CA that signs it into \
                 certificate-authority-data"
                    .into()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
                "the server's certificate is not for {server_name}: correct `server`, or set tls-server-name to a name in \
                 the certificate"
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: check the clocks".into()
            }
            other => format!("the server's certificate is refused: {other}"),
        },
        rustls::Error::General(text) => text.clone(),
        other => format!("TLS with the server failed: {other}"),
    }
}
