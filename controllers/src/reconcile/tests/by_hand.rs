//! Whatever somebody does to the children by hand, whatever is refused and however old what a reconcile saw, they come to be
//! the same.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// What may happen to an instance and its children.
#[derive(Clone, Debug)]
enum Meddling {
    Remove(usize),
    Edit(usize),
    Unlabel(usize),
    /// A Service that has no cluster IP, and cannot get one, takes the place of one that has.
    Headless(usize),
    /// Another spec is reconciled.
    Respec(usize),
    /// A reconcile whose write with this number fails.
    Fail(usize),
    /// A reconcile of what was there before everything else happened.
    Stale,
    /// A Secret of the admin is away during a reconcile.
    Hide(usize),
}

const SERVICES: [&str; 2] = ["cli-mcp-demo", "cli-mcp-demo-proxy"];
const ADMINS: [&str; 2] = ["cli-mcp-demo-kubeconfig", "cli-mcp-demo-tls"];

fn specs() -> [Value; 4] {
    [
        json!({"replicas": 3}),
        json!({"proxy": {"replicas": 2, "targets": [{"type": "kubernetes", "access": "ReadOnly"}]}}),
        json!({"proxy": {"targets": [{"type": "allowlist", "domains": ["example.com"]}]}}),
        json!({"serverContainer": {"resources": {"limits": {"cpu": "1"}}}, "sandbox": {"env": [{"name": "A", "value": "b"}]}}),
    ]
}

fn meddling() -> impl Strategy<Value = Meddling> {
    prop_oneof![
        (0_usize..20).prop_map(Meddling::Remove),
        (0_usize..20).prop_map(Meddling::Edit),
        (0_usize..20).prop_map(Meddling::Unlabel),
        (0_usize..2).prop_map(Meddling::Headless),
        (0_usize..4).prop_map(Meddling::Respec),
        (1_usize..12).prop_map(Meddling::Fail),
        Just(Meddling::Stale),
        (0_usize..2).prop_map(Meddling::Hide),
    ]
}

/// What was read at some time.
type Seen = (Arc<CliMcpInstance>, Arc<Context>);

async fn meddle(server: &FakeServer, seen: &Seen, meddling: &Meddling) {
    let children = children(server);
    let pick = |index: &usize| (!children.is_empty()).then(|| children[index % children.len()].clone());
    match meddling {
        Meddling::Remove(index) => {
            pick(index).and_then(|path| server.remove(&path));
        }
        Meddling::Edit(index) => {
            if let Some(path) = pick(index) {
                let mut child = server.get(&path).unwrap();
                for (field, value) in [
                    ("spec", json!({"replicas": 9, "podSelector": {}, "ports": []})),
                    ("rules", json!([])),
                    ("subjects", json!([])),
                    ("data", json!({})),
                    ("automountServiceAccountToken", json!(null)),
                ] {
                    if child.get(field).is_some() {
                        child[field] = value;
                    }
                }
                let managed = child["metadata"]["managedFields"].as_array_mut().unwrap();
                managed.push(json!({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {}}}));
                server.put(&path, child);
            }
        }
        Meddling::Unlabel(index) => {
            if let Some(path) = pick(index) {
                let mut child = server.get(&path).unwrap();
                child["metadata"]["labels"] = json!({});
                server.put(&path, child);
            }
        }
        Meddling::Headless(index) => {
            let path = format!("{NAMESPACE}/services/{}", SERVICES[*index]);
            if let Some(mut service) = server.remove(&path) {
                service["metadata"].as_object_mut().unwrap().remove("uid");
                service["spec"]["clusterIP"] = json!("None");
                server.put(&path, service);
            }
        }
        // What these reconciles make of it is judged by where they lead.
        Meddling::Respec(index) => {
            let mut instance = server.get(INSTANCE).unwrap();
            for (field, value) in specs()[*index].as_object().unwrap() {
                instance["spec"][field] = value.clone();
            }
            server.put(INSTANCE, instance);
            let _ = once(server).await;
        }
        Meddling::Fail(number) => {
            server.fail_at(Some(*number));
            let _ = once(server).await;
            server.fail_at(None);
        }
        Meddling::Stale => {
            let (instance, context) = seen.clone();
            let _ = reconcile(instance, context).await;
        }
        Meddling::Hide(index) => {
            let path = format!("{NAMESPACE}/secrets/{}", ADMINS[*index]);
            let secret = server.remove(&path).unwrap();
            let _ = once(server).await;
            server.put(&path, secret);
        }
    }
}

/// One without labels is not in the caches, and is not put right before the spec asks for none.
#[tokio::test]
async fn a_budget_that_lost_its_labels_goes_with_the_replicas_that_it_was_for() {
    const BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/cli-mcp-demo-proxy";
    let server = cluster(json!({"proxy": {"replicas": 2, "targets": [{"type": "kubernetes"}]}}));
    settle(&server).await;
    let mut budget = server.get(BUDGET).unwrap();
    budget["metadata"]["labels"] = json!({});
    server.put(BUDGET, budget);
    let mut instance = server.get(INSTANCE).unwrap();
    instance["spec"]["proxy"]["replicas"] = json!(1);
    server.put(INSTANCE, instance);
    settle(&server).await;
    assert_eq!(server.get(BUDGET), None);
}

proptest! {
    #[test]
    fn whatever_happened_the_children_are_the_same_again(deeds in prop::collection::vec(meddling(), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = cluster(json!({}));
            settle(&server).await;
            let before = server.objects();
            let seen = (instance(&server), context(&server));
            for deed in &deeds {
                meddle(&server, &seen, deed).await;
            }
            let mut asked = server.get(INSTANCE).unwrap();
            asked["spec"] = before[INSTANCE]["spec"].clone();
            server.put(INSTANCE, asked);
            settle(&server).await;
            let (mut before, mut after) = (before, server.objects());
            // Pods that mount a token follow their ServiceAccount, which has another UID when it was made again.
            let account = server.get(&format!("{NAMESPACE}/serviceaccounts/cli-mcp-demo")).unwrap();
            let deployment = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo";
            let uid = |objects: &mut std::collections::BTreeMap<String, Value>| {
                objects.get_mut(deployment).unwrap()["spec"]["template"]["metadata"]["annotations"][labels::ACCOUNT_UID].take()
            };
            prop_assert_eq!(uid(&mut after), account["metadata"]["uid"].clone());
            uid(&mut before);
            prop_assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
            for (path, child) in before.iter().filter(|(path, _)| *path != INSTANCE) {
                prop_assert_eq!(Some(child), after.get(path), "{}", path);
            }
            Ok(())
        })?;
    }
}
