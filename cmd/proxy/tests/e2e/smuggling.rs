//! Request smuggling: whatever is sent, the upstream sees at most the one request that was judged, and no credential
//! but the injected one (`proxy_cases.md`, cases 43 to 45).

use crate::harness::{Lab, TOKEN, answer, patiently};

const SECOND: &str =
    "POST /api/v1/namespaces/ns/pods/p/exec HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer mine\r\n\r\n";

/// Heads (and bodies) that are refused as a whole, each followed by a request that must never be seen.
const REFUSED: &[&str] = &[
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5, 5\r\n\r\nhello",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: +5\r\n\r\nhello",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5 5\r\n\r\nhello",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: \r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nContent-Length : 5\r\n\r\nhello",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nX: a\r\n\tTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /api HTTP/1.1\r\nHost: HOST\r\nX: a\0\r\n\r\n",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nX: a\r\tb\r\n\r\n",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nX: a\r\t\r\n\r\n",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabc",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET /api HTTP/1.1\nHost: HOST\n\n",
    "GET /api HTTP/1.1\r\n\r\nHost: HOST\r\n\r\n",
    "\r\nGET /api HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "GET /api\r\n",
    "GET /api HTTP/1.0\r\nHost: HOST\r\n\r\n",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n",
    "GET  /api HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "GET /api HTTP/1.1 \r\nHost: HOST\r\n\r\n",
    "GET /api x HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: HOST\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 3\r\n\r\nabc",
    "GET /api HTTP/1.1\r\nHost: HOST\r\nUpgrade: x\r\nContent-Length: 0\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

#[tokio::test]
async fn cases_43_44_what_is_ambiguous_is_refused_and_ends_the_connection() {
    let lab = Lab::new().await;
    for raw in REFUSED {
        let mut client = lab.tunnel().await;
        client
            .send(&format!("{raw}{SECOND}").replace("HOST", &lab.authority()))
            .await;
        let response = client.response().await;
        assert!([400, 505].contains(&response.status), "{raw:?}: {}", response.head);
        response.kubernetes_status();
        assert!(client.is_closed().await, "{raw:?}");
    }
    assert!(lab.upstream.received().is_empty(), "{:?}", lab.upstream.received());
}

#[tokio::test]
async fn chunk_tricks_never_become_a_second_request() {
    let lab = Lab::new().await;
    for body in [
        "5;x=y\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: a\nY: b\r\n\r\n",
    ] {
        let mut client = lab.tunnel().await;
        let raw = format!("POST /api HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SECOND}");
        client.send(&raw.replace("HOST", &lab.authority())).await;
        let response = client.response().await;
        assert_eq!(response.status, 400, "{body:?}");
        assert!(client.is_closed().await, "{body:?}");
    }
    for received in lab.upstream.received() {
        assert!(
            !received.head.contains("exec") && !received.head.contains("mine"),
            "{}",
            received.head
        );
    }
}

#[tokio::test]
async fn trailers_are_dropped_and_the_next_request_is_judged_by_itself() {
    let lab = Lab::new().await;
    let mut client = lab.tunnel().await;
    let raw = format!(
        "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n\
         5\r\nhello\r\n0\r\nAuthorization: Bearer mine\r\nImpersonate-User: mine\r\n\r\n{SECOND}GET /version HTTP/1.1\r\nHost: HOST\r\n\r\n"
    );
    client.send(&raw.replace("HOST", &lab.authority())).await;
    assert_eq!(client.response().await.status, 200);
    assert_eq!(client.response().await.status, 403);
    assert_eq!(client.response().await.status, 200);
    let received = lab.upstream.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].body, b"5\r\nhello\r\n0\r\n\r\n");
    assert!(received.iter().all(|request| !request.head.contains("mine")));
    assert_eq!(received[1].line(), "GET /version HTTP/1.1");
}

#[tokio::test]
async fn a_smuggled_request_in_a_body_stays_a_body() {
    let lab = Lab::new().await;
    let inner = SECOND.replace("HOST", &lab.authority());
    let response = lab
        .request(&format!(
            "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: HOST\r\nContent-Length: {}\r\n\r\n{inner}",
            inner.len()
        ))
        .await;
    assert_eq!(response.status, 200);
    let received = lab.upstream.received();
    assert_eq!((received.len(), received[0].body.as_slice()), (1, inner.as_bytes()));
}

#[tokio::test]
async fn the_head_arrives_byte_by_byte_and_is_sent_anew() {
    let lab = Lab::new().await;
    let mut client = lab.tunnel().await;
    let raw = "GET /api/v1/pods HTTP/1.1\r\nhost:HOST\r\nX-Odd:   a\tb  \r\nAccept:\r\n\r\n"
        .replace("HOST", &lab.authority());
    for byte in raw.bytes() {
        client.send_bytes(&[byte]).await;
    }
    assert_eq!(client.response().await.status, 200);
    let received = lab.upstream.received().pop().unwrap();
    let expected = format!(
        "GET /api/v1/pods HTTP/1.1\r\nHost: {}\r\nX-Odd: a\tb\r\nAccept: \r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        lab.authority()
    );
    assert_eq!(received.head, expected);
}

#[tokio::test]
async fn large_heads_pass_and_huge_ones_do_not() {
    let lab = Lab::new().await;
    let response = lab
        .request(&format!(
            "GET /api HTTP/1.1\r\nHost: HOST\r\nX-Big: {}\r\n\r\n",
            "x".repeat(70 * 1024)
        ))
        .await;
    assert_eq!(response.status, 200);
    let response = lab
        .request(&format!(
            "GET /api HTTP/1.1\r\nHost: HOST\r\nX-Big: {}\r\n\r\n",
            "x".repeat(200 * 1024)
        ))
        .await;
    assert_eq!(response.status, 431);
    assert_eq!(lab.upstream.received().len(), 1);
}

#[tokio::test]
async fn an_error_ends_one_connection_and_no_other() {
    let lab = Lab::new().await;
    let mut other = lab.tunnel().await;
    for raw in REFUSED {
        let mut client = lab.tunnel().await;
        client.send(&raw.replace("HOST", &lab.authority())).await;
    }
    other
        .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
        .await;
    assert_eq!(patiently(other.response()).await.status, 200);
}

#[tokio::test]
async fn a_body_keeps_its_framing_and_has_one() {
    let lab = Lab::new().await;
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    for (name, fields, body, lengths, encodings, content) in [
        ("none", "", "", &[][..], &[][..], 0),
        ("empty", "Content-Length: 0\r\n", "", &["0"], &[], 0),
        ("length", "Content-Length: 5\r\n", "hello", &["5"], &[], 5),
        ("zeros", "Content-Length: 005\r\n", "hello", &["5"], &[], 5),
        ("chunks", "Transfer-Encoding: chunked\r\n", chunks, &[], &["chunked"], 5),
        ("upper", "TRANSFER-ENCODING: CHUNKED\r\n", chunks, &[], &["chunked"], 5),
    ] {
        let path = format!("/api/v1/namespaces/n/configmaps/{name}");
        let raw = format!("PUT {path} HTTP/1.1\r\nHost: HOST\r\n{fields}\r\n{body}");
        assert_eq!(lab.request(&raw).await.status, 200, "{name}");
        let received = lab.upstream.received().pop().unwrap();
        assert_eq!(received.values("content-length"), lengths, "{name}");
        assert_eq!(received.values("transfer-encoding"), encodings, "{name}");
        assert_eq!(received.body, body.as_bytes(), "{name}");
        let line = lab.audited(|line| line["path"] == path).await;
        assert_eq!(line["bytesIn"], content, "{name}");
    }
    for (bytes, length, encoding) in [
        ("Content-Length: 005\r\n\r\nhello", Some("Content-Length: 5"), None),
        (
            "transfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nSet-Cookie: a\r\n\r\n",
            None,
            Some("Transfer-Encoding: chunked"),
        ),
    ] {
        let lab = Lab::answering(answer(format!("HTTP/1.1 200 OK\r\n{bytes}"))).await;
        let mut client = lab.tunnel().await;
        for _ in 0..2 {
            client
                .send(&format!("GET /api HTTP/1.1\r\nHost: {}\r\n\r\n", lab.authority()))
                .await;
            let response = client.response().await;
            assert_eq!(response.text(), "hello");
            let framing = |name: &str| {
                let lines = response.head.lines();
                let found: Vec<_> = lines
                    .filter(|line| line.to_ascii_lowercase().starts_with(name))
                    .collect();
                assert!(found.len() <= 1, "{found:?}");
                found.first().copied()
            };
            assert_eq!(
                (framing("content-length"), framing("transfer-encoding")),
                (length, encoding)
            );
        }
        assert_eq!(lab.upstream.connections(), 1);
    }
}
