//! What a claim costs: how often it is lost, and how many requests to the API server it takes.

use serde_json::json;

use crate::support::api::Cluster;
use crate::support::pool::warm_pool;
use crate::support::server::{LOCAL, Server, bash, begin, structured};

/// Requests about pods since then, but for watches.
fn requests(cluster: &Cluster, since: usize) -> Vec<String> {
    let all = cluster.requests().split_off(since);
    all.into_iter().filter(|line| !line.contains("watch=")).collect()
}

fn count(requests: &[String], begin: &str) -> usize {
    requests.iter().filter(|line| line.starts_with(begin)).count()
}

#[tokio::test]
async fn twenty_first_calls_at_once_over_a_pool_of_twenty_lose_no_claim() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], 20).await;
    let mut clients = Vec::new();
    for n in 0..20 {
        clients.push(server.client(&format!("s{n}")).await);
    }
    let since = cluster.requests().len();
    let calls: Vec<_> = clients.iter().map(|client| begin(client, "echo x")).collect();
    for call in calls {
        assert_eq!(structured(&call.await.unwrap())["stdout"], "x\n");
    }
    let requests = requests(&cluster, since);
    let claims = count(&requests, "PATCH");
    assert_eq!(claims, 20, "one write a claim: {requests:?}");
    // The watch tells the rest, but for a moment in which this machine holds it up.
    assert!(requests.len() < 2 * claims, "{requests:?}");
    assert_eq!((cluster.pods().len(), cluster.unassigned().len()), (20, 0));
    let metrics = server.metrics().await;
    assert!(
        metrics.contains("cli_mcp_server_sandbox_claims_total{result=\"Pool\"} 20\n") && !metrics.contains("Lost"),
        "{metrics}"
    );
}

/// Of a pool of two, the pod that session `s1` tries first: the order depends on the names alone.
const BEST: &str = "cli-mcp-demo-pool-1";
const OTHER: &str = "cli-mcp-demo-pool-0";

#[tokio::test]
async fn a_pod_whose_status_changed_unseen_is_looked_at_once_and_claimed() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], 2).await;
    let client = server.client("s1").await;
    cluster.silence_watches();
    let mut pod = cluster.pod(BEST);
    pod["metadata"]["annotations"]["touched"] = json!("by another");
    cluster.put("pods", pod);
    let since = cluster.requests().len();
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    assert_eq!(cluster.pod_of("s1"), BEST);
    let requests = requests(&cluster, since);
    let path = format!("/api/v1/namespaces/ns/pods/{BEST}");
    let of_pod = (
        count(&requests, &format!("PATCH {path}")),
        count(&requests, &format!("GET {path}")),
    );
    assert_eq!(of_pod, (2, 1), "{requests:?}");
    assert_eq!(count(&requests, "POST"), 0, "{requests:?}");
}

#[tokio::test]
async fn a_pod_that_is_gone_unseen_is_tried_once_and_the_next_is_claimed() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], 2).await;
    let client = server.client("s1").await;
    cluster.silence_watches();
    cluster.remove("pods", BEST);
    let since = cluster.requests().len();
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    assert_eq!(cluster.pod_of("s1"), OTHER);
    let requests = requests(&cluster, since);
    let of_gone = count(&requests, &format!("PATCH /api/v1/namespaces/ns/pods/{BEST}"));
    assert_eq!(of_gone, 1, "{requests:?}");
}

#[tokio::test]
async fn a_search_that_loses_claim_after_claim_makes_a_pod_of_its_own() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], 1).await;
    let client = server.client("s1").await;
    cluster.keep_changing_pods();
    let since = cluster.requests().len();
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    let requests = requests(&cluster, since);
    assert_eq!(count(&requests, "POST"), 1, "{requests:?}");
    assert_eq!(cluster.unassigned().len(), 1);
}

#[tokio::test]
async fn another_replicas_sandbox_that_the_watch_did_not_tell_of_is_found_and_the_own_one_given_up() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], 2).await;
    let client = server.client("s1").await;
    cluster.silence_watches();
    let mut theirs = cluster.pod(OTHER);
    theirs["metadata"]["labels"]["cli-mcp.redhat.com/session-id"] = json!("s1");
    cluster.put("pods", theirs);
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    let metrics = server.metrics().await;
    assert!(metrics.contains("{result=\"GivenUp\"} 1\n"), "{metrics}");
    assert_eq!(cluster.ran(OTHER), ["echo x"]);
    assert_eq!(
        cluster.assigned(),
        [OTHER],
        "one that may be given up takes no command, from no replica"
    );
}

#[tokio::test]
async fn two_replicas_whose_watches_are_silent_end_with_one_sandbox() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    warm_pool(&cluster, &[&servers[0], &servers[1]], 2).await;
    let clients = [servers[0].client("s1").await, servers[1].client("s1").await];
    cluster.silence_watches();
    let calls = (0..10).map(|n| begin(&clients[n % 2], &format!("echo {n}")));
    for call in calls.collect::<Vec<_>>() {
        structured(&call.await.unwrap());
    }
    let living = |pod: &serde_json::Value| pod["metadata"]["deletionTimestamp"].is_null();
    let of_session = cluster.pods_of("s1");
    assert_eq!(of_session.iter().filter(|pod| living(pod)).count(), 1);
    let mut ran = cluster.ran_anywhere();
    ran.sort();
    let sent: Vec<String> = (0..10).map(|n| format!("echo {n}")).collect();
    assert_eq!(ran, sent, "each command once");
}
