//! MCP clients of others: the Inspector's command line, and the official TypeScript and Python SDKs, over HTTP and stdio.
//! `test/mcp-clients/run.sh` installs them; the rmcp client is what all other tests use.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, flags};

/// The folder with the packages.
fn packages() -> PathBuf {
    std::env::var_os("MCP_CLIENTS")
        .expect("MCP_CLIENTS is not set; run make test-mcp-clients")
        .into()
}

fn node(script: &str) -> Command {
    let mut command = Command::new(packages().join("node_modules/node/bin/node"));
    command.current_dir(packages()).arg(script);
    command
}

fn python() -> Command {
    let mut command = Command::new(packages().join("venv/bin/python"));
    command.arg(packages().join("python.py"));
    command
}

/// The server's command line for a client that starts it.
fn stdio(command: &mut Command, dir: &TempDir, cluster: &Cluster) {
    command
        .arg(env!("CARGO_BIN_EXE_server"))
        .args(flags(dir, cluster))
        .arg(LOCAL);
}

async fn run(command: &mut Command) -> Output {
    // A conversation takes seconds: one that waits for what does not come ends here.
    let output = tokio::time::timeout(Duration::from_secs(120), command.kill_on_drop(true).output())
        .await
        .unwrap_or_else(|_| panic!("it does not end: {command:?}"))
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn converses(output: Output) {
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok");
}

async fn typescript(generation: &str) {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    converses(run(node("typescript.mjs").args([generation, "http", &server.url])).await);

    let dir = tempfile::tempdir().unwrap();
    let mut command = node("typescript.mjs");
    command.args([generation, "stdio"]);
    stdio(&mut command, &dir, &cluster);
    converses(run(&mut command).await);
}

#[tokio::test]
#[ignore = "needs npm packages: make test-mcp-clients"]
async fn typescript_sdk_1() {
    typescript("v1").await;
}

#[tokio::test]
#[ignore = "needs npm packages: make test-mcp-clients"]
async fn typescript_sdk_2() {
    typescript("v2").await;
}

#[tokio::test]
#[ignore = "needs PyPI packages: make test-mcp-clients"]
async fn python_sdk() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    converses(run(python().args(["http", &server.url])).await);

    let dir = tempfile::tempdir().unwrap();
    let mut command = python();
    command.arg("stdio");
    stdio(&mut command, &dir, &cluster);
    converses(run(&mut command).await);
}

#[tokio::test]
#[ignore = "needs npm packages: make test-mcp-clients"]
async fn inspector() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let cli = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let call = [
        "--method",
        "tools/call",
        "--tool-name",
        "bash",
        "--tool-arg",
        "command=echo hello",
    ];
    let result = |output: Output| -> Value {
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
    };

    let http = [
        "--cli",
        &server.url,
        "--transport",
        "http",
        "--header",
        "X-Session-ID: inspector",
    ];
    let tools = result(run(node(cli).args(http).args(["--method", "tools/list"])).await);
    assert_eq!(tools["tools"][0]["name"], "bash", "{tools}");
    let hello = result(run(node(cli).args(http).args(call)).await);
    assert_eq!(hello["structuredContent"]["stdout"], "hello\n", "{hello}");

    // The server's flags come from its variables: the Inspector reads what looks like a flag itself.
    let dir = tempfile::tempdir().unwrap();
    let mut command = node(cli);
    command.args(["--cli", env!("CARGO_BIN_EXE_server")]);
    for flag in flags(&dir, &cluster)
        .into_iter()
        .chain([LOCAL.to_owned(), "--session-id=stdio".to_owned()])
    {
        let (name, value) = flag.trim_start_matches('-').split_once('=').unwrap();
        command
            .arg("-e")
            .arg(format!("CLI_MCP_{}={value}", name.to_uppercase().replace('-', "_")));
    }
    let hello = result(run(command.args(call)).await);
    assert_eq!(hello["structuredContent"]["stdout"], "hello\n", "{hello}");
}
