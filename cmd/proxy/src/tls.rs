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
    webpki: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClusterVerifier {
    fn new(cluster: &str, certificates: &[CertificateDer<'static>]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        // What cannot be an anchor cannot be read as a server's own certificate either.
        if added == 0 {
            return Err(TlsError::NoAnchor(cluster.to_owned()));
        }
        Ok(Self {
            webpki: WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()?,
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
        } else {
            self.webpki
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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

/// What a failed handshake means for the admin: cause and remedy. `by_kubeconfig` says whether a kubeconfig describes the
/// server; a public one is described by its name on the allowlist alone.
#[must_use]
pub fn explain(error: &rustls::Error, server_name: &str, by_kubeconfig: bool) -> String {
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer if !by_kubeconfig => {
                "the server's certificate is not signed by a public CA: a server on the allowlist needs one that is"
                    .into()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } if !by_kubeconfig => {
                format!(
                    "the server's certificate is not for {server_name}: name the server on the allowlist as its certificate \
                     does"
                )
            }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, DnType, KeyPair};
    use time::OffsetDateTime;

    use super::*;

    const FROM: i64 = 1_700_000_000;
    const TO: i64 = FROM + 1000;

    /// A self-signed certificate of this common name for these names, valid from `FROM` to `TO`.
    fn own(common_name: &str, names: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = OffsetDateTime::from_unix_timestamp(FROM).unwrap();
        params.not_after = OffsetDateTime::from_unix_timestamp(TO).unwrap();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        certificate.der().clone()
    }

    /// The same certificate in a version that TLS libraries do not read.
    fn of_version_2(certificate: &CertificateDer<'_>) -> CertificateDer<'static> {
        const VERSION_3: [u8; 5] = [0xa0, 0x03, 0x02, 0x01, 0x02];
        let mut der = certificate.to_vec();
        let at = der.windows(5).position(|window| window == VERSION_3).unwrap();
        *der.get_mut(at + 4).unwrap() = 1;
        der.into()
    }

    /// What a cluster that names `trusted` says of a server with this certificate.
    fn verify(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'_>,
        name: &str,
        now: i64,
    ) -> Result<(), String> {
        let verifier = ClusterVerifier::new("k", std::slice::from_ref(trusted)).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.try_into().unwrap()));
        verifier
            .verify_server_cert(shown, &[], &name.try_into().unwrap(), &[], now)
            .map(|_| ())
            .map_err(|error| explain(&error, name, true))
    }

    #[test]
    fn case_67_a_pinned_certificate_is_judged_by_its_time_and_name() {
        let pinned = own("api", &["api.test", "10.0.0.1"]);
        for now in [FROM, TO] {
            assert_eq!(verify(&pinned, &pinned, "api.test", now), Ok(()));
            assert_eq!(verify(&pinned, &pinned, "10.0.0.1", now), Ok(()));
        }
        let refused = |shown, name, now| verify(&pinned, shown, name, now).unwrap_err();
        assert!(refused(&pinned, "api.test", FROM - 1).contains("not valid yet"));
        assert!(refused(&pinned, "api.test", TO + 1).contains("has expired"));
        assert!(refused(&pinned, "other.test", FROM).contains("not for other.test"));
        let another = own("another", &["api.test"]);
        assert!(refused(&another, "api.test", FROM).contains("not signed by the CA of the kubeconfig"));
        let nameless = own("api.test", &[]);
        let why = verify(&nameless, &nameless, "api.test", FROM).unwrap_err();
        assert!(why.contains("only a common name"), "{why}");
    }

    #[test]
    fn certificates_that_no_server_can_be_checked_by_are_refused_when_they_are_read() {
        let unread = of_version_2(&own("api", &["api.test"]));
        assert!(
            X509Certificate::from_der(&unread).is_ok(),
            "the proof needs one that is a certificate"
        );
        for certificates in [vec![], vec![CertificateDer::from(vec![1, 2, 3])], vec![unread]] {
            let error = ClusterVerifier::new("k", &certificates).unwrap_err();
            assert!(
                matches!(&error, TlsError::NoAnchor(cluster) if cluster == "k"),
                "{error}"
            );
        }
    }

    #[test]
    fn case_68_each_reason_names_its_remedy_and_only_what_there_is() {
        use CertificateError::*;
        for (error, of_cluster, of_public) in [
            (UnknownIssuer, "certificate-authority-data", "a public CA"),
            (NotValidForName, "tls-server-name", "on the allowlist"),
            (Expired, "renew it", "renew it"),
            (NotValidYet, "check the clocks", "check the clocks"),
            (BadSignature, "certificate is refused", "certificate is refused"),
        ] {
            let error = rustls::Error::InvalidCertificate(error);
            let (cluster, public) = (explain(&error, "api.test", true), explain(&error, "api.test", false));
            assert!(cluster.contains(of_cluster), "{cluster}");
            assert!(public.contains(of_public), "{public}");
            assert!(
                !public.contains("kubeconfig") && !public.contains("tls-server-name"),
                "{public}"
            );
        }
        let error = rustls::Error::PeerIncompatible(rustls::PeerIncompatible::ServerDoesNotSupportTls12Or13);
        assert!(explain(&error, "api.test", true).starts_with("TLS with the server failed: "));
    }

    #[test]
    fn roots_are_read_whole_or_not_at_all() {
        assert!(matches!(public_roots(Some(b"none")), Err(TlsError::NoRoots)));
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(public_roots(Some(broken)), Err(TlsError::RootsPem)));
        assert!(!public_roots(None).unwrap().is_empty());
    }
}
