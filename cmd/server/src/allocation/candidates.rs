//! Which pod of the pool a search may claim. Two searches of this server never try the same one: one of the two writes
//! would be in vain, and its session would have paid for it with two more requests.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::session::SessionId;
use crate::store::Sandbox;
use crate::store::cache::SandboxCache;

/// The pool as the searches of this server share it.
pub(super) struct Candidates {
    cache: Arc<SandboxCache>,
    spec_hash: String,
    tried: Mutex<Tried>,
}

#[derive(Debug, Default)]
struct Tried {
    /// UIDs of the pods that a search is claiming.
    held: HashSet<String>,
    /// Versions by UID of which a claim learned that the API server has another.
    outdated: HashMap<String, String>,
}

impl Candidates {
    pub(super) fn new(cache: Arc<SandboxCache>, spec_hash: String) -> Self {
        Self {
            cache,
            spec_hash,
            tried: Mutex::default(),
        }
    }

    /// The session's best pod of those that no other search is claiming; it is this search's until the guard is dropped.
    ///
    /// None where all are being claimed, and then a new pod is made at once and none is waited for: a search whose claim
    /// fails takes the pod again where it can still be had, so that one that is held is as good as gone, and the wait would
    /// only come on top of a start that takes a second.
    pub(super) fn hold(&self, session: &SessionId) -> Option<Held<'_>> {
        let mut tried = self.tried();
        // Read while nobody can let go: a pod that was held until now is taken in this very state of the store.
        let free = self.cache.read(|store| store.claimable(session, &self.spec_hash));
        tried.outdated.retain(|uid, version| {
            free.iter()
                .any(|pod| pod.uid == *uid && pod.resource_version == *version)
        });
        let sandbox = free
            .into_iter()
            .find(|pod| !tried.held.contains(&pod.uid) && !tried.outdated.contains_key(&pod.uid))?;
        tried.held.insert(sandbox.uid.clone());
        Some(Held {
            candidates: self,
            sandbox,
        })
    }

    fn tried(&self) -> std::sync::MutexGuard<'_, Tried> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod of the pool that one search is claiming. It is dropped when the store shows what came of the claim.
pub(super) struct Held<'a> {
    candidates: &'a Candidates,
    sandbox: Arc<Sandbox>,
}

impl Held<'_> {
    pub(super) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The API server has another version of it, or none: no search tries it until the store has that too.
    pub(super) fn outdated(self) {
        let seen = (self.sandbox.uid.clone(), self.sandbox.resource_version.clone());
        self.candidates.tried().outdated.extend([seen]);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.candidates.tried().held.remove(&self.sandbox.uid);
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use proptest::prelude::*;

    use super::*;
    use crate::store::fixtures::{SPEC_HASH, pod, session};

    fn pool(size: u64) -> (Arc<SandboxCache>, Arc<Candidates>) {
        let cache = Arc::new(SandboxCache::of_owner(None));
        for n in 0..size {
            cache.observe(&pod(&format!("p{n}"), &format!("u{n}"), n + 1, None));
        }
        let candidates = Candidates::new(cache.clone(), SPEC_HASH.to_owned());
        (cache, Arc::new(candidates))
    }

    fn names(cache: &SandboxCache, id: &str) -> Vec<String> {
        let order = cache.read(|store| store.claimable(&session(id), SPEC_HASH));
        order.iter().map(|pod| pod.name.clone()).collect()
    }

    #[test]
    fn a_search_gets_its_best_pod_and_what_is_let_go_is_free_again() {
        let (cache, candidates) = pool(3);
        let order = names(&cache, "a");
        let first = candidates.hold(&session("a")).unwrap();
        let second = candidates.hold(&session("a")).unwrap();
        assert_eq!(
            [&first.sandbox().name, &second.sandbox().name],
            [&order[0], &order[1]],
            "the order is the session's"
        );
        drop(first);
        assert_eq!(candidates.hold(&session("a")).unwrap().sandbox().name, order[0]);
        let third = candidates.hold(&session("b")).unwrap();
        let fourth = candidates.hold(&session("c")).unwrap();
        assert_ne!(third.sandbox().name, fourth.sandbox().name);
        assert!(candidates.hold(&session("d")).is_none(), "all are being claimed");
    }

    #[test]
    fn a_claimed_pod_is_never_offered_again_in_the_moment_it_is_let_go() {
        let (cache, candidates) = pool(1);
        let held = candidates.hold(&session("a")).unwrap();
        cache.observe(&pod("p0", "u0", 9, Some("a")));
        drop(held);
        assert!(candidates.hold(&session("b")).is_none());
    }

    #[test]
    fn an_outdated_pod_is_left_alone_until_the_store_has_another_version() {
        let (cache, candidates) = pool(1);
        candidates.hold(&session("a")).unwrap().outdated();
        assert!(candidates.hold(&session("a")).is_none());
        assert!(candidates.hold(&session("b")).is_none(), "for nobody");
        cache.apply(&Event::Apply(pod("p0", "u0", 7, None)));
        let again = candidates.hold(&session("b")).unwrap();
        assert_eq!(again.sandbox().resource_version, "7");
        drop(again);
        cache.apply(&Event::Delete(pod("p0", "u0", 8, None)));
        assert!(candidates.hold(&session("a")).is_none());
        assert!(candidates.tried().outdated.is_empty() && candidates.tried().held.is_empty());
    }

    #[tokio::test]
    async fn a_search_that_is_cancelled_or_panics_lets_go() {
        let (_cache, candidates) = pool(1);
        let (holding, holds) = tokio::sync::oneshot::channel();
        let of_search = candidates.clone();
        let search = tokio::spawn(async move {
            let held = of_search.hold(&session("a"));
            holding.send(held.is_some()).unwrap();
            std::future::pending::<()>().await;
        });
        assert!(holds.await.unwrap());
        assert!(candidates.hold(&session("b")).is_none());
        search.abort();
        assert!(search.await.unwrap_err().is_cancelled());
        let of_search = candidates.clone();
        let search = tokio::spawn(async move {
            let _held = of_search.hold(&session("b")).unwrap();
            panic!("a search that panics");
        });
        assert!(search.await.unwrap_err().is_panic());
        assert!(candidates.hold(&session("c")).is_some());
    }

    #[test]
    fn as_many_searches_at_once_as_there_are_pods_get_one_each() {
        let (_cache, candidates) = pool(20);
        let barrier = std::sync::Barrier::new(20);
        let got: HashSet<String> = std::thread::scope(|scope| {
            let searches: Vec<_> = (0..20)
                .map(|n| {
                    let (candidates, barrier) = (&candidates, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let held = candidates.hold(&session(&format!("s{n}"))).unwrap();
                        let name = held.sandbox().name.clone();
                        barrier.wait();
                        name
                    })
                })
                .collect();
            searches.into_iter().map(|search| search.join().unwrap()).collect()
        });
        assert_eq!(got.len(), 20);
    }

    proptest! {
        /// Whatever searches do with what they hold, no pod has two of them, and none is forgotten.
        #[test]
        fn no_pod_has_two_searches(steps in proptest::collection::vec((0..8u8, 0..4u8), 0..60)) {
            let (cache, candidates) = pool(5);
            let mut holding: Vec<Option<Held<'_>>> = (0..8).map(|_| None).collect();
            let mut version = 100;
            for (search, what) in steps {
                let slot = &mut holding[usize::from(search)];
                match (slot.take(), what) {
                    (None, _) => *slot = candidates.hold(&session(&format!("s{search}"))),
                    (Some(held), 0) => drop(held),
                    (Some(held), 1) => held.outdated(),
                    (Some(held), what) => {
                        version += 1;
                        let owner = format!("s{search}");
                        let claimed = (what == 2).then_some(owner.as_str());
                        cache.observe(&pod(&held.sandbox.name, &held.sandbox.uid, version, claimed));
                    }
                }
                let held: Vec<&String> = holding.iter().flatten().map(|held| &held.sandbox.uid).collect();
                let distinct: HashSet<&String> = held.iter().copied().collect();
                prop_assert_eq!(held.len(), distinct.len());
                let noted = candidates.tried().held.clone();
                prop_assert_eq!(distinct, noted.iter().collect::<HashSet<_>>());
            }
        }
    }
}
