//! Tokens of a sandbox (contract, section 5): derived from one key, never stored, and known to the pod only by digest.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The shortest key that is accepted, in bytes.
pub const MIN_KEY_BYTES: usize = 32;

/// Why a key or digest is not usable. Names sizes, never contents.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenError {
    /// The key is too short to be a key.
    #[error("the HMAC key has {found} bytes, at least {MIN_KEY_BYTES} are needed")]
    KeyTooShort {
        /// Bytes found.
        found: usize,
    },
    /// A digest is not 64 hexadecimal digits.
    #[error("a SHA-256 digest is 64 hexadecimal digits, this one is not")]
    BadDigest,
}

/// The instance's HMAC key.
#[derive(Clone)]
pub struct HmacKey(Hmac<Sha256>);

impl std::fmt::Debug for HmacKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("HmacKey([redacted])")
    }
}

impl HmacKey {
    /// Takes the key's bytes as they stand in the Secret or file.
    ///
    /// # Errors
    ///
    /// [`TokenError::KeyTooShort`] under [`MIN_KEY_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, TokenError> {
        let too_short = TokenError::KeyTooShort { found: bytes.len() };
        if bytes.len() < MIN_KEY_BYTES {
            return Err(too_short);
        }
        // HMAC takes keys of any length (RFC 2104): the error never happens.
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| too_short)
    }

    /// The token that `/exec` and `/cancel` of this session take.
    #[must_use]
    pub fn session_token(&self, session_id: &str) -> Token {
        self.derive(session_id.as_bytes())
    }

    /// The token that `/assign` of this pod takes. Session ids hold no slash, so the two kinds never meet.
    #[must_use]
    pub fn assign_token(&self, pod_name: &str) -> Token {
        self.derive(format!("assign/{pod_name}").as_bytes())
    }

    fn derive(&self, message: &[u8]) -> Token {
        Token(hex::encode(
            self.0.clone().chain_update(message).finalize().into_bytes(),
        ))
    }
}

/// A bearer token of one sandbox.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token([redacted])")
    }
}

impl Token {
    /// The token in clear, for the one header or body that carries it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the pod may know of it.
    #[must_use]
    pub fn digest(&self) -> TokenDigest {
        TokenDigest::of(self.0.as_bytes())
    }
}

/// SHA-256 of a token: enough to check one, useless to present.
#[derive(Clone, Copy, Debug)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of a presented token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Reads the hexadecimal form that the pod's environment carries.
    ///
    /// # Errors
    ///
    /// [`TokenError::BadDigest`] unless the text is 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, TokenError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.trim(), &mut bytes).map_err(|_| TokenError::BadDigest)?;
        Ok(Self(bytes))
    }

    /// The hexadecimal form, lower case.
    #[must_use]
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Whether `token` is the one, in time that does not depend on how much of it is right (case 104).
    #[must_use]
    pub fn matches(&self, token: &[u8]) -> bool {
        self.same(&Self::of(token))
    }

    /// Whether two digests are equal, in constant time.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HmacKey {
        HmacKey::new(&[0x0b; 32]).unwrap()
    }

    #[test]
    fn tokens_are_hex_hmac_sha256_of_session_and_pod() {
        // printf %s MESSAGE | openssl dgst -sha256 -mac HMAC -macopt hexkey:0b0b… (32 bytes)
        assert_eq!(
            key().session_token("s1").reveal(),
            "46d71ed1f39eed89f12abeab781403109d74dd29a964bc9bab9f74af1173b92f"
        );
        assert_eq!(
            key().assign_token("pod-a").reveal(),
            "d3f5f3165011a5b1fe286e38d4d8170bed5089936e6bc98ab5c00bfd770f0298"
        );
    }

    #[test]
    fn a_digest_accepts_its_token_only() {
        let token = key().session_token("s1");
        let digest = TokenDigest::from_hex(&token.digest().to_hex()).unwrap();
        assert!(digest.matches(token.reveal().as_bytes()));
        assert!(!digest.matches(b""));
        assert!(!digest.matches(key().session_token("s2").reveal().as_bytes()));
    }

    #[test]
    fn a_short_key_and_a_bad_digest_are_refused() {
        assert_eq!(
            HmacKey::new(&[1; 31]).unwrap_err(),
            TokenError::KeyTooShort { found: 31 }
        );
        assert_eq!(TokenDigest::from_hex("zz").unwrap_err(), TokenError::BadDigest);
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = key().session_token("s1");
        assert!(!format!("{token:?}{:?}", key()).contains(&token.reveal()[..8]));
    }
}
