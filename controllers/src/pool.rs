//! The warm pool: which sandboxes to create and which to delete. A pure function of what is there (contract,
//! section 9).

use std::time::Duration;

use jiff::Timestamp;

use crate::sandboxes::Sandbox;

mod backoff;
mod expected;

pub use backoff::Backoff;
pub use expected::Expected;

/// How long a sandbox may be not ready, or stay when it should be gone, before that is told and, where it may help, another
/// is tried in its place.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// What an instance's pool should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Number of unassigned sandboxes.
    pub size: usize,
    /// What they are built from. While it is not known none is outdated, none is created, and none makes room for another.
    pub current: Option<BuiltFrom<'a>>,
    /// Sandboxes that were created and that the cache does not show yet.
    pub expected: usize,
    /// Whether sandboxes may be created at all (contract, section 8).
    pub gate_open: bool,
}

/// What tells sandboxes apart that were built from different inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltFrom<'a> {
    /// Hash of the template.
    pub spec_hash: &'a str,
    /// Hash of the files that they mount.
    pub mounts_hash: &'a str,
}

impl BuiltFrom<'_> {
    fn is_of(&self, sandbox: &Sandbox) -> bool {
        sandbox.spec_hash == self.spec_hash && sandbox.mounts_hash == self.mounts_hash
    }
}

/// Why a sandbox of the pool is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was built from another template, or mounts what has changed.
    Outdated,
    /// It has ended.
    Ended,
    /// It does not start.
    Stuck,
    /// The pool is larger than asked for.
    Surplus,
}

impl Cause {
    /// Whether a fresh read of the sandbox still is a reason to delete it: it may have been claimed, or have become ready
    /// while the watch was silent.
    #[must_use]
    pub fn holds(self, fresh: &Sandbox) -> bool {
        fresh.session.is_none() && !(self == Self::Stuck && fresh.ready)
    }
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of sandboxes to create.
    pub create: usize,
    /// Sandboxes to delete, if the cause still [holds](Cause::holds) after a fresh read.
    pub delete: Vec<(Sandbox, Cause)>,
    /// When to look again without any change.
    pub again: Option<Duration>,
    /// Unassigned sandboxes that are ready and current.
    pub ready: usize,
    /// Sandboxes that the pool lacks, those among them that are to be created.
    pub lacking: usize,
    /// Why a sandbox of the pool does not start.
    pub trouble: Option<String>,
    /// The sandbox that `trouble` is about, if its status does not say why: its events may.
    pub unexplained: Option<Sandbox>,
    /// A sandbox failed: the pool must pause.
    pub failed: bool,
}

/// Plans the pool.
#[must_use]
pub fn plan(wanted: &Wanted<'_>, sandboxes: &[Sandbox], backoff: &Backoff, now: Timestamp) -> Plan {
    let unassigned: Vec<&Sandbox> = sandboxes.iter().filter(|sandbox| sandbox.session.is_none()).collect();
    let pause = backoff.pause(now);
    let mut plan = Plan::default();
    let mut current: Vec<&Sandbox> = Vec::new();
    let mut silent: Option<&Sandbox> = None;
    let mut next_look: Option<Duration> = None;
    for sandbox in unassigned.iter().copied() {
        let unready_for = Duration::try_from(now.duration_since(sandbox.unready_since)).unwrap_or_default();
        let left = STUCK_AFTER.saturating_sub(unready_for);
        let stuck = !sandbox.ready && left.is_zero();
        if sandbox.terminating {
            if stuck {
                silent = silent.or(Some(sandbox));
            } else {
                next_look = sooner(next_look, left);
            }
            continue;
        }
        if wanted.current.is_some_and(|current| !current.is_of(sandbox)) {
            plan.delete.push((sandbox.clone(), Cause::Outdated));
            continue;
        }
        if sandbox.trouble.is_some() {
            plan.trouble = plan.trouble.or_else(|| described(sandbox));
        } else if stuck {
            silent = silent.or(Some(sandbox));
        }
        // Another one would wait for room too. One that runs goes on trying and says by its probe what it lacks: another
        // would meet the same network.
        let replaceable = wanted.current.is_some() && sandbox.scheduled && !sandbox.running;
        if sandbox.ended {
            plan.failed = true;
            plan.delete.push((sandbox.clone(), Cause::Ended));
        } else if stuck && replaceable && pause.is_none() {
            plan.failed = true;
            plan.delete.push((sandbox.clone(), Cause::Stuck));
        } else {
            if !sandbox.ready && replaceable {
                next_look = sooner(next_look, left.max(pause.unwrap_or_default()));
            } else if !sandbox.ready && !stuck && sandbox.trouble.is_none() {
                next_look = sooner(next_look, left);
            }
            plan.ready += usize::from(sandbox.ready);
            current.push(sandbox);
        }
    }
    if let (None, Some(sandbox)) = (&plan.trouble, silent) {
        plan.trouble = Some(unexplained(sandbox));
        plan.unexplained = Some(sandbox.clone());
    }
    current.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
    let surplus = current.len().saturating_sub(wanted.size);
    plan.delete.extend(
        current
            .iter()
            .take(surplus)
            .map(|sandbox| ((*sandbox).clone(), Cause::Surplus)),
    );
    plan.lacking = wanted.size.saturating_sub(current.len() + wanted.expected);
    // What is being deleted holds its slot until it is gone.
    let missing = wanted.size.saturating_sub(unassigned.len() + wanted.expected);
    if missing > 0 && wanted.gate_open && wanted.current.is_some() {
        match pause {
            Some(left) => next_look = sooner(next_look, left),
            None if plan.failed => {}
            None => plan.create = missing,
        }
    }
    plan.again = next_look;
    plan
}

fn described(sandbox: &Sandbox) -> Option<String> {
    Some(format!("pod {}: {}", sandbox.name, sandbox.trouble.as_deref()?))
}

/// What is said of a sandbox whose status tells nothing.
fn unexplained(sandbox: &Sandbox) -> String {
    let what = if sandbox.terminating {
        "should be gone and is not, as on a node that is lost"
    } else {
        "has not become ready"
    };
    format!(
        "pod {0} {what} for more than {STUCK_AFTER:?}: see kubectl describe pod {0}",
        sandbox.name
    )
}

fn sooner(one: Option<Duration>, other: Duration) -> Option<Duration> {
    Some(one.map_or(other, |one| one.min(other)))
}

#[cfg(test)]
mod tests;
