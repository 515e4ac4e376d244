//! No sandbox without its preconditions, no command on an open network.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::api::{Cluster, Kubelet};
use crate::support::pool::{fill_pool, label};
use crate::support::server::{LOCAL, Server, bash, begin, http, refusal, structured};

const PROXY: [&str; 5] = [
    "--proxy-service=cli-mcp-demo-proxy",
    "--proxy-ca-secret=cli-mcp-demo-proxy-ca",
    "--dummy-kubeconfig-configmap=cli-mcp-demo-proxy",
    "--egress-target=10.96.0.1:443",
    "--egress-control=10.96.0.2:8080",
];

fn in_place(cluster: &Cluster) {
    let labels = json!({"cli-mcp.redhat.com/instance": "demo"});
    let policy = |name: &str, types: Value| json!({"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": {"podSelector": {}, "policyTypes": types}});
    cluster.put(
        "networkpolicies",
        policy("cli-mcp-demo-sandbox", json!(["Ingress", "Egress"])),
    );
    cluster.put("networkpolicies", policy("cli-mcp-demo-proxy", json!(["Ingress"])));
    cluster.put("configmaps", json!({"metadata": {"name": "cli-mcp-demo-proxy", "namespace": "ns", "labels": labels}, "data": {"kubeconfig": "x"}}));
    cluster.put("endpointslices", json!({
        "metadata": {"name": "cli-mcp-demo-proxy-x", "namespace": "ns", "labels": {"kubernetes.io/service-name": "cli-mcp-demo-proxy"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": true}}],
        "ports": [],
    }));
}

#[tokio::test]
async fn an_open_network_is_an_error_that_names_the_remedy_and_tells_the_operator() {
    let cluster = Cluster::start().await;
    cluster.kubelet(Kubelet::StartsOpen);
    let server = Server::start(&cluster, &[LOCAL]).await;
    let text = refusal(&bash(&server.client("s1").await, "echo").await);
    assert!(
        text.starts_with("EgressNotEnforced") && text.contains("NetworkPolicy"),
        "{text}"
    );
    assert_eq!(
        cluster.pods_of("s1")[0]["metadata"]["annotations"]["cli-mcp.redhat.com/egress"],
        "NotEnforced"
    );
    assert!(cluster.ran_anywhere().is_empty());
}

#[tokio::test]
async fn while_one_sandbox_shows_an_open_network_no_other_is_made_or_claimed() {
    let cluster = Cluster::start().await;
    in_place(&cluster);
    cluster.kubelet(Kubelet::StartsOpen);
    let mut server = Server::start(&cluster, &PROXY).await;
    refusal(&bash(&server.client("s1").await, "echo").await);
    let open = cluster.pod_of("s1");
    assert_eq!(server.audit().await["outcome"], "egress_not_enforced");
    cluster.kubelet(Kubelet::Starts);
    let hash = cluster.pod(&open)["metadata"]["annotations"]["cli-mcp.redhat.com/spec-hash"].clone();
    fill_pool(&cluster, hash.as_str().unwrap(), 1);
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    let other = server.client("s2").await;
    let text = refusal(&bash(&other, "echo").await);
    assert!(text.starts_with("EgressNotEnforced") && text.contains(&open), "{text}");
    assert_eq!(server.audit().await["outcome"], "egress_not_enforced");
    assert!(cluster.pods_of("s2").is_empty() && cluster.ran_anywhere().is_empty());
    // Its mark stays; that it is ready says that the network was closed since.
    let mut closed = cluster.pod(&open);
    closed["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    cluster.put("pods", closed);
    let served = async || loop {
        let result = bash(&other, "echo x").await;
        if result.is_error != Some(true) {
            return structured(&result);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let served = tokio::time::timeout(Duration::from_secs(30), served()).await;
    assert_eq!(served.expect("it stays closed")["stdout"], "x\n");
}

#[tokio::test]
async fn a_sandbox_that_runs_a_command_again_loses_the_mark_of_an_open_network() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    structured(&bash(&client, "echo").await);
    let name = cluster.pod_of("s1");
    let mark = |pod: &Value| pod["metadata"]["annotations"]["cli-mcp.redhat.com/egress"].clone();
    let mut marked = cluster.pod(&name);
    marked["metadata"]["annotations"]["cli-mcp.redhat.com/egress"] = json!("NotEnforced");
    cluster.put("pods", marked);
    let unmarked = async {
        while !mark(&cluster.pod(&name)).is_null() {
            structured(&bash(&client, "echo").await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let unmarked = tokio::time::timeout(Duration::from_secs(30), unmarked).await;
    assert!(unmarked.is_ok(), "it would say so again whenever it is not ready");
}

#[tokio::test]
async fn without_the_check_no_mark_of_an_earlier_sandbox_refuses_a_session() {
    let cluster = Cluster::start().await;
    in_place(&cluster);
    cluster.kubelet(Kubelet::StartsOpen);
    let server = Server::start(&cluster, &PROXY).await;
    refusal(&bash(&server.client("s1").await, "echo").await);
    cluster.kubelet(Kubelet::Starts);
    let unchecked = Server::start(&cluster, &[&PROXY[..], &["--egress-check=Disabled"]].concat()).await;
    let result = structured(&bash(&unchecked.client("s2").await, "echo x").await);
    assert_eq!(result["stdout"], "x\n");
}

#[tokio::test]
async fn a_gate_that_closes_while_an_earlier_sandbox_goes_lets_no_other_be_made() {
    let cluster = Cluster::start().await;
    in_place(&cluster);
    let server = Server::start(&cluster, &PROXY).await;
    let client = server.client("s1").await;
    structured(&bash(&client, "echo").await);
    let name = cluster.pod_of("s1");
    let mut going = cluster.pods_of("s1").remove(0);
    going["metadata"]["deletionTimestamp"] = json!("2999-01-01T00:00:00Z");
    cluster.put("pods", going);
    let waiting = begin(&client, "echo");
    // Time to come to wait for the pod.
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.remove("configmaps", "cli-mcp-demo-proxy");
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.remove("pods", &name);
    let text = refusal(&waiting.await.unwrap());
    assert!(text.contains("ConfigMap cli-mcp-demo-proxy"), "{text}");
    assert!(cluster.pods_of("s1").is_empty());
}

#[tokio::test]
async fn the_gate_closes_with_any_precondition_and_assigned_sessions_go_on() {
    let cluster = Cluster::start().await;
    in_place(&cluster);
    let server = Server::start(&cluster, &PROXY).await;
    let assigned = server.client("assigned").await;
    structured(&bash(&assigned, "echo").await);

    for (plural, name, expected) in [
        (
            "networkpolicies",
            "cli-mcp-demo-sandbox",
            "NetworkPolicy cli-mcp-demo-sandbox",
        ),
        (
            "networkpolicies",
            "cli-mcp-demo-proxy",
            "NetworkPolicy cli-mcp-demo-proxy",
        ),
        ("configmaps", "cli-mcp-demo-proxy", "ConfigMap cli-mcp-demo-proxy"),
        ("endpointslices", "cli-mcp-demo-proxy-x", "no ready endpoint"),
    ] {
        cluster.remove(plural, name);
        let stranger = server.client("stranger").await;
        // The watch tells the server; until then it may still create.
        let mut text = String::new();
        for _ in 0..500 {
            let result = bash(&stranger, "echo").await;
            if result.structured_content.is_none() {
                text = refusal(&result);
                break;
            }
            http()
                .delete(format!("{}/sessions/stranger", server.base))
                .send()
                .await
                .unwrap();
        }
        assert!(
            text.starts_with("Not ready") && text.contains(expected),
            "{plural} {name}: {text}"
        );
        structured(&bash(&assigned, "echo").await);
        in_place(&cluster);
    }
    let back = server.client("back").await;
    let mut open = false;
    for _ in 0..500 {
        open = bash(&back, "echo").await.structured_content.is_some();
        if open {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(open, "the gate opens again");
}

#[tokio::test]
async fn a_sandbox_that_came_while_a_call_waited_at_the_gate_is_used_and_not_cleared_away() {
    let cluster = Cluster::start().await;
    in_place(&cluster);
    let listing = cluster.withhold("GET", "/networkpolicies");
    let server = Server::start(&cluster, &PROXY).await;
    let client = server.client("s1").await;
    let call = begin(&client, "echo x");
    // Long enough to come to the gate; a call that comes later finds the sandbox at once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    fill_pool(&cluster, "0000000000000000", 1);
    let theirs = "cli-mcp-demo-pool-0";
    server.knows("cli_mcp_server_pool_ready 1\n").await;
    label(&cluster, theirs, "s1");
    server.knows_sessions(1).await;
    let since = cluster.requests().len();
    listing.cancel();
    assert_eq!(structured(&call.await.unwrap())["stdout"], "x\n");
    assert_eq!(cluster.ran(theirs), ["echo x"]);
    let requests = cluster.requests().split_off(since);
    assert!(!requests.iter().any(|line| line.starts_with("DELETE")), "{requests:?}");
}
