//! Limits, the establishment of tunnels, and what the audit says (`proxy_cases.md`, sections D and E).

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, client_config};
use crate::harness::{Lab, TOKEN, Upstream, ok, patiently};

#[tokio::test]
async fn case_50_limits_and_timeouts() {
    let lab = Lab::with(Upstream::start(ok()).await, |setup| {
        setup.max_connections_per_client = 2;
        setup.timeouts.handshake = Duration::from_millis(200);
        setup.timeouts.head = Duration::from_millis(200);
    })
    .await;
    let first = lab.tunnel().await;
    let mut slow = TcpStream::connect(lab.proxy).await.unwrap();
    slow.write_all(b"CONNECT ap").await.unwrap();
    let answer = lab.raw("CONNECT x:1 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // Neither a slow CONNECT nor a silent tunnel holds its place.
    assert_eq!(patiently(slow.read(&mut [0])).await.unwrap(), 0);
    let Client { mut stream, .. } = first;
    assert!(matches!(patiently(stream.read(&mut [0])).await, Ok(0) | Err(_)));
    patiently(async {
        while lab
            .raw("CONNECT x:1 HTTP/1.1\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 503 ")
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (_, metrics) = lab.health("/metrics").await;
    assert!(
        metrics.contains("cli_mcp_proxy_connections_over_limit_total{limit=\"client\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn case_54_http_1_1_is_selected() {
    let lab = Lab::new().await;
    let client = lab.tunnel().await;
    assert_eq!(client.stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn case_56_bytes_behind_the_connect_are_not_lost() {
    let lab = Lab::new().await;
    let authority = lab.authority();
    let mut tls = rustls::ClientConnection::new(
        std::sync::Arc::new(client_config(&lab.ca)),
        "api.test".try_into().unwrap(),
    )
    .unwrap();
    let mut first = format!("CONNECT {authority} HTTP/1.1\r\n\r\n").into_bytes();
    tls.write_tls(&mut first).unwrap();
    let mut tcp = TcpStream::connect(lab.proxy).await.unwrap();
    tcp.write_all(&first).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut filled = 0;
    patiently(async {
        // 39 bytes of CONNECT response, and then the server's handshake.
        while filled < 60 {
            filled += tcp.read(&mut answer[filled..]).await.unwrap();
        }
    })
    .await;
    assert_eq!(&answer[..39], b"HTTP/1.1 200 Connection established\r\n\r\n");
    assert_eq!(answer[39], 0x16, "a handshake record follows");
}

#[tokio::test]
async fn the_audit_line_says_what_happened_and_no_secret() {
    let lab = Lab::new().await;
    lab.request("POST /api/v1/namespaces/ns/pods?token=q-secret HTTP/1.1\r\nHost: HOST\r\nX: h-secret\r\nContent-Length: 8\r\n\r\nb-secret").await;
    let line = lab.audited(|line| line["method"] == "POST").await;
    for (key, value) in [
        ("log", "audit"),
        ("client", "127.0.0.1"),
        ("path", "/api/v1/namespaces/ns/pods"),
        ("verb", "create"),
        ("group", ""),
        ("resource", "pods"),
        ("subresource", ""),
        ("namespace", "ns"),
        ("name", ""),
        ("decision", "allow"),
        ("reason", ""),
    ] {
        assert_eq!(line[key], value, "{key}");
    }
    assert_eq!(line["target"], lab.authority());
    assert_eq!(
        (
            line["status"].as_u64(),
            line["bytesIn"].as_u64(),
            line["bytesOut"].as_u64()
        ),
        (Some(200), Some(8), Some(11))
    );
    let text = line.to_string();
    assert!(!text.contains("secret") && !text.contains(TOKEN), "{text}");
    let (_, metrics) = lab.health("/metrics").await;
    let counted = format!(
        "cli_mcp_proxy_requests_total{{target=\"{}\",verb=\"write\",decision=\"allow\",code=\"2xx\"}} 1",
        lab.authority()
    );
    assert!(metrics.contains(&counted), "{metrics}");
}
