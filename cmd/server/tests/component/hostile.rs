//! Data that someone made to do harm: session ids, output, answers of a sandbox that keeps no contract.

use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::agent::HOSTILE;
use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, bash, eventually, http, refusal, structured};

#[tokio::test]
async fn a_session_id_that_is_none_reaches_no_other_part() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let long = "a".repeat(64);
    for id in [
        "..", "a/b", "a,b=c", "a b", "A", "a_b", "-a", "a-", "*", "' OR 1=1", &long,
    ] {
        let client = server.client(id).await;
        let text = refusal(&bash(&client, "echo").await);
        assert!(
            text.contains("session id must be") && text.contains("not run"),
            "{id}: {text}"
        );
    }
    let before = cluster.requests().len();
    for id in ["a%2fb", "a,b", "a%20b", "A", "a%00", "%ff", "..%2fpods", &long] {
        let answer = http()
            .delete(format!("{}/sessions/{id}", server.base))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{id}");
        let body: Value = answer.json().await.unwrap();
        assert!(body["error"].is_string(), "{id}: {body}");
    }
    let after = cluster.requests().split_off(before);
    assert!(
        after
            .iter()
            .all(|line| line.starts_with("GET") && line.contains("limit=1")),
        "{after:?}"
    );
    assert!(cluster.pods().is_empty());
}

#[tokio::test]
async fn output_arrives_as_it_is_and_breaks_no_line_of_audit_or_stream() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL, "--audit-commands=full"]).await;
    let client = server.client("s1").await;
    assert_eq!(structured(&bash(&client, "raw").await)["stdout"], HOSTILE);
    server.audit().await;

    // Four times what an agent gives of a stream.
    let big = structured(&bash(&client, "big 1048576").await);
    assert_eq!(big["stdout"].as_str().unwrap().len(), 1 << 20);
    assert_eq!(server.audit().await["stdout_bytes"], 1 << 20);

    let command = "nonsense \u{1b}[31m\n{\"audit\":\"call\",\"outcome\":\"forged\"}\n";
    bash(&client, command).await;
    let line = server.audit().await;
    assert_eq!(
        (line["command"].as_str(), line["outcome"].as_str()),
        (Some(command), Some("nonzero_exit"))
    );
}

#[tokio::test]
async fn an_agent_that_answers_nonsense_leaves_the_fate_open_and_the_session_usable() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    for kind in ["bytes", "nothing", "types", "html"] {
        let text = refusal(&bash(&client, &format!("garbage {kind}")).await);
        assert!(
            text.contains("may have run") && text.contains("not sent again"),
            "{kind}: {text}"
        );
        assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n", "{kind}");
    }
    let ran = cluster.ran_anywhere();
    assert_eq!(
        ran.iter().filter(|command| command.starts_with("garbage")).count(),
        4,
        "{ran:?}"
    );
}

#[tokio::test]
async fn requests_that_are_no_requests_are_answered_and_not_served() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let post = |body: Vec<u8>| {
        http()
            .post(&server.url)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .header("x-session-id", "s1")
            .body(body)
            .send()
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let batch = json!([{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "echo"}}}]);
    for body in [
        b"".to_vec(),
        b"\xff\xfe".to_vec(),
        b"{".to_vec(),
        deep.into_bytes(),
        batch.to_string().into_bytes(),
    ] {
        let status = post(body.clone()).await.unwrap().status();
        assert!(
            status.is_client_error(),
            "{status}: {:?}",
            String::from_utf8_lossy(&body[..body.len().min(40)])
        );
    }
    let huge = post(vec![b' '; (4 << 20) + 1]).await.unwrap();
    assert_eq!(huge.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(cluster.pods().is_empty());
}

/// A connection on which a request begins.
async fn begun(server: &Server, head: &str) -> TcpStream {
    let address = server.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn large_requests_that_never_arrive_keep_no_small_one_out() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let head =
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 4194304\r\n\r\n{";
    let mut begun_ones = Vec::new();
    for _ in 0..8 {
        begun_ones.push(begun(&server, head).await);
    }
    let large = || async {
        let request = http().post(&server.url).body("x".repeat(128 * 1024));
        request.send().await.unwrap()
    };
    let mut refused = large().await;
    for _ in 0..20 {
        if refused.status() == StatusCode::SERVICE_UNAVAILABLE {
            break;
        }
        // Not all of them had come yet.
        refused = large().await;
    }
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let client = server.client("s1").await;
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
}

#[tokio::test]
async fn small_calls_of_untold_length_that_run_long_keep_no_other_out() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let chunked = |command: &str| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": command}}});
        let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(call.to_string())]);
        http()
            .post(&server.url)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .header("x-session-id", "s1")
            .body(reqwest::Body::wrap_stream(body))
            .send()
    };
    let running: Vec<_> = (0..8).map(|_| tokio::spawn(chunked("hang"))).collect();
    eventually("all run", || cluster.ran_anywhere() == ["hang"; 8]).await;
    let answer = chunked("echo x").await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.text().await.unwrap().contains("x\\n"));
    running.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn one_client_address_has_as_many_connections_as_the_flag_says() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL, "--max-connections-per-client=2"]).await;
    let _kept = [begun(&server, "GET").await, begun(&server, "GET").await];
    let mut third = begun(&server, "GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    // It is closed, and with a request that was not read that is an error.
    assert_eq!(third.read(&mut [0]).await.unwrap_or(0), 0);
}
