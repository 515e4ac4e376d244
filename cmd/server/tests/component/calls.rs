//! One call and what comes back: results, errors, progress, cancellation, traces, shutdown.

use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::api::{Cluster, Kubelet};
use crate::support::server::{
    KEY, LOCAL, Server, VERSIONS, bash, begin, call, eventually, headers_of, http, params_of, refusal, structured,
};
use cli_mcp_sandbox::token::HmacKey;

#[tokio::test]
async fn the_first_call_of_a_session_makes_its_sandbox_and_later_ones_use_it() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;

    let result = bash(&client, "echo hello").await;
    assert_eq!(result.is_error, Some(false));
    let content = structured(&result);
    assert_eq!(content["stdout"], "hello\n");
    assert_eq!(content["exit_code"], 0);
    assert!(!content.contains_key("session_reset"));

    let pods = cluster.pods_of("s1");
    assert_eq!(pods.len(), 1);
    let environment = pods[0]["spec"]["containers"][0]["env"].to_string();
    let token = HmacKey::new(&KEY).unwrap().session_token("s1");
    assert!(environment.contains(&token.digest().to_hex()) && !environment.contains(token.reveal()));

    let before = cluster.requests().len();
    for _ in 0..20 {
        bash(&client, "echo again").await;
    }
    let after: Vec<String> = cluster.requests().split_off(before);
    assert!(
        after.is_empty(),
        "a warm session costs the API server nothing: {after:?}"
    );

    let line = server.audit().await;
    assert_eq!(line["session"], "s1");
    assert_eq!(line["pod"], pods[0]["metadata"]["name"]);
    assert_eq!(line["outcome"], "ok");
    assert_eq!(line["command_bytes"], 10);
    assert!(line["pod_ip"].as_str().unwrap().starts_with("127."));
}

#[tokio::test]
async fn a_failing_command_is_a_result_and_what_a_model_can_correct_is_an_error_text() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;

    let failed = bash(&client, "exit 3").await;
    assert_eq!(failed.is_error, Some(true));
    assert_eq!(structured(&failed)["exit_code"], 3);
    assert_eq!(structured(&bash(&client, "nonsense").await)["exit_code"], 127);

    assert!(refusal(&call(&client, json!({})).await).contains("command is missing"));
    assert!(refusal(&call(&client, json!({"command": "echo", "timeout": 301})).await).contains("1 to 300"));
    assert!(refusal(&bash(&client, "busy").await).contains("busy"));

    let nameless = server.client("").await;
    assert!(refusal(&bash(&nameless, "echo").await).contains("X-Session-ID"));
    let invalid = server.client("Not_Valid").await;
    assert!(refusal(&bash(&invalid, "echo").await).contains("a-z, 0-9"));
    assert_eq!(cluster.pods().len(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_stops_its_command() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    for (round, version) in VERSIONS.into_iter().enumerate() {
        let call =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params_of(version, "hang", json!({}))});
        let mut request = http()
            .post(&server.url)
            .header("accept", "application/json, text/event-stream");
        for (name, value) in headers_of(version) {
            request = request.header(name, value);
        }
        let leaving = tokio::spawn(request.json(&call).send());
        eventually(version, || cluster.ran_anywhere() == vec!["hang"; round + 1]).await;
        leaving.abort();
        let _ = leaving.await;
        assert_eq!(server.audit().await["outcome"], "cancelled", "{version}");
        eventually(version, || cluster.stopped_anywhere() == vec!["hang"; round + 1]).await;
    }
}

#[tokio::test]
async fn clients_that_leave_a_server_that_ends_have_their_calls_in_the_audit() {
    const CALLS: usize = 32;
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let url = server.url.clone();
    let call =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params_of(VERSIONS[0], "hang", json!({}))});
    let leaving: Vec<_> = (0..CALLS)
        .map(|_| {
            let request = http()
                .post(&url)
                .header("accept", "application/json, text/event-stream")
                .header("x-session-id", "s1");
            tokio::spawn(request.json(&call).send())
        })
        .collect();
    eventually("all run", || cluster.ran_anywhere() == ["hang"; CALLS]).await;
    server.terminate().await;
    let address = server.base.trim_start_matches("http://").to_owned();
    while TcpStream::connect(&address).await.is_ok() {}
    // It ends when the last of them is gone.
    leaving.iter().for_each(tokio::task::JoinHandle::abort);
    drop(leaving);
    for _ in 0..CALLS {
        assert_eq!(server.audit().await["outcome"], "cancelled");
    }
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn output_comes_as_progress_while_the_command_runs() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    for version in VERSIONS {
        let params = params_of(version, "stream", json!({"progressToken": "t"}));
        let messages = server.messages(&headers_of(version), params).await;
        let (last, progress) = messages.split_last().unwrap_or_else(|| panic!("{version}: no answer"));
        assert_eq!(
            last["result"]["structuredContent"]["stdout"], "one\ntwo\nthree\n",
            "{version}: {last}"
        );
        let text: String = progress
            .iter()
            .map(|message| message["params"]["message"].as_str().unwrap())
            .collect();
        assert_eq!(text, "one\ntwo\nthree\n", "{version}");
        let counts: Vec<f64> = progress
            .iter()
            .map(|message| message["params"]["progress"].as_f64().unwrap())
            .collect();
        assert!(
            counts.len() > 1 && counts.is_sorted_by(|a, b| a < b),
            "{version}: {counts:?}"
        );
    }
}

#[tokio::test]
async fn the_callers_trace_reaches_the_agent_and_the_audit() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let client = server.client_with("s1", &[("traceparent", trace)]).await;
    assert_eq!(structured(&bash(&client, "traceparent").await)["stdout"], trace);
    assert_eq!(server.audit().await["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[tokio::test]
async fn a_call_in_progress_ends_before_the_server_does() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    let call = begin(&client, "wait 300");
    eventually("the command runs", || {
        cluster.ran_anywhere().contains(&"wait 300".to_owned())
    })
    .await;
    server.terminate().await;
    assert_eq!(structured(&call.await.unwrap())["stdout"], "waited\n");
    drop(client);
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_cancel_in_a_request_of_its_own_stops_the_command_on_any_replica() {
    let cluster = Cluster::start().await;
    let mut serving = Server::start(&cluster, &[LOCAL]).await;
    let other = Server::start(&cluster, &[LOCAL]).await;
    let client = serving.client("s1").await;
    let bystander = serving.client("s2").await;
    bash(&client, "echo").await;
    serving.audit().await;
    other.knows_sessions(1).await;
    let post = |url: String, body: Value| {
        http()
            .post(url)
            .header("accept", "application/json, text/event-stream")
            .header("x-session-id", "s1")
            .json(&body)
            .send()
    };
    for (round, through) in [serving.url.clone(), other.url.clone()].into_iter().enumerate() {
        let call = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "hang"}}});
        let sent = post(serving.url.clone(), call);
        // The head of an answer comes at once, the result with its end.
        let call = tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() });
        eventually("the command runs", || {
            cluster
                .ran_anywhere()
                .iter()
                .filter(|command| *command == "hang")
                .count()
                == round + 1
        })
        .await;
        // Another call of the client is not meant, nor one of another session.
        let cancel = |id: u64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}});
        let accepted = post(through.clone(), cancel(78)).await.unwrap();
        assert_eq!(accepted.status(), http::StatusCode::ACCEPTED);
        assert_eq!(structured(&bash(&bystander, "echo").await)["exit_code"], 0);
        assert!(!call.is_finished());
        serving.audit().await;

        post(through, cancel(77)).await.unwrap();
        assert_eq!(serving.audit().await["outcome"], "cancelled");
        assert!(call.await.unwrap().contains("Cancelled: the command was stopped."));
        eventually("the command is stopped", || {
            cluster.stopped_anywhere() == vec!["hang"; round + 1]
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_that_outlives_the_drain_ends_with_an_error_that_says_so() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL, "--drain-timeout=1100ms"]).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    let call = begin(&client, "hang");
    eventually("the command runs", || {
        cluster.ran_anywhere().contains(&"hang".to_owned())
    })
    .await;
    server.terminate().await;
    let text = refusal(&call.await.unwrap());
    assert!(text.contains("shutting down") && text.contains("ran in part"), "{text}");
    drop(client);
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn a_call_that_waits_for_its_sandbox_when_the_server_ends_was_not_run() {
    let cluster = Cluster::start().await;
    cluster.kubelet(Kubelet::StartsDeaf);
    let mut server = Server::start(&cluster, &[LOCAL, "--drain-timeout=1100ms"]).await;
    let client = server.client("s1").await;
    let call = begin(&client, "echo");
    server.knows_sessions(1).await;
    server.terminate().await;
    let text = refusal(&call.await.unwrap());
    assert!(
        text.starts_with("The server is shutting down: retry") && text.contains("was not run"),
        "{text}"
    );
    assert_eq!(server.audit().await["outcome"], "shutting_down");
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_for_its_sandbox_was_not_run() {
    let cluster = Cluster::start().await;
    cluster.kubelet(Kubelet::StartsDeaf);
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let url = server.url.clone();
    let post = |body: Value| {
        http()
            .post(&url)
            .header("accept", "application/json, text/event-stream")
            .header("x-session-id", "s1")
            .json(&body)
            .send()
    };
    let sent = post(
        json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "echo"}}}),
    );
    let call = tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() });
    server.knows_sessions(1).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}});
    post(cancel).await.unwrap();
    let answer = call.await.unwrap();
    assert!(
        answer.contains("Cancelled before the sandbox took the command. The command was not run."),
        "{answer}"
    );
    assert_eq!(server.audit().await["outcome"], "cancelled");
}
