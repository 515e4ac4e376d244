//! Sessions whose sandbox went away without being asked to, so that the next call can say that state was lost.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::session::SessionId;

/// How many are remembered; the oldest is forgotten first, and its session then starts afresh without a word.
const REMEMBERED: usize = 8192;

/// How long. Whoever comes later may have ended the session through another replica, and begins anew under its name.
const REMEMBERED_FOR: Duration = Duration::from_secs(60 * 60);

/// A bounded map from session to the reason.
#[derive(Debug, Default)]
pub(super) struct Losses {
    reasons: HashMap<SessionId, Loss>,
    order: VecDeque<SessionId>,
}

#[derive(Debug)]
struct Loss {
    reason: String,
    at: Instant,
}

impl Losses {
    pub(super) fn record(&mut self, session: SessionId, reason: String) {
        let loss = Loss {
            reason,
            at: Instant::now(),
        };
        if self.reasons.insert(session.clone(), loss).is_none() {
            self.order.push_back(session);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.reasons.remove(&oldest);
            }
        }
    }

    pub(super) fn get(&self, session: &SessionId) -> Option<&String> {
        let loss = self.reasons.get(session)?;
        (loss.at.elapsed() < REMEMBERED_FOR).then_some(&loss.reason)
    }

    pub(super) fn forget(&mut self, session: &SessionId) {
        if self.reasons.remove(session).is_some() {
            self.order.retain(|other| other != session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> SessionId {
        format!("s{n}").parse().unwrap()
    }

    #[test]
    fn forgets_the_oldest_and_what_was_told() {
        let mut losses = Losses::default();
        for n in 0..=REMEMBERED {
            losses.record(id(n), "evicted".into());
        }
        assert_eq!(losses.get(&id(0)), None);
        assert_eq!(losses.get(&id(1)).map(String::as_str), Some("evicted"));
        losses.forget(&id(1));
        assert_eq!(losses.get(&id(1)), None);
        assert_eq!(losses.order.len(), REMEMBERED - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn forgets_what_is_long_ago() {
        let mut losses = Losses::default();
        losses.record(id(1), "evicted".into());
        losses.record(id(2), "evicted".into());
        tokio::time::advance(REMEMBERED_FOR - Duration::from_secs(1)).await;
        assert!(losses.get(&id(1)).is_some());
        losses.record(id(2), "deleted".into());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(losses.get(&id(1)), None);
        assert_eq!(
            losses.get(&id(2)).map(String::as_str),
            Some("deleted"),
            "its time begins anew"
        );
    }
}
