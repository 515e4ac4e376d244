//! Whole reconciles against an API server in memory: they converge from anywhere, write nothing when nothing differs,
//! and leave alone what is not theirs.

use serde_json::{Value, json};

use super::*;
use crate::controller::Scope;
use crate::fake::FakeServer;
use crate::metrics::Metrics;
use crate::validate::fixtures;

mod addresses;
mod behind;
mod by_hand;
mod escaped;
mod inputs;
mod labelled;
mod others;
mod refused;
mod rights_used;

const INSTANCE: &str = "/apis/cli-mcp.redhat.com/v1alpha1/namespaces/ns/climcpinstances/demo";
const NAMESPACE: &str = "/api/v1/namespaces/ns";

/// A cluster with an instance and the admin's Secrets.
fn cluster(spec: Value) -> FakeServer {
    let server = FakeServer::default();
    let mut instance = serde_json::to_value(fixtures::instance()).unwrap();
    for (field, value) in spec.as_object().unwrap() {
        instance["spec"][field] = value.clone();
    }
    server.put(INSTANCE, instance);
    let observed = fixtures::observed();
    for (name, content) in [
        ("cli-mcp-demo-kubeconfig", observed.kubeconfig),
        ("cli-mcp-demo-tls", observed.tls),
    ] {
        let data = content
            .unwrap()
            .data
            .into_iter()
            .map(|(key, value)| (key, k8s_openapi::ByteString(value)));
        let data: std::collections::BTreeMap<_, _> = data.collect();
        server.put(
            &format!("{NAMESPACE}/secrets/{name}"),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ns"}, "data": data}),
        );
    }
    server
}

/// The owner reference of a Deployment's pod.
fn replica_set(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "uid-rs", "controller": true})
}

/// The proxy's Service has a ready address.
fn proxy_answers(server: &FakeServer) {
    server.put(
        "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/proxy-1",
        json!({"metadata": {"name": "proxy-1", "namespace": "ns",
            "labels": {"kubernetes.io/service-name": "cli-mcp-demo-proxy"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": true}}]}),
    );
}

/// A context whose caches show what is there now, and nothing later.
fn context(server: &FakeServer) -> Arc<Context> {
    let caches = Arc::new(server.caches());
    let scope = Scope::Namespace("ns".into());
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    Arc::new(Context::new(
        server.client(),
        fixtures::settings(),
        vec![(scope, caches)],
        metrics,
        None,
    ))
}

fn instance(server: &FakeServer) -> Arc<CliMcpInstance> {
    Arc::new(serde_json::from_value(server.get(INSTANCE).unwrap()).unwrap())
}

/// One reconcile, as it is when the caches have caught up. A context of its own each time: nothing is remembered.
async fn once(server: &FakeServer) -> Result<Action> {
    reconcile(instance(server), context(server)).await
}

/// Paths of the pods.
fn pods(server: &FakeServer) -> Vec<String> {
    let paths = server.objects().into_keys();
    paths
        .filter(|path| path.starts_with("/api/v1/namespaces/ns/pods/"))
        .collect()
}

/// Paths of the namespaced children.
fn children(server: &FakeServer) -> Vec<String> {
    let is_child = |path: &String| {
        crate::build::ChildKind::ALL
            .iter()
            .any(|kind| path.contains(&format!("/namespaces/ns/{}/", kind.api_resource().plural)))
    };
    server.objects().into_keys().filter(is_child).collect()
}

/// A pod of the proxy.
fn proxy_pod(server: &FakeServer) -> String {
    let path = format!("{NAMESPACE}/pods/cli-mcp-demo-proxy-hash-1");
    let mut of_proxy = labels::selector("demo", labels::Component::Proxy);
    of_proxy.insert("pod-template-hash".to_owned(), "hash".to_owned());
    server.put(
        &path,
        json!({"metadata": {"name": "cli-mcp-demo-proxy-hash-1", "namespace": "ns", "labels": of_proxy,
            "ownerReferences": [replica_set("cli-mcp-demo-proxy-hash")]}}),
    );
    path
}

/// Makes a sandbox that of a session which has been idle for long.
fn idle(server: &FakeServer, path: &str) {
    let mut idle = server.get(path).unwrap();
    idle["metadata"]["labels"][labels::SESSION_ID] = json!("s");
    idle["metadata"]["annotations"][labels::CREATED_AT] = json!("2026-01-01T00:00:00Z");
    idle["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(path, idle);
}

/// Asks for the deletion of the instance.
fn delete(server: &FakeServer) {
    let mut instance = server.get(INSTANCE).unwrap();
    instance["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.put(INSTANCE, instance);
}

/// Reconciles until one writes nothing.
async fn settle(server: &FakeServer) {
    for _ in 0..12 {
        server.take_writes();
        let done = once(server).await.is_ok();
        if done && server.take_writes().is_empty() {
            return;
        }
    }
    panic!("it does not settle: {:?}", server.take_writes());
}

fn condition(server: &FakeServer, type_: &str) -> (String, String) {
    let conditions = server.get(INSTANCE).unwrap()["status"]["conditions"].clone();
    let found = conditions
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == type_)
        .unwrap();
    (
        found["reason"].as_str().unwrap().to_owned(),
        found["message"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn pauses_double_up_to_a_bound() {
    let pauses: Vec<u64> = (1..=8).map(|failures| pause_after(failures).as_secs()).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 120, 120]);
    assert_eq!(pause_after(u32::MAX).as_secs(), 120);
}

#[tokio::test]
async fn it_settles_with_every_child_and_then_writes_nothing() {
    let server = cluster(json!({}));
    settle(&server).await;
    for path in [
        "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo",
        "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo-proxy",
        "/api/v1/namespaces/ns/configmaps/cli-mcp-demo-proxy",
        "/api/v1/namespaces/ns/secrets/cli-mcp-demo-hmac",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cli-mcp-auth-delegator",
    ] {
        assert!(server.get(path).is_some(), "{path}");
    }
    once(&server).await.unwrap();
    assert_eq!(server.take_writes(), [] as [&str; 0]);
}

#[tokio::test]
async fn it_converges_when_any_one_write_fails() {
    let reference = cluster(json!({"sandbox": {"warmPoolSize": 0}}));
    settle(&reference).await;
    let without_generated = |server: &FakeServer| {
        let mut objects = server.objects();
        // These hold what was generated, and what was computed from it.
        for path in [
            "secrets/cli-mcp-demo-proxy-ca",
            "secrets/cli-mcp-demo-hmac",
            "configmaps/cli-mcp-demo-proxy",
        ] {
            assert!(objects.remove(&format!("{NAMESPACE}/{path}")).is_some());
        }
        let server = objects
            .get_mut("/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo")
            .unwrap();
        server["spec"]["template"]["metadata"]["annotations"] = Value::Null;
        server["metadata"]["annotations"] = Value::Null;
        let status = &mut objects.get_mut(INSTANCE).unwrap()["status"]["conditions"];
        status
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|condition| condition["lastTransitionTime"] = Value::Null);
        objects
    };
    let expected = without_generated(&reference);
    for step in 1..40 {
        let server = cluster(json!({"sandbox": {"warmPoolSize": 0}}));
        server.fail_at(Some(step));
        // The write fails in one of these; a failed reconcile is repeated.
        for _ in 0..3 {
            let _ = once(&server).await;
        }
        server.fail_at(None);
        settle(&server).await;
        assert_eq!(without_generated(&server), expected, "after a failure of write {step}");
    }
}

#[tokio::test]
async fn a_service_account_that_is_made_again_gets_pods_with_a_token_of_its_own() {
    let server = cluster(json!({}));
    settle(&server).await;
    let account = format!("{NAMESPACE}/serviceaccounts/cli-mcp-demo");
    let uids = |server: &FakeServer| {
        let deployment = server
            .get("/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo")
            .unwrap();
        (
            server.get(&account).unwrap()["metadata"]["uid"].clone(),
            deployment["spec"]["template"]["metadata"]["annotations"][labels::ACCOUNT_UID].clone(),
        )
    };
    let (before, rolled_for) = uids(&server);
    assert_eq!(before, rolled_for);
    server.remove(&account);
    settle(&server).await;
    let (after, rolled_for) = uids(&server);
    assert_ne!(before, after);
    assert_eq!(after, rolled_for);
}

#[tokio::test]
async fn a_field_that_is_no_longer_asked_for_goes() {
    let server = cluster(json!({"serverContainer": {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}}));
    settle(&server).await;
    let mut instance = server.get(INSTANCE).unwrap();
    instance["spec"]["serverContainer"] = json!({"resources": {"limits": {"cpu": "1"}}});
    server.put(INSTANCE, instance);
    server.take_writes();
    once(&server).await.unwrap();
    let path = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo";
    assert_eq!(server.take_writes()[0], format!("PATCH {path}"));
    let container = server.get(path).unwrap()["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!(container["resources"]["limits"], json!({"cpu": "1"}));
}

#[tokio::test]
async fn secrets_are_generated_once_and_an_admins_is_never_touched() {
    let server = cluster(json!({}));
    settle(&server).await;
    let secrets = |server: &FakeServer| -> Vec<Value> {
        server
            .objects()
            .into_iter()
            .filter(|(path, _)| path.contains("/secrets/"))
            .map(|(_, secret)| secret)
            .collect()
    };
    let before = secrets(&server);
    // Whatever else changes.
    server
        .remove("/api/v1/namespaces/ns/configmaps/cli-mcp-demo-proxy")
        .unwrap();
    settle(&server).await;
    assert_eq!(secrets(&server), before);
    // An empty key is the admin's to mend: overwriting it would end every session.
    let path = "/api/v1/namespaces/ns/secrets/cli-mcp-demo-hmac";
    let mut broken = server.get(path).unwrap();
    broken["data"]["key"] = json!("");
    server.put(path, broken);
    settle(&server).await;
    assert_eq!(server.get(path).unwrap()["data"]["key"], "");
    assert_eq!(condition(&server, "Ready").0, "SecretKeysInvalid");
}

#[tokio::test]
async fn the_pool_is_filled_once_the_gate_is_open_and_a_claim_is_refilled() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    settle(&server).await;
    assert_eq!(pods(&server).len(), 0, "the proxy does not answer yet");
    proxy_answers(&server);
    settle(&server).await;
    let first = pods(&server);
    assert_eq!(first.len(), 2);
    let mut claimed = server.get(&first[0]).unwrap();
    claimed["metadata"]["labels"][labels::SESSION_ID] = json!("s1");
    claimed["metadata"]["annotations"][labels::LAST_ACTIVITY] = json!(Timestamp::now().to_string());
    server.put(&first[0], claimed);
    settle(&server).await;
    assert_eq!(pods(&server).len(), 3);
    assert_eq!(server.get(INSTANCE).unwrap()["status"]["sessions"], 1);
}

#[tokio::test]
async fn a_kubeconfig_that_breaks_leaves_the_pool_alone() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    proxy_answers(&server);
    settle(&server).await;
    let before = server.objects();
    let secret = format!("{NAMESPACE}/secrets/cli-mcp-demo-kubeconfig");
    let mut broken = server.get(&secret).unwrap();
    broken["data"]["kubeconfig"] = serde_json::to_value(k8s_openapi::ByteString(b"no kubeconfig".to_vec())).unwrap();
    server.put(&secret, broken);
    settle(&server).await;
    assert_eq!(condition(&server, "Ready").0, "KubeconfigInvalid");
    let after = server.objects();
    for path in before
        .keys()
        .filter(|path| path.contains("/pods/") || path.contains("/configmaps/"))
    {
        assert_eq!(before[path], after[path], "{path}");
    }
}

#[tokio::test]
async fn the_next_look_is_when_a_session_is_over_and_late_when_nothing_is_due() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1, "idleTimeout": "5m"}}));
    proxy_answers(&server);
    settle(&server).await;
    let path = pods(&server).remove(0);
    let mut claimed = server.get(&path).unwrap();
    claimed["metadata"]["labels"][labels::SESSION_ID] = json!("s1");
    claimed["metadata"]["annotations"][labels::LAST_ACTIVITY] = json!(Timestamp::now().to_string());
    server.put(&path, claimed);
    let mut instance = server.get(INSTANCE).unwrap();
    instance["spec"]["sandbox"]["warmPoolSize"] = json!(0);
    server.put(INSTANCE, instance);
    settle(&server).await;
    assert_ne!(once(&server).await.unwrap(), Action::requeue(RESYNC));
    server.remove(&path).unwrap();
    settle(&server).await;
    assert_eq!(once(&server).await.unwrap(), Action::requeue(RESYNC));
}

#[tokio::test]
async fn a_claim_that_the_cache_does_not_show_saves_the_sandbox() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    proxy_answers(&server);
    settle(&server).await;
    let path = server
        .objects()
        .into_keys()
        .find(|path| path.starts_with("/api/v1/namespaces/ns/pods/"))
        .unwrap();
    let pod: Pod = serde_json::from_value(server.get(&path).unwrap()).unwrap();
    let seen = Sandbox::of(&pod);
    let mut claimed = server.get(&path).unwrap();
    claimed["metadata"]["labels"][labels::SESSION_ID] = json!("s1");
    server.put(&path, claimed);
    let deleted = sandboxes::delete_if(&server.client(), "ns", &seen, |fresh| fresh.session.is_none())
        .await
        .unwrap();
    assert!(!deleted && server.get(&path).is_some());
}

#[tokio::test]
async fn an_instance_goes_after_its_server_its_sandboxes_and_its_proxy() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    proxy_answers(&server);
    settle(&server).await;
    let pod = format!("{NAMESPACE}/pods/cli-mcp-demo-server");
    let mut of_server = labels::selector("demo", labels::Component::Server);
    of_server.insert("pod-template-hash".to_owned(), "hash".to_owned());
    server.put(
        &pod,
        json!({"metadata": {"name": "cli-mcp-demo-server", "namespace": "ns", "labels": of_server,
            "ownerReferences": [replica_set("cli-mcp-demo-hash")]}}),
    );
    let proxy_pod = proxy_pod(&server);
    delete(&server);
    let sandboxes = |server: &FakeServer| {
        server
            .objects()
            .into_keys()
            .filter(|path| path.starts_with(&format!("{NAMESPACE}/pods/")) && *path != pod && *path != proxy_pod)
            .count()
    };
    let deployment = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo";
    once(&server).await.unwrap();
    assert_eq!(server.get(deployment).unwrap()["spec"]["replicas"], 0);
    let (reason, message) = condition(&server, "Ready");
    assert!(
        reason == "Reconciling" && message.contains("the pods of its server"),
        "{message}"
    );
    once(&server).await.unwrap();
    assert_eq!(sandboxes(&server), 2, "its server might still create one");
    server.remove(&pod).unwrap();
    once(&server).await.unwrap();
    assert_eq!(sandboxes(&server), 0);
    let proxy = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo-proxy";
    assert_ne!(
        server.get(proxy).unwrap()["spec"]["replicas"],
        0,
        "a sandbox may use it to its end"
    );
    once(&server).await.unwrap();
    assert_eq!(server.get(proxy).unwrap()["spec"]["replicas"], 0);
    once(&server).await.unwrap();
    assert!(
        server.get(INSTANCE).is_some(),
        "a proxy without its policy serves everybody"
    );
    let (_, message) = condition(&server, "Ready");
    assert!(message.contains("cli-mcp-demo-proxy-hash-1"), "{message}");
    server.remove(&proxy_pod).unwrap();
    once(&server).await.unwrap();
    assert!(server.get(INSTANCE).is_none());
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cli-mcp-auth-delegator";
    assert_eq!(server.get(binding).unwrap()["subjects"], json!([]));
}
