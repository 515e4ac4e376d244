//! Pods that do not start: the condition has the pod's own reason, the operator tries again and not too often, and the
//! instance is Ready when the cause is gone.

use anyhow::{Result, ensure};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl, setup};

/// Waits until a condition is False for this reason, with this in its message.
async fn fails(namespace: &str, name: &str, type_: &str, reason: &str, text: &str) -> Result<()> {
    cluster::eventually("the condition", async || {
        let found = setup::condition(namespace, name, type_)?;
        ensure!(
            found.status == "False" && found.reason == reason && found.message.contains(text),
            "{type_}={found}"
        );
        Ok(())
    })
    .await
}

fn patch_sandbox(namespace: &str, name: &str, sandbox: &str) -> Result<()> {
    setup::patch(namespace, name, &format!("{{\"spec\":{{\"sandbox\":{sandbox}}}}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_does_not_start_says_why_and_recovers() -> Result<()> {
    let (namespace, name) = ("e2e-trouble", "trouble");
    let spec = "  sandbox: {warmPoolSize: 1}\n  proxy: {targets: [{type: kubernetes}]}\n";
    let _instance = Instance::create(namespace, name, spec)?;
    let generation = |path: &str| kubectl::ok(&["-n", namespace, "get", "climcpinstance", name, "-o", path]);

    patch_sandbox(
        namespace,
        name,
        r#"{"image":"localhost/there-is-none:1","imagePullPolicy":"Never"}"#,
    )?;
    fails(
        namespace,
        name,
        "WarmPoolReady",
        "WarmPoolUnhealthy",
        "ErrImageNeverPull",
    )
    .await?;
    fails(namespace, name, "Ready", "WarmPoolUnhealthy", "ErrImageNeverPull").await?;
    patch_sandbox(namespace, name, r#"{"imagePullPolicy":"IfNotPresent"}"#)?;
    fails(namespace, name, "Ready", "WarmPoolUnhealthy", "ImagePull").await?;
    // The one pod that waits is kept: another would not do better.
    let pods = kubectl::names(namespace, "pod", "cli-mcp.redhat.com/component=sandbox")?;
    ensure!(pods.len() == 1, "{pods:?}");

    patch_sandbox(namespace, name, r#"{"image":"","nodeSelector":{"no.such/label":"x"}}"#)?;
    fails(namespace, name, "Ready", "WarmPoolUnhealthy", "Unschedulable").await?;
    let columns = kubectl::ok(&["-n", namespace, "get", "cmi", "-o", "wide"])?;
    ensure!(
        columns.lines().next().is_some_and(|header| {
            header.split_whitespace().collect::<Vec<_>>() == ["NAME", "READY", "REASON", "SESSIONS", "POOL", "AGE"]
        }) && columns.contains("WarmPoolUnhealthy"),
        "{columns}"
    );
    patch_sandbox(namespace, name, r#"{"nodeSelector":null}"#)?;
    instance::wait_ready(namespace, name)?;

    // A quota that is full with what runs: the next sandbox is refused at creation.
    let running = kubectl::ok(&["-n", namespace, "get", "pod", "-o", "name"])?
        .lines()
        .count();
    kubectl::ok(&[
        "-n",
        namespace,
        "create",
        "quota",
        "full",
        &format!("--hard=pods={running}"),
    ])?;
    patch_sandbox(namespace, name, r#"{"warmPoolSize":3}"#)?;
    fails(namespace, name, "Ready", "WarmPoolUnhealthy", "exceeded quota").await?;
    kubectl::ok(&["-n", namespace, "delete", "quota", "full"])?;
    instance::wait_ready(namespace, name)?;

    let observed = generation(
        "jsonpath={.metadata.generation} {.status.observedGeneration} {.status.conditions[*].observedGeneration}",
    )?;
    let numbers: std::collections::BTreeSet<&str> = observed.split_whitespace().collect();
    ensure!(
        numbers.len() == 1 && observed.split_whitespace().count() == 6,
        "{observed}"
    );
    // One event a transition: what was reported again and again would be counted.
    let events = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "events.events.k8s.io",
        "--field-selector=regarding.kind=CliMcpInstance",
        "-o",
        "custom-columns=R:.reason,T:.type,C:.series.count,N:.note",
        "--no-headers",
    ])?;
    let unhealthy = events
        .lines()
        .filter(|event| event.starts_with("WarmPoolUnhealthy"))
        .count();
    ensure!((1..=6).contains(&unhealthy) && events.contains("Ready"), "{events}");
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_or_proxy_that_does_not_start_says_why() -> Result<()> {
    let (namespace, name) = ("e2e-unavailable", "unavailable");
    let spec = "  proxy: {targets: [{type: kubernetes}]}\n";
    let _instance = Instance::create(namespace, name, spec)?;
    kubectl::ok(&["-n", namespace, "create", "quota", "none", "--hard=pods=0"])?;
    kubectl::delete_all(namespace, "pod", "cli-mcp.redhat.com/component=proxy")?;
    fails(namespace, name, "Ready", "DeploymentUnavailable", "exceeded quota").await?;
    fails(namespace, name, "ProxyReady", "DeploymentUnavailable", "exceeded quota").await?;
    kubectl::ok(&["-n", namespace, "delete", "quota", "none"])?;
    // The Deployment's own controller backs off for minutes: another pod template would not wait, neither do we.
    kubectl::delete_all(namespace, "replicaset", "cli-mcp.redhat.com/component=proxy")?;
    instance::wait_ready(namespace, name)?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

/// A policy that lets the sandboxes out again, as a CNI without policies would: the agent finds the way to the API server
/// open, and no command runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_network_is_found_and_told() -> Result<()> {
    let (namespace, name) = ("e2e-open", "open");
    let spec = "  sandbox: {warmPoolSize: 1}\n  proxy: {targets: [{type: kubernetes}]}\n";
    let _instance = Instance::create(namespace, name, spec)?;
    cluster::eventually("the proof", async || {
        let egress = setup::condition(namespace, name, "EgressEnforced")?;
        ensure!(egress.status == "True", "{egress}");
        Ok(())
    })
    .await?;
    // Policies add up: this one allows everything.
    kubectl::apply(&format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: open, namespace: {namespace}}}\n\
         spec: {{podSelector: {{}}, policyTypes: [Egress], egress: [{{}}]}}\n"
    ))?;
    kubectl::delete_all(namespace, "pod", "cli-mcp.redhat.com/component=sandbox")?;
    fails(
        namespace,
        name,
        "EgressEnforced",
        "EgressNotEnforced",
        "can reach the API server directly",
    )
    .await?;
    fails(namespace, name, "Ready", "EgressNotEnforced", "install a CNI plugin").await?;
    kubectl::ok(&["-n", namespace, "delete", "networkpolicy", "open"])?;
    kubectl::delete_all(namespace, "pod", "cli-mcp.redhat.com/component=sandbox")?;
    instance::wait_ready(namespace, name)?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
