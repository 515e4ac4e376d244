//! What a claim costs: how often it is lost, and how many requests to the API server it takes.

use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use crate::support::api::{Cluster, Kubelet};
use crate::support::pool::{fill_pool, label, ready, spec_hash, warm_pool};
use crate::support::server::{Client, LOCAL, Server, bash, begin, eventually, structured};

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

/// A server that knows a pool of this size, and a client of session `s1`.
async fn with_pool(size: usize) -> (Cluster, Server, Client) {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    warm_pool(&cluster, &[&server], size).await;
    let client = server.client("s1").await;
    (cluster, server, client)
}

/// The same with a pool of two, of which another replica has taken one for `s1`, and this server is not told.
async fn contested() -> (Cluster, Server, Client) {
    let (cluster, server, client) = with_pool(2).await;
    cluster.silence_watches();
    label(&cluster, OTHER, "s1");
    (cluster, server, client)
}

#[tokio::test]
async fn the_api_servers_log_names_the_server() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    bash(&server.client("s1").await, "echo").await;
    let expected = concat!("cli-mcp-server/", env!("CARGO_PKG_VERSION")).to_owned();
    assert_eq!(cluster.user_agents(), BTreeSet::from([expected]));
}

#[tokio::test]
async fn a_pod_whose_status_changed_unseen_is_looked_at_once_and_claimed() {
    let (cluster, _server, client) = with_pool(2).await;
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
    let (cluster, _server, client) = with_pool(2).await;
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
    let (cluster, _server, client) = with_pool(1).await;
    cluster.keep_changing_pods();
    let since = cluster.requests().len();
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    let requests = requests(&cluster, since);
    assert_eq!(count(&requests, "POST"), 1, "{requests:?}");
    assert_eq!(cluster.unassigned().len(), 1);
}

#[tokio::test]
async fn another_replicas_sandbox_that_the_watch_did_not_tell_of_is_found_and_the_own_one_given_up() {
    let (cluster, server, client) = contested().await;
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

#[tokio::test]
async fn a_claim_that_was_written_and_answered_by_an_error_does_not_take_the_session_from_its_sandbox() {
    let (cluster, _server, client) = contested().await;
    // The client library sends the claim again, and finds its own write in the way.
    cluster.lose_next_answer("PATCH", BEST);
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    assert_eq!(cluster.ran(OTHER), ["echo x"]);
    assert_eq!(cluster.assigned(), [OTHER]);
}

#[tokio::test]
async fn a_create_that_was_written_and_answered_by_an_error_does_not_take_the_session_from_its_sandbox() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    let client = server.client("s1").await;
    cluster.silence_watches();
    fill_pool(&cluster, &hash, 1);
    eventually("the pool runs", || ready(&cluster) == 1).await;
    label(&cluster, OTHER, "s1");
    // The client library sends the create again, and finds its own pod in the way.
    cluster.lose_next_answer("POST", "/pods");
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    assert_eq!(cluster.ran(OTHER), ["echo x"]);
}

#[tokio::test]
async fn a_sandbox_that_is_left_over_beside_the_used_one_is_ended_by_the_next_call() {
    let (cluster, server, client) = with_pool(2).await;
    assert_eq!(structured(&bash(&client, "echo").await)["exit_code"], 0);
    let (used, left) = (cluster.pod_of("s1"), "cli-mcp-demo-pool-9");
    let hash = cluster.pod(&used)["metadata"]["annotations"]["cli-mcp.redhat.com/spec-hash"].clone();
    cluster.add_pool_pod(left, hash.as_str().unwrap(), &"0".repeat(64));
    server.knows("cli_mcp_server_pool_ready 2\n").await;
    label(&cluster, left, "s1");
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n");
    eventually("one is left", || cluster.pods_of("s1").len() == 1).await;
    assert_eq!(cluster.pod_of("s1"), used);
    // Else this would be served by what was left over, and without a word.
    cluster.evict(&used);
    server.knows_sessions(0).await;
    assert!(structured(&bash(&client, "echo on").await).contains_key("session_reset"));
}

#[tokio::test]
async fn a_sandbox_that_was_given_up_and_not_deleted_is_not_used() {
    let (cluster, _server, client) = contested().await;
    cluster.refuse_next("DELETE", BEST, StatusCode::INTERNAL_SERVER_ERROR);
    for n in ["1", "2"] {
        assert_eq!(
            structured(&bash(&client, &format!("echo {n}")).await)["stdout"],
            format!("{n}\n")
        );
    }
    assert_eq!(cluster.ran(OTHER), ["echo 1", "echo 2"]);
}

#[tokio::test]
async fn who_decides_too_late_ends_nothing() {
    let (cluster, _server, client) = contested().await;
    let listing = cluster.withhold("GET", "NotOlderThan");
    let late = begin(&client, "echo late");
    eventually("the list as of the claim is asked for", || {
        cluster.requests().iter().any(|line| line.contains("NotOlderThan"))
    })
    .await;
    // The other one is given up by whoever took it. A third replica finds this one, decides, and runs a command.
    cluster.remove("pods", OTHER);
    let third = Server::start(&cluster, &[LOCAL]).await;
    let third = third.client("s1").await;
    assert_eq!(structured(&bash(&third, "echo first").await)["stdout"], "first\n");
    listing.cancel();
    assert_eq!(structured(&late.await.unwrap())["stdout"], "late\n");
    let mut ran = cluster.ran(BEST);
    ran.sort();
    assert_eq!(ran, ["echo first", "echo late"]);
    assert!(cluster.pod(BEST)["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_pod_of_the_pool_that_cannot_be_reached_yet_is_waited_for() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    cluster.kubelet(Kubelet::StartsDeaf);
    fill_pool(&cluster, &hash, 1);
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    let since = cluster.requests().len();
    let client = server.client("s1").await;
    let call = begin(&client, "echo x");
    eventually("the pod is claimed", || cluster.unassigned().is_empty()).await;
    // Long enough for the first attempts; a server that gives up after one has deleted the pod by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.agents_listen();
    assert_eq!(structured(&call.await.unwrap())["stdout"], "x\n");
    let requests = requests(&cluster, since);
    assert_eq!(count(&requests, "DELETE"), 0, "{requests:?}");
    assert_eq!(cluster.ran("cli-mcp-demo-pool-0"), ["echo x"]);
}

#[tokio::test]
async fn a_session_that_is_being_settled_takes_one_place() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL, "--max-sessions=2"]).await;
    warm_pool(&cluster, &[&server], 2).await;
    let clients = [server.client("s1").await, server.client("s2").await];
    cluster.silence_watches();
    let listing = cluster.withhold("GET", "NotOlderThan");
    let first = begin(&clients[0], "echo 1");
    eventually("the first is being settled", || {
        cluster.requests().iter().any(|line| line.contains("NotOlderThan"))
    })
    .await;
    let second = begin(&clients[1], "echo 2");
    eventually("the second has a pod", || {
        cluster.unassigned().is_empty() || second.is_finished()
    })
    .await;
    listing.cancel();
    assert_eq!(structured(&second.await.unwrap())["stdout"], "2\n");
    assert_eq!(structured(&first.await.unwrap())["stdout"], "1\n");
}
