//! Decides between replicas that took different sandboxes for one session at once.
//!
//! Each first writes (claim or create) and then reads the session's sandboxes as they were at its own write or later, so of
//! two replicas at least the one that wrote later sees both. Who sees another's sandbox gives up its own. When both see
//! both, both give up, and then leave the pool alone: the next attempt of both creates the one pod whose name follows from
//! the session, which only one create can win. This replica sends no command before it has decided, and decides soon or
//! not at all.
//!
//! What nobody decided on (the replica died, its LIST came too late, its delete failed) is decided by whoever comes upon
//! it, and by the same rule: with another sandbox beside it, it is given up. What is beside the one that everybody uses is
//! come upon by nobody as long as that one lives, and afterwards calls would move into it without a word: so it is ended
//! when the other has served a call.
//!
//! The `/assign` comes after the decision and not at the same time. The agent's 503 until then is all that keeps a third
//! replica, which knows the sandbox from its watch, from running a command in one that is given up a moment later. A
//! created pod has its session from the start, and only the time that it takes to start in place of that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, info_span};

use super::{Allocator, Made};
use crate::agent::AgentError;
use crate::backoff::Backoff;
use crate::cluster::{Cluster, ClusterError};
use crate::failure::Failure;
use crate::session::SessionId;
use crate::store::Sandbox;
use crate::store::cache::SandboxCache;
use crate::telemetry::Claim;

/// How long the watch may take to bring our own write before the API server is asked. A watch that works takes
/// milliseconds; one that lags does so since the API server has more to do than it can, and is not helped by a request more.
const WATCH_LAGS: Duration = Duration::from_millis(500);

/// How long after it began to write a replica may still decide. Later others may have decided in its place (see
/// `OTHER_DECIDES`) and have run commands in what this one would end.
const DECIDES: Duration = Duration::from_secs(2);

/// How long after that it may still end what it gives up, for the same reason. A request that is not answered is not sent
/// again later.
const ENDS: Duration = Duration::from_millis(500);

/// What came of a sandbox that another replica left undecided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenOver {
    /// It is the session's: its agent can be asked again.
    Kept,
    /// It was ended: the session has another.
    GivenUp,
}

impl Allocator {
    /// Keeps what was just claimed or created, or gives it up. `began` is the time before the write was sent.
    pub(super) async fn settle(
        &self,
        mine: Sandbox,
        session: &SessionId,
        began: Instant,
        deadline: Instant,
    ) -> Result<Made, Failure> {
        let rival = rival(&self.cluster, &self.cache, &mine, session);
        match tokio::time::timeout_at(began + DECIDES, rival).await {
            Err(_) => {
                tracing::info!(mine = %mine.name, %session, "Left a sandbox undecided: neither the watch nor the API server told of others in time");
                Ok(Made::Raced)
            }
            Ok(rival) => match rival? {
                None if mine.claimed => self.assign_claimed(mine, session, deadline).await,
                None => Ok(Made::Sandbox(mine.into())),
                Some(other) => {
                    tracing::info!(mine = %mine.name, %other, %session, "Gave up a sandbox: another server took one at the same time");
                    self.telemetry.claim(Claim::GivenUp);
                    // What stays is found by whoever comes upon it, see `take_over`.
                    let end = self.cluster.end(&mine, "superseded");
                    match tokio::time::timeout_at(began + DECIDES + ENDS, end).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            tracing::warn!(pod = %mine.name, %error, "Failed to delete a sandbox that was given up");
                        }
                        Err(_) => {
                            tracing::warn!(pod = %mine.name, "Left a sandbox that was given up: the API server does not answer")
                        }
                    }
                    Ok(Made::GaveUp)
                }
            },
        }
    }

    /// Does what the replica that claimed this sandbox left undone: it is assigned, unless the session has another, and
    /// ended where it takes no session.
    ///
    /// # Errors
    ///
    /// When the API server does not answer or the agent refuses; nothing was decided.
    pub async fn take_over(&self, left: &Sandbox, session: &SessionId) -> Result<TakenOver, Failure> {
        let all = self.cluster.list(session).await?;
        let Some(other) = other(all.iter(), left) else {
            return match self.assign(left, session).await {
                Ok(()) | Err(AgentError::NotReached(_) | AgentError::Lost(_)) => Ok(TakenOver::Kept),
                Err(error) if is_final(&error) && self.is_unassigned(left).await => {
                    self.discard(left, &error).await?;
                    if let Some(reason) = &left.replaces {
                        self.cache.write(|store| store.record_loss(session, reason.clone()));
                    }
                    Ok(TakenOver::GivenUp)
                }
                Err(AgentError::Refused { message, .. }) => Err(Failure::NotReady(message)),
            };
        };
        // Else it was assigned meanwhile, or is unavailable for another reason: commands may have run in it.
        if !self.is_unassigned(left).await {
            return Ok(TakenOver::Kept);
        }
        tracing::warn!(pod = %left.name, %other, %session, "Ended a sandbox that another server left undecided: the session has another");
        tokio::time::timeout(ENDS, self.cluster.end(left, "superseded"))
            .await
            .unwrap_or_else(|_| Err(ClusterError::Unreachable("it does not answer".to_owned())))?;
        Ok(TakenOver::GivenUp)
    }

    /// Ends what is left beside a sandbox that has just served a call, see above. Costs nothing where nothing is.
    pub fn end_beside(self: &Arc<Self>, used: &Sandbox, session: &SessionId) {
        let beside = self.cache.read(|store| beside(store.of_session(session), used));
        if beside.is_empty() {
            return;
        }
        let (allocator, used, session) = (self.clone(), used.name.clone(), session.clone());
        tokio::spawn(async move {
            for left in beside {
                tracing::warn!(pod = %left.name, %used, %session, "Ended a sandbox that was left over: the session has another");
                allocator.agent.forget(&left);
                // The next call finds what stays.
                if let Err(error) = allocator.cluster.end(&left, "superseded").await {
                    tracing::warn!(pod = %left.name, %error, "Failed to delete a sandbox that was left over");
                }
            }
        });
    }

    /// Assigns a pod of the pool, however long it takes to be reached: policies that let this server in may be programmed
    /// seconds after it started. Giving the same session twice is no error.
    async fn assign_claimed(&self, mine: Sandbox, session: &SessionId, deadline: Instant) -> Result<Made, Failure> {
        let mut backoff = Backoff::default();
        loop {
            let assign = self
                .assign(&mine, session)
                .instrument(info_span!("assign", otel.kind = "client", pod = %mine.name));
            let error = match tokio::time::timeout_at(deadline, assign).await {
                Ok(Ok(())) => return Ok(Made::Sandbox(mine.into())),
                Ok(Err(error)) if is_final(&error) => {
                    self.discard(&mine, &error).await?;
                    return Ok(Made::Useless);
                }
                Ok(Err(error)) => error,
                Err(_) => AgentError::Lost("no answer to /assign".to_owned()),
            };
            if Instant::now() >= deadline {
                return Err(Failure::NotReady(format!(
                    "the sandbox that was taken from the pool did not answer ({error})"
                )));
            }
            let gone = self.cache.wait_for(|store| {
                let now = store.get(&mine.name).filter(|now| now.uid == mine.uid);
                now.is_none_or(|now| !now.usable()).then_some(())
            });
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = gone => {
                    self.discard(&mine, &error).await?;
                    return Ok(Made::Useless);
                }
            }
        }
    }

    /// A pod of the pool that does not take its session is of no use to anyone.
    async fn discard(&self, useless: &Sandbox, error: &AgentError) -> Result<(), ClusterError> {
        tracing::warn!(pod = %useless.name, %error, "A sandbox of the pool could not be assigned and is deleted");
        self.cluster.end(useless, "unassignable").await
    }

    async fn is_unassigned(&self, sandbox: &Sandbox) -> bool {
        let assign = self.key.assign_token(&sandbox.name);
        matches!(self.agent.is_unassigned(sandbox, &assign).await, Ok(true))
    }

    async fn assign(&self, sandbox: &Sandbox, session: &SessionId) -> Result<(), AgentError> {
        let assign = self.key.assign_token(&sandbox.name);
        self.agent
            .assign(sandbox, &assign, &self.key.session_token(session.as_str()))
            .await
    }
}

/// Whether the agent answers the same however often it is asked.
fn is_final(error: &AgentError) -> bool {
    matches!(error, AgentError::Refused { status, .. } if !status.is_server_error())
}

/// Name of another living sandbox of the session, as of the write of `mine` or later. The watch tells it with our own write
/// and costs no request; a LIST tells it where the watch is broken.
async fn rival(
    cluster: &Cluster,
    cache: &SandboxCache,
    mine: &Sandbox,
    session: &SessionId,
) -> Result<Option<String>, ClusterError> {
    let watched = cache.wait_for(|store| {
        let all = store.is_up_to(mine).then(|| store.of_session(session))?;
        Some(other(all.iter().map(AsRef::as_ref), mine))
    });
    let listed = async {
        tokio::time::sleep(WATCH_LAGS).await;
        let all = cluster.list_since(session, mine).await?;
        Ok::<_, ClusterError>(other(all.iter(), mine))
    };
    tokio::select! {
        biased;
        rival = watched => Ok(rival),
        rival = listed => rival,
    }
}

/// What else could take the session's commands than the sandbox that everybody uses first. Where that is another than the
/// one that was used (the watch has told of it since), nothing is decided here.
fn beside(all: Vec<Arc<Sandbox>>, used: &Sandbox) -> Vec<Arc<Sandbox>> {
    if all.first().is_none_or(|first| first.uid != used.uid) {
        return Vec::new();
    }
    all.into_iter().skip(1).filter(|sandbox| sandbox.usable()).collect()
}

fn other<'a>(all: impl Iterator<Item = &'a Sandbox>, mine: &Sandbox) -> Option<String> {
    let mut others = all.filter(|sandbox| sandbox.uid != mine.uid && sandbox.usable());
    others.next().map(|other| other.name.clone())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::post;
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::allocation::OTHER_DECIDES;
    use crate::fixtures::{Api, Replica, agent, local_pod, pods};
    use crate::store::fixtures::{pod, session};

    /// A replica that has just claimed a pod with version 7.
    struct Claimed {
        replica: Replica,
        mine: Sandbox,
    }

    impl Claimed {
        fn over(listed: Vec<Pod>) -> Self {
            let replica = Replica::unsynced(Api::new(move |_| Some(pods(&listed))));
            let claimed = pod("mine", "m", 7, Some("s1"));
            replica.cache.observe(&claimed);
            Self {
                replica,
                mine: Sandbox::from_pod(&claimed).unwrap(),
            }
        }

        async fn rival(&self) -> Option<String> {
            rival(&self.replica.cluster, &self.replica.cache, &self.mine, &session("s1"))
                .await
                .unwrap()
        }

        fn queries(&self) -> Vec<String> {
            self.replica.api.requests("GET")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_decides_without_a_request_and_only_when_it_is_up_to_the_claim() {
        let claimed = Claimed::over(Vec::new());
        let watch = async {
            // Until it has brought what was written before the claim, the decision waits.
            claimed
                .replica
                .cache
                .apply(&Event::Apply(pod("earlier", "e", 5, Some("other"))));
            tokio::task::yield_now().await;
            claimed
                .replica
                .cache
                .apply(&Event::Apply(pod("theirs", "t", 6, Some("s1"))));
            tokio::task::yield_now().await;
            claimed
                .replica
                .cache
                .apply(&Event::Apply(pod("mine", "m", 7, Some("s1"))));
        };
        let (rival, ()) = tokio::join!(claimed.rival(), watch);
        assert_eq!(rival.as_deref(), Some("theirs"));
        assert!(claimed.queries().is_empty(), "{:?}", claimed.queries());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_that_was_given_up_is_no_rival() {
        let claimed = Claimed::over(Vec::new());
        let mut given_up = pod("theirs", "t", 6, Some("s1"));
        given_up.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            jiff::Timestamp::UNIX_EPOCH,
        ));
        claimed.replica.cache.apply(&Event::Apply(given_up));
        claimed
            .replica
            .cache
            .apply(&Event::Apply(pod("mine", "m", 7, Some("s1"))));
        assert_eq!(claimed.rival().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_silent_is_made_up_for_by_a_list_as_of_the_claim() {
        let listed = vec![pod("mine", "m", 7, Some("s1")), pod("theirs", "t", 6, Some("s1"))];
        let claimed = Claimed::over(listed);
        assert_eq!(claimed.rival().await.as_deref(), Some("theirs"));
        let queries = claimed.queries();
        assert_eq!(queries.len(), 1, "{queries:?}");
        assert!(
            queries[0].contains("resourceVersion=7&resourceVersionMatch=NotOlderThan"),
            "{queries:?}"
        );
    }

    /// Others may decide in its place then, and run commands in what it would end.
    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_is_ended_soon_or_left_to_others() {
        let replica = Replica::new(Api::new(|line| line.starts_with("GET").then(|| pods(&[]))));
        replica.watched(&pod("theirs", "t", 6, Some("s1")));
        let mine = Sandbox::clone(&replica.watched(&pod("mine", "m", 7, Some("s1"))));
        let began = Instant::now();
        let allocator = replica.allocator(1);
        let of_session = session("s1");
        let settled = allocator.settle(mine, &of_session, began, began + Duration::from_secs(60));
        assert!(matches!(settled.await, Ok(Made::GaveUp)));
        assert!(began.elapsed() < OTHER_DECIDES, "{:?}", began.elapsed());
        assert_eq!(replica.api.requests("PATCH").len(), 1);
    }

    #[test]
    fn only_what_is_beside_the_sandbox_that_everybody_uses_is_left_over() {
        let sandbox = |name: &str, uid: &str| Arc::new(Sandbox::from_pod(&pod(name, uid, 1, Some("s1"))).unwrap());
        let (first, second, mut ended) = (sandbox("a", "1"), sandbox("b", "2"), sandbox("c", "3"));
        Arc::make_mut(&mut ended).ended = true;
        let all = vec![first.clone(), second.clone(), ended];
        assert_eq!(beside(all.clone(), &first), std::slice::from_ref(&second));
        assert!(beside(all, &second).is_empty());
        assert!(beside(vec![first.clone()], &first).is_empty() && beside(Vec::new(), &first).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claimed_pod_that_does_not_answer_in_time_is_left_to_the_next_call() {
        let replica = Replica::new(Api::willing());
        let silent = agent(Router::new().route("/assign", post(std::future::pending::<()>))).await;
        let mine = Sandbox::clone(&replica.watched(&local_pod("mine", Some("s1"))));
        let mut nowhere = mine.clone();
        nowhere.address = None;
        let now = Instant::now();
        for (mine, why) in [(nowhere, "no address yet"), (mine, "no answer to /assign")] {
            let allocator = replica.allocator(silent);
            let (of_session, limit) = (session("s1"), Duration::from_secs(60));
            let settled = tokio::time::timeout(limit, allocator.settle(mine, &of_session, now, now)).await;
            let Ok(Err(Failure::NotReady(text))) = settled else {
                panic!("{why}: it is not told")
            };
            assert!(text.contains("taken from the pool") && text.contains(why), "{text}");
        }
        assert!(replica.api.requests("").is_empty(), "nothing is deleted");
    }
}
