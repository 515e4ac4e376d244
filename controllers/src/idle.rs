//! Which sessions are over: idle for too long, or too old. A pure function of times (contract, section 9).

use std::time::Duration;

use cli_mcp_api::duration::GoDuration;
use jiff::Timestamp;

use crate::sandboxes::Sandbox;

/// A session may have been active so much later than its annotation says: the server writes `last-activity` at most
/// every 15 s (contract, section 7), and a write that fails is made up for by the next.
pub const ACTIVITY_LAG: Duration = Duration::from_secs(30);

/// How long a session that is too old may go on without a pause: the longest command (contract, section 4), which may
/// have begun when its time came, and what the annotation lags.
pub const LAST_COMMAND: Duration = Duration::from_secs(300 + ACTIVITY_LAG.as_secs());

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// No command for longer than `idleTimeout`.
    Idle,
    /// Older than `maxLifetime`, and in a pause or out of patience.
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
        let left = |end: Timestamp| Duration::try_from(end.duration_since(now)).unwrap_or_default();
        // The first pause after that age ends the session, so that the command that runs then is not cut off. The limit is
        // hard: one that is begun later, in a session that never pauses, is.
        let too_old = self.max_lifetime.and_then(|limit| {
            let due = sandbox.created_at.checked_add(limit.0).ok()?;
            let pause = active.checked_add(ACTIVITY_LAG).ok()?;
            Some(left(due.max(pause.min(due.checked_add(LAST_COMMAND).ok()?))))
        });
        let idle = self.idle_timeout.0.checked_add(ACTIVITY_LAG);
        let idle = idle.and_then(|limit| Some(left(active.checked_add(limit).ok()?)));
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
            scheduled: true,
            running: true,
            ready: true,
            unready_since: at(created_at),
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
            idle.judge(&session(0, None), at(89)),
            Verdict::In(Duration::from_secs(1))
        );
        assert_eq!(idle.judge(&session(0, None), at(90)), Verdict::Over(Over::Idle));
        assert_eq!(
            idle.judge(&session(0, Some(50)), at(90)),
            Verdict::In(Duration::from_secs(50))
        );
    }

    #[test]
    fn age_ends_a_session_in_its_first_pause() {
        let both = limits(3600, Some(100));
        let after = |seconds| Verdict::In(Duration::from_secs(seconds));
        assert_eq!(both.judge(&session(0, Some(60)), at(95)), after(5));
        assert_eq!(both.judge(&session(0, Some(70)), at(100)), Verdict::Over(Over::TooOld));
        // A command may be running.
        assert_eq!(both.judge(&session(0, Some(99)), at(100)), after(29));
        assert_eq!(both.judge(&session(0, Some(99)), at(129)), Verdict::Over(Over::TooOld));
    }

    #[test]
    fn age_ends_a_session_that_never_pauses() {
        let both = limits(3600, Some(100));
        assert_eq!(
            both.judge(&session(0, Some(425)), at(429)),
            Verdict::In(Duration::from_secs(1))
        );
        assert_eq!(both.judge(&session(0, Some(430)), at(430)), Verdict::Over(Over::TooOld));
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
