//! Tests in which this machine runs the operator, and kills it, cuts it off, or lets another lead: alone on the cluster, so
//! they are ignored unless `make test-operator` asks for them. Here is what they look at.

mod denied;
mod fails;
mod faulty_server;
mod idle;
mod killed;
mod leads;
mod openshift;
mod process;
mod watches;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::Value;

/// Children and Secrets by kind and name.
fn children(namespace: &str) -> Result<BTreeSet<String>> {
    let kinds = "deployment,service,serviceaccount,role,rolebinding,configmap,secret,networkpolicy,poddisruptionbudget";
    let label = "app.kubernetes.io/managed-by=cli-mcp-operator";
    Ok(kubectl::names(namespace, kinds, label)?.into_iter().collect())
}

/// UIDs of the generated Secrets.
fn generated(namespace: &str, instance: &str) -> Result<Vec<String>> {
    let names = [
        format!("cli-mcp-{instance}-hmac"),
        format!("cli-mcp-{instance}-proxy-ca"),
    ];
    let mut uids = Vec::new();
    for name in names {
        let path = "jsonpath={.metadata.uid}";
        uids.push(kubectl::ok(&[
            "-n",
            namespace,
            "get",
            "secret",
            &name,
            "--ignore-not-found",
            "-o",
            path,
        ])?);
    }
    Ok(uids)
}

fn pool(namespace: &str) -> Result<Vec<Value>> {
    let unassigned = "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id";
    let list: Value = serde_json::from_str(&kubectl::ok(&[
        "-n", namespace, "get", "pod", "-l", unassigned, "-o", "json",
    ])?)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn is_ready(namespace: &str, instance: &str) -> Result<bool> {
    let path = "jsonpath={.metadata.generation} {.status.conditions[?(@.type==\"Ready\")].observedGeneration} {.status.conditions[?(@.type==\"Ready\")].status}";
    let status = kubectl::ok(&["-n", namespace, "get", "climcpinstance", instance, "-o", path])?;
    let words: Vec<&str> = status.split(' ').collect();
    Ok(matches!(words[..], [generation, observed, "True"] if generation == observed))
}

fn servers_in_binding(namespace: &str) -> Result<usize> {
    let path = "jsonpath={range .subjects[*]}{.namespace}{\"\\n\"}{end}";
    let subjects = kubectl::ok(&["get", "clusterrolebinding", "cli-mcp-auth-delegator", "-o", path])?;
    Ok(subjects.lines().filter(|subject| *subject == namespace).count())
}

fn is_gone(namespace: &str, instance: &str) -> Result<bool> {
    let left = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "climcpinstance",
        instance,
        "--ignore-not-found",
        "-o",
        "name",
    ])?;
    Ok(left.is_empty())
}

async fn nothing_is_left(namespace: &str) -> Result<()> {
    ensure!(
        servers_in_binding(namespace)? == 0,
        "the shared binding still names the server"
    );
    cluster::eventually("the collection of the children", async || {
        let left = children(namespace)?;
        let pods = kubectl::ok(&["-n", namespace, "get", "pod", "-o", "name"])?;
        ensure!(left.is_empty() && pods.is_empty(), "{left:?} {pods}");
        Ok(())
    })
    .await
}
