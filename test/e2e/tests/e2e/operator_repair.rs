//! Children of an instance come back as they should be, whatever somebody does to them; what somebody else made under
//! their names is reported and left alone.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl, setup};
use serde_json::{Value, json};

/// Kinds of children, as kubectl names them.
const KINDS: &str = "deployment,service,serviceaccount,role,rolebinding,configmap,networkpolicy,poddisruptionbudget";

/// Everything that the operator applies for one instance with two proxies.
const CHILDREN: usize = 16;

/// Children by `kind/name`.
type Children = BTreeMap<String, Value>;

fn children(namespace: &str) -> Result<Children> {
    let managed = "app.kubernetes.io/managed-by=cli-mcp-operator";
    let list: Value = serde_json::from_str(&kubectl::ok(&[
        "-n", namespace, "get", KINDS, "-l", managed, "-o", "json",
    ])?)?;
    let items = list["items"].as_array().context("no items")?;
    Ok(items.iter().map(|child| (reference(child), child.clone())).collect())
}

fn reference(child: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    format!("{}/{}", text(&child["kind"]), text(&child["metadata"]["name"]))
}

/// What a child says, without what differs from one object to the next: what is built for a Service has its address in it,
/// what runs as a ServiceAccount its UID.
fn essence(children: &Children) -> Result<Children> {
    let address = |name: &str| -> Option<String> {
        let (_, service) = children
            .iter()
            .find(|(reference, _)| reference.starts_with("service/") && reference.ends_with(name))?;
        Some(service["spec"]["clusterIP"].as_str()?.to_owned())
    };
    let addresses: Vec<String> = ["-proxy", ""].into_iter().filter_map(address).collect();
    let accounts: Vec<(&String, String)> = children
        .iter()
        .filter(|(reference, _)| reference.starts_with("serviceaccount/"))
        .filter_map(|(reference, account)| Some((reference, account["metadata"]["uid"].as_str()?.to_owned())))
        .collect();
    children
        .iter()
        .map(|(reference, child)| {
            let mut child = child.clone();
            let metadata = child["metadata"].clone();
            child["metadata"] = json!({"labels": metadata["labels"]});
            child["owner"] = metadata["ownerReferences"][0]["uid"].clone();
            for field in ["status", "secrets"] {
                child.as_object_mut().context("no object")?.remove(field);
            }
            let mut text = child.to_string();
            for address in &addresses {
                text = text.replace(address.as_str(), "ADDRESS");
            }
            for (account, uid) in &accounts {
                text = text.replace(uid.as_str(), account);
            }
            Ok((reference.clone(), serde_json::from_str(&text)?))
        })
        .collect()
}

/// A change that matters, for each kind.
fn edit(reference: &str) -> Value {
    let kind = reference.split('/').next().unwrap_or_default();
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]});
    match kind {
        "deployment" => {
            json!({"spec": {"replicas": 3, "template": {"spec": {"priorityClassName": "system-node-critical"}}}})
        }
        "service" => json!({"spec": {"selector": {"app": "theirs"}}}),
        "serviceaccount" => {
            json!({"automountServiceAccountToken": true, "metadata": {"labels": {"app.kubernetes.io/name": "theirs"}}})
        }
        "role" => json!({"rules": [rule]}),
        "rolebinding" => json!({"subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]}),
        "configmap" => json!({"data": {"proxy-config.json": "{}", "more": "x"}}),
        "networkpolicy" => json!({"spec": {"ingress": [{}], "policyTypes": ["Ingress"], "egress": null}}),
        _ => json!({"spec": {"minAvailable": null, "maxUnavailable": "100%"}}),
    }
}

async fn restored(namespace: &str, wanted: &Children, deed: &str) -> Result<()> {
    cluster::eventually(&format!("every child's repair after it was {deed}"), async || {
        let live = essence(&children(namespace)?)?;
        for (reference, wanted) in wanted {
            let live = live.get(reference).with_context(|| format!("{reference} is missing"))?;
            ensure!(live == wanted, "{reference}:\n{live}\ninstead of\n{wanted}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_child_is_repaired_when_edited_deleted_or_replaced() -> Result<()> {
    let namespace = "e2e-repair";
    let spec = "  proxy:\n    replicas: 2\n    targets: [{type: kubernetes}]\n";
    let _instance = Instance::create(namespace, "repair", spec)?;
    let before = children(namespace)?;
    let wanted = essence(&before)?;
    ensure!(wanted.len() == CHILDREN, "{:?}", wanted.keys());

    for reference in wanted.keys() {
        let change = edit(reference).to_string();
        kubectl::ok(&["-n", namespace, "patch", reference, "--type=merge", "-p", &change])?;
    }
    restored(namespace, &wanted, "edited").await?;

    for reference in wanted.keys() {
        kubectl::ok(&[
            "-n",
            namespace,
            "label",
            reference,
            "app.kubernetes.io/managed-by-",
            "--overwrite",
        ])?;
    }
    restored(namespace, &wanted, "stripped of its label").await?;

    // Its reference to the instance goes, and with it the label that leads there.
    let orphan = json!({"metadata": {"ownerReferences": null}}).to_string();
    for reference in wanted.keys() {
        kubectl::ok(&["-n", namespace, "patch", reference, "--type=merge", "-p", &orphan])?;
    }
    restored(namespace, &wanted, "orphaned").await?;

    let uid = |children: &Children, reference: &str| children[reference]["metadata"]["uid"].clone();
    for reference in wanted.keys() {
        kubectl::ok(&["-n", namespace, "delete", reference, "--wait=true"])?;
    }
    restored(namespace, &wanted, "deleted").await?;
    let again = children(namespace)?;
    for reference in wanted.keys() {
        ensure!(
            uid(&before, reference) != uid(&again, reference),
            "{reference} was not deleted"
        );
    }

    // What somebody saved, changed and put in its place, as kubectl replace --force does: another object of the same owner.
    for (reference, child) in &again {
        let mut other = child.clone();
        merge(&mut other, edit(reference));
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "managedFields",
        ] {
            other["metadata"].as_object_mut().context("no metadata")?.remove(field);
        }
        if reference.starts_with("service/") {
            other["spec"].as_object_mut().context("no spec")?.remove("clusterIP");
            other["spec"].as_object_mut().context("no spec")?.remove("clusterIPs");
        }
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), other.to_string())?;
        let file = file
            .path()
            .to_str()
            .context("the temporary folder's path is not UTF-8")?;
        // The operator may be faster than kubectl's own create: then there is nothing to repair.
        let replaced = kubectl::run(&["-n", namespace, "replace", "--force", "-f", file])?;
        ensure!(
            replaced.code == 0 || replaced.stderr.contains("AlreadyExists"),
            "{}",
            replaced.stderr
        );
    }
    restored(namespace, &wanted, "replaced").await?;

    // No apply gives such a Service the address back that its sandboxes know.
    let alias = json!({"spec": {"type": "ExternalName", "externalName": "proxy.example.com"}}).to_string();
    for reference in wanted.keys().filter(|reference| reference.starts_with("service/")) {
        kubectl::ok(&["-n", namespace, "patch", reference, "--type=merge", "-p", &alias])?;
    }
    restored(namespace, &wanted, "made an alias").await?;
    instance::wait_ready(namespace, "repair")?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Objects that stand in the way: each is somebody's, and none has a label or reference of ours.
fn foreign(namespace: &str) -> Vec<Value> {
    let named = |api: &str, kind: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": {"theirs": "yes"}}});
        merge(&mut object, rest);
        object
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let pod = json!({"metadata": {"labels": {"app": "theirs"}}, "spec": {
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "localhost/none", "imagePullPolicy": "Never",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}});
    vec![
        named("v1", "ServiceAccount", "cli-mcp-foreign-sandbox", json!({})),
        named(
            "v1",
            "Service",
            "cli-mcp-foreign",
            json!({"spec": {"ports": [{"port": 1}], "selector": {"app": "theirs"}}}),
        ),
        named(
            "v1",
            "ConfigMap",
            "cli-mcp-foreign-proxy",
            json!({"data": {"theirs": "yes"}}),
        ),
        named(
            rbac,
            "Role",
            "cli-mcp-foreign",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        named(
            rbac,
            "RoleBinding",
            "cli-mcp-foreign-client",
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "theirs"}}),
        ),
        named(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "cli-mcp-foreign-sandbox",
            json!({"spec": {"podSelector": {"matchLabels": {"app": "theirs"}}, "policyTypes": ["Egress"], "egress": [{}]}}),
        ),
        named(
            "policy/v1",
            "PodDisruptionBudget",
            "cli-mcp-foreign-proxy",
            json!({"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "theirs"}}}}),
        ),
        named(
            "apps/v1",
            "Deployment",
            "cli-mcp-foreign",
            json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "theirs"}}, "template": pod}}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_somebody_else_is_reported_and_left_alone() -> Result<()> {
    let namespace = "e2e-foreign";
    kubectl::ok(&["delete", "namespace", namespace, "--ignore-not-found", "--timeout=180s"])?;
    kubectl::ok(&["create", "namespace", namespace])?;
    let theirs = foreign(namespace);
    for object in &theirs {
        kubectl::apply(&object.to_string())?;
    }
    let read = || -> Result<Vec<Value>> {
        let mut read = Vec::new();
        for object in &theirs {
            let text = kubectl::ok(&["-n", namespace, "get", &reference(object), "-o", "json"])?;
            let mut live: Value = serde_json::from_str(&text)?;
            // The controllers of Deployments and budgets write status, and what they write of it elsewhere.
            let live = live.as_object_mut().context("no object")?;
            live.remove("status");
            for field in ["resourceVersion", "managedFields"] {
                live["metadata"].as_object_mut().context("no metadata")?.remove(field);
            }
            if let Some(annotations) = live["metadata"]["annotations"].as_object_mut() {
                annotations.remove("deployment.kubernetes.io/revision");
            }
            read.push(Value::Object(live.clone()));
        }
        Ok(read)
    };
    let before = read()?;
    let spec = "  sandbox: {warmPoolSize: 1}\n  proxy: {replicas: 2, targets: [{type: kubernetes}]}\n";
    setup::secrets(namespace, "foreign", None)?;
    setup::apply(namespace, "foreign", spec)?;
    cluster::eventually("a condition that names every one of them", async || {
        let said = setup::condition(namespace, "foreign", "Ready")?;
        ensure!(said.reason == "ChildrenNotReady", "{said}");
        for object in &theirs {
            let kind = object["kind"].as_str().unwrap_or_default();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(
                said.message
                    .contains(&format!("{kind} {name} exists and does not belong to this instance")),
                "{kind} {name} is not in: {said}"
            );
        }
        Ok(())
    })
    .await?;
    ensure!(read()? == before, "an object of somebody else was changed");
    let bindings = kubectl::ok(&["-n", namespace, "get", "rolebinding", "-o", "name"])?;
    ensure!(
        !bindings.lines().any(|line| line.ends_with("/cli-mcp-foreign")),
        "a binding to a role of somebody else was made: {bindings}"
    );
    let sandboxes = kubectl::names(namespace, "pod", "cli-mcp.redhat.com/component=sandbox")?;
    ensure!(
        sandboxes.is_empty(),
        "a sandbox was made without its policy: {sandboxes:?}"
    );

    for object in &theirs {
        kubectl::ok(&["-n", namespace, "delete", &reference(object)])?;
    }
    instance::wait_ready(namespace, "foreign")?;
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
