//! Upstreams to which no TLS connection comes about: a 502 or 504 that says why, and the same in the audit.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use cli_mcp_proxy::dial::Resolve;
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::proxy::Timeouts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Lab, TOKEN, Upstream, patiently, recording};

#[tokio::test]
async fn case_68_an_upstream_that_speaks_no_tls_is_a_502_and_gets_nothing_of_the_request() {
    for (greeting, word) in [
        (&b""[..], "the TLS handshake failed"),
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            "TLS with the server failed",
        ),
        (b"SSH-2.0-OpenSSH_9.0\r\n", "TLS with the server failed"),
        // A fatal alert: handshake_failure.
        (b"\x15\x03\x03\x00\x02\x02\x28", "TLS with the server failed"),
    ] {
        let lab = Lab::with(Upstream::greeting(greeting).await, |_| {}).await;
        let mut client = lab.tunnel().await;
        let host = lab.authority();
        for _ in 0..2 {
            client
                .send(&format!("GET /api/secret-path HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            let response = client.response().await;
            assert_eq!(response.status, 502, "the tunnel takes the next request");
            let message = response.kubernetes_status()["message"].as_str().unwrap().to_owned();
            assert!(
                message.starts_with(&format!("{host}: ")) && message.contains(word),
                "{message}"
            );
            let line = lab.audit().pop().unwrap();
            assert_eq!((&line["decision"], &line["status"]), (&"allow".into(), &502.into()));
            assert_eq!(line["reason"], message);
        }
        patiently(async {
            while lab.upstream.received().len() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        for received in lab.upstream.received() {
            assert!(!received.head.contains(TOKEN) && !received.head.contains("secret-path"));
        }
    }
}

/// Never answers.
struct Silent;

impl Resolve for Silent {
    fn lookup<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_not_connected_in_time_is_a_504() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts_resolving(LargeHeads::default(), Timeouts::default(), Arc::new(Silent));
    let lines = recording(&mut shared);
    let (mut client, stream) = tokio::io::duplex(4096);
    let head = format!(
        "GET /api HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        lab.authority()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let asks = async {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        drop(client);
        answer
    };
    let ((), answer) = patiently(async { tokio::join!(lab.tunnel_over(stream, &shared).serve(), asks) }).await;
    assert!(answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"), "{answer}");
    assert!(answer.contains("\"reason\":\"Timeout\""), "{answer}");
    let line: serde_json::Value = serde_json::from_str(&lines.lock().unwrap()[0]).unwrap();
    assert_eq!((&line["decision"], &line["status"]), (&"allow".into(), &504.into()));
    assert!(
        line["reason"].as_str().unwrap().contains("no connection within 10 s"),
        "{line}"
    );
}
