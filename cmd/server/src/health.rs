//! `/health`: can the server list pods in its namespace (contract, section 4), and does it want more calls.

use std::sync::Arc;
use std::time::Duration;

use cli_mcp_serving::probes::Health;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::store::cache::SandboxCache;

/// How long an answer stands: the probe is open to everyone, the API server must not feel it.
const STANDS_FOR: Duration = Duration::from_secs(1);

/// The server's health.
pub struct ServerHealth {
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    stopping: CancellationToken,
    last: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl ServerHealth {
    /// Health of a server that stops when the token is cancelled.
    #[must_use]
    pub fn new(cluster: Cluster, cache: Arc<SandboxCache>, stopping: CancellationToken) -> Self {
        Self {
            cluster,
            cache,
            stopping,
            last: Mutex::default(),
        }
    }
}

impl Health for ServerHealth {
    async fn check(&self) -> Result<(), String> {
        if self.stopping.is_cancelled() {
            return Err("the server is shutting down".to_owned());
        }
        if !self.cache.read(|store| store.synced()) {
            return Err("the pods of the namespace have not been read yet".to_owned());
        }
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < STANDS_FOR
        {
            return answer.clone();
        }
        let answer = self
            .cluster
            .probe()
            .await
            .map_err(|error| format!("pods cannot be listed: {error}"));
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::fixtures::{Api, Replica};

    fn health(replica: &Replica) -> (ServerHealth, CancellationToken) {
        let stopping = CancellationToken::new();
        let health = ServerHealth::new(replica.cluster.clone(), replica.cache.clone(), stopping.clone());
        (health, stopping)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_stands_for_a_moment_and_not_for_longer() {
        for (api, healthy) in [
            (Api::willing(), true),
            (Api::refusing(StatusCode::FORBIDDEN, "no right"), false),
        ] {
            let replica = Replica::new(api);
            let (health, _stopping) = health(&replica);
            for (wait, requests) in [(Duration::ZERO, 1), (STANDS_FOR / 2, 1), (STANDS_FOR, 2)] {
                tokio::time::sleep(wait).await;
                let answer = health.check().await;
                match answer {
                    Ok(()) => assert!(healthy),
                    Err(reason) => assert!(!healthy && reason.contains("no right"), "{reason}"),
                }
                assert_eq!(replica.api.requests("GET").len(), requests, "{wait:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_or_has_not_begun_is_unhealthy_without_a_request() {
        let replica = Replica::unsynced(Api::willing());
        let (begins, _stopping) = health(&replica);
        assert!(begins.check().await.unwrap_err().contains("have not been read yet"));
        assert!(replica.api.requests("").is_empty());

        let replica = Replica::new(Api::willing());
        let (stops, stopping) = health(&replica);
        stops.check().await.unwrap();
        stopping.cancel();
        assert_eq!(stops.check().await.unwrap_err(), "the server is shutting down");
        assert_eq!(replica.api.requests("").len(), 1, "and at once");
    }
}
