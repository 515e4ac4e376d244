//! The client of agents against agents that refuse, break off and close connections.

use std::sync::atomic::AtomicUsize;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::fixtures::{Api, LOOPBACK, Replica, agent, local_pod};

struct Nowhere;

impl OutputSink for Nowhere {
    async fn chunk(&mut self, _chunk: StreamChunk) {}
}

/// A client of the agent at this port, the sandbox, and its session's token.
fn client(port: u16) -> (AgentClient, Sandbox, Token) {
    let replica = Replica::new(Api::willing());
    let sandbox = replica.watched(&local_pod("p", Some("s1")));
    (
        replica.agents(port),
        Sandbox::clone(&sandbox),
        replica.key.session_token("s1"),
    )
}

fn flight() -> Flight {
    let request = ExecRequest {
        command: "echo".to_owned(),
        timeout: None,
    };
    Flight::new(request, TraceContext::default(), Held::default())
}

/// An agent that answers each request with these bytes and closes the connection: its port.
async fn answering(answer: String) -> u16 {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    port
}

#[tokio::test]
async fn an_error_that_is_not_the_agents_own_leaves_the_fate_open() {
    let json = r#"{"error":"its reason"}"#;
    for (status, body, missing, refused, message) in [
        (409, json, 0, true, "its reason"),
        (503, json, 0, true, "its reason"),
        (413, "<html>no</html>\n", 0, true, "<html>no</html>"),
        (400, "", 0, true, "HTTP status 400 without a reason"),
        (400, json, 5, true, "HTTP status 400 without a reason"),
        (503, "upstream reset", 0, false, "upstream reset"),
        (502, "", 0, false, "HTTP status 502 without a reason"),
        // The body breaks off.
        (503, json, 5, false, "HTTP status 503 without a reason"),
    ] {
        let length = body.len() + missing;
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}");
        let (client, sandbox, token) = client(answering(answer).await);
        let flight = flight();
        let failed = client
            .exec(&sandbox, &token, &flight, None::<&mut Nowhere>)
            .await
            .unwrap_err();
        let case = format!("{status} {body:?} {missing}: {failed:?}");
        assert_eq!(flight.may_have_started(), !refused, "{case}");
        match failed {
            AgentError::Refused {
                status: got,
                message: said,
            } => {
                assert_eq!(
                    (refused, got.as_u16(), said.as_str()),
                    (true, status, message),
                    "{case}"
                );
            }
            AgentError::Lost(said) => assert_eq!((refused, said.as_str()), (false, message), "{case}"),
            AgentError::NotReached(_) => panic!("{case}"),
        }
    }
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_unseen_is_replaced_and_the_command_sent_once() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let exec = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let result = serde_json::to_string(&ExecResult::default()).unwrap();
        std::future::ready(result.into_response())
    };
    let port = agent(Router::new().route("/exec", post(exec))).await;
    let (client, sandbox, token) = client(port);

    let (near, far) = tokio::io::duplex(4096);
    let dialed = dial::Dialed {
        stream: Box::new(near),
        proven: true,
    };
    let mut kept = Connection::open(dialed).await.unwrap();
    kept.sender.ready().await.unwrap();
    drop(far);
    // Nothing has run since: the connection does not know yet.
    client.pool.put(&sandbox.uid, kept);
    let flight = flight();
    let result = client.exec(&sandbox, &token, &flight, None::<&mut Nowhere>).await;
    assert_eq!(result.unwrap(), ExecResult::default());
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert!(flight.may_have_started());
}
