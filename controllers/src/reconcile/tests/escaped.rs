//! Sandboxes whose labels or owner somebody took away end, also with their instance; pods of others do not.

use super::*;

/// Takes fields of the metadata of a pod away.
fn strip(server: &FakeServer, path: &str, fields: &[&str]) {
    let mut pod = server.get(path).unwrap();
    for field in fields {
        pod["metadata"].as_object_mut().unwrap().remove(*field);
    }
    server.put(path, pod);
}

/// An instance with one sandbox, and a pod of somebody else with the sandboxes' ServiceAccount, such as a copy to debug.
async fn with_a_sandbox() -> (FakeServer, String, String) {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 1}}));
    proxy_answers(&server);
    settle(&server).await;
    let sandbox = pods(&server).remove(0);
    let copy = format!("{NAMESPACE}/pods/copy");
    let mut pod = server.get(&sandbox).unwrap();
    pod["metadata"] = json!({"name": "copy", "namespace": "ns"});
    server.put(&copy, pod);
    (server, sandbox, copy)
}

#[tokio::test]
async fn a_sandbox_without_its_labels_or_owner_is_ended() {
    for fields in [&["labels"][..], &["ownerReferences"], &["labels", "ownerReferences"]] {
        let (server, sandbox, copy) = with_a_sandbox().await;
        strip(&server, &sandbox, fields);
        settle(&server).await;
        assert!(server.get(&sandbox).is_none(), "{fields:?}");
        assert!(server.get(&copy).is_some());
    }
}

#[tokio::test]
async fn an_operator_that_has_looked_looks_again_when_one_loses_its_owner() {
    let (server, sandbox, _) = with_a_sandbox().await;
    let context = context(&server);
    reconcile(instance(&server), context.clone()).await.unwrap();
    let looked = || context.memory().looked_for_escaped.len();
    assert_eq!(looked(), 1);
    strip(&server, &sandbox, &["ownerReferences"]);
    let caches = server.caches();
    let mut followup = Followup::default();
    missing::end(&context, &caches, &instance(&server), "ns", &mut followup).await;
    assert!(server.get(&sandbox).is_none());
    assert_eq!(looked(), 1);
}

#[tokio::test]
async fn an_instance_does_not_go_before_a_sandbox_without_its_labels() {
    let (server, sandbox, copy) = with_a_sandbox().await;
    strip(&server, &sandbox, &["labels", "ownerReferences"]);
    delete(&server);
    for _ in 0..4 {
        once(&server).await.unwrap();
    }
    assert!(server.get(INSTANCE).is_none());
    assert!(server.get(&sandbox).is_none());
    assert!(server.get(&copy).is_some());
}

#[tokio::test]
async fn what_cannot_be_ended_is_tried_again() {
    let (server, sandbox, _) = with_a_sandbox().await;
    strip(&server, &sandbox, &["labels"]);
    let context = context(&server);
    server.refuse(&format!("DELETE {sandbox}"));
    reconcile(instance(&server), context.clone()).await.unwrap_err();
    assert!(server.get(&sandbox).is_some());
    server.refuse("");
    reconcile(instance(&server), context).await.unwrap();
    assert!(server.get(&sandbox).is_none());
}
