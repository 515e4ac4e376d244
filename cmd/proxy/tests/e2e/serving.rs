//! Limits, the establishment of tunnels, and what the audit says (`proxy_cases.md`, sections D and E).

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_proxy::connect;
use cli_mcp_proxy::dial::Resolve;
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::proxy::Timeouts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::client::{Client, client_config};
use crate::harness::{Lab, TOKEN, Upstream, ok, patiently, recording};

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
    for (places, of_client, size, body, status) in [
        (0, 1, 40_000, 0, 503),
        (0, 1, 17_000, 0, 503),
        (1, 0, 17_000, 0, 503),
        (1, 1, 40_000, 0, 403),
        (0, 0, 4_000, 0, 403),
        (0, 0, 4_000, 40_000, 403),
    ] {
        let (_, mut shared) = lab.parts(LargeHeads::new(places, of_client), timeouts);
        let lines = recording(&mut shared);
        let (mut client, stream) = tokio::io::duplex(1024 * 1024);
        let head = format!(
            "POST /api/v1/nodes/n/proxy HTTP/1.1\r\nHost: {}\r\nX: {}\r\nContent-Length: {body}\r\n\r\n{}",
            lab.authority(),
            "x".repeat(size),
            "b".repeat(body)
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let served = lab.tunnel_over(stream, &shared).serve();
        let mut answer = String::new();
        let asks = async {
            client.read_to_string(&mut answer).await.unwrap();
            drop(client);
        };
        patiently(async { tokio::join!(served, asks) }).await;
        let case = format!("{places} {of_client} {size} {body} {answer}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{case}");
        assert!(
            lines.lock().unwrap()[0].contains(&format!("\"status\":{status}")),
            "{case}"
        );
        if places > 0 && of_client > 0 {
            let given_back = shared
                .large_heads
                .take("127.0.0.1".parse().unwrap(), Instant::now())
                .await;
            assert!(given_back.is_ok());
        }
    }
}

#[tokio::test]
async fn case_50_a_large_connect_takes_its_place_among_the_large_heads() {
    let lab = Lab::new().await;
    let timeouts = Timeouts {
        handshake: Duration::from_millis(100),
        ..Timeouts::default()
    };
    for (places, size, status) in [(0, 40_000, 503), (0, 17_000, 503), (1, 40_000, 403), (0, 4_000, 403)] {
        let (_, mut shared) = lab.parts(LargeHeads::new(places, 1), timeouts);
        let lines = recording(&mut shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (served, peer) = listener.accept().await.unwrap();
        let head = format!("CONNECT x:1 HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(size));
        let mut answer = Vec::new();
        let asks = async {
            client.write_all(head.as_bytes()).await.unwrap();
            // A connection that ends with unread bytes ends by a reset.
            let _ = client.read_to_end(&mut answer).await;
            drop(client);
        };
        patiently(async { tokio::join!(connect::serve(served, peer.ip(), &shared), asks) }).await;
        assert!(
            answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()),
            "{places} {size}"
        );
        assert!(
            lines.lock().unwrap()[0].contains(&format!("\"status\":{status}")),
            "{places} {size}"
        );
        if places > 0 {
            assert!(
                shared.large_heads.take(peer.ip(), Instant::now()).await.is_ok(),
                "given back"
            );
        }
    }
}

#[tokio::test]
async fn a_tunnel_that_ends_takes_what_is_still_on_its_way() {
    let lab = Lab::new().await;
    let timeouts = Timeouts {
        head: Duration::from_millis(10),
        ..Timeouts::default()
    };
    let (_, shared) = lab.parts(LargeHeads::default(), timeouts);
    let (mut client, stream) = tokio::io::duplex(64);
    let late = async {
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        client.write_all(&[b'x'; 4096]).await.unwrap();
        drop(client);
    };
    patiently(async { tokio::join!(lab.tunnel_over(stream, &shared).serve(), late) }).await;
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
