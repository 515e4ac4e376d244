//! Sessions whose sandbox went away without being asked to, so that the next call can say that state was lost.

use std::collections::{HashMap, VecDeque};

use crate::session::SessionId;

/// How many are remembered; the oldest is forgotten first, and its session then starts afresh without a word.
const REMEMBERED: usize = 8192;

/// A bounded map from session to the reason.
#[derive(Debug, Default)]
pub(super) struct Losses {
    reasons: HashMap<SessionId, String>,
    order: VecDeque<SessionId>,
}

impl Losses {
    pub(super) fn record(&mut self, session: SessionId, reason: String) {
        if self.reasons.insert(session.clone(), reason).is_none() {
            self.order.push_back(session);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.reasons.remove(&oldest);
            }
        }
    }

    pub(super) fn get(&self, session: &SessionId) -> Option<&String> {
        self.reasons.get(session)
    }

    pub(super) fn take(&mut self, session: &SessionId) -> Option<String> {
        let reason = self.reasons.remove(session)?;
        self.order.retain(|other| other != session);
        Some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_oldest_and_tells_once() {
        let mut losses = Losses::default();
        let id = |n: usize| format!("s{n}").parse::<SessionId>().unwrap();
        for n in 0..=REMEMBERED {
            losses.record(id(n), "evicted".into());
        }
        assert_eq!(losses.take(&id(0)), None);
        assert_eq!(losses.take(&id(1)).as_deref(), Some("evicted"));
        assert_eq!(losses.take(&id(1)), None);
    }
}
