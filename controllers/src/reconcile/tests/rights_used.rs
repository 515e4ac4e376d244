//! The operator has no right that it does not use: everything that it does in a reconcile, done once, asks for all of its
//! rights but those that are listed here with what needs them.

use serde_json::json;

use super::*;
use crate::rights::tests::granted;

/// Resources that `Caches::start` lists and watches.
const WATCHED: [&str; 13] = [
    "climcpinstances",
    "clusterrolebindings",
    "configmaps",
    "deployments",
    "endpointslices",
    "networkpolicies",
    "poddisruptionbudgets",
    "pods",
    "rolebindings",
    "roles",
    "secrets",
    "serviceaccounts",
    "services",
];

/// What else no reconcile against this API server asks for: resource, verbs, and what does.
const ELSEWHERE: [(&str, &[&str], &str); 7] = [
    ("climcpinstances/finalizers", &["update"], "who sets blockOwnerDeletion"),
    (
        "climcpinstances/mcp",
        &["get", "create", "delete"],
        "the role of clients",
    ),
    ("endpointslices", &["get"], "the role of servers"),
    (
        "serviceaccounts",
        &["update"],
        "apply_child, when somebody added an owner",
    ),
    ("tokenreviews", &["create"], "the metrics, and system:auth-delegator"),
    (
        "subjectaccessreviews",
        &["create"],
        "the metrics, and system:auth-delegator",
    ),
    ("events", &["patch"], "kube's Recorder, when an event comes again"),
];

/// Somebody sets a field of a child.
fn touch(server: &FakeServer, path: &str) {
    let mut child = server.get(path).unwrap();
    child["metadata"]["annotations"][labels::APPLIED_HASH] = json!("another");
    let entries = child["metadata"]["managedFields"].as_array_mut().unwrap();
    entries.push(json!({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:data": {}}}));
    server.put(path, child);
}

#[tokio::test]
async fn every_right_is_used() {
    let server =
        cluster(json!({"sandbox": {"warmPoolSize": 1}, "proxy": {"replicas": 2, "targets": [{"type": "kubernetes"}]}}));
    proxy_answers(&server);
    let proxy = proxy_pod(&server);
    settle(&server).await;
    // Changed by others, and not to be changed back.
    for path in &children(&server) {
        touch(&server, path);
        server.make_again_at_apply(path);
        once(&server).await.unwrap();
        server.remove(path);
        settle(&server).await;
        touch(&server, path);
        settle(&server).await;
    }
    // One proxy needs no budget, and no pool no sandbox.
    let mut instance = server.get(INSTANCE).unwrap();
    instance["spec"]["proxy"]["replicas"] = json!(1);
    instance["spec"]["sandbox"]["warmPoolSize"] = json!(0);
    server.put(INSTANCE, instance);
    settle(&server).await;
    delete(&server);
    for _step in ["the server is scaled down", "the proxy is scaled down"] {
        once(&server).await.unwrap();
    }
    server.remove(&proxy);
    once(&server).await.unwrap();
    assert!(server.get(INSTANCE).is_none());

    let asked = server.asked();
    for right in granted() {
        let (resource, verb) = (right.resource.as_str(), right.verb.as_str());
        let watched = ["list", "watch"].contains(&verb) && WATCHED.contains(&resource);
        let elsewhere = ELSEWHERE
            .iter()
            .any(|(listed, verbs, _)| *listed == resource && verbs.contains(&verb));
        assert!(
            asked.contains(&right) || watched || elsewhere,
            "nothing needs {right:?}"
        );
        assert!(
            !(asked.contains(&right) && elsewhere),
            "a reconcile needs {right:?}: strike it from the list"
        );
    }
}
