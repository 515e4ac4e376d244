//! Each Secret of an instance is exchanged while a session runs: what docs/rotation.md promises.

use anyhow::{Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{admin, cluster, kubectl, setup};

const WHO: &str = "kubectl auth whoami -o jsonpath='{.status.userInfo.username}'";

/// UIDs of the pods of a component.
fn pods(namespace: &str, component: &str) -> Result<Vec<String>> {
    let selector = format!("cli-mcp.redhat.com/component={component}");
    let path = "jsonpath={.items[*].metadata.uid}";
    let uids = kubectl::ok(&["-n", namespace, "get", "pod", "-l", &selector, "-o", path])?;
    let mut uids: Vec<String> = uids.split_whitespace().map(str::to_owned).collect();
    uids.sort();
    Ok(uids)
}

async fn is_answered(session: &Session, command: &str, answer: &str) -> Result<()> {
    cluster::eventually(&format!("{answer:?} of {command:?}"), async || {
        let result = session.bash(command).await?;
        ensure!(
            result.stdout.contains(answer) || result.stderr.contains(answer) || result.text.contains(answer),
            "{result:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_secret_can_be_exchanged_while_a_session_runs() -> Result<()> {
    let (namespace, name) = ("e2e-rotation", "rotation");
    let spec = "  sandbox: {warmPoolSize: 1}\n  proxy: {targets: [{type: kubernetes}]}\n";
    let instance = Instance::create(namespace, name, spec)?;
    let session = instance.session("running").await?;
    is_answered(&session, WHO, "cli-mcp-investigator").await?;
    session.bash("kept=yes").await?;

    // The kubeconfig: the same session speaks as somebody else, and nothing restarts.
    instance::wait_ready(namespace, name)?;
    let before = (
        pods(namespace, "proxy")?,
        pods(namespace, "server")?,
        pods(namespace, "sandbox")?,
    );
    kubectl::ok(&["-n", namespace, "create", "serviceaccount", "second"])?;
    let token = kubectl::ok(&["-n", namespace, "create", "token", "second", "--duration=1h"])?;
    admin::replace_credential(namespace, name, token.trim())?;
    is_answered(&session, WHO, &format!("system:serviceaccount:{namespace}:second")).await?;
    is_answered(&session, "kubectl get nodes", "Forbidden").await?;
    let after = (
        pods(namespace, "proxy")?,
        pods(namespace, "server")?,
        pods(namespace, "sandbox")?,
    );
    ensure!(before == after, "pods were replaced: {before:?} {after:?}");

    // The certificate: served by the same pod, the session goes on.
    let ca = tempfile::NamedTempFile::new()?;
    admin::certificate(namespace, name, ca.path())?;
    let mut endpoint = instance.endpoint.clone();
    endpoint.ca_pem = Some(std::fs::read(ca.path())?);
    let renewed = cluster::eventually("the new certificate", async || Ok(endpoint.connect("running").await?)).await?;
    ensure!(renewed.bash("echo $kept").await?.stdout == "yes\n");
    ensure!(before.1 == pods(namespace, "server")?, "the server was restarted");

    // The proxy's CA: the session keeps its state and loses the network, a new one has both.
    let ca_secret = format!("cli-mcp-{name}-proxy-ca");
    kubectl::ok(&["-n", namespace, "delete", "secret", &ca_secret])?;
    is_answered(&renewed, "kubectl auth whoami", "x509").await?;
    ensure!(renewed.bash("echo $kept").await?.stdout == "yes\n");
    ensure!(before.0 == pods(namespace, "proxy")?, "the proxy was restarted");
    let another = cluster::eventually("a session with the new CA", async || {
        let another = endpoint.connect("another").await?;
        let result = another.bash(WHO).await?;
        // One of the former pool may have been claimed just before it was replaced.
        if !result.stdout.contains(":second") {
            another.delete().await?;
            anyhow::bail!("{result:?}");
        }
        Ok(another)
    })
    .await?;
    another.delete().await?;

    // The key: the server is rolled, the former sandbox takes no token any more, another session does.
    kubectl::ok(&["-n", namespace, "delete", "secret", &format!("cli-mcp-{name}-hmac")])?;
    cluster::eventually("another server", async || {
        let now = pods(namespace, "server")?;
        ensure!(
            !now.is_empty() && now.iter().all(|uid| !before.1.contains(uid)),
            "{now:?}"
        );
        Ok(())
    })
    .await?;
    instance::wait_ready(namespace, name)?;
    let (forward, port) = instance::Forward::start(namespace, &format!("service/cli-mcp-{name}"))?;
    endpoint.base_url = format!("https://localhost:{port}");
    let cut_off = endpoint.connect("running").await?;
    let refused = cut_off.bash("echo $kept").await?;
    ensure!(
        refused.is_error && refused.text.contains("end the session"),
        "{refused:?}"
    );
    cut_off.delete().await?;
    let anew = endpoint.connect("running").await?;
    is_answered(&anew, "echo [$kept]", "[]").await?;
    drop(forward);
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_and_admins_secrets_are_never_changed_or_deleted() -> Result<()> {
    let (namespace, name) = ("e2e-secrets", "secrets");
    let spec = "  proxy: {targets: [{type: kubernetes}]}\n";
    let _instance = Instance::create(namespace, name, spec)?;
    let secrets = || -> Result<Vec<String>> {
        let path =
            "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{\"\\n\"}{end}";
        let list = kubectl::ok(&["-n", namespace, "get", "secret", "-o", path])?;
        let ours = |line: &&str| line.starts_with(&format!("cli-mcp-{name}-"));
        Ok(list.lines().filter(ours).map(str::to_owned).collect())
    };
    let before = secrets()?;
    ensure!(before.len() == 4, "{before:?}");
    // Whatever else changes.
    kubectl::ok(&["-n", namespace, "delete", "configmap", &format!("cli-mcp-{name}-proxy")])?;
    let change = r#"{"spec":{"replicas":2,"proxy":{"replicas":2}}}"#;
    setup::patch(namespace, name, change)?;
    instance::wait_ready(namespace, name)?;
    ensure!(secrets()? == before, "{before:?} {:?}", secrets()?);
    // An empty key is the admin's to mend.
    let hmac = format!("cli-mcp-{name}-hmac");
    kubectl::ok(&[
        "-n",
        namespace,
        "patch",
        "secret",
        &hmac,
        "--type=merge",
        "-p",
        r#"{"data":{"key":""}}"#,
    ])?;
    cluster::eventually("the condition", async || {
        let said = setup::condition(namespace, name, "Ready")?;
        ensure!(
            said.reason == "SecretKeysInvalid" && said.message.contains(&hmac),
            "{said}"
        );
        Ok(())
    })
    .await?;
    let key = kubectl::ok(&["-n", namespace, "get", "secret", &hmac, "-o", "jsonpath={.data.key}"])?;
    ensure!(key.is_empty(), "the operator wrote a key of its own");
    // The deletion of the instance takes its own Secrets along, and leaves the admin's.
    kubectl::ok(&["-n", namespace, "delete", "climcpinstance", name, "--timeout=120s"])?;
    cluster::eventually("the deletion of the generated Secrets", async || {
        let left: Vec<String> = secrets()?
            .iter()
            .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
            .collect();
        ensure!(
            left == [format!("cli-mcp-{name}-kubeconfig"), format!("cli-mcp-{name}-tls")],
            "{left:?}"
        );
        Ok(())
    })
    .await?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
