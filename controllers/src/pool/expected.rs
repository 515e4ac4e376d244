//! Sandboxes that were created and that the cache does not show yet: each counts, or the pool would be filled twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::sandboxes::Sandbox;

/// A watch that is this far behind may be dead, which shows only minutes later, or what it should show came and went.
const CACHE_LAG: Duration = Duration::from_secs(30);

/// Names of created sandboxes, with the time of their creation or of the LIST that last showed them.
#[derive(Debug, Default)]
pub struct Expected(HashMap<String, Instant>);

impl Expected {
    /// Expects a sandbox that was created now.
    pub fn insert(&mut self, name: String, now: Instant) {
        self.0.insert(name, now);
    }

    /// Forgets those that the cache shows, and counts those that it may show soon.
    pub fn unseen(&mut self, seen: &[Sandbox], now: Instant) -> usize {
        self.0
            .retain(|name, _| !seen.iter().any(|sandbox| sandbox.name == *name));
        self.0.values().filter(|since| !is_overdue(**since, now)).count()
    }

    /// Whether the cache should show a sandbox by now and does not: only the API server knows whether it is there.
    #[must_use]
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.0.values().any(|since| is_overdue(*since, now))
    }

    /// Takes a LIST for the truth: what is not in it is gone, and what is in it the cache is still to show.
    pub fn listed(&mut self, listed: &[Sandbox], now: Instant) {
        self.0
            .retain(|name, _| listed.iter().any(|sandbox| sandbox.name == *name));
        self.0.values_mut().for_each(|since| *since = now);
    }

    /// How long until the next one is overdue: should it never show, nothing else would ask for a reconcile.
    #[must_use]
    pub fn overdue_in(&self, now: Instant) -> Option<Duration> {
        let left = self
            .0
            .values()
            .map(|since| CACHE_LAG.saturating_sub(now.duration_since(*since)));
        left.filter(|left| !left.is_zero()).min()
    }
}

fn is_overdue(since: Instant, now: Instant) -> bool {
    now.duration_since(since) >= CACHE_LAG
}
