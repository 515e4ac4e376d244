//! What a request carries besides its command: the tool's name, the session, a progress token.

use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, ClientRequest, CustomRequest, ErrorCode};
use serde_json::{Value, json};

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, VERSIONS, bash, headers_of, params_of, structured};

/// The parameters of a call.
fn call(command: &str, meta: Value) -> Value {
    json!({"name": "bash", "arguments": {"command": command}, "_meta": meta})
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_an_error_of_the_protocol_that_names_the_one_that_is() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    let failed = client.call_tool(CallToolRequestParams::new("sh")).await.unwrap_err();
    let ServiceError::McpError(error) = failed else {
        panic!("{failed}")
    };
    assert_eq!(error.code, ErrorCode::INVALID_PARAMS);
    assert!(
        error.message.contains("\"sh\"") && error.message.contains("bash"),
        "{error}"
    );
    assert!(cluster.pods().is_empty());
}

#[tokio::test]
async fn a_call_that_fits_no_schema_is_told_what_is_wrong_and_is_in_the_audit() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let mut count = 0;
    for version in VERSIONS {
        let whole = params_of(version, "echo", json!({}));
        let without = |field: &str, value: Value| {
            let mut params = whole.clone();
            params[field] = value;
            if params[field].is_null() {
                params.as_object_mut().unwrap().remove(field);
            }
            params
        };
        for (params, expected) in [
            (
                without("arguments", json!("{\"command\": \"echo\"}")),
                "arguments is a string",
            ),
            (without("arguments", json!(["echo"])), "arguments is an array"),
            (without("name", Value::Null), "name is missing"),
            (without("name", json!(7)), "name is a number"),
        ] {
            let messages = server.messages(&headers_of(version), params.clone()).await;
            let [answer] = messages.as_slice() else {
                panic!("{version} {params}: {messages:?}")
            };
            let error = &answer["error"];
            assert_eq!(
                error["code"],
                ErrorCode::INVALID_PARAMS.0,
                "{version} {params}: {answer}"
            );
            let text = error["message"].as_str().unwrap();
            assert!(text.contains(expected) && text.contains("not run"), "{params}: {text}");
            let line = server.audit().await;
            assert_eq!(
                (&line["outcome"], &line["session"]),
                (&json!("bad_arguments"), &json!("s1"))
            );
            count += 1;
        }
    }
    server
        .knows(&format!(
            "cli_mcp_server_calls_total{{outcome=\"bad_arguments\"}} {count}\n"
        ))
        .await;
    assert!(cluster.pods().is_empty());
}

#[tokio::test]
async fn a_method_that_is_not_there_is_an_error_of_the_protocol() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    let unknown = CustomRequest::new("tools/run", Some(json!({"name": "bash"})));
    let failed = client
        .send_request(ClientRequest::CustomRequest(unknown))
        .await
        .unwrap_err();
    let ServiceError::McpError(error) = failed else {
        panic!("{failed}")
    };
    assert_eq!(error.code, ErrorCode::METHOD_NOT_FOUND);
    assert!(error.message.contains("tools/run"), "{error}");
}

#[tokio::test]
async fn two_sessions_in_one_request_are_refused_and_the_same_one_twice_is_not() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let two = "The request names two different sessions";
    for (headers, meta, refused) in [
        (&["s1"][..], json!("s1"), None),
        (&["s1", "s1"], Value::Null, None),
        (&[], json!("s1"), None),
        (&["s1", "s2"], Value::Null, Some(two)),
        (&["s1"], json!("s2"), Some(two)),
        (&["s1"], json!(1), Some("session id must be")),
        (&["s1"], json!("A b"), Some("session id must be")),
    ] {
        let case = format!("{headers:?} {meta}");
        let meta = if meta.is_null() {
            json!({})
        } else {
            json!({"cli-mcp.redhat.com/session-id": meta})
        };
        let headers: Vec<_> = headers.iter().map(|session| ("x-session-id", *session)).collect();
        let answer = server.messages(&headers, call("echo x", meta)).await.pop().unwrap();
        let result = &answer["result"];
        let outcome = server.audit().await["outcome"].clone();
        match refused {
            None => {
                assert_eq!(result["structuredContent"]["stdout"], "x\n", "{case}: {answer}");
                assert_eq!(outcome, "ok", "{case}");
            }
            Some(why) => {
                let text = result["content"][0]["text"].as_str().unwrap();
                assert!(text.starts_with(why) || text.contains(why), "{case}: {text}");
                assert_eq!(
                    (&result["isError"], &outcome),
                    (&json!(true), &json!("bad_session")),
                    "{case}"
                );
            }
        }
    }
    assert_eq!((cluster.pods().len(), cluster.pods_of("s1").len()), (1, 1));
}

#[tokio::test]
async fn output_is_streamed_from_the_agent_only_for_a_client_that_is_told_of_progress() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    // This client asks for progress of every call.
    let client = server.client("s1").await;
    assert_eq!(
        structured(&bash(&client, "accept").await)["stdout"],
        "application/x-ndjson"
    );

    let of_s1 = [("x-session-id", "s1")];
    for command in ["accept", "big 1048576", "nonsense"] {
        let messages = server.messages(&of_s1, call(command, json!({}))).await;
        let [answer] = messages.as_slice() else {
            panic!("{command}: {messages:?}")
        };
        let result = &answer["result"]["structuredContent"];
        match command {
            "accept" => assert_eq!(result["stdout"], "application/json"),
            "nonsense" => assert_eq!(result["exit_code"], 127),
            _ => assert_eq!(result["stdout"].as_str().unwrap().len(), 1 << 20),
        }
    }
    let answer = server.messages(&of_s1, call("die", json!({}))).await.pop().unwrap();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("may have run") && text.contains("not sent again"),
        "{text}"
    );
}

#[tokio::test]
async fn progress_says_which_stream_its_text_is_of() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let params = call("both", json!({"progressToken": 7}));
    let mut messages = server.messages(&[("x-session-id", "s1")], params).await;
    let last = messages.pop().unwrap();
    assert_eq!(last["result"]["structuredContent"]["stderr"], "err\n", "{last}");
    let progress: Vec<_> = messages
        .iter()
        .map(|message| {
            let params = &message["params"];
            assert_eq!(params["progressToken"], 7);
            let stream = params["_meta"]["cli-mcp.redhat.com/stream"].as_str().unwrap();
            (stream, params["message"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        progress,
        [("stdout", "out\n"), ("stderr", "err\n")],
        "and none of nothing"
    );
}
