//! The one strict grammar of `host:port`, for CONNECT, `Host` and allowlist entries (`proxy_cases.md`, case 20): two
//! readings of one authority would be two targets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host in canonical form: lower-case, addresses as addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name, lower-case, without a trailing dot.
    Name(String),
    /// An address; IPv4-mapped IPv6 is held as IPv4.
    Address(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(IpAddr::V4(v4)) => v4.fmt(formatter),
            Self::Address(IpAddr::V6(v6)) => write!(formatter, "[{v6}]"),
        }
    }
}

/// `host:port`, canonical: equal authorities compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    /// Where.
    pub host: Host,
    /// Which port, 1 to 65535.
    pub port: u16,
}

/// What breaks the grammar. The text says what to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Nothing stands before the port.
    #[error("the host is missing")]
    NoHost,
    /// No `:port`, where one is required.
    #[error("the port is missing: write host:port")]
    NoPort,
    /// Not 1 to 5 digits without a leading zero, or out of range.
    #[error("the port is not a number from 1 to 65535 without sign or leading zero")]
    Port,
    /// `user@`.
    #[error("user information before the host is not allowed")]
    UserInfo,
    /// A character outside letters, digits, dot, hyphen, underscore.
    #[error("the host has a character that is not a letter, digit, dot, hyphen or underscore")]
    Character,
    /// `example.com.`
    #[error("the host ends in a dot: write it without")]
    TrailingDot,
    /// Empty label, label over 63 characters, name over 253, leading or trailing hyphen.
    #[error("the host is not a DNS name: labels have 1 to 63 characters and neither begin nor end with a hyphen")]
    Label,
    /// A number that some parsers take for an IPv4 address (`127.1`, `0x7f000001`, `2130706433`).
    #[error("the host looks like a number but is no dotted-quad IPv4 address")]
    Ipv4,
    /// Not an address in brackets, a zone, or IPv6 without brackets.
    #[error("the host is not an IPv6 address in brackets")]
    Ipv6,
}

impl Host {
    /// Reads a host as it stands in an authority: IPv6 in brackets.
    ///
    /// # Errors
    ///
    /// What breaks the grammar.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        if text.is_empty() {
            return Err(AuthorityError::NoHost);
        }
        if let Some(inner) = text.strip_prefix('[') {
            let address: Ipv6Addr = inner
                .strip_suffix(']')
                .ok_or(AuthorityError::Ipv6)?
                .parse()
                .map_err(|_| AuthorityError::Ipv6)?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if text.contains('@') {
            return Err(AuthorityError::UserInfo);
        }
        if text.contains([':', ']']) {
            return Err(AuthorityError::Ipv6);
        }
        if !text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        {
            return Err(AuthorityError::Character);
        }
        if text.ends_with('.') {
            return Err(AuthorityError::TrailingDot);
        }
        let label_fits =
            |label: &str| (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-');
        if text.len() > 253 || !text.split('.').all(label_fits) {
            return Err(AuthorityError::Label);
        }
        // WHATWG URL, "ends in a number": what some resolver would read as an address must be one, in its one form.
        let last = text.rsplit('.').next().unwrap_or(text);
        let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
            || last
                .strip_prefix("0x")
                .or_else(|| last.strip_prefix("0X"))
                .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if numeric {
            let address: Ipv4Addr = text.parse().map_err(|_| AuthorityError::Ipv4)?;
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

impl Authority {
    /// Reads `host:port`; both are required.
    ///
    /// # Errors
    ///
    /// What breaks the grammar.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        let (host, port) = split(text)?;
        let port = port.ok_or(AuthorityError::NoPort)?;
        Ok(Self {
            host: Host::parse(host)?,
            port: parse_port(port)?,
        })
    }

    /// Reads `host` or `host:port`.
    ///
    /// # Errors
    ///
    /// What breaks the grammar.
    pub fn parse_with_default(text: &str, default_port: u16) -> Result<Self, AuthorityError> {
        let (host, port) = split(text)?;
        Ok(Self {
            host: Host::parse(host)?,
            port: port.map_or(Ok(default_port), parse_port)?,
        })
    }

    /// The value of a `Host` header for an https request: the port only where it is not 443.
    #[must_use]
    pub fn host_header(&self) -> String {
        if self.port == 443 {
            self.host.to_string()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

fn split(text: &str) -> Result<(&str, Option<&str>), AuthorityError> {
    if let Some(rest) = text.strip_prefix('[') {
        let end = rest.find(']').ok_or(AuthorityError::Ipv6)?;
        let (host, tail) = text.split_at(end + 2);
        return match tail.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if tail.is_empty() => Ok((host, None)),
            None => Err(AuthorityError::Ipv6),
        };
    }
    if text.contains('@') {
        return Err(AuthorityError::UserInfo);
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(AuthorityError::Ipv6),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> Result<u16, AuthorityError> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || text.starts_with('0') {
        return Err(AuthorityError::Port);
    }
    text.parse().map_err(|_| AuthorityError::Port)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> Result<String, AuthorityError> {
        Authority::parse(text).map(|authority| authority.to_string())
    }

    #[test]
    fn case_20_accepts_one_spelling_of_each_target() {
        assert_eq!(canonical("API.Example.com:443").unwrap(), "api.example.com:443");
        assert_eq!(canonical("10.0.0.1:6443").unwrap(), "10.0.0.1:6443");
        assert_eq!(canonical("[2001:DB8:0::1]:6443").unwrap(), "[2001:db8::1]:6443");
        assert_eq!(canonical("[::ffff:10.0.0.1]:6443").unwrap(), "10.0.0.1:6443");
        assert_eq!(canonical("my_host-1:1").unwrap(), "my_host-1:1");
    }

    #[test]
    fn case_20_refuses_everything_else_and_says_what() {
        use AuthorityError::*;
        for (text, error) in [
            ("", NoPort),
            (":443", NoHost),
            ("host", NoPort),
            ("host:", Port),
            ("host:0", Port),
            ("host:0443", Port),
            ("host:+443", Port),
            ("host:65536", Port),
            ("host:443x", Port),
            ("host:443:443", Ipv6),
            ("user@host:443", UserInfo),
            ("user:pw@host:443", UserInfo),
            ("host%2e:443", Character),
            (" host:443", Character),
            ("h ost:443", Character),
            ("host\u{e9}:443", Character),
            ("*.example.com:443", Character),
            ("host.:443", TrailingDot),
            ("a..b:443", Label),
            (".a:443", Label),
            ("-a:443", Label),
            ("127.1:443", Ipv4),
            ("0x7f000001:443", Ipv4),
            ("2130706433:443", Ipv4),
            ("010.0.0.1:443", Ipv4),
            ("1.2.3.4.5:443", Ipv4),
            ("::1:443", Ipv6),
            ("[::1:443", Ipv6),
            ("[::1]443", Ipv6),
            ("[fe80::1%25eth0]:443", Ipv6),
            ("[host]:443", Ipv6),
        ] {
            assert_eq!(canonical(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn the_host_header_leaves_443_out() {
        assert_eq!(Authority::parse("a:443").unwrap().host_header(), "a");
        assert_eq!(Authority::parse("[::2]:6443").unwrap().host_header(), "[::2]:6443");
    }

    proptest! {
        #[test]
        fn what_is_accepted_has_one_canonical_form(text in "\\PC{0,40}|[a-zA-Z0-9._-]{1,20}:[0-9]{1,5}|\\[[0-9a-f:.]{2,20}\\]:[0-9]{1,5}") {
            if let Ok(authority) = Authority::parse(&text) {
                prop_assert_eq!(Authority::parse(&authority.to_string()).unwrap(), authority.clone());
                prop_assert_eq!(Authority::parse_with_default(&authority.host_header(), 443).unwrap(), authority);
            }
        }
    }
}
