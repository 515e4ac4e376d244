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
    delete(&server);
    for _ in 0..2 {
        once(&server).await.unwrap();
    }
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
    delete(&server);
    for _ in 0..3 {
        once(&server).await.unwrap();
    }
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

#[tokio::test]
async fn a_foreign_object_is_reported_and_left_alone() {
    let spec = json!({"proxy": {"replicas": 2, "targets": [{"type": "kubernetes"}]}});
    let whole = cluster(spec.clone());
    settle(&whole).await;
    let children = children(&whole);
    assert_eq!(children.len(), 16, "{children:?}");
    for path in &children {
        let server = cluster(spec.clone());
        let (kind, name) = (
            whole.get(path).unwrap()["kind"].clone(),
            path.rsplit('/').next().unwrap(),
        );
        server.put(
            path,
            json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"theirs": true}}),
        );
        let before = server.get(path);
        settle(&server).await;
        assert_eq!(server.get(path), before, "{path}");
        let (reason, message) = condition(&server, "Ready");
        assert_eq!(reason, "ChildrenNotReady");
        let told = format!(
            "{} {name} exists and does not belong to this instance",
            kind.as_str().unwrap()
        );
        assert!(message.contains(&told), "{message}");
    }
}

#[tokio::test]
async fn nothing_is_granted_to_or_through_what_others_wrote() {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";
    for (theirs, withheld) in [
        (format!("{rbac}/roles/cli-mcp-demo"), &["rolebindings/cli-mcp-demo"][..]),
        (
            "/api/v1/namespaces/ns/serviceaccounts/cli-mcp-demo".to_owned(),
            &["rolebindings/cli-mcp-demo", "deployments/cli-mcp-demo"],
        ),
        (
            "/api/v1/namespaces/ns/configmaps/cli-mcp-demo-proxy".to_owned(),
            &["deployments/cli-mcp-demo-proxy"],
        ),
    ] {
        let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
        let name = theirs.rsplit('/').next().unwrap();
        server.put(&theirs, json!({"metadata": {"name": name, "namespace": "ns"}}));
        proxy_answers(&server);
        settle(&server).await;
        let objects = server.objects();
        let made = |suffix: &str| objects.keys().any(|path| path.ends_with(suffix));
        for child in withheld {
            assert!(!made(child), "{theirs}: {child}");
        }
        assert!(
            !objects.keys().any(|path| path.contains("/pods/")),
            "{theirs}: a sandbox was made"
        );
        // The rest stands.
        assert!(made("rolebindings/cli-mcp-demo-client") && made("networkpolicies/cli-mcp-demo-sandbox"));
    }
}

#[tokio::test]
async fn a_key_of_an_earlier_instance_is_not_used() {
    let server = cluster(json!({}));
    let path = "/api/v1/namespaces/ns/secrets/cli-mcp-demo-hmac";
    let earlier = json!([{"apiVersion": "cli-mcp.redhat.com/v1alpha1", "kind": "CliMcpInstance", "name": "demo",
        "uid": "earlier", "controller": true}]);
    server.put(
        path,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cli-mcp-demo-hmac", "namespace": "ns",
            "ownerReferences": earlier}, "data": {"key": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}}),
    );
    settle(&server).await;
    let (reason, message) = condition(&server, "Ready");
    assert!(
        reason == "ChildrenNotReady" && message.contains("cli-mcp-demo-hmac"),
        "{reason}: {message}"
    );
    assert!(
        server
            .get("/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo")
            .is_none()
    );
    // Collected by owner reference.
    server.remove(path);
    settle(&server).await;
    assert!(
        server
            .get("/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo")
            .is_some()
    );
}

#[tokio::test]
async fn a_foreign_binding_is_never_overwritten() {
    let server = cluster(json!({}));
    server.put(
        BINDING,
        json!({"metadata": {"name": "cli-mcp-auth-delegator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}}),
    );
    let before = server.get(BINDING);
    settle(&server).await;
    assert_eq!(server.get(BINDING), before);
    assert!(condition(&server, "Ready").1.contains("cli-mcp-auth-delegator"));
}
