//! The address of the proxy's Service: kept for the sandboxes that know it, and got again by a Service that has lost it.

use http::StatusCode;

use super::*;

const SERVICE: &str = "/api/v1/namespaces/ns/services/cli-mcp-demo-proxy";

fn address(server: &FakeServer) -> Value {
    server.get(SERVICE).unwrap()["spec"]["clusterIP"].clone()
}

/// Makes a sandbox one that was started when the proxy had this address.
fn looks_for_the_proxy_at(server: &FakeServer, path: &str, address: &str) {
    let mut pod = server.get(path).unwrap();
    let env = pod["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    let control = env
        .iter_mut()
        .find(|variable| variable["name"] == "SANDBOX_EGRESS_CONTROL");
    control.unwrap()["value"] = json!(address);
    server.put(path, pod);
}

/// Puts a Service of another spec in the place of one, as `kubectl replace --force` does: another object of the same owner.
fn replace_by_hand(server: &FakeServer, path: &str, spec: &Value) {
    let mut other = server.remove(path).unwrap();
    other["metadata"].as_object_mut().unwrap().remove("uid");
    for (field, value) in spec.as_object().unwrap() {
        other["spec"][field] = value.clone();
    }
    other["metadata"]["managedFields"] =
        json!([{"manager": "kubectl-replace", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
    server.put(path, other);
}

/// A cluster with a sandbox in the pool that looks for the proxy at 10.96.0.42, and the sandbox's path.
async fn with_a_sandbox() -> (FakeServer, String) {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    settle(&server).await;
    proxy_answers(&server);
    settle(&server).await;
    let path = pods(&server).remove(0);
    looks_for_the_proxy_at(&server, &path, "10.96.0.42:8080");
    (server, path)
}

/// An agent looks for the proxy at the address that it was started with, for as long as it runs.
#[tokio::test(start_paused = true)]
async fn a_proxy_service_that_is_made_again_gets_the_address_that_sandboxes_know() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    settle(&server).await;
    proxy_answers(&server);
    settle(&server).await;
    let path = pods(&server).remove(0);
    for (known, refusals, expected) in [
        ("10.96.0.42:8080", 0, "10.96.0.42"),
        ("[fd00::42]:8080", 0, "fd00::42"),
        // It is not free yet.
        ("10.96.0.43:8080", 2, "10.96.0.43"),
        // Another Service has it.
        ("10.96.0.44:8080", usize::MAX, "10.96.0.7"),
    ] {
        looks_for_the_proxy_at(&server, &path, known);
        server.take_address(known.trim_end_matches(":8080"), refusals);
        server.remove(SERVICE);
        once(&server).await.unwrap();
        assert_eq!(address(&server), expected, "{known}");
    }
}

#[tokio::test]
async fn a_service_that_somebody_made_without_an_address_is_made_again_at_the_one_that_sandboxes_know() {
    for spec in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": null, "type": "ExternalName", "externalName": "proxy.example.com"}),
    ] {
        let (server, _) = with_a_sandbox().await;
        replace_by_hand(&server, SERVICE, &spec);
        once(&server).await.unwrap();
        let (reason, message) = condition(&server, "Ready");
        assert_eq!(reason, "ChildrenNotReady");
        assert!(
            message.contains("Service cli-mcp-demo-proxy has no cluster IP") && message.contains("made again"),
            "{message}"
        );
        settle(&server).await;
        let service = server.get(SERVICE).unwrap();
        assert_eq!(
            (&service["spec"]["clusterIP"], &service["spec"]["type"]),
            (&json!("10.96.0.42"), &json!("ClusterIP")),
            "{spec}"
        );
        let (_, message) = condition(&server, "Ready");
        assert!(!message.contains("cluster IP"), "{message}");
    }
}

/// As an earlier version left it: it took away what said that somebody else had made it.
#[tokio::test]
async fn a_service_without_an_address_that_nobody_else_touched_is_made_again() {
    for service in [SERVICE, "/api/v1/namespaces/ns/services/cli-mcp-demo"] {
        let server = cluster(json!({}));
        settle(&server).await;
        let mut headless = server.get(service).unwrap();
        headless["spec"]["clusterIP"] = json!("None");
        server.put(service, headless);
        settle(&server).await;
        assert_eq!(server.get(service).unwrap()["spec"]["clusterIP"], "10.96.0.7");
    }
}

#[tokio::test]
async fn a_service_without_an_address_that_cannot_be_deleted_is_told_with_what_to_do() {
    let server = cluster(json!({}));
    settle(&server).await;
    replace_by_hand(&server, SERVICE, &json!({"clusterIP": "None"}));
    server.refuse(&format!("DELETE {SERVICE}"));
    once(&server).await.unwrap();
    let (reason, message) = condition(&server, "Ready");
    assert_eq!(reason, "ChildrenNotReady");
    assert!(
        message.contains("Service cli-mcp-demo-proxy has no cluster IP")
            && message.contains("kubectl -n ns delete service cli-mcp-demo-proxy")
            && message.contains("webhook"),
        "{message}"
    );
}

#[tokio::test]
async fn a_service_that_took_the_place_of_one_without_an_address_is_not_deleted_for_it() {
    let server = cluster(json!({}));
    settle(&server).await;
    let good = server.get(SERVICE).unwrap();
    replace_by_hand(&server, SERVICE, &json!({"clusterIP": "None"}));
    let before = context(&server);
    server.put(SERVICE, good.clone());
    reconcile(instance(&server), before).await.unwrap();
    assert_eq!(server.get(SERVICE).unwrap()["metadata"]["uid"], good["metadata"]["uid"]);
    let (_, message) = condition(&server, "Ready");
    assert!(
        message.contains("is looked at again") && !message.contains("kubectl"),
        "{message}"
    );
}

#[tokio::test]
async fn a_service_that_gets_no_address_when_it_is_made_is_not_made_over_and_over() {
    let server = cluster(json!({}));
    server.make_headless(true);
    let context = context(&server);
    for _ in 0..4 {
        let _ = reconcile(instance(&server), context.clone()).await;
    }
    let deleted = format!("DELETE {SERVICE}");
    assert!(!server.take_writes().contains(&deleted));
    let (reason, message) = condition(&server, "Ready");
    assert_eq!(reason, "ChildrenNotReady");
    assert!(
        message.contains("Service cli-mcp-demo-proxy got no cluster IP when it was made")
            && message.contains("webhook"),
        "{message}"
    );
    // As the message asks.
    server.make_headless(false);
    server.remove(SERVICE).unwrap();
    let _ = reconcile(instance(&server), context.clone()).await;
    replace_by_hand(&server, SERVICE, &json!({"clusterIP": "None"}));
    let _ = reconcile(instance(&server), context).await;
    assert!(server.take_writes().contains(&deleted), "it could be mended since");
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_read_holds_up_only_the_service_whose_address_it_knows() {
    const CONFIG: &str = "/api/v1/namespaces/ns/configmaps/cli-mcp-demo-proxy";
    let (server, path) = with_a_sandbox().await;
    let name = path.rsplit('/').next().unwrap();
    server.refuse_read(Some((&path, StatusCode::FORBIDDEN)));
    server.remove(CONFIG).unwrap();
    server.remove(SERVICE).unwrap();
    let failed = once(&server).await.unwrap_err().to_string();
    assert!(failed.contains(&format!("pod ns/{name}")), "{failed}");
    assert!(server.get(CONFIG).is_some(), "it is made beside it");
    assert_eq!(server.get(SERVICE), None, "it would get another address");
    let (reason, message) = condition(&server, "Ready");
    assert_eq!(reason, "ChildrenNotReady");
    assert!(
        message.contains(&format!("pod ns/{name}"))
            && message.contains("Service cli-mcp-demo-proxy")
            && message.contains("the test says so"),
        "{message}"
    );
    server.refuse_read(None);
    settle(&server).await;
    assert_eq!(address(&server), "10.96.0.42");
}

/// A working Service is not taken down for it: a sandbox that has proven its network closed keeps the proof, and finds the
/// proxy by its name.
#[tokio::test]
async fn a_service_that_somebody_made_at_another_address_stays_and_the_pool_follows_it() {
    let (server, path) = with_a_sandbox().await;
    let service = server.get(SERVICE).unwrap();
    replace_by_hand(
        &server,
        SERVICE,
        &json!({"clusterIP": "10.96.0.99", "selector": {"app": "theirs"}}),
    );
    settle(&server).await;
    assert_eq!(address(&server), "10.96.0.99");
    assert_eq!(
        server.get(SERVICE).unwrap()["spec"]["selector"],
        service["spec"]["selector"]
    );
    let now = pods(&server);
    assert!(now.len() == 1 && now[0] != path, "{now:?}");
    assert!(server.get(&now[0]).unwrap().to_string().contains("10.96.0.99:8080"));
}
