//! Which sessions are over: idle for too long, or too old. A pure function of times (contract, section 9).

use std::time::Duration;

use cli_mcp_api::duration::GoDuration;
use jiff::Timestamp;

use crate::sandboxes::Sandbox;

/// The server writes `last-activity` at most this often: a session may have been active so much later than its
/// annotation says (contract, section 7).
pub const ACTIVITY_RESOLUTION: Duration = Duration::from_secs(15);

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// No command for longer than `idleTimeout`.
    Idle,
    /// Older than `maxLifetime`.
    TooOld,
}

/// The limits of an instance's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `spec.sandbox.idleTimeout`.
    pub idle_timeout: GoDuration,
    /// `spec.sandbox.maxLifetime`.
    pub max_lifetime: Option<GoDuration>,
}

impl Limits {
    /// Whether an assigned sandbox is over, or how long until it is. Neither for one without session, for one that is
    /// being deleted, and for a limit that lies beyond all time.
    #[must_use]
    pub fn judge(&self, sandbox: &Sandbox, now: Timestamp) -> Verdict {
        if sandbox.session.is_none() || sandbox.terminating {
            return Verdict::Never;
        }
        let active = sandbox
            .last_activity
            .map_or(sandbox.created_at, |active| active.max(sandbox.created_at));
        let left = |since: Timestamp, limit: Duration| -> Option<Duration> {
            let end = since.checked_add(limit).ok()?;
            Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
        };
        let too_old = self.max_lifetime.and_then(|limit| left(sandbox.created_at, limit.0));
        let idle = self
            .idle_timeout
            .0
            .checked_add(ACTIVITY_RESOLUTION)
            .and_then(|limit| left(active, limit));
        match (too_old, idle) {
            (Some(Duration::ZERO), _) => Verdict::Over(Over::TooOld),
            (_, Some(Duration::ZERO)) => Verdict::Over(Over::Idle),
            (Some(one), Some(other)) => Verdict::In(one.min(other)),
            (Some(left), None) | (None, Some(left)) => Verdict::In(left),
            (None, None) => Verdict::Never,
        }
    }
}

/// What [`Limits::judge`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is over.
    Over(Over),
    /// It will be, unless there is activity.
    In(Duration),
    /// It never will be.
    Never,
}

/// The sessions that are over, and how long until the next one is.
#[must_use]
pub fn plan(limits: Limits, sandboxes: &[Sandbox], now: Timestamp) -> (Vec<(Sandbox, Over)>, Option<Duration>) {
    let mut over = Vec::new();
    let mut next: Option<Duration> = None;
    for sandbox in sandboxes {
        match limits.judge(sandbox, now) {
            Verdict::Over(why) => over.push((sandbox.clone(), why)),
            Verdict::In(left) => next = Some(next.map_or(left, |next| next.min(left))),
            Verdict::Never => {}
        }
    }
    (over, next)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn session(created_at: i64, last_activity: Option<i64>) -> Sandbox {
        Sandbox {
            name: "p".into(),
            uid: "u".into(),
            session: Some("s".into()),
            created: at(created_at),
            created_at: at(created_at),
            last_activity: last_activity.map(at),
            spec_hash: String::new(),
            mounts_hash: String::new(),
            ready: true,
            terminating: false,
            ended: false,
            trouble: None,
            egress_open: false,
        }
    }

    fn limits(idle: u64, age: Option<u64>) -> Limits {
        Limits {
            idle_timeout: GoDuration(Duration::from_secs(idle)),
            max_lifetime: age.map(|age| GoDuration(Duration::from_secs(age))),
        }
    }

    #[test]
    fn a_session_ends_after_its_idle_time_and_what_the_annotation_may_lag() {
        let idle = limits(60, None);
        assert_eq!(
            idle.judge(&session(0, None), at(74)),
            Verdict::In(Duration::from_secs(1))
        );
        assert_eq!(idle.judge(&session(0, None), at(75)), Verdict::Over(Over::Idle));
        assert_eq!(
            idle.judge(&session(0, Some(50)), at(75)),
            Verdict::In(Duration::from_secs(50))
        );
    }

    #[test]
    fn age_ends_a_session_that_is_active() {
        let both = limits(60, Some(100));
        assert_eq!(both.judge(&session(0, Some(99)), at(100)), Verdict::Over(Over::TooOld));
        assert_eq!(
            both.judge(&session(0, Some(90)), at(95)),
            Verdict::In(Duration::from_secs(5))
        );
    }

    #[test]
    fn a_pool_pod_and_a_terminating_one_are_left_alone() {
        let unassigned = Sandbox {
            session: None,
            ..session(0, None)
        };
        let going = Sandbox {
            terminating: true,
            ..session(0, None)
        };
        let (over, next) = plan(limits(1, Some(1)), &[unassigned, going], at(1_000_000));
        assert!(over.is_empty() && next.is_none());
    }

    proptest! {
        #[test]
        fn no_session_is_collected_within_its_idle_time(
            created in 0_i64..1_000_000, active in 0_i64..1_000_000, idle in 1_u64..100_000, now in 0_i64..2_000_000,
        ) {
            let sandbox = session(created, Some(active));
            let verdict = limits(idle, None).judge(&sandbox, at(now));
            let quiet = now - active.max(created);
            if quiet < i64::try_from(idle).unwrap() {
                prop_assert!(matches!(verdict, Verdict::In(_)), "{verdict:?}");
            }
            if let Verdict::In(left) = verdict {
                let then = at(now) + left;
                prop_assert_eq!(limits(idle, None).judge(&sandbox, then), Verdict::Over(Over::Idle));
            }
        }
    }
}
