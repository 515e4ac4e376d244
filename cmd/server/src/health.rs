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
