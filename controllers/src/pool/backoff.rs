//! How long a pool waits after failures, and when these count no longer.

use std::time::Duration;

use jiff::Timestamp;

/// The first pause after a failure; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Consecutive failures of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    until: Option<Timestamp>,
    last: Option<Timestamp>,
    /// What the last failure was.
    pub reason: Option<String>,
}

impl Backoff {
    /// Counts a failure.
    pub fn fail(&mut self, now: Timestamp, reason: String) {
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.until = now.checked_add(pause).ok();
        self.last = Some(now);
        self.reason = Some(reason);
    }

    /// Whether the last failure was before this.
    #[must_use]
    pub fn is_before(&self, time: Timestamp) -> bool {
        self.last.is_some_and(|last| last < time)
    }

    /// Time that is left of the pause.
    #[must_use]
    pub fn pause(&self, now: Timestamp) -> Option<Duration> {
        self.until
            .and_then(|until| Duration::try_from(until.duration_since(now)).ok())
            .filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_after_a_failure_tells_that_its_cause_is_gone() {
        let failed: Timestamp = "2026-01-01T00:00:10.5Z".parse().unwrap();
        let mut backoff = Backoff::default();
        assert!(!backoff.is_before(failed), "there was none");
        backoff.fail(failed, "quota".to_owned());
        for (created, is_later) in [("2026-01-01T00:00:10Z", false), ("2026-01-01T00:00:11Z", true)] {
            assert_eq!(backoff.is_before(created.parse().unwrap()), is_later, "{created}");
        }
    }
}
