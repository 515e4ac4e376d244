//! Reconciles while a watch is silent: what was done shows nowhere, and is not done again.

use std::time::Instant;

use super::labelled::labelled;
use super::*;

#[tokio::test]
async fn a_transition_is_written_and_told_once() {
    let server = cluster(json!({}));
    once(&server).await.unwrap();
    let (stale, context) = (instance(&server), context(&server));
    let told = async |instance: Arc<CliMcpInstance>| -> Vec<String> {
        server.take_writes();
        reconcile(instance, context.clone()).await.unwrap();
        let mut writes = server.take_writes();
        writes.retain(|write| write.ends_with("/status") || write.contains("/events"));
        writes
    };
    assert_eq!(told(stale.clone()).await.len(), 2, "the status and an event");
    assert_eq!(told(stale.clone()).await, [] as [&str; 0]);
    // What the watch delivers counts, also where it is not what was written.
    let mut edited = server.get(INSTANCE).unwrap();
    edited["status"]["conditions"] = json!([]);
    server.put(INSTANCE, edited);
    assert_eq!(told(instance(&server)).await.len(), 2);
}

#[tokio::test]
async fn a_pool_is_not_filled_again_while_its_pods_do_not_show() {
    let server = cluster(json!({"sandbox": {"warmPoolSize": 2}}));
    settle(&server).await;
    proxy_answers(&server);
    // Nor does one of others count, in the cache or in the LIST.
    let theirs = labelled(&server, "theirs", labels::Component::Sandbox, &[]);
    let (instance, context) = (instance(&server), context(&server));
    let after = async || {
        let action = reconcile(instance.clone(), context.clone()).await.unwrap();
        assert_ne!(
            action,
            Action::requeue(RESYNC),
            "nothing else would ask when they should show"
        );
        pods(&server).iter().filter(|path| **path != theirs).count()
    };
    let wait = || {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let mut memory = context.memory();
        let expected = &mut memory.pools.get_mut("uid-demo").unwrap().expected;
        for path in pods(&server).iter().filter(|path| **path != theirs) {
            expected.insert(path.rsplit('/').next().unwrap().to_owned(), long_ago);
        }
    };
    assert_eq!(after().await, 2);
    assert_eq!(after().await, 2);
    wait();
    assert_eq!(after().await, 2);
    // One that went unseen is made again.
    server.remove(&pods(&server)[0]).unwrap();
    wait();
    assert_eq!(after().await, 2);
    assert!(server.get(&theirs).is_some());
}
