//! What the API server's audit log says of the server's requests. A log that is read wrong shows none, which is what the
//! bench hopes to find: a call that must make some is the control.

use std::io::{BufRead, Seek, SeekFrom};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{INSTANCE, NAMESPACE};

/// How long a request that was answered may take to be in the log.
const WRITTEN: Duration = Duration::from_secs(10);

/// The log, by the path that `DEVCLUSTER_AUDIT_LOG` names.
pub(crate) struct AuditLog {
    path: String,
    user: String,
}

/// Requests of the server's ServiceAccount, but for watches, reviews of tokens and the kubelet's probe of `/health`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) all: usize,
    /// Those of them that are no patch.
    pub(crate) others: usize,
}

impl AuditLog {
    pub(crate) fn open() -> Result<Self> {
        Ok(Self {
            path: std::env::var("DEVCLUSTER_AUDIT_LOG").context("DEVCLUSTER_AUDIT_LOG; run make bench-server")?,
            user: format!("system:serviceaccount:{NAMESPACE}:cli-mcp-{INSTANCE}"),
        })
    }

    /// Where the log ends now.
    pub(crate) fn end(&self) -> Result<u64> {
        let log = std::fs::metadata(&self.path).with_context(|| self.path.clone())?;
        Ok(log.len())
    }

    /// The requests that ended since the log had this length.
    pub(crate) fn since(&self, begin: u64) -> Result<Requests> {
        let mut log = std::fs::File::open(&self.path).with_context(|| self.path.clone())?;
        log.seek(SeekFrom::Start(begin))?;
        let mut requests = Requests { all: 0, others: 0 };
        for line in std::io::BufReader::new(log).lines() {
            let Ok(entry) = serde_json::from_str::<Value>(&line?) else {
                continue;
            };
            if !self.counts(&entry) {
                continue;
            }
            requests.all += 1;
            requests.others += usize::from(entry["verb"] != "patch");
        }
        Ok(requests)
    }

    /// The requests since then of a call that got a sandbox for its session: each makes one at least.
    pub(crate) async fn control(&self, begin: u64) -> Result<Requests> {
        let began = Instant::now();
        loop {
            let requests = self.since(begin)?;
            if requests.all > 0 {
                return Ok(requests);
            }
            if began.elapsed() > WRITTEN {
                bail!(
                    "the audit log {} has no request of {} for a call that claimed or made a sandbox, so that none for later calls would prove nothing: is it the log of this cluster, does its policy record requests for pods, does the server run as this user?",
                    self.path,
                    self.user
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn counts(&self, entry: &Value) -> bool {
        let uri = entry["requestURI"].as_str().unwrap_or_default();
        let review = uri.contains("reviews");
        let probe = uri.contains("limit=1&") || uri.ends_with("limit=1");
        entry["user"]["username"] == self.user.as_str()
            && entry["stage"] == "ResponseComplete"
            && entry["verb"] != "watch"
            && !review
            && !probe
    }
}
