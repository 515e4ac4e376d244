//! Which certificate of a server is the instance's: decided from what the cluster says, and never given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::pem::PemObject;

use crate::error::{Error, Result};

/// What the server's certificate is verified against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A chain to one of these, PEM.
    Authority(Vec<u8>),
    /// Exactly this certificate: the one that the instance's Secret holds.
    Certificate(CertificateDer<'static>),
    /// A chain to a root of this machine.
    Machine,
}

/// The Secret's CA is the best; where it names none, its certificate is known and needs no chain; where the Secret
/// cannot be read, OpenShift's service CA is in a ConfigMap of every namespace.
pub(crate) fn decide(secret: Option<&BTreeMap<String, Vec<u8>>>, service_ca: Option<&str>) -> Trust {
    let key = |name: &str| secret.and_then(|data| data.get(name)).filter(|data| !data.is_empty());
    if let Some(ca) = key("ca.crt") {
        return Trust::Authority(ca.clone());
    }
    let leaf = key("tls.crt").and_then(|pem| CertificateDer::from_pem_slice(pem).ok());
    match (leaf, service_ca) {
        (Some(leaf), _) => Trust::Certificate(leaf),
        (None, Some(ca)) => Trust::Authority(ca.as_bytes().to_vec()),
        (None, None) => Trust::Machine,
    }
}

impl Trust {
    pub(crate) fn apply(self, builder: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder> {
        let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("the server's CA cannot be used: {error}"));
        Ok(match self {
            Self::Machine => builder,
            Self::Authority(pem) => {
                let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))?;
                builder.tls_certs_only(certificates)
            }
            Self::Certificate(certificate) => {
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let mut config = ClientConfig::builder_with_provider(provider.clone())
                    .with_safe_default_protocol_versions()
                    .map_err(|error| failed(&error))?
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Exactly { certificate, provider }))
                    .with_no_client_auth();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                builder.tls_backend_preconfigured(config)
            }
        })
    }
}

/// Accepts one certificate: who holds its key is the server that the Secret was made for.
#[derive(Debug)]
struct Exactly {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.certificate.as_ref() {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";

    fn secret(keys: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        keys.iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn the_secret_outweighs_the_service_ca_and_that_the_machine() {
        let both = secret(&[("ca.crt", "CA"), ("tls.crt", PEM)]);
        assert_eq!(decide(Some(&both), Some("S")), Trust::Authority(b"CA".to_vec()));
        let leaf = secret(&[("ca.crt", ""), ("tls.crt", PEM)]);
        assert_eq!(
            decide(Some(&leaf), Some("S")),
            Trust::Certificate(CertificateDer::from(vec![1, 2, 3]))
        );
        assert_eq!(decide(None, Some("S")), Trust::Authority(b"S".to_vec()));
        assert_eq!(decide(Some(&secret(&[])), None), Trust::Machine);
    }

    #[test]
    fn only_the_certificate_itself_is_accepted() {
        let verifier = Exactly {
            certificate: CertificateDer::from(vec![1, 2, 3]),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
        };
        let verify = |bytes: Vec<u8>| {
            let name = ServerName::try_from("a.example").unwrap();
            verifier.verify_server_cert(&CertificateDer::from(bytes), &[], &name, &[], UnixTime::now())
        };
        assert!(verify(vec![1, 2, 3]).is_ok());
        assert!(verify(vec![1, 2, 4]).is_err());
    }
}
