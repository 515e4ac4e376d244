//! Secrets that are generated once: the proxy's CA and the HMAC key. Neither is ever overwritten.

use std::collections::BTreeMap;

use cli_mcp_api::{labels, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use time::{Duration, OffsetDateTime};

/// How long the CA is valid: within the 1 to 10 years of `proxy_cases.md`, case 63.
const CA_VALIDITY: Duration = Duration::days(5 * 365);

/// The clock of a node may run behind: certificates begin an hour ago (case 63).
const CLOCK_SKEW: Duration = Duration::hours(1);

/// Bytes of the HMAC key: the output of SHA-256, the length RFC 2104 recommends.
const HMAC_KEY_BYTES: usize = 32;

/// A CA as the proxy reads it.
pub struct Ca {
    /// `ca.crt`, PEM.
    pub certificate: String,
    /// `ca.key`, PKCS#8 PEM.
    pub key: String,
}

/// Generates the CA of an instance's proxy: ECDSA P-256, v3, critical basicConstraints with path length 0, critical
/// keyUsage of keyCertSign and cRLSign, SKI (`proxy_cases.md`, cases 61 and 63).
///
/// # Errors
///
/// When no key can be generated.
pub fn ca(namespace: &str, instance: &str, now: OffsetDateTime) -> Result<Ca, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "cli-mcp.redhat.com");
    subject.push(DnType::OrganizationalUnitName, namespace);
    // X.520 bounds a common name at 64 characters; an instance's name has at most 44.
    subject.push(DnType::CommonName, format!("cli-mcp proxy {instance}"));
    params.distinguished_name = subject;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + CA_VALIDITY;
    params.serial_number = Some(serial());
    let certificate = params.self_signed(&key)?;
    Ok(Ca {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// 127 random bits, positive (RFC 5280, 4.1.2.2).
fn serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// The Secret `-proxy-ca`.
///
/// # Errors
///
/// See [`ca`].
pub fn ca_secret(
    namespace: &str,
    instance: &str,
    owner: OwnerReference,
    now: OffsetDateTime,
) -> Result<Secret, rcgen::Error> {
    let Ca { certificate, key } = ca(namespace, instance, now)?;
    Ok(secret(
        namespace,
        instance,
        names::proxy_ca(instance),
        owner,
        BTreeMap::from([
            (names::CA_CERT_KEY.to_owned(), ByteString(certificate.into_bytes())),
            (names::CA_KEY_KEY.to_owned(), ByteString(key.into_bytes())),
        ]),
    ))
}

/// The Secret `-hmac`.
#[must_use]
pub fn hmac_secret(namespace: &str, instance: &str, owner: OwnerReference) -> Secret {
    let key: [u8; HMAC_KEY_BYTES] = rand::random();
    secret(
        namespace,
        instance,
        names::hmac(instance),
        owner,
        BTreeMap::from([(names::HMAC_KEY.to_owned(), ByteString(key.to_vec()))]),
    )
}

fn secret(
    namespace: &str,
    instance: &str,
    name: String,
    owner: OwnerReference,
    data: BTreeMap<String, ByteString>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels::instance_wide(instance)),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::pem::parse_x509_pem;
    use x509_parser::prelude::{ParsedExtension, X509Version};

    use super::*;

    #[test]
    fn case_61_and_63_the_ca_is_strict() {
        let ca = ca("ns", &"x".repeat(names::MAX_INSTANCE_NAME), OffsetDateTime::now_utc()).unwrap();
        let (_, pem) = parse_x509_pem(ca.certificate.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert_eq!(certificate.version(), X509Version::V3);
        let constraints = certificate.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, Some(0));
        let usage = certificate.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
        assert!(!usage.value.digital_signature());
        assert!(
            certificate
                .extensions()
                .iter()
                .any(|extension| matches!(extension.parsed_extension(), ParsedExtension::SubjectKeyIdentifier(_)))
        );
        assert!(certificate.raw_serial().len() >= 8 && certificate.raw_serial()[0] < 0x80);
        let validity = certificate.validity();
        let days = (validity.not_after.timestamp() - validity.not_before.timestamp()) / 86_400;
        assert!((365..=3650).contains(&days), "{days}");
        assert!(validity.is_valid());
        let key = KeyPair::from_pem(&ca.key).unwrap();
        assert_eq!(
            certificate.public_key().subject_public_key.data.as_ref(),
            key.public_key_raw()
        );
    }

    #[test]
    fn two_keys_differ() {
        let owner = OwnerReference::default;
        let key = |secret: Secret| secret.data.unwrap()[names::HMAC_KEY].0.clone();
        let (one, other) = (
            key(hmac_secret("ns", "a", owner())),
            key(hmac_secret("ns", "a", owner())),
        );
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
