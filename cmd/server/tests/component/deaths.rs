//! Sandboxes that go away, before a command was sent to them and while it runs.

use cli_mcp_sandbox::token::HmacKey;

use crate::support::api::{Cluster, Kubelet};
use crate::support::pool::spec_hash;
use crate::support::server::{LOCAL, Server, bash, begin, eventually, http, refusal, structured};

#[tokio::test]
async fn a_sandbox_that_crashes_at_its_start_is_no_endless_loop_and_the_next_call_tries_again() {
    let cluster = Cluster::start().await;
    cluster.kubelet(Kubelet::Crashes);
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    let text = refusal(&bash(&client, "echo").await);
    assert!(
        text.starts_with("The sandbox cannot start: Error: its container ended with exit code 2"),
        "{text}"
    );
    assert_eq!(server.audit().await["outcome"], "cannot_start");
    let created = cluster.requests();
    assert_eq!(created.iter().filter(|line| line.starts_with("POST")).count(), 1);
    cluster.kubelet(Kubelet::Starts);
    assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n");
}

/// How a pod goes away.
#[derive(Clone, Copy, Debug)]
enum End {
    Evicted,
    Deleted,
    /// From one moment to the next, as with a force.
    Removed,
}

impl End {
    async fn come(self, cluster: &Cluster, pod: &str) {
        match self {
            Self::Evicted => cluster.evict(pod),
            Self::Deleted => {
                let path = format!("{}/api/v1/namespaces/ns/pods/{pod}", cluster.url);
                assert!(http().delete(path).send().await.unwrap().status().is_success());
            }
            Self::Removed => cluster.remove("pods", pod),
        }
    }
}

#[tokio::test]
async fn a_command_that_waits_for_a_sandbox_which_goes_away_is_sent_to_the_next_one() {
    for (end, why) in [
        (End::Evicted, "Evicted"),
        (End::Deleted, "its pod was deleted"),
        (End::Removed, "its pod disappeared"),
    ] {
        let cluster = Cluster::start().await;
        cluster.kubelet(Kubelet::StartsDeaf);
        let server = Server::start(&cluster, &[LOCAL]).await;
        let client = server.client("s1").await;
        // This one makes the sandbox, the other comes upon it.
        let first = begin(&client, "echo 1");
        server.knows_sessions(1).await;
        let second = begin(&client, "echo 2");
        server
            .knows("cli_mcp_server_stage_seconds_count{stage=\"Lookup\"} 2\n")
            .await;
        cluster.kubelet(Kubelet::Starts);
        end.come(&cluster, &cluster.pod_of("s1")).await;

        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!(structured(&second)["stdout"], "2\n", "{end:?}");
        let told = if matches!(end, End::Evicted) {
            // A sandbox that was just made and ended by itself would do so again.
            let text = refusal(&first);
            assert!(text.contains("cannot start: Evicted"), "{text}");
            vec![structured(&second)]
        } else {
            assert_eq!(structured(&first)["stdout"], "1\n", "{end:?}");
            vec![structured(&first), structured(&second)]
        };
        let resets: Vec<&str> = told
            .iter()
            .filter_map(|result| result.get("session_reset")?.as_str())
            .collect();
        assert!(
            resets.len() == 1 && resets[0].contains(why),
            "{end:?} is told once: {resets:?}"
        );
        let mut ran = cluster.ran_anywhere();
        ran.sort();
        let expected = ["echo 1", "echo 2"];
        assert_eq!(
            ran,
            expected[expected.len() - told.len()..],
            "{end:?}: each at most once"
        );
    }
}

#[tokio::test]
async fn a_command_whose_sandbox_goes_away_under_it_is_told_so_and_not_sent_again() {
    for (end, why) in [
        (End::Evicted, "(Evicted: The node was low on memory.)"),
        (End::Deleted, "(its pod was deleted)"),
        (End::Removed, "(its pod was deleted)"),
    ] {
        let cluster = Cluster::start().await;
        let mut server = Server::start(&cluster, &[LOCAL]).await;
        let client = server.client("s1").await;
        let call = begin(&client, "hang");
        eventually("the command runs", || cluster.ran_anywhere() == ["hang"]).await;
        end.come(&cluster, &cluster.pod_of("s1")).await;
        let text = refusal(&call.await.unwrap());
        assert!(
            text.starts_with("The sandbox died while the command was running") && text.contains(why),
            "{end:?}: {text}"
        );
        assert_eq!(server.audit().await["outcome"], "sandbox_died", "{end:?}");
        let next = structured(&bash(&client, "echo on").await);
        assert!(
            next["stdout"] == "on\n" && next.contains_key("session_reset"),
            "{next:?}"
        );
        assert_eq!(cluster.ran_anywhere(), ["echo on"], "{end:?}");
    }
}

#[tokio::test]
async fn a_loss_is_still_told_when_a_pod_of_the_pool_does_not_take_the_session_after_it() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    let pod = "cli-mcp-demo-pool-0";
    let other = HmacKey::new(&[8; 32]).unwrap().assign_token(pod);
    cluster.add_pool_pod(pod, &hash, &other.digest().to_hex());
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    cluster.evict(&cluster.pod_of("s1"));
    server.knows_sessions(0).await;
    let result = structured(&bash(&client, "echo on").await);
    assert_eq!(result["stdout"], "on\n");
    assert!(
        result["session_reset"].as_str().unwrap().contains("Evicted"),
        "{result:?}"
    );
    eventually("the useless pod is gone", || cluster.pods().len() == 1).await;
}
