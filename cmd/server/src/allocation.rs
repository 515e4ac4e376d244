//! From a session to its sandbox (contract, section 7): the one that is there, else a claim from the pool, else a new
//! pod. Two replicas that get a new session at once end with one sandbox; how is told in `settling`.

mod candidates;
mod settling;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cli_mcp_sandbox::token::HmacKey;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use self::candidates::{Candidates, Held};
pub use self::settling::TakenOver;
use crate::agent::AgentClient;
use crate::cluster::{Cluster, ClusterError};
use crate::failure::Failure;
use crate::session::SessionId;
use crate::store::cache::SandboxCache;
use crate::store::{Phase, Sandbox};
use crate::telemetry::{Claim, Stage, Telemetry};
use crate::watch::Gate;

/// How long a call waits for the store's first LIST after the server's start.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// How long a sandbox that another replica took for the session may stay undecided: that replica decides within `DECIDES`
/// of its write or not at all, and this one learned of the write later than it was made.
pub(crate) const OTHER_DECIDES: Duration = Duration::from_secs(3);

/// A pod that should be gone for so long is on a lost node: nothing will confirm its end, so it is deleted by force.
const LOST_NODE: SignedDuration = SignedDuration::from_secs(30);

/// How often the whole search is begun anew before the caller is told to try again.
const ATTEMPTS: u32 = 16;

/// How many claims a search may lose to other servers before it makes a pod of its own, which nobody can take from it.
const LOST_CLAIMS: u32 = 8;

/// How many pods of the pool may refuse the session before a search makes one of its own: with a key that is not the
/// pool's, all of them would, and each is deleted.
const REFUSALS: u32 = 2;

/// A session's sandbox, found or made.
#[derive(Clone, Debug)]
pub struct Allocated {
    /// The sandbox; it may not have started yet.
    pub sandbox: Arc<Sandbox>,
    /// Whether this call made or claimed it.
    pub fresh: bool,
}

/// What came of one attempt to make a sandbox.
enum Made {
    Sandbox(Arc<Sandbox>),
    /// Another server was faster.
    Raced,
    /// It was given up in favour of another server's.
    GaveUp,
    /// It did not take the session.
    Useless,
}

/// Finds and makes sandboxes for sessions.
pub struct Allocator {
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    agent: AgentClient,
    key: HmacKey,
    gate: Option<Gate>,
    max_sessions: Option<NonZeroU32>,
    telemetry: Telemetry,
    candidates: Candidates,
    /// One search a session at a time; who waits finds the result in the store.
    searching: Mutex<HashMap<SessionId, Weak<tokio::sync::Mutex<()>>>>,
    /// Sessions that are about to get a pod, in the store or not yet.
    reserved: Mutex<HashSet<SessionId>>,
}

impl Allocator {
    /// An allocator over a store that a watch feeds.
    #[must_use]
    pub fn new(
        cluster: Cluster,
        cache: Arc<SandboxCache>,
        agent: AgentClient,
        key: HmacKey,
        gate: Option<Gate>,
        max_sessions: Option<NonZeroU32>,
        telemetry: Telemetry,
    ) -> Self {
        let candidates = Candidates::new(cache.clone(), cluster.spec_hash().to_owned());
        Self {
            cluster,
            cache,
            agent,
            key,
            gate,
            max_sessions,
            telemetry,
            candidates,
            searching: Mutex::default(),
            reserved: Mutex::default(),
        }
    }

    /// The session's sandbox. Sessions that have one get it without a request to the API server.
    ///
    /// # Errors
    ///
    /// A [`Failure`] that tells the caller what to do; no command was sent.
    pub async fn allocate(self: &Arc<Self>, session: &SessionId, deadline: Instant) -> Result<Allocated, Failure> {
        self.synced().await?;
        if let Some(sandbox) = self.known(session) {
            return Ok(Allocated { sandbox, fresh: false });
        }
        // A search goes on when its caller leaves: half a claim would keep the next caller waiting.
        let (allocator, session) = (self.clone(), session.clone());
        let search = async move { allocator.search(&session, deadline).await };
        let search = tokio::spawn(search.in_current_span());
        search
            .await
            .unwrap_or_else(|error| Err(Failure::NotReady(format!("the search for a sandbox ended ({error})"))))
    }

    async fn search(&self, session: &SessionId, deadline: Instant) -> Result<Allocated, Failure> {
        let lock = self.search_lock(session);
        let Ok(_one_search) = tokio::time::timeout_at(deadline, lock.lock()).await else {
            return Err(Failure::NotReady(
                "another call of this session is still waiting for its sandbox".to_owned(),
            ));
        };
        let (mut use_pool, mut refusals) = (true, 0);
        for _ in 0..ATTEMPTS {
            if let Some(sandbox) = self.known(session) {
                return Ok(Allocated { sandbox, fresh: false });
            }
            if Instant::now() >= deadline {
                return Err(Failure::NotReady("the cluster took too long to provide one".to_owned()));
            }
            self.check_gate().await?;
            // Another replica may have made one while this search waited: only what stood here is cleared away.
            let left = self.cache.read(|store| store.of_session(session));
            if self.first_in_use(&left).is_some() {
                continue;
            }
            let candidate = use_pool.then(|| self.candidates.hold(session)).flatten();
            let wait_until = candidate.is_none().then_some(deadline);
            if let Some(loss) = self.clear_away(session, left, wait_until).await? {
                self.cache.write(|store| store.record_loss(session, loss));
            }
            // Clearing away may have taken as long as a pod takes to go.
            self.check_gate().await?;
            let _room = self.reserve(session)?;
            let replaces = self.cache.read(|store| store.loss(session));
            match self.make(session, candidate, replaces.as_deref(), deadline).await? {
                Made::Sandbox(sandbox) => return Ok(Allocated { sandbox, fresh: true }),
                Made::Raced => continue,
                Made::GaveUp => use_pool = false,
                Made::Useless => {
                    refusals += 1;
                    use_pool = refusals < REFUSALS;
                }
            }
            if let Some(reason) = replaces {
                self.cache.write(|store| store.record_loss(session, reason));
            }
        }
        Err(Failure::NotReady(
            "servers were taking sandboxes for this session from each other".to_owned(),
        ))
    }

    /// Ends the session: every sandbox of it is deleted.
    ///
    /// # Errors
    ///
    /// When the API server does not answer.
    pub async fn end(&self, session: &SessionId) -> Result<(), ClusterError> {
        for sandbox in self.cluster.list(session).await? {
            self.agent.forget(&sandbox);
            self.cluster.end(&sandbox, "client").await?;
        }
        self.cache.write(|store| store.forget_loss(session));
        Ok(())
    }

    fn known(&self, session: &SessionId) -> Option<Arc<Sandbox>> {
        self.first_in_use(&self.cache.read(|store| store.of_session(session)))
            .cloned()
    }

    /// Of a session's sandboxes the one that every replica uses.
    fn first_in_use<'a>(&self, all: &'a [Arc<Sandbox>]) -> Option<&'a Arc<Sandbox>> {
        let spec_hash = self.cluster.spec_hash();
        all.iter()
            .find(|sandbox| sandbox.usable() && !stale(sandbox, spec_hash))
    }

    async fn synced(&self) -> Result<(), Failure> {
        let synced = self.cache.wait_for(|store| store.synced().then_some(()));
        match tokio::time::timeout(FIRST_LIST, synced).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Failure::NotReady(
                "the server cannot read the pods of its namespace".to_owned(),
            )),
        }
    }

    fn search_lock(&self, session: &SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut searching = self.searching.lock().unwrap_or_else(PoisonError::into_inner);
        searching.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = searching.get(session).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        searching.insert(session.clone(), Arc::downgrade(&lock));
        lock
    }

    /// Removes what is left of earlier sandboxes and says why they are no more. One whose name a new pod needs is waited
    /// for, if `wait_until` is given.
    async fn clear_away(
        &self,
        session: &SessionId,
        left: Vec<Arc<Sandbox>>,
        wait_until: Option<Instant>,
    ) -> Result<Option<String>, Failure> {
        let mut loss = None;
        for sandbox in left {
            if !sandbox.ended && !matches!(sandbox.phase, Phase::Starting(_)) {
                loss.get_or_insert(sandbox.loss());
            }
            self.agent.forget(&sandbox);
            let due = match &sandbox.phase {
                Phase::Terminating(due) => *due,
                // Not marked as ended: where this search gets no further, whoever makes another must hear of the loss.
                Phase::Dead(_) => {
                    self.cluster.delete(&sandbox, None).await?;
                    None
                }
                Phase::Starting(_) | Phase::Running => {
                    self.cluster.end(&sandbox, "replaced").await?;
                    None
                }
            };
            if let Some(deadline) = wait_until
                && sandbox.name == self.cluster.pod_name(session)
            {
                self.wait_until_gone(&sandbox, due, deadline).await?;
            }
        }
        Ok(loss)
    }

    async fn wait_until_gone(
        &self,
        sandbox: &Sandbox,
        due: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let gone = self.cache.wait_for(|store| match store.get(&sandbox.name) {
            Some(still) if still.uid == sandbox.uid => None,
            _ => Some(()),
        });
        tokio::pin!(gone);
        let patience = Instant::now() + until_overdue(due, Timestamp::now());
        tokio::select! {
            () = &mut gone => return Ok(()),
            () = tokio::time::sleep_until(patience.min(deadline)) => {}
        }
        if patience > deadline {
            return Err(Failure::NotReady(format!(
                "pod {} of this session's earlier sandbox is still terminating",
                sandbox.name
            )));
        }
        tracing::warn!(pod = %sandbox.name, "Deleted a sandbox by force: it should have been gone for long");
        self.cluster.delete(sandbox, Some(0)).await?;
        Ok(())
    }

    async fn check_gate(&self) -> Result<(), Failure> {
        let Some(gate) = &self.gate else { return Ok(()) };
        gate.check().await.map_err(|closed| {
            tracing::warn!(reason = closed.reason(), "Refused to make a sandbox: {closed}");
            Failure::GateClosed(closed)
        })?;
        // Whoever gave up the proof for new sandboxes knows what an earlier one has found.
        if !self.cluster.asks_for_proof() {
            return Ok(());
        }
        let Some(open) = self.cache.read(|store| store.open_network().cloned()) else {
            return Ok(());
        };
        tracing::warn!(pod = %open.name, "Refused to make a sandbox: the network of another is open");
        Err(Failure::EgressNotEnforced(format!(
            "sandbox {} can reach the API server directly, and another could, too",
            open.name
        )))
    }

    /// Room for one more session. Replicas do not ask each other: together they may exceed the limit by the calls that
    /// are in progress at one moment.
    fn reserve(&self, session: &SessionId) -> Result<Option<Reservation<'_>>, Failure> {
        let Some(limit) = self.max_sessions else {
            return Ok(None);
        };
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        // A session whose pod is being settled is in the store already.
        let taken = self.cache.read(|store| {
            let coming = reserved.iter().filter(|session| !store.has_sandbox(session));
            store.sessions() + coming.count()
        });
        if taken >= limit.get() as usize {
            return Err(Failure::AtCapacity { limit: limit.get() });
        }
        // Of a session there is one search at a time, so that no other holds this entry.
        reserved.insert(session.clone());
        Ok(Some(Reservation {
            reserved: &self.reserved,
            session: session.clone(),
        }))
    }

    /// Claims or creates, once.
    async fn make(
        &self,
        session: &SessionId,
        mut candidate: Option<Held<'_>>,
        replaces: Option<&str>,
        deadline: Instant,
    ) -> Result<Made, Failure> {
        let mut lost = 0;
        while let Some(held) = candidate {
            let started = Instant::now();
            let stage = self.telemetry.begin(Stage::Claim);
            let claim = self
                .cluster
                .claim(held.sandbox(), session, replaces)
                .instrument(info_span!("claim", pod = %held.sandbox().name));
            let claimed = claim.await;
            drop(stage);
            match claimed {
                Ok(claimed) => {
                    drop(held);
                    self.telemetry.claim(Claim::Pool);
                    return self.settle(claimed, session, started, deadline).await;
                }
                Err(ClusterError::Conflict | ClusterError::NotFound) => {
                    self.telemetry.claim(Claim::Lost);
                    // The one who was faster may have had the same session, and the watch not have told yet; or only the
                    // pod's status changed, and it is still to be had.
                    let looked_up = self.cluster.look_up(&held.sandbox().name).await;
                    held.outdated();
                    looked_up?;
                    if self.known(session).is_some() {
                        return Ok(Made::Raced);
                    }
                }
                Err(error) => return Err(error.into()),
            }
            lost += 1;
            candidate = (lost < LOST_CLAIMS).then(|| self.candidates.hold(session)).flatten();
        }
        let started = Instant::now();
        let stage = self.telemetry.begin(Stage::Create);
        let create = self.cluster.create(session, replaces).instrument(info_span!("create"));
        let created = create.await;
        drop(stage);
        match created {
            Ok(created) => {
                self.telemetry.claim(Claim::Created);
                self.settle(created, session, started, deadline).await
            }
            // Another replica's pod, or one that is going.
            Err(ClusterError::Conflict) => Ok(Made::Raced),
            Err(error @ ClusterError::Foreign(_)) => Err(Failure::CannotStart(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

/// A sandbox that never started and is not what this server would build now will not start by waiting.
fn stale(sandbox: &Sandbox, spec_hash: &str) -> bool {
    matches!(&sandbox.phase, Phase::Starting(Some(_))) && sandbox.spec_hash.as_deref() != Some(spec_hash)
}

/// How long a pod that is due to be gone at this time may still take, before its node counts as lost.
fn until_overdue(due: Option<Timestamp>, now: Timestamp) -> Duration {
    let until_due = due.map_or(SignedDuration::ZERO, |due| now.duration_until(due));
    let left = until_due.saturating_add(LOST_NODE);
    Duration::try_from(left).unwrap_or_default()
}

/// One session's room, held until its pod is in the store.
struct Reservation<'a> {
    reserved: &'a Mutex<HashSet<SessionId>>,
    session: SessionId,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.remove(&self.session);
    }
}

#[cfg(test)]
mod tests;
