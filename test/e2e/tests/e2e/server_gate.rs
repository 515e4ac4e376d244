//! The gate on a real cluster: with any precondition gone no sandbox is created or claimed and no command runs, the error
//! says which and what to do, and when it is mended the gate opens again.

use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_demo::session::{Endpoint, Session};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::Value;

const NAMESPACE: &str = "e2e-gate";

/// A server of the instance on this machine, with the flags of its Deployment; dropping it ends it.
struct HostServer {
    process: Child,
    endpoint: Endpoint,
}

impl Drop for HostServer {
    fn drop(&mut self) {
        // It may have ended by itself; nothing else can be done about it here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl HostServer {
    fn start(deployment: &Value, key: &Path) -> Result<Self> {
        let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        let inside = [
            "--transport",
            "--stateless",
            "--address",
            "--health-address",
            "--tls-",
            "--authorization",
            "--hmac-key-file",
            "--sandbox-connection",
            // It is gone, and what it owned would be collected.
            "--sandbox-owner",
        ];
        let args = args.as_array().context("the Deployment has no args")?;
        let shared = args
            .iter()
            .filter_map(Value::as_str)
            .filter(|arg| !inside.iter().any(|flag| arg.starts_with(flag)));
        let binary = Path::new(&cluster::setting("E2E_BIN_DIR")?).join("server");
        let mut process = Command::new(binary)
            .args([
                "--transport=http",
                "--stateless",
                "--address=127.0.0.1:0",
                "--sandbox-connection=port-forward",
            ])
            .arg(format!("--hmac-key-file={}", key.display()))
            .args(shared)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let stdout = process.stdout.take().context("no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
            .find_map(|line| line["url"].as_str().map(str::to_owned))
            .context("the server ended before it listened")?;
        // It goes on to write: someone must read it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            process,
            endpoint: Endpoint {
                base_url: url.trim_end_matches("/mcp").to_owned(),
                ca_pem: None,
                token: None,
            },
        })
    }
}

fn get(kind: &str, name: &str) -> Result<Value> {
    let json = kubectl::ok(&["-n", NAMESPACE, "get", kind, name, "-o", "json"])?;
    Ok(serde_json::from_str(&json)?)
}

/// Creates an object again from what it was.
fn recreate(mut object: Value) -> Result<()> {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
    }
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    kubectl::apply(&object.to_string())
}

/// Sees to it that the pool has a pod that can be claimed, in the operator's place.
fn pooled(pod: &Value) -> Result<()> {
    if !pods("!cli-mcp.redhat.com/session-id")?.is_empty() {
        return Ok(());
    }
    let name = pod["metadata"]["name"].as_str().context("a pod without name")?;
    kubectl::ok(&[
        "-n",
        NAMESPACE,
        "wait",
        "--for=delete",
        &format!("pod/{name}"),
        "--timeout=60s",
    ])?;
    recreate(pod.clone())?;
    kubectl::ok(&[
        "-n",
        NAMESPACE,
        "wait",
        "--for=condition=Ready",
        &format!("pod/{name}"),
        "--timeout=180s",
    ])?;
    Ok(())
}

/// The pods with the session's label, or without any.
fn pods(selector: &str) -> Result<Vec<String>> {
    let selector = format!("cli-mcp.redhat.com/component=sandbox,{selector}");
    kubectl::names(NAMESPACE, "pods", &selector)
}

/// A call that is refused for this reason. The server learns of a change some moments after it was made, so the first
/// calls may still be served: each is of a session of its own, which is ended.
async fn refused(server: &HostServer, session: &str, expected: &[&str]) -> Result<()> {
    let attempt = Cell::new(0);
    let refused = cluster::eventually(expected[0], async || {
        attempt.set(attempt.get() + 1);
        let id = format!("{session}-{}", attempt.get());
        let stranger = server.endpoint.connect(&id).await?;
        let result = stranger.bash("echo ran").await?;
        if result.exit_code.is_some() {
            stranger.delete().await?;
            bail!("the command ran");
        }
        ensure!(result.is_error, "{result:?}");
        ensure!(
            expected.iter().all(|part| result.text.contains(part)),
            "{expected:?} is not in: {}",
            result.text
        );
        Ok(id)
    })
    .await?;
    let made = pods(&format!("cli-mcp.redhat.com/session-id={refused}"))?;
    ensure!(made.is_empty(), "a sandbox was made or claimed: {made:?}");
    let claimable = pods("!cli-mcp.redhat.com/session-id")?;
    ensure!(
        attempt.get() > 1 || claimable.len() == 1,
        "there was nothing to claim: {claimable:?}"
    );
    Ok(())
}

async fn served(session: &Session) -> Result<()> {
    let result = session.bash("echo on").await?;
    ensure!(
        result.stdout == "on\n" && result.session_reset.is_none(),
        "an assigned session does not go on: {result:?}"
    );
    Ok(())
}

async fn opens_again(server: &HostServer, id: &str) -> Result<()> {
    let session = server.endpoint.connect(id).await?;
    cluster::eventually("the gate opens again", async || {
        let result = session.bash("test ! -e /workspace/ran && echo open").await?;
        ensure!(result.stdout == "open\n", "{result:?}");
        Ok(())
    })
    .await?;
    session.delete().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_closes_with_each_precondition_and_opens_when_it_is_mended() -> Result<()> {
    let spec = "  sandbox: {warmPoolSize: 2}\n  proxy:\n    targets: [{type: kubernetes}]\n";
    let instance = Instance::create(NAMESPACE, "gate", spec)?;
    let deployment = get("deployment", "cli-mcp-gate")?;
    let key = tempfile::NamedTempFile::new()?;
    let secret = get("secret", "cli-mcp-gate-hmac")?;
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret)?;
    let bytes = secret.data.and_then(|mut data| data.remove("key")).context("no key")?;
    std::fs::write(key.path(), bytes.0)?;
    let pool = pods("!cli-mcp.redhat.com/session-id")?;
    let pool = pool
        .iter()
        .map(|name| get("pod", name.trim_start_matches("pod/")))
        .collect::<Result<Vec<_>>>()?;
    let [first, second] = &pool[..] else {
        bail!("the pool has {} pods", pool.len())
    };

    // The operator would mend what this test breaks. Its objects without their instance have no operator.
    drop(instance);
    kubectl::ok(&[
        "-n",
        NAMESPACE,
        "delete",
        "climcpinstance",
        "gate",
        "--cascade=orphan",
        "--timeout=120s",
    ])?;
    // Nobody is left to fill the pool, and what is orphaned stays.
    kubectl::ok(&[
        "-n",
        NAMESPACE,
        "delete",
        "pods",
        "-l",
        "cli-mcp.redhat.com/component=sandbox",
        "--timeout=120s",
    ])?;
    pooled(first)?;

    let server = HostServer::start(&deployment, key.path())?;
    let assigned = server.endpoint.connect("assigned").await?;
    cluster::eventually("the first session", async || served(&assigned).await).await?;
    ensure!(
        pods("!cli-mcp.redhat.com/session-id")?.is_empty(),
        "the pool was not used"
    );

    for (kind, name, expected) in [
        ("configmap", "cli-mcp-gate-proxy", "ConfigMap cli-mcp-gate-proxy"),
        (
            "networkpolicy",
            "cli-mcp-gate-proxy",
            "NetworkPolicy cli-mcp-gate-proxy",
        ),
        (
            "networkpolicy",
            "cli-mcp-gate-sandbox",
            "NetworkPolicy cli-mcp-gate-sandbox",
        ),
    ] {
        pooled(second)?;
        let object = get(kind, name)?;
        kubectl::ok(&["-n", NAMESPACE, "delete", kind, name])?;
        refused(
            &server,
            &format!("no-{kind}"),
            &[expected, "does not exist", "operator", "not run"],
        )
        .await?;
        // Without its policy the sandbox itself may notice that its network is open.
        if name != "cli-mcp-gate-sandbox" {
            served(&assigned).await?;
        }
        recreate(object)?;
        opens_again(&server, "mended").await?;
        cluster::eventually("the assigned session goes on", async || served(&assigned).await).await?;
    }

    let policy = [
        "-n",
        NAMESPACE,
        "patch",
        "networkpolicy",
        "cli-mcp-gate-sandbox",
        "--type=merge",
        "-p",
    ];
    let types = |types: &str| {
        let patch = format!("{{\"spec\":{{\"policyTypes\":{types}}}}}");
        kubectl::ok(&[&policy[..], &[patch.as_str()]].concat())
    };
    pooled(second)?;
    types(r#"["Ingress"]"#)?;
    refused(
        &server,
        "no-egress",
        &["NetworkPolicy cli-mcp-gate-sandbox", "Egress", "policyTypes", "not run"],
    )
    .await?;
    types(r#"["Ingress","Egress"]"#)?;
    opens_again(&server, "mended").await?;
    cluster::eventually("the assigned session goes on", async || served(&assigned).await).await?;

    let scale = |replicas: &str| kubectl::ok(&["-n", NAMESPACE, "scale", "deployment/cli-mcp-gate-proxy", replicas]);
    pooled(second)?;
    scale("--replicas=0")?;
    refused(
        &server,
        "no-proxy",
        &["no ready endpoint", "cli-mcp-gate-proxy", "not run"],
    )
    .await?;
    served(&assigned).await?;
    scale("--replicas=1")?;
    opens_again(&server, "mended").await?;
    assigned.delete().await?;

    // Every precondition holds, and the network is open all the same: what a plugin that enforces nothing looks like.
    kubectl::apply(&format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: open, namespace: {NAMESPACE}}}\n\
         spec: {{podSelector: {{matchLabels: {{cli-mcp.redhat.com/component: sandbox}}}}, policyTypes: [Egress], egress: [{{}}]}}\n"
    ))?;
    let session = server.endpoint.connect("open").await?;
    cluster::eventually("the open network is noticed", async || {
        let result = session.bash("touch /workspace/ran").await?;
        ensure!(
            result.exit_code.is_none(),
            "the command ran on an open network: {result:?}"
        );
        ensure!(
            result.text.starts_with("EgressNotEnforced")
                && result.text.contains("NetworkPolicy")
                && result.text.contains("not run"),
            "{}",
            result.text
        );
        Ok(())
    })
    .await?;
    // Where one sandbox is not held back, no other is made or claimed.
    let other = server.endpoint.connect("also-open").await?.bash("echo ran").await?;
    ensure!(
        other.exit_code.is_none()
            && other.text.contains("EgressNotEnforced")
            && other.text.contains("another could, too"),
        "{other:?}"
    );
    let made = pods("cli-mcp.redhat.com/session-id=also-open")?;
    ensure!(made.is_empty(), "a sandbox was made or claimed: {made:?}");
    kubectl::ok(&["-n", NAMESPACE, "delete", "networkpolicy", "open"])?;
    opens_again(&server, "open").await?;

    kubectl::ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}
