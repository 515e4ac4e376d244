//! Limits, the establishment of tunnels, and what the audit says (`proxy_cases.md`, sections D and E).

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_kubeconfig::Authority;
use cli_mcp_proxy::connect;
use cli_mcp_proxy::dial::Resolve;
use cli_mcp_proxy::proxy::Timeouts;
use cli_mcp_proxy::tunnel::Tunnel;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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

#[tokio::test]
async fn case_50_large_heads_are_few_at_a_time_and_small_ones_are_not_counted() {
    let lab = Lab::new().await;
    let timeouts = Timeouts {
        head: Duration::from_millis(100),
        idle: Duration::from_millis(100),
        ..Timeouts::default()
    };
    for (places, size, answered) in [(0, 40_000, false), (1, 40_000, true), (0, 4_000, true)] {
        let (_, shared) = lab.parts(places, timeouts);
        let (mut client, stream) = tokio::io::duplex(1024 * 1024);
        let head = format!(
            "GET /api/v1/nodes/n/proxy HTTP/1.1\r\nHost: {}\r\nX: {}\r\n\r\n",
            lab.authority(),
            "x".repeat(size)
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let tunnel = Tunnel {
            stream,
            client: "127.0.0.1".parse().unwrap(),
            authority: Authority::parse(&lab.authority()).unwrap(),
            label: lab.authority(),
            kubernetes: true,
            shared: &shared,
        };
        patiently(tunnel.serve()).await;
        let mut answer = String::new();
        patiently(client.read_to_string(&mut answer)).await.unwrap();
        assert_eq!(
            answer.starts_with("HTTP/1.1 403 "),
            answered,
            "{places} {size} {answer}"
        );
        assert_eq!(shared.large_heads.available_permits(), places, "given back");
    }
}

#[tokio::test]
async fn case_50_a_large_connect_takes_its_place_among_the_large_heads() {
    let lab = Lab::new().await;
    let timeouts = Timeouts {
        handshake: Duration::from_millis(100),
        ..Timeouts::default()
    };
    for (places, answered) in [(0, false), (1, true)] {
        let (_, shared) = lab.parts(places, timeouts);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, peer) = listener.accept().await.unwrap();
        let head = format!("CONNECT x:1 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000));
        let mut answer = Vec::new();
        let asks = async {
            client.write_all(head.as_bytes()).await.unwrap();
            // A connection that ends with unread bytes ends by a reset.
            let _ = client.read_to_end(&mut answer).await;
            drop(client);
        };
        patiently(async { tokio::join!(connect::serve(served, peer.ip(), &shared), asks) }).await;
        assert_eq!(answer.starts_with(b"HTTP/1.1 403 "), answered, "{places}");
        assert_eq!(shared.large_heads.available_permits(), places, "given back");
    }
}

#[tokio::test]
async fn watches_and_logs_have_no_duration() {
    let lab = Lab::new().await;
    let count = |metrics: &str| {
        metrics
            .lines()
            .filter(|line| line.contains("duration_seconds_count{"))
            .count()
    };
    for path in ["/api/v1/pods?watch=1", "/api/v1/namespaces/n/pods/p/log?follow=true"] {
        assert_eq!(lab.get(path).await.status, 200);
    }
    lab.audited(|line| line["subresource"] == "log").await;
    assert_eq!(count(&lab.health("/metrics").await.1), 0);
    assert_eq!(lab.get("/api/v1/pods").await.status, 200);
    lab.audited(|line| line["verb"] == "list").await;
    assert_eq!(count(&lab.health("/metrics").await.1), 1);
}

/// Fails as only a fault of the program does.
struct Faulty;

impl Resolve for Faulty {
    fn lookup<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async { panic!("a fault") })
    }
}

#[tokio::test]
async fn a_request_whose_task_fails_has_its_audit_line() {
    let lab = Lab::with(Upstream::start(ok()).await, |setup| {
        setup.resolver = Some(Arc::new(Faulty));
    })
    .await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
        .await;
    assert!(client.is_closed().await);
    let line = lab.audited(|line| line["path"] == "/api").await;
    assert_eq!((&line["status"], &line["decision"]), (&0.into(), &"allow".into()));
    assert!(line["reason"].as_str().unwrap().contains("the proxy failed"), "{line}");
}
