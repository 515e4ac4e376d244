//! Pods of others that carry the labels, and what Kubernetes tells of our own.

use super::*;

pub(super) fn labelled(server: &FakeServer, name: &str, component: labels::Component, more: &[(&str, &str)]) -> String {
    let path = format!("{NAMESPACE}/pods/{name}");
    let mut all = labels::selector("demo", component);
    all.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    server.put(
        &path,
        json!({"metadata": {"name": name, "namespace": "ns", "labels": all,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Failed", "reason": "Evicted", "message": "not of this instance"}}),
    );
    path
}

#[tokio::test]
async fn pods_with_the_labels_and_another_owner_are_left_alone() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    proxy_answers(&server);
    settle(&server).await;
    let theirs = [
        labelled(&server, "unassigned", labels::Component::Sandbox, &[]),
        labelled(
            &server,
            "idle",
            labels::Component::Sandbox,
            &[(labels::SESSION_ID, "s")],
        ),
        labelled(&server, "proxy", labels::Component::Proxy, &[]),
        labelled(
            &server,
            "server",
            labels::Component::Server,
            &[("pod-template-hash", "hash")],
        ),
    ];
    let before: Vec<_> = theirs.iter().map(|path| server.get(path)).collect();
    // The proxy runs, so that the status tells of the server.
    let proxy = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo-proxy";
    let mut running = server.get(proxy).unwrap();
    running["status"] = json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1});
    server.put(proxy, running);
    settle(&server).await;
    assert_eq!(pods(&server).len(), 5, "the pool has its own");
    assert_eq!(server.get(INSTANCE).unwrap()["status"]["sessions"], 0);
    let (_, message) = condition(&server, "Ready");
    assert_eq!(message, "Deployment cli-mcp-demo: 0 of 1 pods are available");
    delete(&server);
    for _ in 0..4 {
        once(&server).await.unwrap();
    }
    assert!(server.get(INSTANCE).is_none(), "they do not hold it");
    assert_eq!(theirs.iter().map(|path| server.get(path)).collect::<Vec<_>>(), before);
}

#[tokio::test]
async fn a_warm_sandbox_that_hangs_is_told_in_the_words_of_its_events() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    proxy_answers(&server);
    settle(&server).await;
    let path = pods(&server).remove(0);
    let mut hanging = server.get(&path).unwrap();
    hanging["status"] = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{"name": "sandbox", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    server.put(&path, hanging.clone());
    for (name, uid, type_) in [("a", "another", "Warning"), ("b", "", "Warning"), ("c", "", "Normal")] {
        let uid = if uid.is_empty() {
            hanging["metadata"]["uid"].clone()
        } else {
            json!(uid)
        };
        server.put(
            &format!("{NAMESPACE}/events/{name}"),
            json!({"metadata": {"name": name, "namespace": "ns"}, "involvedObject": {"uid": uid}, "type": type_,
                "reason": format!("Failed{name}"), "message": "no runtime for \"kata\" is configured"}),
        );
    }
    once(&server).await.unwrap();
    let (reason, message) = condition(&server, "WarmPoolReady");
    assert_eq!(reason, "WarmPoolUnhealthy");
    assert!(
        message.ends_with("Failedb: no runtime for \"kata\" is configured"),
        "{message}"
    );
    assert!(server.get(&path).is_none(), "another is tried in its place");
}
