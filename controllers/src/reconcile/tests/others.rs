//! What others have made under our names, before a reconcile or while it runs, is neither granted anything nor touched.

use serde_json::{Value, json};

use super::*;

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cli-mcp-auth-delegator";

fn bound(server: &FakeServer) -> Vec<String> {
    let subjects = server.get(BINDING).unwrap()["subjects"].clone();
    let names = subjects.as_array().unwrap().iter();
    names
        .map(|subject| subject["name"].as_str().unwrap().to_owned())
        .collect()
}

fn binding(accounts: &[&str]) -> Value {
    let subject = |name: &&str| json!({"kind": "ServiceAccount", "name": name, "namespace": "ns"});
    json!({"metadata": {"name": "cli-mcp-auth-delegator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names::AUTH_DELEGATOR_ROLE},
        "subjects": accounts.iter().map(subject).collect::<Vec<_>>()})
}

#[tokio::test]
async fn a_new_instance_has_its_server_bound_with_its_first_children() {
    let server = cluster(json!({}));
    once(&server).await.unwrap();
    assert!(finalize::is_held(
        &serde_json::from_value(server.get(INSTANCE).unwrap()).unwrap()
    ));
    once(&server).await.unwrap();
    assert_eq!(bound(&server), ["cli-mcp-demo"]);
}

#[tokio::test]
async fn the_account_of_a_proxy_is_not_bound_for_the_instance_whose_server_it_is_named_for() {
    let server = cluster(json!({}));
    let mut beside = server.get(INSTANCE).unwrap();
    beside["metadata"]["name"] = json!("demo-proxy");
    beside["metadata"]["uid"] = json!("uid-beside");
    server.put(&format!("{INSTANCE}-proxy"), beside);
    // As a former version left it.
    server.put(BINDING, binding(&["cli-mcp-demo-proxy"]));
    settle(&server).await;
    assert_eq!(bound(&server), ["cli-mcp-demo"]);
}

#[tokio::test]
async fn an_account_that_an_admin_made_is_not_bound() {
    let server = cluster(json!({}));
    server.put(
        &format!("{NAMESPACE}/serviceaccounts/cli-mcp-demo"),
        json!({"metadata": {"name": "cli-mcp-demo", "namespace": "ns"}}),
    );
    server.put(BINDING, binding(&["cli-mcp-demo"]));
    settle(&server).await;
    assert_eq!(bound(&server), [] as [&str; 0]);
}

#[tokio::test]
async fn an_instance_stays_until_its_server_is_bound_no_more() {
    let server = cluster(json!({}));
    settle(&server).await;
    let mut instance = server.get(INSTANCE).unwrap();
    instance["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(INSTANCE, instance);
    once(&server).await.unwrap();
    server.fail_at(Some(1));
    let failed = once(&server).await.unwrap_err().to_string();
    assert!(failed.contains("ClusterRoleBinding"), "{failed}");
    assert!(server.get(INSTANCE).is_some());
    assert_eq!(bound(&server), ["cli-mcp-demo"]);
    server.fail_at(None);
    once(&server).await.unwrap();
    assert!(server.get(INSTANCE).is_none());
    assert_eq!(bound(&server), [] as [&str; 0]);
}

#[tokio::test]
async fn a_foreign_binding_does_not_hold_an_instance_that_is_deleted() {
    let server = cluster(json!({}));
    settle(&server).await;
    let mut theirs = binding(&[]);
    theirs["roleRef"]["name"] = json!("cluster-admin");
    server.put(BINDING, theirs);
    let mut instance = server.get(INSTANCE).unwrap();
    instance["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(INSTANCE, instance);
    once(&server).await.unwrap();
    once(&server).await.unwrap();
    assert!(server.get(INSTANCE).is_none());
    assert_eq!(server.get(BINDING).unwrap()["roleRef"]["name"], "cluster-admin");
}

#[tokio::test]
async fn what_somebody_makes_between_the_look_and_the_write_is_not_taken_over() {
    let server = cluster(json!({}));
    let path = format!("{NAMESPACE}/serviceaccounts/cli-mcp-demo-client");
    server.put(
        &path,
        json!({"metadata": {"name": "cli-mcp-demo-client", "namespace": "ns"}}),
    );
    let before = server.get(&path);
    server.hide(Some(&path));
    for _ in 0..3 {
        once(&server).await.unwrap();
    }
    assert_eq!(server.get(&path), before);
    let (_, message) = condition(&server, "Ready");
    assert!(message.contains("meanwhile"), "{message}");
    let grant = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/rolebindings/cli-mcp-demo-client";
    assert!(server.get(grant).is_none());
    server.hide(None);
    settle(&server).await;
    assert_eq!(server.get(&path), before);
    let (_, message) = condition(&server, "Ready");
    assert!(message.contains("does not belong"), "{message}");
}

#[tokio::test]
async fn what_took_the_name_of_a_child_that_must_be_made_again_is_not_deleted() {
    let server = cluster(json!({}));
    settle(&server).await;
    let path = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo";
    let mut changed = server.get(path).unwrap();
    changed["spec"]["replicas"] = json!(9);
    server.put(path, changed);
    server.make_again_at_apply(path);
    once(&server).await.unwrap();
    assert_eq!(server.get(path).unwrap()["metadata"]["uid"], "another");
}
