//! Sandboxes whose addresses cannot be reached from where the server is, as on a laptop.

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, bash, begin, eventually, structured};

/// Nobody listens there: a firewall that answers.
const REFUSED: &str = "127.255.255.254";

/// Nothing comes from there (RFC 6666).
const SILENT: &str = "100::1";

fn forwards(cluster: &Cluster) -> usize {
    let requests = cluster.requests();
    requests.iter().filter(|line| line.contains("/portforward")).count()
}

#[tokio::test]
async fn where_pods_are_out_of_reach_their_agents_are_reached_through_the_api_server() {
    for address in [REFUSED, SILENT] {
        let cluster = Cluster::start().await;
        cluster.show_address(address);
        let server = Server::start(&cluster, &[LOCAL]).await;
        let client = server.client("s1").await;
        assert_eq!(structured(&bash(&client, "echo x").await)["stdout"], "x\n", "{address}");
        let used = forwards(&cluster);
        assert!(used > 0, "{address}");
        assert_eq!(structured(&bash(&client, "echo y").await)["stdout"], "y\n", "{address}");
        assert_eq!(forwards(&cluster), used, "{address}: the connection is used again");
    }
}

#[tokio::test]
async fn a_client_that_leaves_stops_its_command_also_through_the_api_server() {
    let cluster = Cluster::start().await;
    cluster.show_address(SILENT);
    let mut server = Server::start(&cluster, &[LOCAL]).await;
    let client = server.client("s1").await;
    let call = begin(&client, "hang");
    eventually("the command runs", || cluster.ran_anywhere() == ["hang"]).await;
    call.abort();
    drop(client);
    eventually("the command is stopped", || cluster.stopped_anywhere() == ["hang"]).await;
    assert_eq!(server.audit().await["outcome"], "cancelled");
}
