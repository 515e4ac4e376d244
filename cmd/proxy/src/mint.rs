//! Leaf certificates for the hosts of the targets, signed by the instance's CA (`proxy_cases.md`, cases 61 to 65).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cli_mcp_kubeconfig::{Host, SigningCa, SigningCaError};
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

/// How long a leaf is valid, within the limits of every client's checks.
const LEAF_VALIDITY: Duration = Duration::days(7);

/// A leaf is replaced when less than this is left of it.
const RENEW_BEFORE: Duration = Duration::days(3);

/// A CA that ends sooner is warned about.
const WARN_BEFORE: Duration = Duration::days(30);

/// Why the CA cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// Not a pair that can sign.
    #[error(transparent)]
    Pair(#[from] SigningCaError),
    /// Not valid now.
    #[error("ca.crt is not valid now (from {from} to {to}): delete the CA Secret, the operator makes a new one")]
    NotValidNow {
        /// Start.
        from: OffsetDateTime,
        /// End.
        to: OffsetDateTime,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// Signing failed.
    #[error("cannot sign a certificate: {0}")]
    Sign(#[from] rcgen::Error),
    /// The leaf cannot be used.
    #[error("cannot use a signed certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// The instance's CA, and the TLS configurations of the hosts it has signed for. The cache is bounded by the targets:
/// only their hosts are ever asked for.
pub struct Minter {
    issuer: Issuer<'static, KeyPair>,
    leaf_key: KeyPair,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
    configs: Mutex<HashMap<Host, Minted>>,
}

struct Minted {
    config: Arc<ServerConfig>,
    renew_at: OffsetDateTime,
}

impl Minter {
    /// Reads and checks the CA, which must be valid `now`. The leaves' key is made here: each reload has another.
    ///
    /// # Errors
    ///
    /// When the CA could not sign a leaf that clients accept.
    pub fn new(certificate_pem: &[u8], key_pem: &[u8], now: OffsetDateTime) -> Result<Self, CaError> {
        let SigningCa {
            issuer,
            not_before: from,
            not_after: to,
        } = SigningCa::read(certificate_pem, key_pem)?;
        if now < from || now >= to {
            return Err(CaError::NotValidNow { from, to });
        }
        Ok(Self {
            issuer,
            leaf_key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
            not_before: from,
            not_after: to,
            configs: Mutex::new(HashMap::new()),
        })
    }

    /// The CA's end, when it is so near that the admin should know.
    #[must_use]
    pub fn near_end(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        (self.not_after - now < WARN_BEFORE).then_some(self.not_after)
    }

    /// The TLS configuration for a tunnel to this host.
    ///
    /// # Errors
    ///
    /// When signing fails, or the CA has ended.
    pub fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, CaError> {
        let now = OffsetDateTime::now_utc();
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(minted) = configs.get(host)
            && now < minted.renew_at
        {
            return Ok(minted.config.clone());
        }
        if now >= self.not_after {
            return Err(CaError::NotValidNow {
                from: self.not_before,
                to: self.not_after,
            });
        }
        let config = Arc::new(self.mint(host)?);
        let renew_at = (self.leaf_end(now) - RENEW_BEFORE).max(now);
        configs.insert(
            host.clone(),
            Minted {
                config: config.clone(),
                renew_at,
            },
        );
        Ok(config)
    }

    /// A fresh leaf for this host.
    ///
    /// # Errors
    ///
    /// When signing fails.
    pub fn leaf(&self, host: &Host) -> Result<CertificateDer<'static>, CaError> {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // RFC 5280 bounds a common name at 64 characters; the host itself is in the SAN.
        params.distinguished_name.push(DnType::CommonName, "cli-mcp-proxy leaf");
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        // rcgen derives the serial from the key, which all leaves share; clients refuse a serial that comes twice.
        let mut serial = [0_u8; 16];
        crate::tls::provider()
            .secure_random
            .fill(&mut serial)
            .map_err(|_| CaError::Random)?;
        if let Some(first) = serial.first_mut() {
            *first = *first & 0x7f | 0x40;
        }
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = (now - Duration::hours(1)).max(self.not_before);
        params.not_after = self.leaf_end(now);
        params.is_ca = IsCa::NoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        // rcgen writes a subject key identifier into CA certificates only; strict clients want it in leaves too.
        let mut identifier = vec![0x04, 0x14];
        identifier.extend(params.key_identifier(&self.leaf_key).into_iter().take(20));
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 14], identifier)];
        Ok(params.signed_by(&self.leaf_key, &self.issuer)?.der().clone())
    }

    /// Within what the strictest clients accept, counted from one hour ago, and never beyond the CA's own end.
    fn leaf_end(&self, now: OffsetDateTime) -> OffsetDateTime {
        (now - Duration::hours(1) + LEAF_VALIDITY).min(self.not_after)
    }

    fn mint(&self, host: &Host) -> Result<ServerConfig, CaError> {
        let key = PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.leaf(host)?], key.into())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A process that kubectl starts never resumes; state for it would be memory for nothing.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.ignore_client_order = true;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::BasicConstraints;

    use super::*;

    /// A minter that was made while its CA was valid: from ten days before `end` on.
    fn minter(end: OffsetDateTime) -> Minter {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.not_before = end - Duration::days(10);
        params.not_after = end;
        let pem = params.self_signed(&key).unwrap().pem();
        Minter::new(pem.as_bytes(), key.serialize_pem().as_bytes(), params.not_before).unwrap()
    }

    #[test]
    fn case_65_a_ca_that_has_ended_signs_no_more() {
        let host = Host::Name("api.test".into());
        let ended = minter(OffsetDateTime::now_utc() - Duration::seconds(1));
        let error = ended.server_config(&host).unwrap_err();
        assert!(matches!(error, CaError::NotValidNow { .. }), "{error}");

        let valid = minter(OffsetDateTime::now_utc() + Duration::days(9));
        let config = valid.server_config(&host).unwrap();
        assert!(Arc::ptr_eq(&config, &valid.server_config(&host).unwrap()), "kept");
    }

    #[test]
    fn a_ca_nears_its_end_thirty_days_before() {
        let end = OffsetDateTime::from_unix_timestamp(2_000_000_000).unwrap();
        let minter = minter(end);
        assert_eq!(minter.near_end(end - Duration::days(30)), None);
        for left in [
            Duration::days(30) - Duration::seconds(1),
            Duration::ZERO,
            -Duration::days(1),
        ] {
            assert_eq!(minter.near_end(end - left), Some(end), "{left}");
        }
    }
}
