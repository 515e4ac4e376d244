//! Pauses between two questions to an agent that does not answer yet.

use std::time::Duration;

/// An agent that starts answers some milliseconds later.
const FIRST: Duration = Duration::from_millis(5);

/// What a caller may lose by it at most.
const LONGEST: Duration = Duration::from_millis(500);

/// Pauses that grow.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// The pause that is due now.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }
}
