//! When each session was last active, written to its pod for the operator's idle clock: at the start and end of a call
//! and during a long one, but at most once per 15 s a session. A write that comes too early is made later, not dropped, and
//! what another replica wrote counts.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cli_mcp_api::labels;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterError};
use crate::store::Sandbox;

/// The shortest time between two writes for one session.
pub const INTERVAL: Duration = Duration::from_secs(15);

/// How often a command that runs counts as activity, in the memory of its server: what is written at last is no older, and the
/// operator takes 30 s for granted at most.
pub const BEAT: Duration = Duration::from_secs(5);

/// Replicas that wait for the same moment would all write in it: each waits longer by a time of its own, up to this.
const APART: Duration = Duration::from_secs(2);

/// What to do about an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Write this time now.
    Now(Timestamp),
    /// Decide again at this time; the latest activity of then is what counts.
    At(Instant),
    /// A write was made, or is due already, that covers it.
    Covered,
}

/// When something is decided, and what is known then.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The clock that waits are measured with.
    pub now: Instant,
    /// The clock that activities are written with.
    pub wall: Timestamp,
    /// The last activity that any replica wrote.
    pub written: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    written: Option<Instant>,
    pending: bool,
    latest: Timestamp,
}

/// The decision, by the pod's UID; pure but for the clock it is given.
#[derive(Debug, Default)]
pub struct Coalescer {
    entries: HashMap<String, Entry>,
    /// How much longer than the interval this replica waits.
    apart: Duration,
}

impl Coalescer {
    /// Notes an activity and says whether it is to be written.
    pub fn touch(&mut self, uid: &str, moment: Moment) -> Due {
        let entry = self.entries.entry(uid.to_owned()).or_insert(Entry {
            written: None,
            pending: false,
            latest: moment.wall,
        });
        entry.latest = moment.wall;
        if entry.pending {
            return Due::Covered;
        }
        entry.decide(moment, self.apart)
    }

    /// Decides again on an activity that came too early.
    pub fn again(&mut self, uid: &str, moment: Moment) -> Due {
        let Some(entry) = self.entries.get_mut(uid) else {
            return Due::Covered;
        };
        entry.pending = false;
        if moment.written.is_some_and(|written| written >= entry.latest) {
            return Due::Covered;
        }
        entry.decide(moment, self.apart)
    }

    /// Notes a write that another request made along the way (create and claim do).
    pub fn wrote(&mut self, uid: &str, moment: Moment) {
        self.entries.insert(
            uid.to_owned(),
            Entry {
                written: Some(moment.now),
                pending: false,
                latest: moment.wall,
            },
        );
    }

    /// Forgets all pods but these.
    pub fn retain(&mut self, living: impl Fn(&str) -> bool) {
        self.entries.retain(|uid, _| living(uid));
    }
}

impl Entry {
    fn decide(&mut self, moment: Moment, apart: Duration) -> Due {
        // A clock that is ahead of this one counts as this one.
        let elsewhere = moment.written.and_then(|written| {
            let age = Duration::try_from(moment.wall.duration_since(written)).unwrap_or_default();
            moment.now.checked_sub(age)
        });
        // Who waits for its own last write is alone with that: there is nobody to make room for.
        let apart = if elsewhere > self.written {
            apart
        } else {
            Duration::ZERO
        };
        self.written = self.written.max(elsewhere);
        match self.written.map(|written| written + INTERVAL) {
            Some(next) if moment.now < next => {
                self.pending = true;
                Due::At(next + apart)
            }
            _ => {
                self.written = Some(moment.now);
                Due::Now(self.latest)
            }
        }
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
            coalescer: Arc::new(Mutex::new(Coalescer {
                apart: APART.mul_f64(own_share()),
                ..Coalescer::default()
            })),
        }
    }

    /// The session is active now.
    pub fn touch(&self, sandbox: &Arc<Sandbox>) {
        let moment = self.moment(sandbox);
        let due = self.with(|coalescer| coalescer.touch(&sandbox.uid, moment));
        if due != Due::Covered {
            let (this, sandbox) = (self.clone(), sandbox.clone());
            tokio::spawn(async move { this.write_when(due, &sandbox).await });
        }
    }

    /// The sandbox was just made, and the request that made it wrote the time.
    pub fn made(&self, sandbox: &Sandbox) {
        let moment = self.moment(sandbox);
        self.with(|coalescer| coalescer.wrote(&sandbox.uid, moment));
    }

    /// Forgets all pods but these.
    pub fn retain(&self, living: impl Fn(&str) -> bool) {
        self.with(|coalescer| coalescer.retain(living));
    }

    fn moment(&self, sandbox: &Sandbox) -> Moment {
        Moment {
            now: Instant::now(),
            wall: Timestamp::now(),
            written: self.cluster.last_activity(sandbox),
        }
    }

    async fn write_when(&self, mut due: Due, sandbox: &Sandbox) {
        loop {
            match due {
                Due::Covered => return,
                Due::Now(at) => return self.write(sandbox, at).await,
                Due::At(time) => tokio::time::sleep_until(time).await,
            }
            let moment = self.moment(sandbox);
            due = self.with(|coalescer| coalescer.again(&sandbox.uid, moment));
        }
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

/// From 0 to 1, another for each replica.
fn own_share() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{Api, Replica};
    use crate::store::fixtures::pod;

    /// Moments by the second, and what was written last by then.
    fn clock() -> impl Fn(u64, Option<u64>) -> Moment {
        let start = Instant::now();
        move |second, written| Moment {
            now: start + Duration::from_secs(second),
            wall: wall(second),
            written: written.map(wall),
        }
    }

    fn wall(second: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn one_write_an_interval_and_the_latest_time_wins() {
        let mut coalescer = Coalescer::default();
        let at = clock();
        let due = |second| Due::At(at(second, None).now);
        assert_eq!(coalescer.touch("u", at(0, None)), Due::Now(wall(0)));
        assert_eq!(coalescer.touch("u", at(3, Some(0))), due(15));
        assert_eq!(coalescer.touch("u", at(14, Some(0))), Due::Covered);
        assert_eq!(coalescer.again("u", at(15, Some(0))), Due::Now(wall(14)));
        assert_eq!(coalescer.touch("u", at(29, Some(14))), due(30));
        assert_eq!(coalescer.again("u", at(30, Some(14))), Due::Now(wall(29)));
        assert_eq!(coalescer.touch("u", at(60, Some(29))), Due::Now(wall(60)));
        assert_eq!(coalescer.touch("v", at(60, None)), Due::Now(wall(60)));
    }

    #[test]
    fn what_another_replica_wrote_counts() {
        let mut coalescer = Coalescer {
            apart: Duration::from_secs(1),
            ..Coalescer::default()
        };
        let at = clock();
        let due = |second| Due::At(at(second, None).now);
        // A sandbox that this replica did not make.
        assert_eq!(coalescer.touch("u", at(20, Some(10))), due(26));
        assert_eq!(coalescer.touch("u", at(24, Some(10))), Due::Covered);
        assert_eq!(coalescer.again("u", at(26, Some(25))), Due::Covered, "theirs is later");
        assert_eq!(coalescer.touch("u", at(27, Some(25))), due(41));
        assert_eq!(coalescer.touch("u", at(39, Some(25))), Due::Covered);
        assert_eq!(coalescer.again("u", at(41, Some(38))), due(54), "theirs is earlier");
        assert_eq!(coalescer.again("u", at(54, Some(38))), Due::Now(wall(39)));
        assert_eq!(coalescer.touch("u", at(100, Some(54))), Due::Now(wall(100)));
        // Its clock is ahead.
        assert_eq!(coalescer.touch("u", at(120, Some(200))), due(136));
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
    fn a_replica_waits_no_longer_for_its_own_write() {
        let mut coalescer = Coalescer {
            apart: Duration::from_secs(1),
            ..Coalescer::default()
        };
        let at = clock();
        assert_eq!(coalescer.touch("u", at(0, None)), Due::Now(wall(0)));
        assert_eq!(coalescer.touch("u", at(14, Some(0))), Due::At(at(15, None).now));
    }

    #[test]
    fn what_create_or_claim_wrote_is_not_written_again() {
        let mut coalescer = Coalescer::default();
        let at = clock();
        coalescer.wrote("u", at(0, None));
        assert_eq!(coalescer.touch("u", at(0, None)), Due::At(at(15, None).now));
        coalescer.retain(|uid| uid != "u");
        assert_eq!(coalescer.touch("u", at(0, None)), Due::Now(wall(0)));
    }
}
