//! Cancellation by notification over HTTP: `notifications/cancelled` comes in a request of its own, on any replica, and
//! names the call by the id that the client gave it. This replica's calls are stopped at once; for those of another the
//! sandbox gets an annotation, which every replica's watch reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rmcp::model::RequestId;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::session::SessionId;
use crate::store::cache::SandboxCache;
use crate::store::{Sandbox, SandboxStore};

/// Annotation on a session's sandbox: the call that its client cancelled last, and when.
pub const CANCELLED_ANNOTATION: &str = "cli-mcp.redhat.com/cancelled";

/// Annotations that are written at a time. Who cancels faster than the API server writes waits.
const ANNOTATIONS: usize = 16;

/// Cancels at a time that wait for their session's sandbox to take the annotation.
const WAITING: usize = 64;

/// How long they wait: as long as the call may wait for that sandbox.
const SANDBOX_COMES: Duration = crate::call::START_LIMIT;

/// How far the clocks of two replicas may be apart.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(5);

/// The longest notification that is looked at: an id and a reason.
const MAX_NOTIFICATION_BYTES: usize = 16 * 1024;

/// A call by what its client says of it. Ids are the client's own, so user and session belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallKey(String);

impl CallKey {
    /// The call that this user made with this id in this session.
    #[must_use]
    pub fn new(user: Option<&str>, session: &SessionId, request: &RequestId) -> Self {
        let mut digest = Sha256::new();
        for part in [user.unwrap_or_default(), session.as_str(), &kind_and_id(request)] {
            digest.update(part);
            digest.update([0]);
        }
        Self(hex::encode(&digest.finalize()[..16]))
    }
}

/// A cancellation as [`CANCELLED_ANNOTATION`] tells it: which call, and when its client said so. The time makes the next
/// cancellation of a call with the same id another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    call: CallKey,
    at: Timestamp,
}

impl Told {
    /// Reads [`CANCELLED_ANNOTATION`].
    #[must_use]
    pub fn from_annotation(value: &str) -> Option<Self> {
        let (call, at) = value.split_once('.')?;
        Some(Self {
            call: CallKey(call.to_owned()),
            at: Timestamp::from_millisecond(at.parse().ok()?).ok()?,
        })
    }

    fn annotation(&self) -> String {
        format!("{}.{}", self.call.0, self.at.as_millisecond())
    }
}

/// 1 and "1" are two ids (JSON-RPC 2.0, section 4).
fn kind_and_id(request: &RequestId) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

/// The calls in progress on this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RunningCalls {
    calls: Arc<Mutex<HashMap<CallKey, Vec<Begun>>>>,
}

#[derive(Clone, Debug)]
struct Begun {
    at: Timestamp,
    cancelled: CancellationToken,
}

/// A call in progress; dropping it ends its entry.
#[derive(Debug)]
pub struct RunningCall {
    all: RunningCalls,
    key: CallKey,
    cancelled: CancellationToken,
}

impl RunningCalls {
    /// A call begins.
    #[must_use]
    pub fn begin(&self, key: CallKey) -> RunningCall {
        let cancelled = CancellationToken::new();
        let begun = Begun {
            at: Timestamp::now(),
            cancelled: cancelled.clone(),
        };
        self.with(|calls| calls.entry(key.clone()).or_default().push(begun));
        RunningCall {
            all: self.clone(),
            key,
            cancelled,
        }
    }

    /// Stops a call. False when it is not here, or when two clients of the session gave the same id to calls of theirs:
    /// then nobody can tell which one is meant.
    pub fn cancel(&self, key: &CallKey) -> bool {
        self.cancel_begun_before(key, Timestamp::MAX)
    }

    /// Stops a call that another replica was told to stop. That may take as long as a sandbox takes to start, and a client
    /// that began anew meanwhile may have given the same id to another call.
    pub fn cancel_told(&self, told: &Told) -> bool {
        self.cancel_begun_before(&told.call, told.at.saturating_add(CLOCKS_DIFFER).unwrap_or(told.at))
    }

    fn cancel_begun_before(&self, key: &CallKey, before: Timestamp) -> bool {
        self.with(|calls| match calls.get(key).map(Vec::as_slice) {
            Some([only]) if only.at <= before => {
                only.cancelled.cancel();
                true
            }
            _ => false,
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<CallKey, Vec<Begun>>) -> T) -> T {
        change(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RunningCall {
    /// Waits until its client cancels it.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        // Marks this one among calls of the same key.
        self.cancelled.cancel();
        self.all.with(|calls| {
            if let Some(same) = calls.get_mut(&self.key) {
                same.retain(|begun| !begun.cancelled.is_cancelled());
                if same.is_empty() {
                    calls.remove(&self.key);
                }
            }
        });
    }
}

/// Stops calls wherever they run.
#[derive(Clone)]
pub struct Canceller {
    calls: RunningCalls,
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    turns: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Canceller {
    /// Over this replica's calls, and the sandboxes by which it tells the others.
    #[must_use]
    pub fn new(calls: RunningCalls, cluster: Cluster, cache: Arc<SandboxCache>) -> Self {
        Self {
            calls,
            cluster,
            cache,
            turns: Arc::new(Semaphore::new(ANNOTATIONS)),
            waiting: Arc::new(Semaphore::new(WAITING)),
        }
    }

    /// Stops a call of a session, here or on another replica. One that ended already is no error. A call that waits for its
    /// sandbox there is stopped when that one comes; this does not wait for it.
    pub async fn cancel(&self, session: &SessionId, key: &CallKey) {
        if self.calls.cancel(key) {
            return;
        }
        let told = Told {
            call: key.clone(),
            at: Timestamp::now(),
        };
        if let Some(sandbox) = self.cache.read(|store| usable(store, session)) {
            return self.tell(&sandbox, &told).await;
        }
        let Ok(place) = self.waiting.clone().try_acquire_owned() else {
            return tracing::warn!(%session, "Too many cancels wait for sandboxes: a call on another server goes on");
        };
        let (canceller, session) = (self.clone(), session.clone());
        tokio::spawn(async move {
            let _place = place;
            let comes = canceller.cache.wait_for(|store| usable(store, &session));
            if let Ok(sandbox) = tokio::time::timeout(SANDBOX_COMES, comes).await {
                canceller.tell(&sandbox, &told).await;
            }
        });
    }

    async fn tell(&self, sandbox: &Sandbox, told: &Told) {
        // Nobody closes the semaphore.
        let _turn = self.turns.acquire().await;
        let told = BTreeMap::from([(CANCELLED_ANNOTATION, told.annotation())]);
        if let Err(error) = self.cluster.annotate(sandbox, &told).await {
            tracing::warn!(pod = %sandbox.name, %error, "Failed to tell the other servers of a cancelled call");
        }
    }
}

fn usable(store: &SandboxStore, session: &SessionId) -> Option<Arc<Sandbox>> {
    let first = store.of_session(session).into_iter().next();
    first.filter(|sandbox| sandbox.usable())
}

/// What the watch has told of cancelled calls, so that each is acted on once. The store cannot tell that: it also takes the
/// answers to this replica's own writes, which carry what others wrote.
#[derive(Debug, Default)]
pub struct CancelsSeen {
    /// The annotation that was seen last, by the UID of its sandbox.
    last: HashMap<String, String>,
    listed: bool,
}

impl CancelsSeen {
    /// The call that this state of a sandbox tells to stop, if that is news. What the first LIST brings is from before this
    /// replica's calls: a client that began anew may give its calls the same ids.
    pub fn news(&mut self, sandbox: &Sandbox) -> Option<Told> {
        let told = sandbox.cancelled.as_ref()?;
        let before = self.last.insert(sandbox.uid.clone(), told.clone());
        (self.listed && before.as_ref() != Some(told))
            .then(|| Told::from_annotation(told))
            .flatten()
    }

    /// A LIST is whole.
    pub fn listed(&mut self) {
        self.listed = true;
    }

    /// Forgets what was told on sandboxes that are gone.
    pub fn retain(&mut self, living: impl Fn(&str) -> bool) {
        self.last.retain(|uid, _| living(uid));
    }
}

/// The id that a request's body cancels, if it is a `notifications/cancelled`.
#[must_use]
pub fn cancelled_request(body: &[u8]) -> Option<RequestId> {
    #[derive(serde::Deserialize)]
    struct Notification {
        method: String,
        params: Params,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        request_id: RequestId,
    }
    if body.len() > MAX_NOTIFICATION_BYTES {
        return None;
    }
    let notification: Notification = serde_json::from_slice(body).ok()?;
    (notification.method == "notifications/cancelled").then_some(notification.params.request_id)
}

#[cfg(test)]
mod tests;
