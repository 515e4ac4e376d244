//! A warm pool, filled as the operator would.

use cli_mcp_sandbox::token::HmacKey;
use http::StatusCode;
use serde_json::json;

use super::api::Cluster;
use super::server::{KEY, Server, bash, eventually, http};

/// Adds ready pods that a server may claim.
pub(crate) fn fill_pool(cluster: &Cluster, spec_hash: &str, size: usize) {
    let key = HmacKey::new(&KEY).unwrap();
    for n in 0..size {
        let name = format!("cli-mcp-demo-pool-{n}");
        cluster.add_pool_pod(&name, spec_hash, &key.assign_token(&name).digest().to_hex());
    }
}

/// The hash of what a server builds: taken from a pod that one built.
pub(crate) async fn spec_hash(cluster: &Cluster, server: &Server) -> String {
    let client = server.client("probe").await;
    bash(&client, "echo").await;
    let hash = cluster.pods_of("probe")[0]["metadata"]["annotations"]["cli-mcp.redhat.com/spec-hash"]
        .as_str()
        .unwrap()
        .to_owned();
    let deleted = http()
        .delete(format!("{}/sessions/probe", server.base))
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    eventually("the probe's pod is gone", || cluster.pods_of("probe").is_empty()).await;
    hash
}

/// Gives a pod a session's label, as a claim does, and nothing more.
pub(crate) fn label(cluster: &Cluster, pod: &str, session: &str) {
    let mut pod = cluster.pod(pod);
    pod["metadata"]["labels"]["cli-mcp.redhat.com/session-id"] = json!(session);
    cluster.put("pods", pod);
}

/// Number of pods that run.
pub(crate) fn ready(cluster: &Cluster) -> usize {
    cluster
        .pods()
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running")
        .count()
}

/// Fills the pool and waits until the servers know all of it as it is.
pub(crate) async fn warm_pool(cluster: &Cluster, servers: &[&Server], size: usize) {
    let hash = spec_hash(cluster, servers[0]).await;
    fill_pool(cluster, &hash, size);
    for server in servers {
        server.knows(&format!("cli_mcp_server_pool_ready {size}\n")).await;
    }
}
