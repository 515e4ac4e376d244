//! Leader election, the decision: pure, over a Lease as it was read and a clock of one's own. The protocol is that of
//! client-go, so that `kubectl describe lease` reads as usual
//! (<https://kubernetes.io/docs/concepts/architecture/leases/>).

use std::time::{Duration, Instant};

/// How long a leader that falls silent keeps others waiting.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

/// How long a leader goes on without having renewed. Shorter than [`LEASE_DURATION`] by more than the differences of
/// clocks and the time of a request on its way: nobody else leads before this one has stopped writing.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// How often a leader renews and a candidate looks.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// What of a Lease the decision needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty after a release.
    pub holder: String,
    /// Changes with every renewal.
    pub renewal: String,
    /// How long it lasts without renewal, as its holder promised.
    pub duration: Duration,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write oneself in as the holder, with this number of transitions.
    Acquire {
        /// For `spec.leaseTransitions`.
        transitions: i32,
    },
    /// It is ours: write a new time.
    Renew,
    /// It is another's, who may still be at work.
    Wait,
}

/// A candidate: its name, and since when the Lease has been what it is. Times of other machines are never compared.
#[derive(Clone, Debug)]
pub struct Candidate {
    identity: String,
    seen: Option<(Record, Instant)>,
}

impl Candidate {
    /// A candidate. The identity must be unique among all replicas.
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None }
    }

    /// The candidate's name.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Decides, having read the Lease at `now`.
    pub fn decide(&mut self, lease: Option<Record>, now: Instant) -> Step {
        let Some(record) = lease else {
            self.seen = None;
            return Step::Acquire { transitions: 0 };
        };
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.seen = Some((record.clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        if record.holder == self.identity {
            Step::Renew
        } else if record.holder.is_empty() || now.duration_since(since) >= record.duration {
            Step::Acquire {
                transitions: record.transitions.saturating_add(1),
            }
        } else {
            Step::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held_by(holder: &str, renewal: &str) -> Option<Record> {
        Some(Record {
            holder: holder.into(),
            renewal: renewal.into(),
            duration: LEASE_DURATION,
            transitions: 3,
        })
    }

    #[test]
    fn a_free_lease_is_taken_at_once() {
        let mut candidate = Candidate::new("a".into());
        let now = Instant::now();
        assert_eq!(candidate.decide(None, now), Step::Acquire { transitions: 0 });
        assert_eq!(
            candidate.decide(held_by("", "1"), now),
            Step::Acquire { transitions: 4 }
        );
        assert_eq!(candidate.decide(held_by("a", "1"), now), Step::Renew);
    }

    #[test]
    fn a_silent_holder_is_outwaited_by_ones_own_clock() {
        let mut candidate = Candidate::new("a".into());
        let start = Instant::now();
        assert_eq!(candidate.decide(held_by("b", "1"), start), Step::Wait);
        assert_eq!(
            candidate.decide(held_by("b", "1"), start + LEASE_DURATION / 2),
            Step::Wait
        );
        assert_eq!(candidate.decide(held_by("b", "2"), start + LEASE_DURATION), Step::Wait);
        assert_eq!(
            candidate.decide(held_by("b", "2"), start + 2 * LEASE_DURATION),
            Step::Acquire { transitions: 4 }
        );
    }

    proptest! {
        #[test]
        fn nobody_takes_over_while_the_holder_may_write(renewals in prop::collection::vec(0_u64..9_000, 1..20), look in 1_u64..3_000) {
            // The holder renews at these distances, in milliseconds, and may write for RENEW_DEADLINE after each.
            let start = Instant::now();
            let mut candidate = Candidate::new("a".into());
            let (mut renewed, mut at) = (start, start);
            for (round, gap) in renewals.iter().enumerate() {
                let next = renewed + Duration::from_millis(*gap);
                while at < next {
                    let step = candidate.decide(held_by("b", &round.to_string()), at);
                    if at < renewed + RENEW_DEADLINE {
                        prop_assert_eq!(step, Step::Wait);
                    }
                    at += Duration::from_millis(look);
                }
                renewed = next;
            }
        }
    }
}
