//! One request is refused: the others are made, the status tells, and the reconcile is tried again.

use http::StatusCode;

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
    let path = proxy_pod(&server);
    server.refuse(&format!("PATCH {path}"));
    once(&server).await.unwrap_err();
    assert_eq!(pods(&server).len(), 3, "the pool is filled beside it");
    tells(&server, "failed to stamp pod cli-mcp-demo-proxy-hash-1");
}

#[tokio::test]
async fn a_refused_sandbox_is_tried_once_a_pause_and_the_whole_pool_at_once_with_another_spec() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 50}}));
    proxy_answers(&server);
    server.refuse(&format!("POST {NAMESPACE}/pods"));
    for _ in 0..12 {
        once(&server).await.unwrap();
    }
    let context = context(&server);
    server.take_writes();
    for _ in 0..2 {
        reconcile(instance(&server), context.clone()).await.unwrap();
    }
    let tried = server.take_writes();
    assert_eq!(
        tried
            .iter()
            .filter(|write| write.starts_with("POST") && write.ends_with("/pods"))
            .count(),
        1
    );
    assert_eq!(condition(&server, "WarmPoolReady").0, "WarmPoolUnhealthy");

    server.refuse("nothing");
    let mut mended = server.get(INSTANCE).unwrap();
    mended["spec"]["sandbox"]["image"] = json!("localhost/mended:1");
    server.put(INSTANCE, mended);
    reconcile(instance(&server), context).await.unwrap();
    assert_eq!(pods(&server).len(), 50);
    assert_eq!(condition(&server, "WarmPoolReady").0, "WarmPoolNotReady");
}

#[tokio::test]
async fn a_session_whose_end_is_refused_holds_up_no_other() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    proxy_answers(&server);
    settle(&server).await;
    let pods = pods(&server);
    for path in &pods {
        idle(&server, path);
    }
    server.refuse(&format!("DELETE {}", pods[0]));
    once(&server).await.unwrap_err();
    assert!(server.get(&pods[0]).is_some() && server.get(&pods[1]).is_none());
    tells(&server, pods[0].rsplit('/').next().unwrap());
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_told_and_what_needs_it_stays() {
    let secrets = ["kubeconfig", "tls", "proxy-ca", "hmac"].map(|key| format!("cli-mcp-demo-{key}"));
    let answers = [
        (StatusCode::FORBIDDEN, "install its roles again"),
        (StatusCode::INTERNAL_SERVER_ERROR, "whether the API server is well"),
    ];
    for (secret, (code, remedy)) in secrets.iter().flat_map(|secret| answers.map(|answer| (secret, answer))) {
        let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
        proxy_pod(&server);
        proxy_answers(&server);
        settle(&server).await;
        let before = (server.objects(), condition(&server, "Ready"));
        let ended = pods(&server).remove(0);
        idle(&server, &ended);
        server.refuse_read(Some((&format!("{NAMESPACE}/secrets/{secret}"), code)));

        server.take_writes();
        let failed = once(&server).await.unwrap_err().to_string();
        let made = format!("POST {NAMESPACE}/secrets");
        assert!(!server.take_writes().contains(&made), "{secret} is there, and was made");
        assert!(failed.contains(&format!("read Secret ns/{secret}")), "{failed}");
        let (reason, message) = condition(&server, "Ready");
        assert_eq!(reason, "ChildrenNotReady");
        assert!(
            message.contains(&format!("Secret {secret} could not be read: the test says so"))
                && message.contains(remedy)
                && !message.contains("does not exist"),
            "{message}"
        );
        let mut after = server.objects();
        assert!(after.remove(&ended).is_none(), "{secret}: the idle session did not end");
        for (path, object) in before
            .0
            .iter()
            .filter(|(path, _)| ![INSTANCE, ended.as_str()].contains(&path.as_str()))
        {
            assert_eq!(after.get(path), Some(object), "{secret}: {path}");
        }

        server.refuse_read(None);
        settle(&server).await;
        assert_eq!(condition(&server, "Ready"), before.1, "{secret}");
    }
}

#[tokio::test]
async fn an_instance_whose_finalizer_is_refused_says_so() {
    let server = cluster(json!({}));
    server.refuse(&format!("PATCH {INSTANCE}"));
    once(&server).await.unwrap_err();
    let (reason, message) = condition(&server, "Ready");
    assert_eq!(reason, "Reconciling");
    assert!(
        message.contains("finalizer") && message.contains("webhook"),
        "{message}"
    );
}

#[tokio::test]
async fn a_sandbox_whose_deletion_is_refused_holds_up_no_other_and_the_instance_says_so() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    proxy_answers(&server);
    settle(&server).await;
    delete(&server);
    once(&server).await.unwrap();
    let pods = pods(&server);
    server.refuse(&format!("DELETE {}", pods[0]));
    once(&server).await.unwrap_err();
    assert!(server.get(&pods[0]).is_some() && server.get(&pods[1]).is_none());
    let (_, message) = condition(&server, "Ready");
    let name = pods[0].rsplit('/').next().unwrap();
    assert!(
        message.contains(&format!("its sandboxes are gone: {name} and 1 more. It is tried again"))
            && message.contains("webhook"),
        "{message}"
    );
}

#[tokio::test]
async fn an_instance_whose_remains_cannot_be_read_says_so_and_stays() {
    let server = cluster(json!({}));
    settle(&server).await;
    delete(&server);
    let path = "/apis/apps/v1/namespaces/ns/deployments/cli-mcp-demo";
    server.refuse_read(Some((path, StatusCode::FORBIDDEN)));
    once(&server).await.unwrap_err();
    let (_, message) = condition(&server, "Ready");
    assert!(
        message.contains("could not be read") && message.contains("Deployment ns/cli-mcp-demo: the test says so"),
        "{message}"
    );
    server.refuse_read(None);
    for _ in 0..3 {
        once(&server).await.unwrap();
    }
    assert!(server.get(INSTANCE).is_none());
}
