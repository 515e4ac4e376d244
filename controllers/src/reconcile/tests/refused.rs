//! A webhook refuses one write: the others are made, the status tells, and the reconcile is tried again.

use super::*;

/// The instance does not call itself ready, and says what was refused.
fn tells(server: &FakeServer, what: &str) {
    let (reason, message) = condition(server, "Ready");
    assert_eq!(reason, "ChildrenNotReady");
    assert!(message.contains(what) && message.contains("webhook"), "{message}");
}

#[tokio::test]
async fn a_stamp_that_is_refused_holds_up_nothing_else() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    settle(&server).await;
    proxy_answers(&server);
    let path = format!("{NAMESPACE}/pods/cli-mcp-demo-proxy-hash-1");
    let mut of_proxy = labels::selector("demo", labels::Component::Proxy);
    of_proxy.insert("pod-template-hash".to_owned(), "hash".to_owned());
    server.put(
        &path,
        json!({"metadata": {"name": "cli-mcp-demo-proxy-hash-1", "namespace": "ns", "labels": of_proxy,
            "ownerReferences": [replica_set("cli-mcp-demo-proxy-hash")]}}),
    );
    server.refuse(&format!("PATCH {path}"));
    once(&server).await.unwrap_err();
    assert_eq!(pods(&server).len(), 3, "the pool is filled beside it");
    tells(&server, "failed to stamp pod cli-mcp-demo-proxy-hash-1");
}

#[tokio::test]
async fn a_session_whose_end_is_refused_holds_up_no_other() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    proxy_answers(&server);
    settle(&server).await;
    let pods = pods(&server);
    for path in &pods {
        let mut idle = server.get(path).unwrap();
        idle["metadata"]["labels"][labels::SESSION_ID] = json!("s");
        idle["metadata"]["annotations"][labels::CREATED_AT] = json!("2026-01-01T00:00:00Z");
        idle["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(path, idle);
    }
    server.refuse(&format!("DELETE {}", pods[0]));
    once(&server).await.unwrap_err();
    assert!(server.get(&pods[0]).is_some() && server.get(&pods[1]).is_none());
    tells(&server, pods[0].rsplit('/').next().unwrap());
}
