//! The CA that signs for an instance's targets. Its certificate stands in the file that a sandbox sees, so the operator
//! writes it there only if the proxy takes the pair too.

use rcgen::{Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a pair of certificate and key is no CA that can sign. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum SigningCaError {
    /// Not PEM, not X.509.
    #[error("ca.crt holds no PEM certificate: write the CA's certificate there")]
    Certificate,
    /// Not a key that can be read.
    #[error("ca.key holds no unencrypted PEM private key (PKCS#8, or SEC 1): write the CA's key there")]
    Key,
    /// They do not belong together.
    #[error("ca.key is not the key of ca.crt: write the pair that belongs together")]
    Mismatch,
    /// A leaf or an intermediate with wrong usages.
    #[error("ca.crt is no certificate authority (basicConstraints CA:TRUE and keyUsage keyCertSign): use a CA")]
    NotCa,
    /// A key beside the certificate, which sandboxes see as it stands.
    #[error("ca.crt also holds a private key, and sandboxes see that file: write the certificate alone there")]
    KeyInCertificate,
    /// A subject or an extension that nothing can be issued under.
    #[error("ca.crt is a certificate that nothing can be issued under: {0}")]
    Issuer(#[from] rcgen::Error),
}

/// A CA that can sign while its time of validity, in UTC, lasts.
pub struct SigningCa {
    /// What signs.
    pub issuer: Issuer<'static, KeyPair>,
    /// Start of its validity.
    pub not_before: OffsetDateTime,
    /// End of its validity.
    pub not_after: OffsetDateTime,
}

impl SigningCa {
    /// Reads `ca.crt` and `ca.key`. Whether the CA is valid now is not judged: that changes by itself.
    ///
    /// # Errors
    ///
    /// When the pair could not sign a leaf that clients accept.
    pub fn read(certificate_pem: &[u8], key_pem: &[u8]) -> Result<Self, SigningCaError> {
        if String::from_utf8_lossy(certificate_pem).contains("PRIVATE KEY") {
            return Err(SigningCaError::KeyInCertificate);
        }
        // A bundle is fine; the first certificate is the one that signs.
        let der = CertificateDer::from_pem_slice(certificate_pem).map_err(|_| SigningCaError::Certificate)?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| SigningCaError::Certificate)?;
        let key = std::str::from_utf8(key_pem)
            .ok()
            .and_then(|pem| KeyPair::from_pem(pem).ok())
            .ok_or(SigningCaError::Key)?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(SigningCaError::Mismatch);
        }
        let signs = parsed
            .key_usage()
            .ok()
            .flatten()
            .is_none_or(|usage| usage.value.key_cert_sign());
        if !parsed.is_ca() || !signs {
            return Err(SigningCaError::NotCa);
        }
        let validity = parsed.validity();
        Ok(Self {
            not_before: validity.not_before.to_datetime(),
            not_after: validity.not_after.to_datetime(),
            issuer: Issuer::from_ca_cert_der(&der, key)?,
        })
    }
}
