//! Upstreams that stall, reset, answer early or badly, and clients that leave: what each side sees of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use crate::harness::{Lab, Responder, Upstream, answer, patiently};

/// Writes these bytes, then ends the connection, with or without a proper end of TLS.
fn answer_and_end(bytes: &'static [u8], orderly: bool) -> Responder {
    Arc::new(move |_, stream| {
        Box::pin(async move {
            let mut stream = stream.lock().await;
            stream.write_all(bytes).await?;
            stream.flush().await?;
            if orderly {
                stream.shutdown().await?;
            } else {
                stream.get_mut().0.shutdown().await?;
            }
            Ok(false)
        })
    })
}

/// Never answers.
fn silence() -> Responder {
    Arc::new(|_, _| Box::pin(std::future::pending()))
}

/// Answers with a head at once, then with an event each time it is told to, until the proxy ends the connection.
fn quiet_watch(next: Arc<Notify>) -> Responder {
    Arc::new(move |_, stream| {
        let next = next.clone();
        Box::pin(async move {
            let mut stream = stream.lock().await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await?;
            stream.flush().await?;
            loop {
                tokio::select! {
                    () = next.notified() => {
                        stream.write_all(b"6\r\nevent\n\r\n").await?;
                        stream.flush().await?;
                    }
                    // The proxy's end of the connection.
                    ended = async { let mut byte = [0]; let (tcp, _) = stream.get_ref(); tcp.readable().await?; tcp.try_read(&mut byte) } => {
                        if matches!(ended, Ok(0) | Ok(_)) {
                            return Ok(false);
                        }
                    }
                }
            }
        })
    })
}

/// Waits until the proxy has ended every connection to the upstream.
async fn upstream_left(lab: &Lab) {
    patiently(async {
        while lab.upstream.open() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_is_down_is_a_502_that_says_so() {
    let upstream = Upstream::start(silence()).await;
    let named = format!("api.test:{}", upstream.address.port());
    let lab = Lab::with(upstream, |setup| {
        setup.edit(|text| text.replace(&named, "api.test:1"));
    })
    .await;
    let mut client = lab.tunnel_to("api.test:1", "api.test").await;
    for _ in 0..2 {
        client.send("GET /api HTTP/1.1\r\nHost: api.test:1\r\n\r\n").await;
        let response = client.response().await;
        assert_eq!(response.status, 502);
        assert!(
            response.kubernetes_status()["message"]
                .as_str()
                .unwrap()
                .contains("api.test:1 cannot be reached")
        );
    }
}

#[tokio::test]
async fn an_upstream_that_never_answers_is_a_504_except_for_watches_and_logs() {
    let lab = Lab::with(Upstream::start(silence()).await, |setup| {
        setup.timeouts.response = Duration::from_millis(100)
    })
    .await;
    let response = lab.get("/api/v1/pods").await;
    assert_eq!(response.status, 504);
    assert_eq!(response.kubernetes_status()["reason"], "Timeout");
    for path in ["/api/v1/pods?watch=1", "/api/v1/namespaces/n/pods/p/log?follow=true"] {
        let mut client = lab.tunnel().await;
        client
            .send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
            .await;
        let early = tokio::time::timeout(Duration::from_millis(400), client.try_response()).await;
        assert!(early.is_err(), "{path}: {early:?}");
    }
}

#[tokio::test]
async fn answers_that_are_no_answers_are_a_502() {
    let huge: &'static [u8] = Box::leak(
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(200_000))
            .into_bytes()
            .into_boxed_slice(),
    );
    let rows: [&'static [u8]; 9] = [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        huge,
    ];
    for bytes in rows {
        let lab = Lab::answering(answer_and_end(bytes, true)).await;
        let response = lab.get("/api").await;
        assert_eq!(
            response.status,
            502,
            "{:?}",
            String::from_utf8_lossy(bytes).chars().take(40).collect::<String>()
        );
        response.kubernetes_status();
    }
}

#[tokio::test]
async fn case_52_a_cut_answer_never_looks_whole() {
    let rows: [(&'static [u8], bool); 4] = [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            true,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", true),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", true),
        // Without a proper end of TLS, an answer that lasts until the end may have been cut by anyone.
        (b"HTTP/1.1 200 OK\r\n\r\nhello", false),
    ];
    for (bytes, orderly) in rows {
        let lab = Lab::answering(answer_and_end(bytes, orderly)).await;
        let mut client = lab.tunnel().await;
        client
            .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
            .await;
        assert!(
            client.try_response().await.is_err(),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
        let line = lab.audited(|line| line["status"] == 200).await;
        assert!(line["reason"].as_str().unwrap().contains("middle"), "{line}");
    }
}

#[tokio::test]
async fn an_answer_until_the_end_of_the_connection_is_sent_in_chunks() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\n\r\nhello"[..],
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhello",
    ] {
        let lab = Lab::answering(answer_and_end(bytes, true)).await;
        let mut client = lab.tunnel().await;
        for _ in 0..2 {
            client
                .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
                .await;
            let response = client.response().await;
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert!(
                response.head.starts_with("HTTP/1.1 ") && response.has("transfer-encoding"),
                "{}",
                response.head
            );
        }
    }
}

#[tokio::test]
async fn case_53_answers_without_a_body() {
    for (method, bytes, status) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 200),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\nContent-Length: 99\r\n\r\n",
            304,
        ),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
    ] {
        let lab = Lab::answering(answer(bytes)).await;
        let mut client = lab.tunnel().await;
        for _ in 0..2 {
            client
                .send(&format!("{method} /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
                .await;
            let head = client.head().await.unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
        }
        assert_eq!(lab.upstream.connections(), 1, "{method} {bytes}");
    }
}

#[tokio::test]
async fn interim_answers_stay_on_their_hop_and_continue_is_answered_here() {
    let lab = Lab::answering(answer(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ))
    .await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!(
            "POST /api/v1/namespaces HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
            lab.authority()
        ))
        .await;
    assert_eq!(client.head().await.unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body").await;
    assert_eq!(client.response().await.status, 200);
    let received = lab.upstream.received().pop().unwrap();
    assert!(received.values("expect").is_empty());
    assert_eq!(received.body, b"body");
    // What is refused is refused before the body is asked for.
    client
        .send(&format!("POST /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", lab.authority()))
        .await;
    assert_eq!(client.response().await.status, 403);
}

#[tokio::test]
async fn interim_answers_without_end_are_a_502() {
    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let few = INTERIM.repeat(16) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(Lab::answering(answer(few)).await.get("/api").await.status, 200);
    let endless: Responder = Arc::new(|_, stream| {
        Box::pin(async move {
            let mut stream = stream.lock().await;
            loop {
                stream.write_all(INTERIM.as_bytes()).await?;
                stream.flush().await?;
            }
        })
    });
    let response = Lab::answering(endless).await.get("/api/v1/pods?watch=1").await;
    assert_eq!(response.status, 502);
    assert!(response.text().contains("interim"), "{}", response.text());
}

#[tokio::test]
async fn an_early_answer_arrives_although_the_body_is_not_finished() {
    let upstream = Upstream::start_early("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig").await;
    let lab = Lab::with(upstream, |_| {}).await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!(
            "POST /api/v1/namespaces HTTP/1.1\r\nHost: {}\r\nContent-Length: 50000000\r\n\r\nstart",
            lab.authority()
        ))
        .await;
    let response = client.response().await;
    assert_eq!((response.status, response.text().as_str()), (413, "big"));
    assert!(response.has("connection"), "{}", response.head);
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let lab = Lab::answering(answer(
        "HTTP/1.1 302 Found\r\nLocation: https://other.test/\r\nContent-Length: 0\r\n\r\n",
    ))
    .await;
    let response = lab.get("/api").await;
    assert_eq!(response.status, 302);
    assert!(response.has("location"));
    assert_eq!(lab.upstream.received().len(), 1);
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced() {
    let lab = Lab::answering(answer_and_end(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true)).await;
    for expected in 1..=3 {
        assert_eq!(lab.get("/api").await.status, 200);
        assert_eq!(lab.upstream.received().len(), expected);
        upstream_left(&lab).await;
    }
}

#[tokio::test]
async fn cases_51_52_a_quiet_watch_has_its_head_at_once_and_ends_with_its_client() {
    let next = Arc::new(Notify::new());
    let lab = Lab::answering(quiet_watch(next.clone())).await;
    let mut client = lab.watch().await;
    for _ in 0..3 {
        next.notify_one();
        assert_eq!(client.chunk().await.unwrap(), b"event\n");
    }
    assert_eq!(lab.upstream.open(), 1);
    drop(client);
    upstream_left(&lab).await;
    let line = lab.audited(|line| line["verb"] == "watch").await;
    assert_eq!(
        (line["status"].as_u64(), line["bytesOut"].as_u64()),
        (Some(200), Some(18))
    );
}

#[tokio::test]
async fn case_52_a_client_that_sent_ahead_and_left_holds_neither_upstream_nor_place() {
    let upstream = Upstream::start(quiet_watch(Arc::default())).await;
    let lab = Lab::with(upstream, |setup| setup.max_connections_per_client = 1).await;
    let mut client = lab.watch().await;
    client.send_bytes(&[b'x'; 128 * 1024]).await;
    drop(client);
    upstream_left(&lab).await;
    let line = lab.audited(|line| line["verb"] == "watch").await;
    assert!(line["reason"].as_str().unwrap().contains("ahead"), "{line}");
    patiently(async {
        while lab.try_tunnel(&lab.authority(), "api.test").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn case_50_a_client_that_reads_nothing_is_ended() {
    let endless: Responder = Arc::new(|_, stream| {
        Box::pin(async move {
            let mut stream = stream.lock().await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
                .await?;
            loop {
                stream.write_all(&[b'x'; 64 * 1024]).await?;
            }
        })
    });
    let lab = Lab::with(Upstream::start(endless).await, |setup| {
        setup.timeouts.stall = Duration::from_millis(500);
    })
    .await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
        .await;
    upstream_left(&lab).await;
    let line = lab.audited(|line| line["path"] == "/api").await;
    assert!(line["reason"].as_str().unwrap().contains("took nothing"), "{line}");
    drop(client);
}

#[tokio::test]
async fn case_53_fifty_megabytes_arrive_bit_for_bit_both_ways() {
    fn content(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    }
    const LENGTH: usize = 50_000_000;
    let body = content(LENGTH);
    let mut chunked = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nETag: \"e\"\r\nVary: Accept-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(7_777) {
        chunked.extend(format!("{:x}\r\n", piece.len()).into_bytes());
        chunked.extend(piece);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let mut plain = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").into_bytes();
    plain.extend(&body);
    for bytes in [chunked, plain] {
        let lab = Lab::answering(answer(bytes)).await;
        let mut client = lab.tunnel().await;
        client
            .send(&format!(
                "GET /api/v1/pods HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: gzip\r\n\r\n",
                lab.authority()
            ))
            .await;
        let response = client.response().await;
        assert!(response.body == body, "the body differs");
        assert_eq!(lab.upstream.received()[0].values("accept-encoding"), ["gzip"]);

        client
            .send(&format!(
                "POST /api/v1/namespaces HTTP/1.1\r\nHost: {}\r\nContent-Length: {LENGTH}\r\n\r\n",
                lab.authority()
            ))
            .await;
        client.send_bytes(&body).await;
        assert_eq!(client.head().await.unwrap().split(' ').nth(1), Some("200"));
        assert!(lab.upstream.received()[1].body == body, "the upload differs");
    }
}

#[tokio::test]
async fn a_client_that_reads_slowly_bounds_what_is_held() {
    let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n".to_vec();
    bytes.resize(bytes.len() + 20_000_000, b'x');
    let lab = Lab::answering(answer(bytes)).await;
    let mut client = lab.tunnel().await;
    client
        .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
        .await;
    let mut first = [0; 1024];
    patiently(client.stream.read_exact(&mut first)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut rest = 0;
    while rest < 20_000_000 - 1024 {
        let mut buffer = vec![0; 65536];
        rest += patiently(client.stream.read(&mut buffer)).await.unwrap();
    }
}
