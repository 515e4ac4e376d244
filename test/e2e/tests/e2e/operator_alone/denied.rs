//! What the operator may not have or touch: a Secret that it cannot read, and the shared binding in other hands.

use anyhow::{Result, ensure};
use cli_mcp_e2e::setup::{self, apply, secrets};
use cli_mcp_e2e::{cluster, instance, kubectl};
use serde_json::{Value, json};

use super::process::{Alone, Operator, Run};
use super::servers_in_binding;
use super::watches::restricted;

const SPEC: &str = "{proxy: {targets: [{type: kubernetes}]}}";

async fn says(namespace: &str, name: &str, reason: &str, texts: &[&str]) -> Result<()> {
    cluster::eventually("the condition", async || {
        let said = setup::condition(namespace, name, "Ready")?;
        ensure!(
            said.reason == reason && texts.iter().all(|text| said.message.contains(text)),
            "{said}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn a_secret_that_may_not_be_read_is_told_until_it_may() -> Result<()> {
    let (namespace, name) = ("e2e-unread", "unread");
    let _alone = Alone::take(&[namespace])?;
    secrets(namespace, name, None)?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = restricted(folder.path(), namespace, &[namespace])?;
    let role = || -> Result<Value> {
        Ok(serde_json::from_str(&kubectl::ok(&[
            "-n", namespace, "get", "role", "watcher", "-o", "json",
        ])?)?)
    };
    let whole = role()?["rules"].clone();
    let mut less = whole.clone();
    for rule in less.as_array_mut().into_iter().flatten() {
        if rule["resources"] == json!(["secrets"])
            && let Some(verbs) = rule["verbs"].as_array_mut()
        {
            verbs.retain(|verb| verb != "get");
        }
    }
    ensure!(less != whole, "the role has no rule for Secrets alone: {whole}");
    let grant = |rules: &Value| {
        let patch = json!({"rules": rules}).to_string();
        kubectl::ok(&[
            "-n",
            namespace,
            "patch",
            "role",
            "watcher",
            "--type=merge",
            "-p",
            &patch,
        ])
    };
    grant(&less)?;
    let run = Run {
        kubeconfig: Some(&kubeconfig),
        ..Run::of_one(namespace)
    };
    let operator = Operator::start(folder.path(), "operator.log", &run)?;
    operator.ready().await?;
    apply(namespace, name, SPEC)?;
    let secret = format!("Secret cli-mcp-{name}-kubeconfig could not be read");
    says(
        namespace,
        name,
        "ChildrenNotReady",
        &[&secret, "forbidden", "install its roles again"],
    )
    .await?;
    grant(&whole)?;
    instance::wait_ready(namespace, name)?;
    kubectl::ok(&["-n", namespace, "delete", "climcpinstance", name, "--timeout=120s"])?;
    kubectl::ok(&["delete", "clusterrolebinding,clusterrole", "e2e-watcher"])?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn the_shared_binding_is_repaired_and_one_of_somebody_else_is_left_alone() -> Result<()> {
    let (namespace, name, binding) = ("e2e-binding", "binding", "cli-mcp-auth-delegator");
    let _alone = Alone::take(&[namespace])?;
    secrets(namespace, name, None)?;
    let folder = tempfile::tempdir()?;
    let operator = Operator::start(folder.path(), "operator.log", &Run::of_one(namespace))?;
    operator.ready().await?;
    apply(namespace, name, SPEC)?;
    instance::wait_ready(namespace, name)?;
    let bound = || async {
        cluster::eventually("the server among the subjects", async || {
            ensure!(servers_in_binding(namespace)? == 1);
            Ok(())
        })
        .await
    };
    bound().await?;
    let nobody = r#"{"subjects":[]}"#;
    kubectl::ok(&["patch", "clusterrolebinding", binding, "--type=merge", "-p", nobody])?;
    bound().await?;

    // The operator may be faster than who makes another: then that one is refused, and tries again.
    cluster::eventually("a binding of somebody else", async || {
        kubectl::ok(&["delete", "clusterrolebinding", binding, "--ignore-not-found"])?;
        kubectl::ok(&[
            "create",
            "clusterrolebinding",
            binding,
            "--clusterrole=view",
            "--user=theirs",
        ])?;
        Ok(())
    })
    .await?;
    says(
        namespace,
        name,
        "ChildrenNotReady",
        &[binding, "refers to another role", "Delete or rename it"],
    )
    .await?;
    let theirs = kubectl::ok(&[
        "get",
        "clusterrolebinding",
        binding,
        "-o",
        "jsonpath={.roleRef.name} {.subjects[*].name}",
    ])?;
    kubectl::ok(&["delete", "clusterrolebinding", binding])?;
    ensure!(theirs == "view theirs", "{theirs}");
    bound().await?;
    instance::wait_ready(namespace, name)?;
    kubectl::ok(&["-n", namespace, "delete", "climcpinstance", name, "--timeout=120s"])?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
