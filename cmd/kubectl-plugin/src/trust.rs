//! Which certificate of a server is the instance's: decided from what the cluster says, and never given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;

use crate::error::{Error, Result};

/// What the server's certificate is verified against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A chain to one of these, PEM.
    Authority(Vec<u8>),
    /// Exactly this certificate, the one that the instance's Secret holds; or, while a renewed one is on its way to the
    /// server, a chain to the CA that the Secret names, PEM.
    Certificate {
        certificate: CertificateDer<'static>,
        authority: Option<Vec<u8>>,
    },
    /// A chain to a root of this machine.
    Machine,
}

/// The certificate in the Secret is known and needs no chain, and its CA may be there too; where the Secret cannot be
/// read, OpenShift's service CA is in a ConfigMap of every namespace.
pub(crate) fn decide(secret: Option<&BTreeMap<String, Vec<u8>>>, service_ca: Option<&str>) -> Trust {
    let key = |name: &str| secret.and_then(|data| data.get(name)).filter(|data| !data.is_empty());
    let authority = key("ca.crt").cloned();
    let leaf = key("tls.crt").and_then(|pem| CertificateDer::from_pem_slice(pem).ok());
    match (leaf, authority, service_ca) {
        (Some(certificate), authority, _) => Trust::Certificate { certificate, authority },
        (None, Some(ca), _) => Trust::Authority(ca),
        (None, None, Some(ca)) => Trust::Authority(ca.as_bytes().to_vec()),
        (None, None, None) => Trust::Machine,
    }
}

impl Trust {
    pub(crate) fn apply(self, builder: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder> {
        let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("the server's CA cannot be used: {error}"));
        Ok(match self {
            Self::Machine => builder,
            Self::Authority(pem) => {
                let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))?;
                if certificates.is_empty() {
                    return Err(failed(&"it holds no certificate in PEM"));
                }
                builder.tls_certs_only(certificates)
            }
            Self::Certificate { certificate, authority } => {
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                // A CA that cannot be used, such as one left from an earlier certificate, takes nothing from the certificate.
                let authority = authority.and_then(|pem| chains_to(&pem, provider.clone()));
                let mut config = ClientConfig::builder_with_provider(provider.clone())
                    .with_safe_default_protocol_versions()
                    .map_err(|error| failed(&error))?
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Known {
                        certificate,
                        authority,
                        provider,
                    }))
                    .with_no_client_auth();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                builder.tls_backend_preconfigured(config)
            }
        })
    }
}

fn chains_to(pem: &[u8], provider: Arc<CryptoProvider>) -> Option<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .ok()
}

/// Accepts one certificate: who holds its key is the server that the Secret was made for. Else what chains to the CA.
#[derive(Debug)]
struct Known {
    certificate: CertificateDer<'static>,
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.certificate.as_ref() {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.authority {
            Some(authority) => authority.verify_server_cert(end_entity, intermediates, name, ocsp, now),
            None => Err(CertificateError::UnknownIssuer.into()),
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
        let known = |authority: Option<&[u8]>| Trust::Certificate {
            certificate: CertificateDer::from(vec![1, 2, 3]),
            authority: authority.map(<[u8]>::to_vec),
        };
        let both = secret(&[("ca.crt", "CA"), ("tls.crt", PEM)]);
        assert_eq!(decide(Some(&both), Some("S")), known(Some(b"CA")));
        let leaf = secret(&[("ca.crt", ""), ("tls.crt", PEM)]);
        assert_eq!(decide(Some(&leaf), Some("S")), known(None));
        let ca = secret(&[("ca.crt", "CA")]);
        assert_eq!(decide(Some(&ca), Some("S")), Trust::Authority(b"CA".to_vec()));
        assert_eq!(decide(None, Some("S")), Trust::Authority(b"S".to_vec()));
        assert_eq!(decide(Some(&secret(&[])), None), Trust::Machine);
    }

    #[test]
    fn a_file_without_a_certificate_is_no_authority() {
        let applied = Trust::Authority(b"no PEM".to_vec()).apply(reqwest::Client::builder());
        assert!(applied.unwrap_err().to_string().contains("no certificate"));
    }

    #[test]
    fn only_the_certificate_itself_is_accepted() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Known {
            certificate: CertificateDer::from(vec![1, 2, 3]),
            authority: chains_to(PEM.as_bytes(), provider.clone()),
            provider,
        };
        assert!(verifier.authority.is_none(), "a CA that is none was taken");
        let verify = |bytes: Vec<u8>| {
            let name = ServerName::try_from("a.example").unwrap();
            verifier.verify_server_cert(&CertificateDer::from(bytes), &[], &name, &[], UnixTime::now())
        };
        assert!(verify(vec![1, 2, 3]).is_ok());
        assert!(verify(vec![1, 2, 4]).is_err());
    }
}
