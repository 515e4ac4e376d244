//! Which names and web pages may call the HTTP listener: protection against DNS rebinding and cross-site requests, as the
//! specification asks (<https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#security-warning>).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use cli_mcp_serving::listener::Ends;
use cli_mcp_serving::tls::Certificate;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::settings::ConfigError;
use crate::http::error_response;

/// How long a browser need not ask again.
const PREFLIGHT_HOLDS: Duration = Duration::from_secs(600);

/// A host with an optional port, in lower case and without brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    host: String,
    port: Option<u16>,
}

impl HostPort {
    fn parse(text: &str) -> Option<Self> {
        let authority: Authority = text.parse().ok()?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .trim_end_matches('.');
        // user@host is no Host header.
        if host.is_empty() || text.contains('@') {
            return None;
        }
        Some(Self {
            host: host.to_ascii_lowercase(),
            port: authority.port_u16(),
        })
    }

    /// The address that the host is; none for a name. IPv4 in IPv6 form is IPv4, as it is in [`Ends`].
    fn address(&self) -> Option<IpAddr> {
        self.host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.address().is_some_and(|ip| ip.is_loopback())
    }
}

/// An origin with its port made explicit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: HostPort,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.trim_end_matches('/').split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let mut host = HostPort::parse(authority)?;
        host.port = host.port.or(match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        });
        Some(Self { scheme, host })
    }
}

/// The accepted names and origins.
#[derive(Debug)]
pub struct HostPolicy {
    hosts: Vec<HostPort>,
    origins: Vec<Origin>,
    certificate: Option<Arc<Certificate>>,
}

impl HostPolicy {
    /// Accepts these, loopback names, the address that the connection came to, and the names in the certificate.
    ///
    /// # Errors
    ///
    /// When an entry is no host or no origin; the text names its flag.
    pub fn new(
        service_names: &[String],
        hosts: &[String],
        origins: &[String],
        certificate: Option<Arc<Certificate>>,
    ) -> Result<Self, ConfigError> {
        let host = |text: &String| {
            HostPort::parse(text).ok_or_else(|| {
                ConfigError::new(format!(
                    "--allowed-hosts {text:?} is not a host or host:port: write for example mcp.example.com"
                ))
            })
        };
        let origin = |text: &String| {
            Origin::parse(text).ok_or_else(|| {
                ConfigError::new(format!(
                    "--allowed-origins {text:?} is not an origin: write for example https://app.example.com"
                ))
            })
        };
        Ok(Self {
            hosts: service_names.iter().chain(hosts).map(host).collect::<Result<_, _>>()?,
            origins: origins.iter().map(origin).collect::<Result<_, _>>()?,
            certificate,
        })
    }

    /// The middleware, for [`axum::middleware::from_fn_with_state`].
    pub async fn check(State(policy): State<Arc<Self>>, request: Request, next: Next) -> Response {
        let local = request.extensions().get::<Ends>().map(|ends| ends.local);
        match policy.judge(request.headers(), local) {
            Ok(()) => next.run(request).await,
            Err(reason) => {
                tracing::warn!(reason, "Refused a request by its Host or Origin");
                error_response(StatusCode::FORBIDDEN, reason)
            }
        }
    }

    fn judge(&self, headers: &HeaderMap, local: Option<SocketAddr>) -> Result<(), &'static str> {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &http::HeaderValue| value.to_str().unwrap_or(""))
        };
        let host = text(header::HOST)
            .and_then(HostPort::parse)
            .ok_or("the Host header is missing or invalid")?;
        if !self.host_allowed(&host, local) {
            return Err(
                "this Host is not accepted: call the server by a name in its certificate, or have it added to --allowed-hosts",
            );
        }
        match text(header::ORIGIN) {
            None => Ok(()),
            Some(origin) => match Origin::parse(origin) {
                Some(origin) if self.origin_allowed(&origin, &host, local) => Ok(()),
                _ => Err("this Origin is not accepted: have it added to --allowed-origins"),
            },
        }
    }

    fn host_allowed(&self, host: &HostPort, local: Option<SocketAddr>) -> bool {
        let own_address = || {
            host.address()
                .is_some_and(|ip| local.is_some_and(|local| local.ip() == ip))
        };
        let listed = || {
            self.hosts
                .iter()
                .any(|entry| entry.host == host.host && (entry.port.is_none() || entry.port == host.port))
        };
        let certified = || {
            self.certificate
                .as_ref()
                .is_some_and(|certificate| certificate.names().iter().any(|name| certifies(name, &host.host)))
        };
        host.is_loopback() || own_address() || listed() || certified()
    }

    fn origin_allowed(&self, origin: &Origin, host: &HostPort, local: Option<SocketAddr>) -> bool {
        // A page that the accepted name itself serves. Rebinding cannot make one: its Host would be refused.
        let same_origin = origin.host.host == host.host
            && origin.host.port
                == host
                    .port
                    .or(if origin.scheme == "https" { Some(443) } else { Some(80) });
        let local_page = origin.host.is_loopback() && local.is_some_and(|local| local.ip().is_loopback());
        same_origin || local_page || self.origins.contains(origin)
    }
}

/// Whether a certificate's name covers a host; a wildcard stands for one label (RFC 6125, section 6.4.3).
fn certifies(name: &str, host: &str) -> bool {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("*.") {
        None => name == host,
        Some(parent) => host
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest == parent),
    }
}

/// What browsers ask before they let a page call, and read what came of it (the Fetch standard,
/// <https://fetch.spec.whatwg.org/#http-cors-protocol>). Behind [`HostPolicy::check`], which lets no other page's requests so far;
/// before the guard, as what browsers ask bears no token.
pub fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, header::WWW_AUTHENTICATE])
        .max_age(PREFLIGHT_HOLDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(host: &str, origin: Option<&str>, local: &str) -> bool {
        let policy = HostPolicy::new(
            &["cli-mcp-demo.ns.svc".into()],
            &["mcp.example.com".into(), "other.example.com:8443".into()],
            &["https://app.example.com".into()],
            None,
        )
        .unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        policy.judge(&headers, Some(local.parse().unwrap())).is_ok()
    }

    #[test]
    fn hosts() {
        for good in [
            "localhost:8080",
            "127.0.0.1",
            "[::1]:8080",
            "LOCALHOST",
            "10.0.0.5:8443",
            "cli-mcp-demo.ns.svc:8443",
            "mcp.example.com:443",
            "mcp.example.com.",
            "other.example.com:8443",
        ] {
            assert!(judge(good, None, "10.0.0.5:8443"), "{good}");
        }
        assert!(judge("[::ffff:10.0.0.5]:8443", None, "10.0.0.5:8443"));
        assert!(judge("[fd00::5]:8443", None, "[fd00::5]:8443"));
        assert!(!judge("[fd00::6]:8443", None, "[fd00::5]:8443"));
        for bad in [
            "evil.example",
            "10.0.0.6",
            "[::ffff:10.0.0.6]",
            "other.example.com",
            "localhost.evil.example",
            "a@localhost",
            "127.0.0.1.evil.example",
        ] {
            assert!(!judge(bad, None, "10.0.0.5:8443"), "{bad}");
        }
    }

    #[test]
    fn origins() {
        let loopback = "127.0.0.1:8080";
        assert!(judge("localhost:8080", Some("http://localhost:5173"), loopback));
        assert!(judge("localhost:8080", Some("https://app.example.com"), loopback));
        assert!(judge("localhost:8080", Some("https://app.example.com:443"), loopback));
        for bad in [
            "http://evil.example",
            "null",
            "https://app.example.com:8443",
            "http://app.example.com",
            "localhost",
            "",
        ] {
            assert!(!judge("localhost:8080", Some(bad), loopback), "{bad}");
        }
        let cluster = "10.0.0.5:8443";
        assert!(!judge("mcp.example.com", Some("http://localhost:5173"), cluster));
        assert!(judge("mcp.example.com", Some("https://mcp.example.com"), cluster));
        assert!(!judge("mcp.example.com", Some("https://mcp.example.com:444"), cluster));
        assert!(!judge(
            "mcp.example.com",
            Some("chrome-extension://mcp.example.com"),
            cluster
        ));
    }

    #[test]
    fn a_name_covers_itself_and_a_wildcard_one_label() {
        assert!(certifies("A.example.com", "a.example.com"));
        assert!(!certifies("example.com", "a.example.com"));
        assert!(!certifies("a.example.com", "b.example.com"));
        assert!(certifies("*.example.com", "a.example.com"));
        assert!(!certifies("*.example.com", "example.com"));
        assert!(!certifies("*.example.com", "a.b.example.com"));
    }

    #[test]
    fn a_bad_entry_names_its_flag() {
        let hosts = HostPolicy::new(&[], &["http://x/".into()], &[], None).unwrap_err();
        assert!(hosts.to_string().contains("--allowed-hosts"), "{hosts}");
        let origins = HostPolicy::new(&[], &[], &["x".into()], None).unwrap_err();
        assert!(origins.to_string().contains("--allowed-origins"), "{origins}");
    }
}
