//! Whatever somebody does to the children by hand, they are repaired.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// What somebody may do to the children by hand.
#[derive(Clone, Debug)]
enum Meddling {
    Remove(usize),
    Edit(usize),
    Unlabel(usize),
    Resize(i32),
}

fn meddling() -> impl Strategy<Value = Meddling> {
    prop_oneof![
        (0_usize..20).prop_map(Meddling::Remove),
        (0_usize..20).prop_map(Meddling::Edit),
        (0_usize..20).prop_map(Meddling::Unlabel),
        (1_i32..4).prop_map(Meddling::Resize),
    ]
}

fn meddle(server: &FakeServer, meddling: &Meddling) {
    let children: Vec<String> = server
        .objects()
        .into_keys()
        .filter(|path| {
            path.contains("/namespaces/ns/") && !path.contains("/secrets/") && !path.contains("climcpinstances")
        })
        .collect();
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
        Meddling::Resize(replicas) => {
            let mut instance = server.get(INSTANCE).unwrap();
            instance["spec"]["replicas"] = json!(replicas);
            server.put(INSTANCE, instance);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_done_by_hand_the_children_are_the_same_again(deeds in prop::collection::vec(meddling(), 1..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = cluster(json!({}));
            settle(&server).await;
            let before = server.objects();
            for deed in &deeds {
                meddle(&server, deed);
                if matches!(deed, Meddling::Resize(_)) {
                    let _ = once(&server).await;
                }
            }
            let mut instance = server.get(INSTANCE).unwrap();
            instance["spec"]["replicas"] = json!(1);
            server.put(INSTANCE, instance);
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
            for (path, child) in before.iter().filter(|(path, _)| *path != INSTANCE) {
                prop_assert_eq!(Some(child), after.get(path), "{}", path);
            }
            Ok(())
        })?;
    }
}
