//! The server's real binary as the child of an MCP client.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, ClientConfig, RequestMetaObject};
use rmcp::transport::TokioChildProcess;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::api::Cluster;
use crate::support::server::{Client, LOCAL, bash, begin, eventually, flags, refusal, structured};

fn server(cluster: &Cluster, dir: &tempfile::TempDir, more: &[&str]) -> TokioChildProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_server"));
    command.args(flags(dir, cluster)).arg(LOCAL).args(more);
    TokioChildProcess::new(command).unwrap()
}

async fn client(cluster: &Cluster, dir: &tempfile::TempDir, more: &[&str]) -> Client {
    ClientConfig::default().serve(server(cluster, dir, more)).await.unwrap()
}

#[tokio::test]
async fn the_session_is_the_flags_or_the_requests_own() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let client = client(&cluster, &dir, &["--session-id=mine"]).await;
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 1);
    assert_eq!(tools[0].name, "bash");
    assert!(tools[0].output_schema.is_some() && tools[0].annotations.is_some());

    assert_eq!(structured(&bash(&client, "echo one").await)["stdout"], "one\n");
    assert_eq!(cluster.pods_of("mine").len(), 1);

    let mut call =
        CallToolRequestParams::new("bash").with_arguments(json!({"command": "echo two"}).as_object().unwrap().clone());
    let mut meta = RequestMetaObject::default();
    meta.0.0.insert("cli-mcp.redhat.com/session-id".into(), json!("other"));
    call.meta = Some(meta);
    assert_eq!(structured(&client.call_tool(call).await.unwrap())["stdout"], "two\n");
    assert_eq!(cluster.pods_of("other").len(), 1);
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn without_a_session_the_error_says_how_to_name_one() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let client = client(&cluster, &dir, &[]).await;
    let text = refusal(&bash(&client, "echo").await);
    assert!(text.contains("cli-mcp.redhat.com/session-id"), "{text}");
    client.cancel().await.unwrap();
}

async fn terminate(server: u32) {
    let kill = Command::new("kill").arg(server.to_string()).status().await;
    assert!(kill.unwrap().success());
}

#[tokio::test]
async fn a_call_in_progress_ends_before_a_server_that_is_told_to() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let server = server(&cluster, &dir, &["--session-id=s1"]);
    let id = server.id().unwrap();
    let client: Client = ClientConfig::default().serve(server).await.unwrap();
    let call = begin(&client, "wait 3000");
    eventually("the command runs", || cluster.ran_anywhere() == ["wait 3000"]).await;
    terminate(id).await;
    assert_eq!(structured(&call.await.unwrap())["stdout"], "waited\n");
}

#[tokio::test]
async fn a_call_that_does_not_end_in_time_is_told_why() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let server = server(&cluster, &dir, &["--session-id=s1", "--drain-timeout=1100ms"]);
    let id = server.id().unwrap();
    let client: Client = ClientConfig::default().serve(server).await.unwrap();
    let call = begin(&client, "hang");
    eventually("the command runs", || cluster.ran_anywhere() == ["hang"]).await;
    terminate(id).await;
    let text = refusal(&call.await.unwrap());
    assert!(
        text.starts_with("The server is shutting down, and the command"),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_that_is_ending_takes_no_more_calls() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let server = server(&cluster, &dir, &["--session-id=s1"]);
    let id = server.id().unwrap();
    let client: Client = ClientConfig::default().serve(server).await.unwrap();
    let _running = begin(&client, "hang");
    eventually("the command runs", || cluster.ran_anywhere() == ["hang"]).await;
    terminate(id).await;
    // Until it has heard of that, it takes them.
    let mut taken = 0;
    let text = loop {
        let result = bash(&client, "echo").await;
        if result.structured_content.is_none() {
            break refusal(&result);
        }
        taken += 1;
    };
    assert!(
        text.starts_with("The server is shutting down: retry") && text.contains("was not run"),
        "{text}"
    );
    assert_eq!(cluster.ran_anywhere().len(), 1 + taken);
}

#[tokio::test]
async fn a_client_that_leaves_has_its_calls_in_the_audit() {
    const CALLS: usize = 32;
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let mut server = Command::new(env!("CARGO_BIN_EXE_server"))
        .args(flags(&dir, &cluster))
        .args([LOCAL, "--session-id=s1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut input = server.stdin.take().unwrap();
    let client =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let mut messages = vec![
        json!({"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": client}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    ];
    messages.extend((0..CALLS).map(|id| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "hang"}}})
    }));
    let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
    input.write_all(text.as_bytes()).await.unwrap();
    eventually("all run", || cluster.ran_anywhere() == ["hang"; CALLS]).await;
    drop(input);
    let ended = server.wait_with_output().await.unwrap();
    assert!(ended.status.success(), "{}", ended.status);
    let stderr = String::from_utf8(ended.stderr).unwrap();
    let cancelled = stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| line["audit"] == "call" && line["outcome"] == "cancelled");
    assert_eq!(cancelled.count(), CALLS, "{stderr}");
}

#[tokio::test]
async fn a_credential_plugin_does_not_take_the_protocols_input() {
    let (cluster, dir) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let plugin = dir.path().join("plugin");
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "server"}});
    std::fs::write(&plugin, format!("#!/bin/sh\ncat >/dev/null\necho '{credential}'\n")).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut kubeconfig: serde_json::Value = serde_json::from_str(&cluster.kubeconfig()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "IfAvailable",
    }});
    let own = dir.path().join("with-plugin");
    std::fs::write(&own, kubeconfig.to_string()).unwrap();
    let mut flags = flags(&dir, &cluster);
    flags.retain(|flag| !flag.starts_with("--kubeconfig="));
    let mut command = Command::new(env!("CARGO_BIN_EXE_server"));
    command
        .args(flags)
        .arg(format!("--kubeconfig={}", own.display()))
        .args([LOCAL, "--session-id=s1"]);
    let client = ClientConfig::default().serve(TokioChildProcess::new(command).unwrap());
    let client: Client = tokio::time::timeout(Duration::from_secs(60), client)
        .await
        .expect("the plugin waits for the protocol's input to end")
        .unwrap();
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
}
