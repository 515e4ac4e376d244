//! A cluster of a kubeconfig: which server addresses the proxy can serve, and how it trusts them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::ServerName;
use rustls_pki_types::pem::PemObject;
use serde_yaml::{Mapping, Value};

use crate::address::refused_for_kubernetes;
use crate::authority::{Authority, AuthorityError, Host};
use crate::document;

/// Keys of a cluster that client-go knows.
pub(crate) const KEYS: [&str; 8] = [
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
    "extensions",
];

/// Where an API server is: `https://host:port` and the path it is served under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// Host and port.
    pub authority: Authority,
    /// Path prefix (`/k8s/clusters/c-1` behind Rancher), without trailing slash; empty for most servers.
    pub prefix: String,
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "https://{}{}", self.authority, self.prefix)
    }
}

/// A cluster that the proxy can serve.
#[derive(Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Its name in the file.
    pub name: String,
    /// Its server.
    pub server: Server,
    /// The certificates of `certificate-authority-data`; `None` leaves trust to the public roots.
    pub ca: Option<Vec<CertificateDer<'static>>>,
    /// The name that the server's certificate is checked against, when it is not the host's.
    pub tls_server_name: Option<String>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("name", &self.name)
            .field("server", &self.server)
            .field("ca_certificates", &self.ca.as_ref().map(Vec::len))
            .field("tls_server_name", &self.tls_server_name)
            .finish()
    }
}

/// Reads a cluster; on failure every mistake in it, each with its remedy.
pub(crate) fn read(name: &str, body: &Mapping) -> Result<Cluster, Vec<String>> {
    let mut problems = Vec::new();
    let server = match document::text(body, "server") {
        Ok(Some(url)) => parse_server(url),
        Ok(None) => {
            Err("`server` is missing: give the URL of the API server, such as https://api.example.com:6443".into())
        }
        Err(error) => Err(error),
    };
    let server = server.map_err(|problem| problems.push(problem)).ok();

    let data = document::text(body, "certificate-authority-data")
        .map_err(|problem| problems.push(problem))
        .ok();
    let ca = match data.flatten().map(parse_ca).transpose() {
        Ok(ca) => ca,
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    if is_set(body, "certificate-authority") {
        problems.push(
            "`certificate-authority` names a file, which the proxy does not have: put the certificates inline into \
             `certificate-authority-data` (`kubectl config view --raw --flatten` does)"
                .into(),
        );
    }
    match body.get("insecure-skip-tls-verify") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(_) => problems.push(
            "`insecure-skip-tls-verify` would hand the credential to whoever answers: remove it and give the server's CA \
             in `certificate-authority-data`"
                .into(),
        ),
    }
    if is_set(body, "proxy-url") {
        problems.push("`proxy-url` is not supported, the credential proxy connects directly: remove it".into());
    }
    let tls_server_name = match document::text(body, "tls-server-name") {
        Ok(Some(name)) if ServerName::try_from(name).is_err() => {
            problems.push("`tls-server-name` is neither a DNS name nor an address: correct or remove it".into());
            None
        }
        Ok(name) => name.map(str::to_ascii_lowercase),
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    match server {
        Some(server) if problems.is_empty() => Ok(Cluster {
            name: name.to_owned(),
            server,
            ca,
            tls_server_name,
        }),
        _ => Err(problems),
    }
}

pub(crate) fn is_set(body: &Mapping, key: &str) -> bool {
    match body.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Sequence(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

/// Reads a server URL. The messages never repeat it: it may hold a password.
fn parse_server(text: &str) -> Result<Server, String> {
    let text = text.trim();
    let (scheme, rest) = text
        .split_once("://")
        .ok_or("`server` is no URL: write https://host:port, such as https://api.example.com:6443")?;
    if scheme.eq_ignore_ascii_case("http") {
        return Err(
            "`server` is http: the credential would travel in clear: use the https address of the server".into(),
        );
    }
    if !scheme.eq_ignore_ascii_case("https") {
        return Err("`server` is not https: use the https address of the server".into());
    }
    if rest.contains(['?', '#']) {
        return Err("`server` has a query or a fragment: remove it".into());
    }
    if rest.contains('\\')
        || rest
            .chars()
            .any(|character| character.is_control() || character.is_whitespace())
    {
        return Err("`server` has a backslash or white space in it: remove it".into());
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    if authority.contains('@') {
        return Err("`server` has user information before the host: remove it and use a token".into());
    }
    let authority = parse_authority(authority)?;
    refuse_host(&authority.host)?;
    let prefix = path.strip_suffix('/').unwrap_or(path);
    let plain = |segment: &str| {
        !segment.is_empty()
            && segment != "."
            && segment != ".."
            && segment
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte))
    };
    if !prefix.is_empty() && !prefix.split('/').skip(1).all(plain) {
        return Err("`server` has a path with empty, dot or encoded segments: write the plain path".into());
    }
    Ok(Server {
        authority,
        prefix: prefix.to_owned(),
    })
}

fn parse_authority(text: &str) -> Result<Authority, String> {
    let text = text.strip_suffix(':').unwrap_or(text);
    match Authority::parse_with_default(text, 443) {
        Err(AuthorityError::Character) => {
            // An internationalised name: clients send its A-label (RFC 5891).
            let url = url::Url::parse(&format!("https://{text}/")).map_err(|_| message(AuthorityError::Character))?;
            let ascii = url.host_str().ok_or_else(|| message(AuthorityError::NoHost))?;
            if text.is_ascii() {
                return Err(message(AuthorityError::Character));
            }
            let host = Host::parse(ascii).map_err(message)?;
            Ok(Authority {
                host,
                port: url.port().unwrap_or(443),
            })
        }
        other => other.map_err(message),
    }
}

fn message(error: AuthorityError) -> String {
    format!("`server` is not a URL the proxy can match: {error}")
}

fn refuse_host(host: &Host) -> Result<(), String> {
    let refused = match host {
        Host::Address(address) => refused_for_kubernetes(*address),
        Host::Name(name)
            if name == "localhost" || name.ends_with(".localhost") || name.starts_with("localhost.localdomain") =>
        {
            Some("loopback address")
        }
        Host::Name(_) => None,
    };
    match refused {
        Some("loopback address") => Err(
            "`server` is a loopback address: from a pod it leads to the pod itself, and clients go around a proxy for it: \
             use an address of the server that pods can reach"
                .into(),
        ),
        Some(reason) => Err(format!("`server` is at a {reason}, which the proxy never dials: use the server's real address")),
        None => Ok(()),
    }
}

fn parse_ca(data: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem =
        decode(data).ok_or("`certificate-authority-data` is not base64: encode the PEM file with `base64 -w0`")?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| "`certificate-authority-data` holds broken PEM: encode the CA's PEM file anew")?;
    if certificates.is_empty() {
        return Err(
            "`certificate-authority-data` holds no certificate: encode the CA's PEM file, or remove the field to \
                    trust the public roots"
                .into(),
        );
    }
    let (anchors, _) = RootCertStore::empty().add_parsable_certificates(certificates.iter().cloned());
    if anchors == 0 {
        return Err(
            "`certificate-authority-data` holds no certificate that can be a trust anchor: encode the PEM file of an \
                    X.509 CA"
                .into(),
        );
    }
    Ok(certificates)
}

/// Base64 as files in the field have it: wrapped, with white space.
pub(crate) fn decode(data: &str) -> Option<Vec<u8>> {
    let compact: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(compact).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Result<String, String> {
        parse_server(url).map(|server| server.to_string())
    }

    #[test]
    fn case_75_spellings_of_one_server() {
        for (url, canonical) in [
            ("https://api.example.com", "https://api.example.com:443"),
            ("HTTPS://API.Example.COM/", "https://api.example.com:443"),
            ("https://api.example.com:6443/", "https://api.example.com:6443"),
            ("https://10.0.0.1:6443", "https://10.0.0.1:6443"),
            ("https://[2001:DB8::1]:6443", "https://[2001:db8::1]:6443"),
            ("https://[2001:db8::1]", "https://[2001:db8::1]:443"),
            (
                "https://rancher.example.com/k8s/clusters/c-1/",
                "https://rancher.example.com:443/k8s/clusters/c-1",
            ),
            ("https://bücher.example:6443", "https://xn--bcher-kva.example:6443"),
        ] {
            assert_eq!(server(url).unwrap(), canonical);
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_a_remedy() {
        for (url, word) in [
            ("http://api.example.com", "https"),
            ("ftp://api.example.com", "https"),
            ("api.example.com:6443", "https://"),
            ("https://user:hunter2hunter2@api.example.com", "user information"),
            ("https://api.example.com?x=1", "query"),
            ("https://api.example.com#x", "fragment"),
            ("https://127.0.0.1:6443", "loopback"),
            ("https://localhost:6443", "loopback"),
            ("https://LOCALHOST", "loopback"),
            ("https://[::1]:6443", "loopback"),
            ("https://[::ffff:127.0.0.1]", "loopback"),
            ("https://0.0.0.0:6443", "unspecified"),
            ("https://169.254.169.254", "metadata"),
            ("https://2130706433:6443", "dotted-quad"),
            ("https://2001:db8::1:6443", "brackets"),
            ("https://api.example.com.", "dot"),
            ("https://api.example.com:0", "port"),
            ("https://api.example.com/a/../b", "segments"),
            ("https://api.example.com/a//b", "segments"),
            ("https://api.example.com/%61", "segments"),
            ("https://api example.com", "white space"),
            ("https:///path", "host"),
        ] {
            let problem = server(url).unwrap_err();
            assert!(problem.contains(word), "{url}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
