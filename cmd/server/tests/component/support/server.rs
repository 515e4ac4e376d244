//! The server under test, as its real binary, and clients of it.

use std::process::Stdio;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, CallToolResult, ClientConfig};
use rmcp::service::RunningService;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{Peer, RoleClient, ServiceExt};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::api::Cluster;

pub(crate) const KEY: [u8; 32] = [7; 32];

/// A running server.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) base: String,
    child: Child,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    _dir: tempfile::TempDir,
}

/// The flags that every run needs.
pub(crate) fn flags(dir: &tempfile::TempDir, cluster: &Cluster) -> Vec<String> {
    let key = dir.path().join("key");
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&key, KEY).unwrap();
    std::fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let mut flags: Vec<String> = vec![
        "--namespace=ns".into(),
        "--instance-name=demo".into(),
        "--sandbox-image=localhost/sandbox:dev".into(),
        "--sandbox-service-account=cli-mcp-demo-sandbox".into(),
        format!("--hmac-key-file={}", key.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
    ];
    if cluster.is_near() {
        flags.push("--sandbox-connection=direct".into());
    }
    flags
}

pub(crate) const LOCAL: &str = "--kubeconfig-secret=kc";

impl Server {
    /// Two replicas over one cluster.
    pub(crate) async fn replicas(cluster: &Cluster) -> [Self; 2] {
        [
            Self::start(cluster, &[LOCAL]).await,
            Self::start(cluster, &[LOCAL]).await,
        ]
    }

    pub(crate) async fn start(cluster: &Cluster, more: &[&str]) -> Self {
        Self::start_in(cluster, more, &[]).await
    }

    /// The same with more environment variables.
    pub(crate) async fn start_in(cluster: &Cluster, more: &[&str], environment: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut args = flags(&dir, cluster);
        args.extend(["--transport=http", "--stateless", "--address=127.0.0.1:0"].map(str::to_owned));
        args.extend(more.iter().map(|flag| (*flag).to_owned()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_server"))
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let _ = sender.send(line);
            }
        });
        let url = loop {
            let line = lines.recv().await.expect("the server ended before it listened");
            let line: Value = serde_json::from_str(&line).unwrap();
            if let Some(url) = line["url"].as_str() {
                break url.to_owned();
            }
        };
        let base = url.trim_end_matches("/mcp").to_owned();
        Self {
            url,
            base,
            child,
            lines,
            _dir: dir,
        }
    }

    /// The next audit line of a call.
    pub(crate) async fn audit(&mut self) -> Value {
        self.audit_of("call").await
    }

    /// The next audit line of this kind.
    pub(crate) async fn audit_of(&mut self, kind: &str) -> Value {
        loop {
            let line = tokio::time::timeout(Duration::from_secs(60), self.lines.recv()).await;
            let line = line.expect("no audit line came").expect("the server ended");
            let line: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
            if line["audit"] == kind {
                return line;
            }
        }
    }

    /// Waits until the server knows of this many sessions with a living sandbox.
    pub(crate) async fn knows_sessions(&self, count: usize) {
        self.knows(&format!("cli_mcp_server_sessions {count}\n")).await;
    }

    /// Waits until the server's metrics say this.
    pub(crate) async fn knows(&self, expected: &str) {
        for _ in 0..3000 {
            if self.metrics().await.contains(expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server's metrics never said {expected}");
    }

    pub(crate) async fn metrics(&self) -> String {
        let answer = http().get(format!("{}/metrics", self.base)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Asks it to end, as the kubelet does.
    pub(crate) async fn terminate(&self) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    }

    pub(crate) async fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().await.unwrap()
    }

    /// Calls a tool without the help of a client: the messages that come back, the last of which ends the call.
    pub(crate) async fn messages(&self, headers: &[(&str, &str)], params: Value) -> Vec<Value> {
        let mut request = http()
            .post(&self.url)
            .header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = request.json(&call).send().await.unwrap().text().await.unwrap();
        answer
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    pub(crate) async fn client(&self, session: &str) -> Client {
        self.client_with(session, &[]).await
    }

    pub(crate) async fn client_with(&self, session: &str, headers: &[(&str, &str)]) -> Client {
        let mut all = std::collections::HashMap::new();
        if !session.is_empty() {
            all.insert("x-session-id".parse().unwrap(), session.parse().unwrap());
        }
        for (name, value) in headers {
            all.insert(name.parse().unwrap(), value.parse().unwrap());
        }
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.clone()).custom_headers(all);
        let transport = StreamableHttpClientTransport::with_client(http(), config);
        ClientConfig::default().serve(transport).await.unwrap()
    }
}

pub(crate) type Client = RunningService<RoleClient, ClientConfig>;

pub(crate) fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(120))
        .build()
        .unwrap()
}

/// The revision of the protocol that most clients speak, and the one without sessions of its own.
pub(crate) const VERSIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// The headers of a call of session `s1` in a revision.
pub(crate) fn headers_of(version: &'static str) -> [(&'static str, &'static str); 4] {
    [
        ("mcp-protocol-version", version),
        ("mcp-method", "tools/call"),
        ("mcp-name", "bash"),
        ("x-session-id", "s1"),
    ]
}

/// The parameters of a call in a revision.
pub(crate) fn params_of(version: &str, command: &str, meta: Value) -> Value {
    let mut params = json!({"name": "bash", "arguments": {"command": command}, "_meta": meta});
    if version == "2026-07-28" {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(version);
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "t", "version": "1"});
    }
    params
}

/// Calls `bash`.
pub(crate) async fn bash(client: &Client, command: &str) -> CallToolResult {
    call(client, json!({"command": command})).await
}

pub(crate) async fn call(client: &Client, arguments: Value) -> CallToolResult {
    call_peer(client.peer(), arguments).await
}

/// Calls `bash` while the test goes on.
pub(crate) fn begin(client: &Client, command: &str) -> JoinHandle<CallToolResult> {
    let (peer, arguments) = (client.peer().clone(), json!({"command": command}));
    tokio::spawn(async move { call_peer(&peer, arguments).await })
}

async fn call_peer(peer: &Peer<RoleClient>, arguments: Value) -> CallToolResult {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object")
    };
    peer.call_tool(CallToolRequestParams::new("bash").with_arguments(arguments))
        .await
        .unwrap()
}

/// The text of a result that is an error without structure.
pub(crate) fn refusal(result: &CallToolResult) -> String {
    assert_eq!(result.is_error, Some(true), "{result:?}");
    assert!(result.structured_content.is_none(), "{result:?}");
    result.content[0].as_text().unwrap().text.clone()
}

/// The structured content, which the text repeats.
pub(crate) fn structured(result: &CallToolResult) -> Map<String, Value> {
    let structured = result
        .structured_content
        .clone()
        .unwrap_or_else(|| panic!("{result:?}"));
    let text: Value = serde_json::from_str(&result.content[0].as_text().unwrap().text).unwrap();
    assert_eq!(text, structured);
    structured.as_object().unwrap().clone()
}

/// Waits for something to come true.
pub(crate) async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
