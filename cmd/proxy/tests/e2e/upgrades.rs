//! Upgrades take the same way as every request (`proxy_cases.md`, cases 9, 28, 29, 45 and 47).

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Lab, Responder, TOKEN, Upstream, answer};

const HANDSHAKE: &str = "Connection: Upgrade, Authorization\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a2V5\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: base64.binary.k8s.io, base64url.bearer.authorization.k8s.io.bWluZQ\r\n\
    Authorization: Bearer mine\r\nX-Remote-User: mine\r\nImpersonate-User: mine\r\n";

/// Switches protocols and echoes what comes.
fn echo() -> Responder {
    Arc::new(|request, stream| {
        Box::pin(async move {
            if request.values("upgrade").is_empty() {
                stream
                    .lock()
                    .await
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .await?;
                return Ok(true);
            }
            let mut stream = stream.lock().await;
            stream
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSet-Cookie: a=b\r\nSec-WebSocket-Accept: x\r\n\r\nhello")
                .await?;
            let mut buffer = [0; 1024];
            loop {
                let count = stream.read(&mut buffer).await?;
                if count == 0 {
                    return Ok(false);
                }
                stream.write_all(&buffer[..count]).await?;
                stream.flush().await?;
            }
        })
    })
}

async fn read_exact(client: &mut crate::harness::Client, expected: &str) {
    let mut got = String::new();
    while got.len() < expected.len() {
        got.push_str(&client.some().await);
    }
    assert_eq!(got, expected);
}

#[tokio::test]
async fn cases_28_29_30_a_watch_over_websocket_is_stripped_and_injected_like_the_rest() {
    let lab = Lab::answering(echo()).await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!(
            "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: {}\r\n{HANDSHAKE}\r\n",
            lab.authority()
        ))
        .await;
    let head = client.head().await.unwrap();
    assert!(
        head.starts_with("HTTP/1.1 101 ") && head.contains("Upgrade: websocket\r\n"),
        "{head}"
    );
    assert!(!head.contains("Set-Cookie"), "{head}");
    read_exact(&mut client, "hello").await;
    client.send("frames").await;
    read_exact(&mut client, "frames").await;
    let received = lab.upstream.received().pop().unwrap();
    assert!(
        !received.head.contains("mine") && !received.head.contains("bWluZQ"),
        "{}",
        received.head
    );
    assert_eq!(received.values("authorization"), [format!("Bearer {TOKEN}")]);
    assert_eq!(received.values("connection"), ["Upgrade"]);
    assert_eq!(received.values("upgrade"), ["websocket"]);
    assert_eq!(received.values("sec-websocket-protocol"), ["base64.binary.k8s.io"]);
    drop(client);
    let line = lab.audited(|line| line["status"] == 101).await;
    assert_eq!(
        (
            line["verb"].as_str(),
            line["bytesIn"].as_u64(),
            line["bytesOut"].as_u64()
        ),
        (Some("watch"), Some(6), Some(11))
    );

    // The same request without the upgrade sends the same identity.
    lab.get("/api/v1/pods?watch=1").await;
    assert_eq!(
        lab.upstream.received().pop().unwrap().values("authorization"),
        received.values("authorization")
    );
}

#[tokio::test]
async fn cases_9_47_other_upgrades_are_refused() {
    let lab = Lab::answering(echo()).await;
    for (method, path, upgrade, status) in [
        ("GET", "/api/v1/namespaces/n/pods/p/exec?command=id", "websocket", 403),
        ("POST", "/api/v1/namespaces/n/pods/p/exec?command=id", "SPDY/3.1", 403),
        ("GET", "/api/v1/namespaces/n/pods/p/portforward", "websocket", 403),
        ("GET", "/api/v1/pods", "websocket", 403),
        ("GET", "/api/v1/pods?watch=1", "SPDY/3.1", 403),
        ("GET", "/api/v1/pods?watch=1", "h2c", 403),
        ("GET", "/api/v1/pods?watch=1", "websocket, h2c", 403),
        ("POST", "/api/v1/watch/pods", "websocket", 403),
    ] {
        let response = lab
            .request(&format!(
                "{method} {path} HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
            ))
            .await;
        assert_eq!(response.status, status, "{method} {path} {upgrade}");
        response.kubernetes_status();
    }
    // What SPDY clients send for exec: they must hear the reason, not a remark on their framing.
    let response = lab
        .request("POST /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(
        response.text().contains("denied by credential proxy: pods/exec"),
        "{}",
        response.text()
    );
    assert!(lab.upstream.received().is_empty());
}

#[tokio::test]
async fn case_45_no_switch_that_the_upstream_did_not_make() {
    let lab = Lab::answering(answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")).await;
    let mut client = lab.tunnel().await;
    let second = "POST /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: HOST\r\n\r\n";
    let raw = format!("GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: HOST\r\n{HANDSHAKE}\r\n{second}")
        .replace("HOST", &lab.authority());
    client.send(&raw).await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(
        client.response().await.status,
        403,
        "the second request is judged as one"
    );
    assert_eq!(lab.upstream.received().len(), 1);
}

#[tokio::test]
async fn case_45_a_switch_that_was_not_asked_for_is_a_502() {
    for bytes in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ] {
        let lab = Lab::answering(answer(bytes)).await;
        assert_eq!(lab.get("/api").await.status, 502);
    }
    let lab = Lab::answering(answer(
        "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n",
    ))
    .await;
    let response = lab
        .request(&format!(
            "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: HOST\r\n{HANDSHAKE}\r\n"
        ))
        .await;
    assert_eq!(response.status, 502);
}

#[tokio::test]
async fn websocket_passes_on_allowlist_targets_stripped_like_the_rest() {
    let upstream = Upstream::start(echo()).await;
    let address = upstream.address;
    let lab = Lab::allowlisting(upstream).await;
    let mut client = lab.tunnel_to(&address.to_string(), &address.ip().to_string()).await;
    client
        .send(&format!("GET /chat HTTP/1.1\r\nHost: {address}\r\n{HANDSHAKE}\r\n"))
        .await;
    assert!(client.head().await.unwrap().starts_with("HTTP/1.1 101 "));
    read_exact(&mut client, "hello").await;
    let received = lab.upstream.received().pop().unwrap();
    assert!(
        !received.head.contains("mine") && received.values("authorization").is_empty(),
        "{}",
        received.head
    );
    assert_eq!(received.values("sec-websocket-protocol"), ["base64.binary.k8s.io"]);
}
