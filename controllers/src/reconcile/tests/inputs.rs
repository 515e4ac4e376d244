//! What sandboxes are built from breaks or is gone: none is made, what there is stays, and what is too much goes.

use k8s_openapi::ByteString;

use super::*;

const KUBECONFIG: &str = "/api/v1/namespaces/ns/secrets/cli-mcp-demo-kubeconfig";

/// A settled instance whose pool is full; its pods are the older, the later they come by name.
async fn full_pool(size: usize) -> (FakeServer, Vec<String>) {
    let server = cluster(json!({"sandbox": {"warmPoolSize": size}}));
    proxy_answers(&server);
    settle(&server).await;
    let paths = pods(&server);
    assert_eq!(paths.len(), size);
    for (age, path) in paths.iter().enumerate() {
        let mut pod = server.get(path).unwrap();
        pod["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{}Z", size - age));
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        server.put(path, pod);
    }
    settle(&server).await;
    assert_eq!(condition(&server, "WarmPoolReady").1, "The warm pool is full");
    (server, paths)
}

fn resize(server: &FakeServer, size: usize) {
    let mut instance = server.get(INSTANCE).unwrap();
    instance["spec"]["sandbox"]["warmPoolSize"] = json!(size);
    server.put(INSTANCE, instance);
}

#[tokio::test]
async fn a_ca_that_breaks_leaves_the_pool_alone_and_is_told() {
    let another = crate::generate::ca("ns", "demo", time::OffsetDateTime::now_utc()).unwrap();
    for certificate in [another.certificate.as_bytes(), &b"\xff\xfe"[..]] {
        let (server, _) = full_pool(2).await;
        let before = server.objects();
        let path = format!("{NAMESPACE}/secrets/cli-mcp-demo-proxy-ca");
        let mut broken = server.get(&path).unwrap();
        broken["data"]["ca.crt"] = serde_json::to_value(ByteString(certificate.to_vec())).unwrap();
        server.put(&path, broken);
        settle(&server).await;
        let (reason, message) = condition(&server, "Ready");
        assert_eq!(reason, "SecretKeysInvalid");
        assert!(message.contains("Secret cli-mcp-demo-proxy-ca: ca."), "{message}");
        let mut after = server.objects();
        for objects in [&path, INSTANCE] {
            after.insert(objects.to_owned(), before[objects].clone());
        }
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn a_pool_that_is_too_large_shrinks_without_a_kubeconfig() {
    for (size, left) in [(0, 0..0), (1, 0..1)] {
        let (server, paths) = full_pool(2).await;
        server.remove(KUBECONFIG);
        resize(&server, size);
        settle(&server).await;
        assert_eq!(pods(&server), paths[left], "the older go first");
        assert_eq!(condition(&server, "Ready").0, "SecretsNotFound");
        assert_eq!(condition(&server, "WarmPoolReady").0, "Available");
    }
}

#[tokio::test]
async fn a_claim_that_the_cache_does_not_show_saves_a_sandbox_of_a_pool_that_shrinks() {
    let (server, paths) = full_pool(1).await;
    server.remove(KUBECONFIG);
    resize(&server, 0);
    let behind = context(&server);
    let mut claimed = server.get(&paths[0]).unwrap();
    claimed["metadata"]["labels"][labels::SESSION_ID] = json!("s");
    server.put(&paths[0], claimed);
    reconcile(instance(&server), behind).await.unwrap();
    assert_eq!(pods(&server), paths);
}

#[tokio::test]
async fn a_sandbox_that_ended_goes_without_a_kubeconfig_and_the_pool_says_why_none_comes() {
    let (server, paths) = full_pool(1).await;
    server.remove(KUBECONFIG);
    let mut ended = server.get(&paths[0]).unwrap();
    ended["status"] = json!({"phase": "Failed", "reason": "Evicted"});
    server.put(&paths[0], ended);
    // The second sees no pod any more.
    for _ in 0..2 {
        once(&server).await.unwrap();
        assert_eq!(pods(&server), [] as [&str; 0]);
        let (reason, message) = condition(&server, "WarmPoolReady");
        assert_eq!(reason, "WarmPoolUnhealthy");
        assert_eq!(
            message,
            "0 of 1 warm sandboxes are ready: none is made until what the condition Ready names is mended"
        );
    }
    assert_eq!(condition(&server, "Ready").0, "SecretsNotFound");
}
