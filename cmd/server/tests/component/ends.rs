//! `DELETE /sessions/{id}` whose client does not wait for its answer.

use crate::support::api::Cluster;
use crate::support::pool::{fill_pool, label};
use crate::support::server::{LOCAL, Server, eventually, http};

#[tokio::test]
async fn a_client_that_leaves_does_not_stop_the_end_of_its_session() {
    let cluster = Cluster::start().await;
    let mut server = Server::start(&cluster, &[LOCAL, "--max-connections-per-client=1"]).await;
    fill_pool(&cluster, "0000000000000000", 1);
    let pod = cluster.pods()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    label(&cluster, &pod, "s1");
    let release = cluster.withhold("DELETE", "/pods/");
    let leaving = tokio::spawn(http().delete(format!("{}/sessions/s1", server.base)).send());
    eventually("the pod's deletion is asked for", || {
        cluster.requests().iter().any(|line| line.starts_with("DELETE"))
    })
    .await;
    leaving.abort();
    let _ = leaving.await;
    // The server takes another connection when it has learned that the one of this client is gone.
    while http().get(format!("{}/live", server.base)).send().await.is_err() {}
    release.cancel();
    let line = server.audit_of("end").await;
    assert_eq!((&line["session"], &line["outcome"]), (&"s1".into(), &"ended".into()));
    eventually("the pod is gone", || cluster.pods().is_empty()).await;
}
