//! The instance as an object: quiet when nothing changes, gone without a trace when deleted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl, setup};

const KINDS: &str = "climcpinstance,deployment,service,serviceaccount,role,rolebinding,configmap,secret,networkpolicy,poddisruptionbudget";

/// Kind, name and resourceVersion of everything that belongs to the instance.
fn versions(namespace: &str) -> Result<BTreeMap<String, String>> {
    let path = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}";
    let list = kubectl::ok(&["-n", namespace, "get", KINDS, "-o", path])?;
    Ok(list
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| (name.into(), version.into()))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_reconcile_changes_no_resource_version() -> Result<()> {
    let namespace = "e2e-quiet";
    let instance = Instance::create(namespace, "quiet", "  proxy:\n    targets: [{type: kubernetes}]\n")?;
    // Deployments' own controllers settle for a moment after Ready.
    let before = cluster::eventually("a quiet moment", async || {
        let first = versions(namespace)?;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        ensure!(versions(namespace)? == first, "objects still change");
        Ok(first)
    })
    .await?;
    // An annotation makes the operator reconcile and changes nothing else than the instance itself.
    kubectl::ok(&[
        "-n",
        namespace,
        "annotate",
        "climcpinstance",
        "quiet",
        "e2e/reconcile=now",
    ])?;
    kubectl::ok(&[
        "-n",
        "cli-mcp-operator-system",
        "rollout",
        "restart",
        "deployment/cli-mcp-operator-controller-manager",
    ])?;
    kubectl::ok(&[
        "-n",
        "cli-mcp-operator-system",
        "rollout",
        "status",
        "deployment/cli-mcp-operator-controller-manager",
        "--timeout=120s",
    ])?;
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let mut after = versions(namespace)?;
    let mut before = before;
    let own = "CliMcpInstance/quiet";
    ensure!(
        before.remove(own).is_some() && after.remove(own).is_some(),
        "the instance is not in the list"
    );
    ensure!(before == after, "a reconcile wrote:\n{before:#?}\n{after:#?}");
    ensure!(before.len() >= 12, "expected every child of an instance: {before:#?}");
    drop(instance);
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_is_named_with_the_remedy_and_then_found() -> Result<()> {
    let namespace = "e2e-missing";
    setup::namespace(namespace)?;
    setup::apply(namespace, "missing", "proxy: {targets: [{type: kubernetes}]}")?;
    cluster::eventually("the condition", async || {
        let ready = setup::condition(namespace, "missing", "Ready")?;
        ensure!(
            ready.reason == "SecretsNotFound" && ready.message.contains("cli-mcp-missing-kubeconfig"),
            "{ready}"
        );
        Ok(())
    })
    .await?;
    setup::secrets(namespace, "missing", None)?;
    instance::wait_ready(namespace, "missing")?;

    kubectl::ok(&["-n", namespace, "delete", "climcpinstance", "missing", "--timeout=120s"])?;
    cluster::eventually("the children's deletion", async || {
        let left = kubectl::ok(&["-n", namespace, "get", "deployment,networkpolicy,pod", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    let secrets = kubectl::ok(&["-n", namespace, "get", "secret", "-o", "name"])?;
    ensure!(
        secrets.contains("cli-mcp-missing-kubeconfig") && secrets.contains("cli-mcp-missing-tls"),
        "{secrets}"
    );
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
