//! Which pods of the pool a session would rather have: an order that needs no agreement between servers.

use sha2::{Digest, Sha256};

use crate::session::SessionId;

/// How far behind a pod stands in a session's order. It depends on the two alone (rendezvous hashing), so that servers
/// that get the same session at once try the same pod first and one write decides, that different sessions rarely meet,
/// and that a pod more or less changes nothing between the others, however different what two servers know is.
pub(super) fn preference(session: &SessionId, pod: &str) -> [u8; 32] {
    Sha256::new()
        .chain_update(session.as_str())
        // No session id has a zero: "a" with "bc" is not "ab" with "c".
        .chain_update([0])
        .chain_update(pod)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use proptest::prelude::*;

    use super::*;

    fn order(session: &SessionId, pods: &BTreeSet<String>) -> Vec<String> {
        let mut order: Vec<String> = pods.iter().cloned().collect();
        order.sort_by_cached_key(|pod| preference(session, pod));
        order
    }

    #[test]
    fn sessions_spread_evenly_over_the_pool() {
        let pods: BTreeSet<String> = (0..20).map(|n| format!("pool-{n}")).collect();
        let mut firsts: HashMap<String, usize> = HashMap::new();
        for n in 0..2000 {
            let session: SessionId = format!("s{n}").parse().unwrap();
            *firsts.entry(order(&session, &pods)[0].clone()).or_default() += 1;
        }
        assert_eq!(firsts.len(), 20);
        assert!(firsts.values().all(|times| (60..150).contains(times)), "{firsts:?}");
    }

    #[test]
    fn where_the_session_ends_and_the_pod_begins_counts() {
        let (short, long) = ("a".parse().unwrap(), "ab".parse().unwrap());
        assert_ne!(preference(&short, "bc"), preference(&long, "c"));
    }

    proptest! {
        /// What makes two servers that know different pods agree on those that both know.
        #[test]
        fn a_pod_more_or_less_changes_nothing_between_the_others(
            session in "[a-z0-9]{1,20}",
            pods in proptest::collection::btree_set("[a-z0-9]{1,12}", 1..20),
            gone in proptest::collection::vec(any::<proptest::sample::Index>(), 0..5),
        ) {
            let session: SessionId = session.parse().unwrap();
            let all = order(&session, &pods);
            prop_assert_eq!(all.iter().cloned().collect::<BTreeSet<_>>(), pods.clone());
            let gone: BTreeSet<&String> = gone.iter().map(|index| index.get(&all)).collect();
            let fewer: BTreeSet<String> = pods.iter().filter(|pod| !gone.contains(pod)).cloned().collect();
            let expected: Vec<String> = all.iter().filter(|pod| !gone.contains(pod)).cloned().collect();
            prop_assert_eq!(order(&session, &fewer), expected);
        }
    }
}
