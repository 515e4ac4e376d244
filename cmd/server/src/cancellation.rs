//! Cancellation by notification over HTTP: `notifications/cancelled` comes in a request of its own, on any replica, and
//! names the call by the id that the client gave it. This replica's calls are stopped at once; for those of another the
//! sandbox gets an annotation, which every replica's watch reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use rmcp::model::RequestId;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::session::SessionId;
use crate::store::cache::SandboxCache;

/// Annotation on a session's sandbox: the call that its client cancelled last, and when.
pub const CANCELLED_ANNOTATION: &str = "cli-mcp.redhat.com/cancelled";

/// Annotations that are written at a time. Who cancels faster than the API server writes waits.
const ANNOTATIONS: usize = 16;

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

    /// The value of [`CANCELLED_ANNOTATION`]; `nonce` makes the same call's next cancellation another value.
    #[must_use]
    pub fn annotation(&self, nonce: impl std::fmt::Display) -> String {
        format!("{}.{nonce}", self.0)
    }

    /// Reads [`CANCELLED_ANNOTATION`].
    #[must_use]
    pub fn from_annotation(value: &str) -> Option<Self> {
        let (key, _) = value.split_once('.')?;
        Some(Self(key.to_owned()))
    }
}

/// 1 and "1" are two ids (JSON-RPC 2.0, section 4).
fn kind_and_id(request: &RequestId) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

/// The calls in progress on this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RunningCalls {
    calls: Arc<Mutex<HashMap<CallKey, Vec<CancellationToken>>>>,
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
        self.with(|calls| calls.entry(key.clone()).or_default().push(cancelled.clone()));
        RunningCall {
            all: self.clone(),
            key,
            cancelled,
        }
    }

    /// Stops a call. False when it is not here, or when two clients of the session gave the same id to calls of theirs:
    /// then nobody can tell which one is meant.
    pub fn cancel(&self, key: &CallKey) -> bool {
        self.with(|calls| match calls.get(key).map(Vec::as_slice) {
            Some([only]) => {
                only.cancel();
                true
            }
            _ => false,
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<CallKey, Vec<CancellationToken>>) -> T) -> T {
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
                same.retain(|token| !token.is_cancelled());
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
        }
    }

    /// Stops a call of a session, here or on another replica. One that ended already is no error.
    pub async fn cancel(&self, session: &SessionId, key: &CallKey) {
        if self.calls.cancel(key) {
            return;
        }
        let sandbox = self.cache.read(|store| store.of_session(session).into_iter().next());
        let Some(sandbox) = sandbox.filter(|sandbox| sandbox.usable()) else {
            return;
        };
        // Nobody closes the semaphore.
        let _turn = self.turns.acquire().await;
        let told = BTreeMap::from([(CANCELLED_ANNOTATION, key.annotation(Timestamp::now().as_millisecond()))]);
        if let Err(error) = self.cluster.annotate(&sandbox, &told).await {
            tracing::warn!(pod = %sandbox.name, %session, %error, "Failed to tell the other servers of a cancelled call");
        }
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::{Api, Replica};
    use crate::store::fixtures::{pod, session};

    fn key(user: Option<&str>, session: &str, id: RequestId) -> CallKey {
        CallKey::new(user, &session.parse().unwrap(), &id)
    }

    #[test]
    fn only_the_very_call_is_stopped() {
        let calls = RunningCalls::default();
        let mine = calls.begin(key(Some("alice"), "s1", RequestId::Number(1)));
        for other in [
            key(Some("bob"), "s1", RequestId::Number(1)),
            key(None, "s1", RequestId::Number(1)),
            key(Some("alice"), "s2", RequestId::Number(1)),
            key(Some("alice"), "s1", RequestId::Number(2)),
            key(Some("alice"), "s1", RequestId::String("1".into())),
        ] {
            assert!(!calls.cancel(&other), "{other:?}");
        }
        assert!(!mine.cancelled.is_cancelled());
        assert!(calls.cancel(&key(Some("alice"), "s1", RequestId::Number(1))));
        assert!(mine.cancelled.is_cancelled());
    }

    #[test]
    fn of_two_calls_with_one_id_none_is_stopped_and_one_that_is_left_is() {
        let calls = RunningCalls::default();
        let one = || key(None, "s1", RequestId::Number(1));
        let (first, second) = (calls.begin(one()), calls.begin(one()));
        assert!(!calls.cancel(&one()));
        drop(first);
        assert!(calls.cancel(&one()) && second.cancelled.is_cancelled());
        drop(second);
        assert!(!calls.cancel(&one()) && calls.calls.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn other_servers_are_told_of_a_call_only_when_it_is_not_here_and_may_be_there() {
        let replica = Replica::new(Api::willing());
        let calls = RunningCalls::default();
        let canceller = Canceller::new(calls.clone(), replica.cluster.clone(), replica.cache.clone());
        let call = key(None, "s1", RequestId::Number(1));
        canceller.cancel(&session("s1"), &call).await;
        replica.watched(&pod("other", "o", 1, Some("s2")));
        canceller.cancel(&session("s1"), &call).await;
        let sandbox = replica.watched(&pod("p", "u", 2, Some("s1")));
        let here = calls.begin(call.clone());
        canceller.cancel(&session("s1"), &call).await;
        assert!(here.cancelled.is_cancelled() && replica.api.requests("").is_empty());

        drop(here);
        canceller.cancel(&session("s1"), &call).await;
        let told = replica.api.requests("PATCH");
        assert!(told.len() == 1 && told[0].contains(&call.annotation("")), "{told:?}");
        replica.cache.write(|store| store.mark_ended(&sandbox));
        canceller.cancel(&session("s1"), &call).await;
        assert_eq!(replica.api.requests("").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_cancels_wait_for_an_api_server_that_is_slow() {
        let replica = Replica::new(Api::new(|_| None));
        replica.watched(&pod("p", "u", 1, Some("s1")));
        let canceller = Canceller::new(RunningCalls::default(), replica.cluster.clone(), replica.cache.clone());
        let (canceller, session) = (&canceller, &session("s1"));
        let all = (0..100).map(|id| async move {
            let call = key(None, "s1", RequestId::Number(id));
            canceller.cancel(session, &call).await;
        });
        let mut all = std::pin::pin!(futures::future::join_all(all));
        // The paused clock goes on when nothing else can.
        let soon = tokio::time::timeout(Duration::from_secs(1), &mut all).await;
        assert!(soon.is_err() && replica.api.requests("PATCH").len() == ANNOTATIONS);
        all.await;
        assert_eq!(replica.api.requests("PATCH").len(), 100, "each has its turn");
    }

    #[test]
    fn the_annotation_carries_the_key() {
        let key = key(None, "s1", RequestId::Number(7));
        assert_eq!(CallKey::from_annotation(&key.annotation(12)), Some(key));
        assert_eq!(CallKey::from_annotation("x"), None);
    }

    #[test]
    fn reads_the_notification_and_nothing_else() {
        let read = |text: &str| cancelled_request(text.as_bytes());
        let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"reason":"x"}}"#;
        assert_eq!(read(text), Some(RequestId::Number(3)));
        assert_eq!(read(&text.replace("notifications/cancelled", "tools/call")), None);
        assert_eq!(read(&text.replace("requestId", "id")), None);
        for no in ["", "[]", "null", "{", r#"{"method":"notifications/cancelled"}"#] {
            assert_eq!(read(no), None, "{no}");
        }
    }
}
