//! The name of a session, as clients write it (contract, section 4).

use std::fmt;
use std::str::FromStr;

/// The header that names the session over HTTP.
pub const SESSION_HEADER: &str = "x-session-id";

/// The key of a request's `_meta` that names the session, for transports without headers.
pub const SESSION_META: &str = "cli-mcp.redhat.com/session-id";

/// A valid session id: `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`, which is also a valid label value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(String);

/// The text is no session id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session id must be 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends")]
pub struct InvalidSessionId;

impl SessionId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        match text.as_bytes() {
            [] => Err(InvalidSessionId),
            bytes if bytes.len() > 63 => Err(InvalidSessionId),
            [first, .., last] if !alphanumeric(*first) || !alphanumeric(*last) => Err(InvalidSessionId),
            [only] if !alphanumeric(*only) => Err(InvalidSessionId),
            bytes if bytes.iter().all(|byte| alphanumeric(*byte) || *byte == b'-') => Ok(Self(text.to_owned())),
            _ => Err(InvalidSessionId),
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_pattern_takes() {
        for good in ["a", "0", "a-b", "s1", &"x".repeat(63)] {
            assert!(good.parse::<SessionId>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "-",
            "-a",
            "a-",
            "A",
            "a_b",
            "a.b",
            "ä",
            "a\n",
            " a",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad:?}");
        }
    }
}
