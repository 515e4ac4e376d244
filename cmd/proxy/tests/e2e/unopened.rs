//! Connections that never become a tunnel: no whole CONNECT, no certificate, no TLS handshake, a client that left.

use std::sync::Arc;
use std::time::Duration;

use cli_mcp_proxy::connect;
use cli_mcp_proxy::dial::{Resolve, SystemResolver};
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::proxy::{Shared, Timeouts};
use cli_mcp_proxy::reload::read_inputs;
use cli_mcp_proxy::state::State;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Ca, Lab, directories, patiently, recording};

/// A connection: the client's end, and the proxy's.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// Serves a connection on which these bytes came, and nothing more will: the answer.
async fn served(bytes: &[u8], shared: &Shared) -> String {
    let (mut client, proxy) = connection().await;
    client.write_all(bytes).await.unwrap();
    let address = client.local_addr().unwrap().ip();
    let answer = async {
        let mut answer = Vec::new();
        // A connection that ends with unread bytes ends by a reset.
        let _ = client.read_to_end(&mut answer).await;
        drop(client);
        String::from_utf8(answer).unwrap()
    };
    let ((), answer) = tokio::join!(connect::serve(proxy, address, shared), answer);
    answer
}

fn connect_to(lab: &Lab) -> Vec<u8> {
    format!("CONNECT {} HTTP/1.1\r\n\r\n", lab.authority()).into_bytes()
}

#[tokio::test(start_paused = true)]
async fn case_23_a_tunnel_in_which_no_handshake_comes_is_ended_and_in_the_audit() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let lines = recording(&mut shared);
    let answer = served(&connect_to(&lab), &shared).await;
    assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\n");
    let lines = lines.lock().unwrap();
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((lines.len(), &line["method"]), (1, &"CONNECT".into()));
    assert_eq!((&line["decision"], &line["status"]), (&"deny".into(), &0.into()));
    assert_eq!(
        (&line["target"], &line["reason"]),
        (&lab.authority().into(), &"no TLS handshake in time".into())
    );
    assert_eq!(lab.upstream.connections(), 0);
}

#[tokio::test]
async fn case_65_a_ca_that_has_ended_opens_no_tunnel_and_says_so_in_the_audit() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let lines = recording(&mut shared);
    let day = time::Duration::days(1);
    let ended = Ca::valid("ended", -10 * day, -day);
    std::fs::write(lab.directory.path().join("ca/ca.crt"), ended.pem()).unwrap();
    std::fs::write(lab.directory.path().join("ca/ca.key"), ended.key_pem()).unwrap();
    let inputs = read_inputs(&directories(lab.directory.path())).unwrap();
    let resolver: Arc<dyn Resolve> = Arc::new(SystemResolver);
    let then = OffsetDateTime::now_utc() - 5 * day;
    shared
        .state
        .store(Arc::new(State::build(&inputs, &resolver, then).unwrap()));

    let answer = patiently(served(&connect_to(&lab), &shared)).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    assert!(
        answer.ends_with("the proxy cannot make a certificate for this target\n"),
        "{answer}"
    );
    let lines = lines.lock().unwrap();
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&line["decision"], &line["status"]), (&"deny".into(), &502.into()));
    assert!(
        line["reason"].as_str().unwrap().contains("ca.crt is not valid now"),
        "{line}"
    );
    assert_eq!(lab.upstream.connections(), 0);
}

#[tokio::test]
async fn a_connect_whose_header_section_is_too_large_is_a_431_however_it_arrives() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let lines = recording(&mut shared);
    let whole = format!(
        "CONNECT {} HTTP/1.1\r\nX: {}\r\n\r\n",
        lab.authority(),
        "x".repeat(65 * 1024)
    );
    let unfinished = whole.strip_suffix("\r\n\r\n").unwrap();
    for head in [whole.as_str(), unfinished] {
        let answer = patiently(served(head.as_bytes(), &shared)).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        let line = lines.lock().unwrap().pop().unwrap();
        assert!(line.contains("\"status\":431") && line.contains("\"deny\""), "{line}");
    }
    assert_eq!(lab.upstream.connections(), 0);
}

#[tokio::test]
async fn who_resets_the_connection_before_the_answer_is_not_waited_for() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let lines = recording(&mut shared);
    let (mut client, proxy) = connection().await;
    client.write_all(&connect_to(&lab)).await.unwrap();
    client.set_zero_linger().unwrap();
    drop(client);
    patiently(connect::serve(proxy, "127.0.0.1".parse().unwrap(), &shared)).await;
    assert!(
        lines.lock().unwrap().is_empty(),
        "it was neither refused nor asked for anything"
    );
    assert_eq!(shared.metrics.tunnels.get(), 0);
}

#[tokio::test]
async fn case_52_a_connection_that_the_kernel_would_never_end_is_not_served() {
    let lab = Lab::new().await;
    let timeouts = Timeouts {
        // Beyond what the kernel takes.
        stall: Duration::MAX,
        ..Timeouts::default()
    };
    let (_, mut shared) = lab.parts(LargeHeads::default(), timeouts);
    let lines = recording(&mut shared);
    assert_eq!(patiently(served(&connect_to(&lab), &shared)).await, "");
    assert!(lines.lock().unwrap().is_empty());
}

#[tokio::test]
async fn who_leaves_before_its_body_is_asked_for_has_asked_for_nothing() {
    let lab = Lab::new().await;
    let (_, mut shared) = lab.parts(LargeHeads::default(), Timeouts::default());
    let lines = recording(&mut shared);
    let (mut client, stream) = tokio::io::duplex(4096);
    let head = format!(
        "POST /api/v1/namespaces HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        lab.authority()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    drop(client);
    patiently(lab.tunnel_over(stream, &shared).serve()).await;
    let lines = lines.lock().unwrap();
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((lines.len(), &line["verb"]), (1, &"create".into()));
    assert_eq!((&line["decision"], &line["status"]), (&"allow".into(), &0.into()));
    assert_eq!(line["reason"], "the client closed the connection");
    assert_eq!(lab.upstream.connections(), 0);
}
