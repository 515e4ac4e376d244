//! From a session to its sandbox: claims, races between replicas, deaths, ends.

use std::collections::HashSet;

use cli_mcp_sandbox::pod::session_pod_name;
use cli_mcp_sandbox::token::HmacKey;
use http::StatusCode;
use serde_json::json;

use crate::support::api::{Cluster, Kubelet};
use crate::support::pool::{fill_pool, label, ready, spec_hash};
use crate::support::server::{LOCAL, Server, bash, begin, eventually, http, refusal, structured};

#[tokio::test]
async fn a_hundred_first_calls_through_two_replicas_make_one_sandbox() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    let clients = [servers[0].client("s1").await, servers[1].client("s1").await];
    let calls = (0..100).map(|n| (n, begin(&clients[n % 2], &format!("echo {n}"))));
    for (n, call) in calls.collect::<Vec<_>>() {
        let result = call.await.unwrap();
        assert_eq!(structured(&result)["stdout"], format!("{n}\n"));
    }
    assert_eq!(cluster.pods().len(), 1);
    let ran = cluster.ran_anywhere();
    assert_eq!(
        (ran.len(), ran.iter().collect::<HashSet<_>>().len()),
        (100, 100),
        "each command once"
    );
}

#[tokio::test]
async fn a_hundred_first_calls_over_a_pool_through_two_replicas_claim_one_pod() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    let hash = spec_hash(&cluster, &servers[0]).await;
    fill_pool(&cluster, &hash, 5);
    eventually("the pool is ready", || ready(&cluster) == 5).await;
    let clients = [servers[0].client("s1").await, servers[1].client("s1").await];
    let calls = (0..100).map(|n| begin(&clients[n % 2], &format!("echo {n}")));
    for call in calls.collect::<Vec<_>>() {
        structured(&call.await.unwrap());
    }
    let living = cluster
        .pods_of("s1")
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .count();
    assert_eq!(living, 1);
    assert_eq!(cluster.ran_anywhere().iter().collect::<HashSet<_>>().len(), 100);
}

#[tokio::test]
async fn fifty_sessions_at_once_over_a_pool_of_ten_get_fifty_sandboxes() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    let hash = spec_hash(&cluster, &servers[0]).await;
    fill_pool(&cluster, &hash, 10);
    eventually("the pool is ready", || ready(&cluster) == 10).await;
    let mut calls = Vec::new();
    for n in 0..50 {
        let client = servers[n % 2].client(&format!("s{n}")).await;
        calls.push(tokio::spawn(
            async move { (n, bash(&client, &format!("echo {n}")).await) },
        ));
    }
    for call in calls {
        let (n, result) = call.await.unwrap();
        assert_eq!(structured(&result)["stdout"], format!("{n}\n"));
    }
    for n in 0..50 {
        assert_eq!(cluster.pods_of(&format!("s{n}")).len(), 1, "session s{n}");
    }
    assert_eq!(
        (cluster.pods().len(), cluster.unassigned().len()),
        (50, 0),
        "the whole pool was used"
    );
}

#[tokio::test]
async fn a_pool_pod_of_another_template_is_left_alone() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    fill_pool(&cluster, "0000000000000000", 1);
    eventually("the pool is ready", || ready(&cluster) == 1).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    assert_eq!(cluster.pods().len(), 2);
}

#[tokio::test]
async fn a_dead_sandbox_is_replaced_and_the_result_says_so_once() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    let pod = cluster.pod_of("s1");
    cluster.evict(&pod);
    server.knows_sessions(0).await;
    let result = structured(&bash(&client, "echo back").await);
    assert_eq!(result["stdout"], "back\n");
    assert!(
        result["session_reset"].as_str().unwrap().contains("Evicted"),
        "{result:?}"
    );
    assert!(!structured(&bash(&client, "echo").await).contains_key("session_reset"));

    cluster.remove("pods", &pod);
    server.knows_sessions(0).await;
    let result = structured(&bash(&client, "echo").await);
    assert!(
        result["session_reset"].as_str().unwrap().contains("replaced"),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_command_whose_sandbox_dies_is_not_sent_again_and_the_session_goes_on() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    bash(&client, "echo").await;
    let pod = cluster.pod_of("s1");
    let text = refusal(&bash(&client, "die").await);
    assert!(text.contains("may have run"), "{text}");
    assert_eq!(cluster.ran(&pod), ["echo", "die"]);
    cluster.evict(&pod);
    server.knows_sessions(0).await;
    assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n");
    assert!(!cluster.ran_anywhere().contains(&"die".to_owned()));
}

#[tokio::test]
async fn delete_ends_a_session_without_a_word_of_loss() {
    let cluster = Cluster::start().await;
    let mut servers = Server::replicas(&cluster).await;
    let client = servers[0].client("s1").await;
    bash(&client, "echo").await;
    let delete = |id: &str| http().delete(format!("{}/sessions/{id}", servers[0].base)).send();
    assert_eq!(delete("s1").await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!(delete("s1").await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!(delete("never-was").await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!(delete("Not_Valid").await.unwrap().status(), StatusCode::BAD_REQUEST);
    eventually("the pod is gone", || cluster.pods().is_empty()).await;
    let other = servers[1].client("s1").await;
    let result = structured(&bash(&other, "echo new").await);
    assert_eq!(result["stdout"], "new\n");
    assert!(!result.contains_key("session_reset"), "{result:?}");
    let audit = servers[0].audit_of("end").await;
    assert_eq!((&audit["session"], &audit["outcome"]), (&json!("s1"), &json!("ended")));
    assert!(audit["caller"]["address"].is_string(), "{audit}");
}

#[tokio::test]
async fn a_session_whose_deletion_failed_half_way_begins_anew() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    // A conflict says that another writer was faster, not that the pod is gone.
    for refusal in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::CONFLICT] {
        bash(&client, "echo").await;
        let before = cluster.pods_of("s1")[0]["metadata"]["uid"].clone();
        cluster.refuse_next("DELETE", "/pods/", refusal);
        let deleted = http().delete(format!("{}/sessions/s1", server.base)).send();
        assert_eq!(
            deleted.await.unwrap().status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "{refusal}"
        );
        let result = structured(&bash(&client, "echo new").await);
        assert_eq!(result["stdout"], "new\n");
        assert!(!result.contains_key("session_reset"), "the client asked for it");
        assert_ne!(cluster.pods_of("s1")[0]["metadata"]["uid"], before, "{refusal}");
    }
}

#[tokio::test]
async fn a_sandbox_that_another_replica_left_undecided_does_not_take_the_session() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    let hash = spec_hash(&cluster, &servers[0]).await;
    let (first, second) = (servers[0].client("s1").await, servers[1].client("s1").await);
    bash(&first, "echo 1").await;
    let used = cluster.pod_of("s1");
    fill_pool(&cluster, &hash, 1);
    servers[1].knows("cli_mcp_server_pool_ready 1\n").await;
    // A claimed pod comes before a created one.
    label(&cluster, POOL_POD, "s1");
    servers[1].knows("cli_mcp_server_pool_ready 0\n").await;
    let result = structured(&bash(&second, "echo 2").await);
    assert_eq!(result["stdout"], "2\n");
    assert_eq!(cluster.ran(&used), ["echo 1", "echo 2"]);
    eventually("the undecided one is gone", || cluster.pods().len() == 1).await;
}

#[tokio::test]
async fn a_call_right_after_delete_waits_for_the_old_pod_to_go() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    for n in 0..5 {
        assert_eq!(
            structured(&bash(&client, &format!("echo {n}")).await)["stdout"],
            format!("{n}\n")
        );
        http()
            .delete(format!("{}/sessions/s1", server.base))
            .send()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_that_cannot_start_says_why() {
    let cluster = Cluster::start().await;
    cluster.kubelet(Kubelet::CannotPull);
    let server = Server::start(&cluster, &[LOCAL]).await;
    let text = refusal(&bash(&server.client("s1").await, "echo").await);
    assert!(
        text.contains("ErrImageNeverPull") && text.contains("was not run"),
        "{text}"
    );
}

#[tokio::test]
async fn at_capacity_new_sessions_are_refused_and_old_ones_go_on() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL, "--max-sessions=2"]).await;
    let clients = [
        server.client("s1").await,
        server.client("s2").await,
        server.client("s3").await,
    ];
    structured(&bash(&clients[0], "echo").await);
    structured(&bash(&clients[1], "echo").await);
    let text = refusal(&bash(&clients[2], "echo").await);
    assert!(text.starts_with("At capacity") && text.contains('2'), "{text}");
    structured(&bash(&clients[0], "echo").await);
    http()
        .delete(format!("{}/sessions/s1", server.base))
        .send()
        .await
        .unwrap();
    structured(&bash(&clients[2], "echo").await);
}

#[tokio::test]
async fn activity_is_written_once_for_many_calls() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    fill_pool(&cluster, &hash, 1);
    eventually("the pool is ready", || ready(&cluster) == 1).await;
    let client = server.client("s1").await;
    for _ in 0..20 {
        bash(&client, "echo").await;
    }
    let annotations = cluster.pods_of("s1")[0]["metadata"]["annotations"].clone();
    assert!(
        annotations["cli-mcp.redhat.com/last-activity"].is_string()
            && annotations["cli-mcp.redhat.com/created-at"].is_string()
    );
    let patches = cluster
        .requests()
        .iter()
        .filter(|line| line.starts_with("PATCH") && line.contains("pool-0"))
        .count();
    assert_eq!(patches, 1, "the claim writes it, and the next is due in 15 s");
}

#[tokio::test]
async fn a_reset_is_told_by_the_first_result_whichever_replica_gives_it() {
    let cluster = Cluster::start().await;
    let servers = Server::replicas(&cluster).await;
    let (first, second) = (servers[0].client("s1").await, servers[1].client("s1").await);
    bash(&first, "echo").await;
    let pod = cluster.pod_of("s1");
    cluster.evict(&pod);
    servers[0].knows_sessions(0).await;
    // This call makes the next sandbox, and has no result.
    assert!(refusal(&bash(&first, "busy").await).contains("busy"));
    servers[1].knows_sessions(1).await;
    let result = structured(&bash(&second, "echo").await);
    assert!(
        result["session_reset"].as_str().unwrap().contains("Evicted"),
        "{result:?}"
    );
    assert!(!structured(&bash(&second, "echo").await).contains_key("session_reset"));
    eventually("the note is gone", || {
        cluster.pods_of("s1")[0]["metadata"]["annotations"]["cli-mcp.redhat.com/replaces"].is_null()
    })
    .await;
}

#[tokio::test]
async fn a_loss_is_not_forgotten_while_there_is_no_room_for_the_next_sandbox() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL, "--max-sessions=1"]).await;
    let (lost, other) = (server.client("s1").await, server.client("s2").await);
    bash(&lost, "echo").await;
    let pod = cluster.pod_of("s1");
    cluster.evict(&pod);
    server.knows_sessions(0).await;
    structured(&bash(&other, "echo").await);
    assert!(refusal(&bash(&lost, "echo").await).starts_with("At capacity"));
    http()
        .delete(format!("{}/sessions/s2", server.base))
        .send()
        .await
        .unwrap();
    server.knows_sessions(0).await;
    let result = structured(&bash(&lost, "echo").await);
    assert!(
        result["session_reset"].as_str().unwrap().contains("Evicted"),
        "{result:?}"
    );
}

/// The first pod of a pool.
const POOL_POD: &str = "cli-mcp-demo-pool-0";

#[tokio::test]
async fn a_claim_that_a_dead_replica_left_half_done_is_finished() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    fill_pool(&cluster, &hash, 1);
    eventually("the pool is ready", || ready(&cluster) == 1).await;
    label(&cluster, POOL_POD, "s1");
    server.knows_sessions(1).await;
    let client = server.client("s1").await;
    assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n");
    assert_eq!(cluster.pods().len(), 1);
}

#[tokio::test]
async fn a_pool_pod_that_does_not_take_its_session_is_removed_and_the_call_goes_on() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let hash = spec_hash(&cluster, &server).await;
    let other = HmacKey::new(&[8; 32]).unwrap().assign_token(POOL_POD);
    cluster.add_pool_pod(POOL_POD, &hash, &other.digest().to_hex());
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    let client = server.client("s1").await;
    assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n");
    eventually("the useless pod is gone", || cluster.pods().len() == 1).await;
}

#[tokio::test]
async fn a_sandbox_of_another_key_says_how_to_go_on() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    bash(&server.client("s1").await, "echo").await;
    // Its token is that of s1.
    label(&cluster, &cluster.pod_of("s1"), "s2");
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s2").await;
    let text = refusal(&bash(&client, "echo").await);
    assert!(
        text.contains("another key") && text.contains("DELETE /sessions/"),
        "{text}"
    );
    http()
        .delete(format!("{}/sessions/s2", server.base))
        .send()
        .await
        .unwrap();
    assert_eq!(structured(&bash(&client, "echo on").await)["stdout"], "on\n");
}

#[tokio::test]
async fn a_pod_of_somebody_else_under_the_sessions_name_is_told_and_left_alone() {
    let cluster = Cluster::start().await;
    let owner = r#"--sandbox-owner={"apiVersion":"v1","kind":"CliMcpInstance","name":"demo","uid":"uid-demo"}"#;
    let server = Server::start(&cluster, &[LOCAL, owner]).await;
    let name = session_pod_name("demo", "s1");
    cluster.put(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {
            "cli-mcp.redhat.com/instance": "demo", "cli-mcp.redhat.com/component": "sandbox",
            "cli-mcp.redhat.com/session-id": "s1"}}}),
    );
    let before = cluster.pods();
    let told = refusal(&bash(&server.client("s1").await, "echo").await);
    assert!(
        told.contains(&format!("pod {name} exists and does not belong")),
        "{told}"
    );
    assert_eq!(cluster.pods(), before);
}
