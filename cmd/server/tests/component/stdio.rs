//! The server's real binary as the child of an MCP client.

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, ClientConfig, RequestMetaObject};
use rmcp::transport::TokioChildProcess;
use serde_json::json;
use tokio::process::Command;

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, bash, flags, refusal, structured};

async fn client(cluster: &Cluster, dir: &tempfile::TempDir, more: &[&str]) -> crate::support::server::Client {
    let mut command = Command::new(env!("CARGO_BIN_EXE_server"));
    command.args(flags(dir, cluster)).arg(LOCAL).args(more);
    ClientConfig::default()
        .serve(TokioChildProcess::new(command).unwrap())
        .await
        .unwrap()
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
