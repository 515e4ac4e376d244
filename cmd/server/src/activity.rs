//! When each session was last active, written to its pod for the operator's idle clock: at the start and end of a call
//! and during a long one, but at most once per 15 s a session. A write that comes too early is made later, not dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cli_mcp_api::labels;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterError};
use crate::store::Sandbox;

/// The shortest time between two writes for one session.
pub const INTERVAL: Duration = Duration::from_secs(15);

/// What to do about an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Write now.
    Now,
    /// Write at this time; the latest activity of then is what counts.
    At(Instant),
    /// A write is due already and will cover it.
    Covered,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    written: Instant,
    pending: bool,
    latest: Timestamp,
}

/// The decision, by the pod's UID; pure but for the clock it is given.
#[derive(Debug, Default)]
pub struct Coalescer {
    entries: HashMap<String, Entry>,
}

impl Coalescer {
    /// Notes an activity and says whether it is to be written.
    pub fn touch(&mut self, uid: &str, now: Instant, at: Timestamp) -> Due {
        let Some(entry) = self.entries.get_mut(uid) else {
            self.wrote(uid, now, at);
            return Due::Now;
        };
        entry.latest = at;
        if entry.pending {
            return Due::Covered;
        }
        let next = entry.written + INTERVAL;
        if now >= next {
            entry.written = now;
            return Due::Now;
        }
        entry.pending = true;
        Due::At(next)
    }

    /// A write that was due later is made now: the time to write.
    pub fn flush(&mut self, uid: &str, now: Instant) -> Option<Timestamp> {
        let entry = self.entries.get_mut(uid)?;
        entry.pending = false;
        entry.written = now;
        Some(entry.latest)
    }

    /// Notes a write that another request made along the way (create and claim do).
    pub fn wrote(&mut self, uid: &str, now: Instant, at: Timestamp) {
        self.entries.insert(
            uid.to_owned(),
            Entry {
                written: now,
                pending: false,
                latest: at,
            },
        );
    }

    /// Forgets all pods but these.
    pub fn retain(&mut self, living: impl Fn(&str) -> bool) {
        self.entries.retain(|uid, _| living(uid));
    }
}

/// Writes activities in the background.
#[derive(Clone)]
pub struct Activity {
    cluster: Cluster,
    coalescer: Arc<Mutex<Coalescer>>,
}

impl Activity {
    /// A writer with the cluster's rights.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            coalescer: Arc::default(),
        }
    }

    /// The session is active now.
    pub fn touch(&self, sandbox: &Arc<Sandbox>) {
        let now = Timestamp::now();
        match self.with(|coalescer| coalescer.touch(&sandbox.uid, Instant::now(), now)) {
            Due::Covered => {}
            Due::Now => {
                let (this, sandbox) = (self.clone(), sandbox.clone());
                tokio::spawn(async move { this.write(&sandbox, now).await });
            }
            Due::At(time) => {
                let (this, sandbox) = (self.clone(), sandbox.clone());
                tokio::spawn(async move {
                    tokio::time::sleep_until(time).await;
                    if let Some(latest) = this.with(|coalescer| coalescer.flush(&sandbox.uid, Instant::now())) {
                        this.write(&sandbox, latest).await;
                    }
                });
            }
        }
    }

    /// The sandbox was just made, and the request that made it wrote the time.
    pub fn made(&self, sandbox: &Sandbox) {
        self.with(|coalescer| coalescer.wrote(&sandbox.uid, Instant::now(), Timestamp::now()));
    }

    /// Forgets all pods but these.
    pub fn retain(&self, living: impl Fn(&str) -> bool) {
        self.with(|coalescer| coalescer.retain(living));
    }

    async fn write(&self, sandbox: &Sandbox, at: Timestamp) {
        let annotations = BTreeMap::from([(labels::LAST_ACTIVITY, at.to_string())]);
        match self.cluster.annotate(sandbox, &annotations).await {
            Ok(()) | Err(ClusterError::NotFound | ClusterError::Conflict) => {}
            Err(error) => tracing::warn!(pod = %sandbox.name, %error, "Failed to write a session's last activity"),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Coalescer) -> T) -> T {
        change(&mut self.coalescer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Api, Replica};
    use crate::store::fixtures::pod;

    #[test]
    fn one_write_an_interval_and_the_latest_time_wins() {
        let mut coalescer = Coalescer::default();
        let (start, epoch) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let second = |n: u64| (start + Duration::from_secs(n), epoch + Duration::from_secs(n));
        let touch = |coalescer: &mut Coalescer, n| coalescer.touch("u", second(n).0, second(n).1);

        assert_eq!(touch(&mut coalescer, 0), Due::Now);
        assert_eq!(touch(&mut coalescer, 3), Due::At(second(15).0));
        assert_eq!(touch(&mut coalescer, 14), Due::Covered);
        assert_eq!(coalescer.flush("u", second(15).0), Some(second(14).1));
        assert_eq!(touch(&mut coalescer, 29), Due::At(second(30).0));
        assert_eq!(coalescer.flush("u", second(30).0), Some(second(29).1));
        assert_eq!(touch(&mut coalescer, 60), Due::Now);
        assert_eq!(coalescer.touch("v", second(60).0, second(60).1), Due::Now);
    }

    #[tokio::test(start_paused = true)]
    async fn an_activity_that_comes_too_early_is_written_later() {
        let replica = Replica::new(Api::willing());
        let sandbox = replica.watched(&pod("p", "u", 1, Some("s1")));
        let activity = Activity::new(replica.cluster.clone());
        let writes = || replica.api.requests("PATCH");
        for _ in 0..3 {
            activity.touch(&sandbox);
        }
        tokio::time::sleep(INTERVAL / 2).await;
        assert_eq!(writes().len(), 1, "{:?}", writes());
        tokio::time::sleep(INTERVAL * 3).await;
        assert_eq!(writes().len(), 2, "{:?}", writes());
        assert!(writes().iter().all(|line| line.contains(labels::LAST_ACTIVITY)));
    }

    #[test]
    fn what_create_or_claim_wrote_is_not_written_again() {
        let mut coalescer = Coalescer::default();
        let start = Instant::now();
        coalescer.wrote("u", start, Timestamp::UNIX_EPOCH);
        assert_eq!(
            coalescer.touch("u", start, Timestamp::UNIX_EPOCH),
            Due::At(start + INTERVAL)
        );
        coalescer.retain(|uid| uid != "u");
        assert_eq!(coalescer.touch("u", start, Timestamp::UNIX_EPOCH), Due::Now);
    }
}
