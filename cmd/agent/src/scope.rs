//! What a call has started: found, stopped where it stands, and ended.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::processes::{self, Disposition, Identity, Process, Roots};

/// Rounds of freezing: each finds what was forked before its parent stood still. No more processes are looked at one by one
/// either, since they may fork as fast as that.
const FREEZE_ROUNDS: usize = 100;
/// How long killed processes may take to be gone; one in an uninterruptible sleep takes longer, and is left to the kernel.
const KILL_WAIT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(1);

/// A process of the call, as it was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    /// Which.
    pub(crate) process: Process,
    /// What it does with SIGINT.
    pub(crate) interrupt: Disposition,
    /// Whether it stood before: the agent does not let it go on.
    pub(crate) stood: bool,
}

/// Which processes are whose.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The agent's own side of the tree.
    pub roots: Roots,
    /// What was there before the call.
    pub earlier: &'a HashSet<Identity>,
}

impl Scope<'_> {
    /// What the call has started and is still alive.
    #[must_use]
    pub fn alive(&self) -> Vec<Process> {
        let mut found = processes::of_call(&processes::table(), self.roots, self.earlier);
        found.retain(|process| !process.ended());
        found
    }

    /// Kills what the call has started, until nothing is left.
    pub async fn kill_all(&self) {
        self.kill_all_but(&[]).await;
    }

    /// As [`Self::kill_all`], but leaves some alone.
    pub(crate) async fn kill_all_but(&self, spared: &[Identity]) {
        let deadline = Instant::now() + KILL_WAIT;
        loop {
            let mut alive = self.alive();
            alive.retain(|process| !spared.contains(&process.identity));
            for process in &alive {
                send(process.identity.pid, Signal::SIGKILL);
            }
            if alive.is_empty() || Instant::now() > deadline {
                return;
            }
            sleep(STEP).await;
        }
    }

    /// Ends what the call has started, also where that forks faster than it can be killed; says how many there were.
    pub async fn clear(&self) -> usize {
        let frozen = self.freeze().len();
        self.kill_all().await;
        frozen
    }

    /// Stops every process of the call where it stands.
    pub(crate) fn freeze(&self) -> Vec<Frozen> {
        let mut found: BTreeMap<Identity, bool> = BTreeMap::new();
        let mut stop = |process: &Process| {
            found.entry(process.identity).or_insert_with(|| {
                send(process.identity.pid, Signal::SIGSTOP);
                process.stands()
            });
            found.len()
        };
        // Programs that bash may wait for come first: one that ends meanwhile lets it go on. Copies of bash do not: they are
        // about to become another program, or to end, after which more can be told, or wait for programs themselves.
        let mut left = processes::children(self.roots.bash).unwrap_or_default();
        for _ in 0..FREEZE_ROUNDS {
            let Some(pid) = left.pop() else { break };
            let Some(child) = processes::process(pid).filter(|child| !self.earlier.contains(&child.identity)) else {
                continue;
            };
            if processes::interrupt_disposition(pid) == Disposition::Caught {
                left.extend(processes::children(pid).unwrap_or_default());
            } else if !child.ended() {
                stop(&child);
            }
        }
        let mut known = None;
        for _ in 0..FREEZE_ROUNDS {
            let count = self.alive().iter().map(&mut stop).last();
            if count == known {
                break;
            }
            known = count;
        }
        let frozen = |process: Process| Frozen {
            process,
            interrupt: processes::interrupt_disposition(process.identity.pid),
            stood: found.get(&process.identity).copied().unwrap_or(false),
        };
        self.alive().into_iter().map(frozen).collect()
    }
}

/// Sends a signal to a process that may be gone.
pub(crate) fn send(pid: i32, signal: Signal) {
    // Gone already is as good.
    let _ = kill(Pid::from_raw(pid), signal);
}
