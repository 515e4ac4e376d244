//! Which fields cross the proxy. First everything that could name another identity or steer a hop goes, then the one
//! credential is written (`proxy.md`, step 5; `proxy_cases.md`, cases 28 to 38).

use crate::head::Head;

/// Fields that belong to one connection (RFC 9110, section 7.6.1), and those that are written anew.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Credentials, and statements of proxies about who the client is or what it meant. Whatever is no letter or digit counts
/// as a hyphen: some servers fold underscores, dots and the rest into one.
const IDENTITY: [&str; 24] = [
    "authorization",
    "cookie",
    "cookie2",
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-client-cert",
    "x-client-dn",
    "ssl-client-cert",
    "client-cert",
    "dpop",
    "x-auth",
    "x-auth-email",
    "x-webauth-user",
    "x-user",
    "front-end-https",
];

/// Whole families, known and yet unknown members alike (cases 31 and 32).
const FAMILIES: [&str; 15] = [
    "proxy-",
    "x-clusterpedia-",
    "x-amzn-oidc-",
    "x-goog-authenticated-user-",
    "x-goog-iap-",
    "x-ms-client-principal",
    "x-ms-token-",
    "x-remote-",
    "remote-",
    "x-forwarded-",
    "x-auth-request-",
    "x-ssl-client-",
    "x-original-forwarded-",
    "x-webauth-",
    "x-authenticated-",
];

/// Endings of names that carry a key: `X-Api-Key`, `X-Goog-Api-Key`, `DD-Application-Key`, `X-Auth-Token`,
/// `Private-Token`, `X-Amz-Security-Token` and the like (case 35).
const KEY_ENDINGS: [&str; 11] = [
    "-key",
    "apikey",
    "authorization",
    "client-cert",
    "credential",
    "jwt",
    "jwt-assertion",
    "passphrase",
    "password",
    "secret",
    "token",
];

/// Endings of names whose key opens nothing: it names a handshake, a request that is sent again, what is cached or where
/// something is stored.
const PLAIN_KEYS: [&str; 5] = [
    "websocket-key",
    "idempotency-key",
    "cache-key",
    "surrogate-key",
    "partition-key",
];

/// Query parameters that carry a token. Compared in lower case, hyphens as underscores.
const TOKEN_PARAMETERS: [&str; 19] = [
    "access_token",
    "api_key",
    "apikey",
    "auth",
    "auth_token",
    "authorization",
    "bearer",
    "bearer_token",
    "client_secret",
    "id_token",
    "job_token",
    "oauth_token",
    "password",
    "private_token",
    "refresh_token",
    "token",
    "x_api_key",
    "x_amz_security_token",
    "authtoken",
];

/// Words in the names of subprotocols by which WebSocket clients send a token (case 28): those of the API server are
/// `base64url.bearer.authorization.k8s.io.TOKEN`, public servers have others.
const BEARER_SUBPROTOCOLS: [&str; 6] = ["bearer", "authorization", "token", "api-key", "apikey", "jwt"];

fn canonical_name(name: &[u8]) -> String {
    name.iter()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte.to_ascii_lowercase())
            } else {
                '-'
            }
        })
        .collect()
}

fn carries_key(name: &str) -> bool {
    let ends = |with: &[&str]| with.iter().any(|ending| name.ends_with(ending));
    ends(&KEY_ENDINGS) && !ends(&PLAIN_KEYS)
}

fn nominated(head: &Head) -> Vec<String> {
    head.members("connection").map(canonical_name).collect()
}

/// Whether a query parameter of this decoded name is left out.
#[must_use]
pub fn is_token_parameter(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase().replace('-', "_");
    TOKEN_PARAMETERS.contains(&name.as_str())
}

/// Writes the fields of a request that go upstream.
pub fn write_request_fields(head: &Head, out: &mut Vec<u8>) {
    let nominated = nominated(head);
    for (name, value) in head.fields() {
        let canonical = canonical_name(name);
        let gone = nominated.contains(&canonical)
            || HOP_BY_HOP.contains(&canonical.as_str())
            || IDENTITY.contains(&canonical.as_str())
            || FAMILIES.iter().any(|family| canonical.starts_with(family))
            || canonical.split('-').any(|word| word.starts_with("impersonat"))
            || carries_key(&canonical);
        if gone || canonical == "sec-websocket-protocol" {
            continue;
        }
        write_field(name, value, out);
    }
    write_subprotocols(head, &nominated, out);
}

fn write_subprotocols(head: &Head, nominated: &[String], out: &mut Vec<u8>) {
    if nominated.iter().any(|name| name == "sec-websocket-protocol") {
        return;
    }
    let kept: Vec<&[u8]> = head
        .fields()
        .filter(|(name, _)| canonical_name(name) == "sec-websocket-protocol")
        .flat_map(|(_, value)| value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|member| {
            let member = String::from_utf8_lossy(member).to_ascii_lowercase();
            !member.is_empty() && !BEARER_SUBPROTOCOLS.iter().any(|word| member.contains(word))
        })
        .collect();
    if !kept.is_empty() {
        write_field(b"Sec-WebSocket-Protocol", &kept.join(&b", "[..]), out);
    }
}

/// Writes the fields of a response that go to the client. `Content-Length` and `Transfer-Encoding` are written by the
/// caller; `Set-Cookie` would hand a session of the real identity to the sandbox (case 37).
pub fn write_response_fields(head: &Head, injected: Option<&[u8]>, out: &mut Vec<u8>) {
    let nominated = nominated(head);
    for (name, value) in head.fields() {
        let canonical = canonical_name(name);
        let gone = nominated.contains(&canonical)
            || HOP_BY_HOP.contains(&canonical.as_str())
            || canonical.starts_with("proxy-")
            || matches!(canonical.as_str(), "set-cookie" | "set-cookie2");
        let echoes = echoes(value, injected);
        if echoes {
            tracing::warn!(header = %canonical, "An upstream sent the injected credential back in a header; it was removed");
        }
        if !gone && !echoes {
            write_field(name, value, out);
        }
    }
}

/// Whether a text from upstream has the injected credential in it.
#[must_use]
pub fn echoes(text: &[u8], injected: Option<&[u8]>) -> bool {
    injected.is_some_and(|token| !token.is_empty() && text.windows(token.len()).any(|window| window == token))
}

/// Writes one field.
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> Head {
        Head::parse(format!("GET / HTTP/1.1\r\n{fields}\r\n").into_bytes()).unwrap()
    }

    fn forwarded(fields: &str) -> String {
        let mut out = Vec::new();
        write_request_fields(&head(fields), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cases_30_to_38_nothing_that_names_an_identity_or_steers_a_hop_passes() {
        for field in [
            "Authorization: x",
            "authorization: x",
            "AUTHORIZATION: x",
            "Proxy-Authorization: x",
            "Proxy-Connection: x",
            "Proxy-Anything: x",
            "Cookie: x",
            "X-Api-Key: x",
            "Api-Key: x",
            "X-Goog-Api-Key: x",
            "X-Auth-Token: x",
            "X-Amz-Security-Token: x",
            "Private-Token: x",
            "JOB-TOKEN: x",
            "X-Vault-Token: x",
            "Impersonate-User: x",
            "Impersonate-Group: x",
            "Impersonate-Uid: x",
            "Impersonate-Extra-foo%2fbar: x",
            "Impersonate-Future: x",
            "impersonate_user: x",
            "X-Remote-User: x",
            "X_Remote_Group: x",
            "X-Remote-Extra-a: x",
            "X-Remote-Uid: x",
            "X-Forwarded-For: x",
            "X-Forwarded-Access-Token: x",
            "Forwarded: x",
            "Via: x",
            "X-Real-IP: x",
            "X-Original-URL: x",
            "X-Rewrite-URL: x",
            "X-HTTP-Method-Override: x",
            "X-Auth-Request-User: x",
            "Max-Forwards: 1",
            "TE: trailers",
            "Trailer: x",
            "Keep-Alive: x",
            "Upgrade: x",
            "Connection: close",
            "HTTP2-Settings: x",
            "Expect: 100-continue",
            "Host: x",
            "Transfer-Encoding: chunked",
            "Content-Length: 1",
            "X-Proxy-Authorization: x",
            "Remote-User: x",
            "Impersonate: x",
            "Impersonate.User: x",
            "X.Remote.User: x",
            "X-Remote_User: x",
            "X-Goog-IAP-JWT-Assertion: x",
            "Cf-Access-Jwt-Assertion: x",
            "X-Amzn-Oidc-Data: x",
            "X-MS-CLIENT-PRINCIPAL-NAME: x",
            "DPoP: x",
            "X-Access-Key: x",
            "Ocp-Apim-Subscription-Key: x",
            "X-Functions-Key: x",
            "X-Auth-Key: x",
            "X-SSL-Client-Key: x",
            "DD-Application-Key: x",
            "X_Parse_Master_Key: x",
            "Ok-Access-Passphrase: x",
            "X-Impersonate-User: x",
            "X-Goog-Impersonated-Account: x",
            "X-CLUSTERPEDIA-FORWARD: x",
            "X-Clusterpedia-User: x",
        ] {
            assert_eq!(forwarded(&format!("{field}\r\n")), "", "{field}");
        }
    }

    #[test]
    fn the_rest_passes_as_it_is() {
        let fields = "Accept: a\r\nAccept-Encoding: gzip\r\nUser-Agent: k\r\nIf-None-Match: \"e\"\r\nContent-Type: j\r\n\
                      Sec-WebSocket-Key: k\r\nIdempotency-Key: i\r\nX-Idempotency-Key: i\r\nX-Cache-Key: c\r\n\
                      Keyword: k\r\nKubectl-Command: get\r\nX-Stream-Protocol-Version: v4\r\n";
        assert_eq!(forwarded(fields), fields);
    }

    #[test]
    fn case_30_what_connection_names_goes_over_all_its_lines() {
        let fields = "Connection: Upgrade, X-One\r\nX-One: 1\r\nconnection:x_two\r\nX-Two: 2\r\nX-Three: 3\r\n";
        assert_eq!(forwarded(fields), "X-Three: 3\r\n");
    }

    #[test]
    fn case_28_bearer_subprotocols_go_and_the_order_of_the_rest_stays() {
        let fields = "Sec-WebSocket-Protocol: v4.channel.k8s.io, Base64URL.Bearer.Authorization.k8s.io.abc,b\r\n\
                      sec-websocket-protocol: base64.bearer.authorization.k8s.io.x , c\r\n";
        assert_eq!(forwarded(fields), "Sec-WebSocket-Protocol: v4.channel.k8s.io, b, c\r\n");
        for bearer in [
            "Bearer.x",
            "x-bearer-abc",
            "access_token.abc",
            "openai-insecure-api-key.abc",
        ] {
            assert_eq!(forwarded(&format!("Sec-WebSocket-Protocol: {bearer}\r\n")), "");
        }
        for nominated in [
            "Connection: Upgrade, Sec-WebSocket-Protocol",
            "Connection: sec_websocket_protocol",
        ] {
            assert_eq!(
                forwarded(&format!("{nominated}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n")),
                ""
            );
        }
        assert_eq!(
            forwarded("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.abc\r\n"),
            ""
        );
        assert_eq!(
            forwarded("Sec_WebSocket_Protocol: base64url.bearer.authorization.k8s.io.abc\r\n"),
            ""
        );
    }

    #[test]
    fn case_37_no_cookie_comes_back_and_no_echo_of_the_token() {
        let mut out = Vec::new();
        let fields = head(
            "Set-Cookie: s=1\r\nWWW-Authenticate: Bearer\r\nX-Echo: Bearer s3cr3t\r\nConnection: x-hop\r\nX-Hop: 1\r\nETag: e\r\n",
        );
        write_response_fields(&fields, Some(b"s3cr3t"), &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "WWW-Authenticate: Bearer\r\nETag: e\r\n"
        );
    }

    #[test]
    fn token_parameters() {
        for name in [
            "access_token",
            "Access-Token",
            "token",
            "api_key",
            "X-Amz-Security-Token",
            " token ",
        ] {
            assert!(is_token_parameter(name), "{name}");
        }
        for name in [
            "continue",
            "watch",
            "labelSelector",
            "resourceVersion",
            "tokens",
            "X-Amz-Signature",
            "key",
        ] {
            assert!(!is_token_parameter(name), "{name}");
        }
    }
}
