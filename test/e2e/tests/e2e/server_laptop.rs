//! A server on a laptop, as `docs/clients.md` says: the client's child, over stdio, with sandboxes that it reaches by the API
//! server's port-forward.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, instance, kubectl, setup};
use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, ClientConfig};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};
use tokio::process::Command;

const NAMESPACE: &str = "e2e-laptop";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_stdio_has_a_sandbox_on_the_cluster() -> Result<()> {
    let shared = instance::shared()?;
    setup::namespace(NAMESPACE)?;
    kubectl::ok(&["-n", NAMESPACE, "create", "serviceaccount", "sandbox"])?;
    let secret = format!("cli-mcp-{}-kubeconfig", shared.name);
    let mut secret: Value = serde_json::from_str(&kubectl::ok(&[
        "-n",
        &shared.namespace,
        "get",
        "secret",
        &secret,
        "-o",
        "json",
    ])?)?;
    secret["metadata"] = json!({"name": "investigation", "namespace": NAMESPACE});
    kubectl::apply(&secret.to_string())?;
    let files = tempfile::tempdir()?;
    let key = files.path().join("key");
    std::fs::write(&key, [7; 32])?;

    let mut server = Command::new(Path::new(&cluster::setting("E2E_BIN_DIR")?).join("server"));
    server
        .args([
            "--instance-name=laptop",
            "--session-id=demo-1",
            "--sandbox-service-account=sandbox",
        ])
        .args(["--kubeconfig-secret=investigation", "--sandbox-connection=port-forward"])
        .arg(format!("--namespace={NAMESPACE}"))
        .arg(format!("--sandbox-image={}", cluster::image("agent")?))
        .arg(format!("--hmac-key-file={}", key.display()));
    let client = ClientConfig::default().serve(TokioChildProcess::new(server)?).await?;
    let bash = async |command: &str| -> Result<Value> {
        let arguments = json!({"command": command});
        let arguments = arguments.as_object().context("no object")?.clone();
        let result = client
            .call_tool(CallToolRequestParams::new("bash").with_arguments(arguments))
            .await?;
        result
            .structured_content
            .with_context(|| format!("{:?}", result.content))
    };
    // A busy machine may start the pod later than the server waits for it.
    cluster::eventually("the sandbox's start", async || bash("cd /tmp; kept=yes").await).await?;
    let kept = bash("pwd; echo $kept").await?;
    ensure!(kept["stdout"] == "/tmp\nyes\n", "{kept}");
    let whoami = bash("kubectl auth whoami -o jsonpath='{.status.userInfo.username}'").await?;
    let investigator = format!("system:serviceaccount:{}:cli-mcp-investigator", shared.namespace);
    ensure!(whoami["stdout"] == investigator.as_str(), "{whoami}");
    client.cancel().await?;
    kubectl::ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}
