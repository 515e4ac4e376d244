//! Requests that are refused for what they are, before a server is chosen for them: each with its own status (RFC 9110,
//! RFC 9112), in the audit, and without a connection to any server.

use crate::harness::{Lab, TOKEN, Upstream, ok};

/// A path longer than any that is read.
fn long_path() -> String {
    format!("/{}", "a".repeat(64 * 1024))
}

/// Bytes of a request in which each character is one byte, and `HOST` the authority.
fn bytes(raw: &str, host: &str) -> Vec<u8> {
    raw.replace("HOST", host)
        .chars()
        .map(|character| u8::try_from(u32::from(character)).unwrap())
        .collect()
}

/// What all refusals have in common.
fn nothing_left(lab: &Lab) {
    assert_eq!(lab.upstream.connections(), 0);
    for line in lab.audit() {
        assert_eq!(line["decision"], "deny", "{line}");
        assert!(!line.to_string().contains(TOKEN), "{line}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_served_has_the_status_of_its_kind() {
    let lab = Lab::new().await;
    let get = |path: &str, fields: &str| format!("GET {path} HTTP/1.1\r\nHost: HOST\r\n{fields}\r\n");
    for (raw, status, word) in [
        (get("/api", "Expect: 200-ok\r\n"), 417, "100-continue"),
        (get("/api", "Expect: 100-continue, x\r\n"), 417, "100-continue"),
        (
            get("/api", "Expect: 100-continue\r\nExpect: x\r\n"),
            417,
            "100-continue",
        ),
        (get("/api", "Expect:\r\n"), 417, "100-continue"),
        (get("/api", "").replace("HOST", "\u{ff}"), 400, "malformed Host"),
        (get("/api", "").replace("HOST", "HOST\u{e9}"), 400, "malformed Host"),
        (get("/api", "").replace("HOST", "HOST/"), 400, "malformed Host"),
        (get("/api", "").replace("HOST", "https://HOST"), 400, "malformed Host"),
        (get("/api", "").replace("1.1", "1.0"), 505, "HTTP/1.1"),
        (get("/api", "").replace("1.1", "2.0"), 505, "HTTP/1.1"),
        (get("/api", "").replace("1.1", "1.2"), 505, "HTTP/1.1"),
        (get("/api", &"X: y\r\n".repeat(256)), 431, "too large"),
        (
            get("/api", &format!("X: {}\r\n", "x".repeat(128 * 1024))),
            431,
            "too large",
        ),
        (get("*", ""), 400, "only a path"),
        (get("https://HOST/api", ""), 400, "only a path"),
    ] {
        let mut client = lab.tunnel().await;
        client.send_bytes(&bytes(&raw, &lab.authority())).await;
        let response = client.response().await;
        let shown: String = raw.chars().take(80).collect();
        assert_eq!(response.status, status, "{shown:?}: {}", response.text());
        let message = response.kubernetes_status()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(word), "{shown:?}: {message}");
        assert!(client.is_closed().await, "{shown:?}");
        assert_eq!(lab.audit().pop().unwrap()["status"], status, "{shown:?}");
    }
    nothing_left(&lab);
}

#[tokio::test]
async fn a_target_that_is_too_long_is_a_414_and_the_next_request_is_judged_by_itself() {
    let lab = Lab::new().await;
    let mut client = lab.tunnel().await;
    for path in [long_path(), format!("/api?{}", long_path())] {
        let raw = format!("GET {path} HTTP/1.1\r\nHost: HOST\r\n\r\n");
        client.send_bytes(&bytes(&raw, &lab.authority())).await;
        let response = client.response().await;
        assert_eq!(response.status, 414);
        response.kubernetes_status();
    }
    client
        .send_bytes(&bytes(
            "GET /api/v1/nodes/n/proxy HTTP/1.1\r\nHost: HOST\r\n\r\n",
            &lab.authority(),
        ))
        .await;
    assert_eq!(client.response().await.status, 403);
    nothing_left(&lab);
}

#[tokio::test]
async fn case_47_a_public_server_is_asked_for_no_upgrade_but_to_websocket() {
    let upstream = Upstream::start(ok()).await;
    let address = upstream.address.to_string();
    let lab = Lab::allowlisting(upstream).await;
    let upgrade = |method: &str, protocol: &str| {
        format!("{method} /chat HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n")
    };
    let mut client = lab
        .tunnel_to(&address, lab.upstream.address.ip().to_string().as_str())
        .await;
    for (raw, status) in [
        (upgrade("GET", "h2c"), 403),
        (upgrade("GET", "SPDY/3.1"), 403),
        (upgrade("GET", "TLS/1.3"), 403),
        (upgrade("GET", "websocket, h2c"), 403),
        (upgrade("GET", "h2c\r\nUpgrade: websocket"), 403),
        (upgrade("GET", ""), 403),
        (upgrade("POST", "websocket"), 403),
        (upgrade("CONNECT", "websocket"), 405),
        (upgrade("trace", "x"), 405),
        (format!("GET {} HTTP/1.1\r\nHost: HOST\r\n\r\n", long_path()), 414),
        ("GET /\u{ff} HTTP/1.1\r\nHost: HOST\r\n\r\n".into(), 400),
        ("GET /a#b HTTP/1.1\r\nHost: HOST\r\n\r\n".into(), 400),
    ] {
        let shown: String = raw.chars().take(80).collect();
        client.send_bytes(&bytes(&raw, &address)).await;
        let response = client.response().await;
        assert_eq!(response.status, status, "{shown:?}: {}", response.text());
        assert!(response.head.contains("text/plain"), "{shown:?}");
        if response.has("connection") {
            assert!(client.is_closed().await, "{shown:?}");
            client = lab
                .tunnel_to(&address, lab.upstream.address.ip().to_string().as_str())
                .await;
        }
    }
    nothing_left(&lab);
}
