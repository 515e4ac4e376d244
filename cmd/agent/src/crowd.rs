//! A bound on the processes of a sandbox. A fork bomb that fills the memory of a pod keeps the kernel from everything else in
//! there, for minutes where the pod has a CPU quota: no timeout would be kept, and no call answered. So it is stopped before.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::processes::{self, Identity, Process};
use crate::reaper::Reaper;
use crate::scope::send;

/// How often the processes are counted while there may be more than bash. A fork bomb makes some ten in a millisecond, until the
/// pod's quota of the processor is used up for a tenth of a second: it is looked at before that.
const LOOK: Duration = Duration::from_millis(20);
/// A pod's memory limit is shared out as if each process had so much. A forked bash has 400 KiB, and many are made between two
/// looks.
const MEMORY_OF_A_PROCESS: u64 = 1 << 20;
/// Where the memory limit is small, so many are let be all the same.
const FEWEST: usize = 64;

/// How long killed processes may take to be gone, and how often they are looked at.
const KILL_WAIT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(5);

/// What its parts share.
#[derive(Debug, Default)]
struct State {
    call_runs: AtomicBool,
    halted: AtomicBool,
    call_begins: Notify,
    halt: Notify,
}

/// Counts the processes of a sandbox.
#[derive(Clone, Debug)]
pub struct Crowd {
    most: usize,
    state: Arc<State>,
}

impl Crowd {
    /// Lets no more than `most` processes be, and fewer where the cgroup's memory limit has no room for them. None where 0 is
    /// asked for, and where the agent is not process 1: then others than its own may be in sight.
    #[must_use]
    pub fn new(most: usize) -> Option<Self> {
        let own_namespace = std::process::id() == 1;
        (most > 0 && own_namespace).then(|| Self {
            most: bound(most, memory_limit()),
            state: Arc::default(),
        })
    }

    /// Processes that are let be.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// A call begins: what is over the bound is its, and its runner's to end.
    pub fn call_begins(&self) {
        self.state.halted.store(false, Ordering::Relaxed);
        self.state.call_runs.store(true, Ordering::Relaxed);
        self.state.call_begins.notify_one();
    }

    /// The call has ended. Whether the processes of the sandbox were halted during it.
    #[must_use]
    pub fn call_ended(&self) -> bool {
        self.state.call_runs.store(false, Ordering::Relaxed);
        self.take_halted()
    }

    /// Whether they were halted since this was last asked.
    #[must_use]
    pub fn take_halted(&self) -> bool {
        self.state.halted.swap(false, Ordering::Relaxed)
    }

    /// Waits until the processes of a call are halted.
    pub async fn halted(&self) {
        while !self.state.halted.load(Ordering::Relaxed) {
            self.state.halt.notified().await;
        }
    }

    /// Counts until the program ends.
    pub async fn watch(self, reaper: Reaper) {
        loop {
            let call_runs = self.state.call_runs.load(Ordering::Relaxed);
            let count = count();
            // The agent, the descriptor holder and bash.
            if count <= 3 && !call_runs {
                self.state.call_begins.notified().await;
            } else if count > self.most && !self.state.halted.load(Ordering::Relaxed) {
                tracing::warn!(
                    count,
                    most = self.most,
                    call_runs,
                    "Halting the sandbox: too many processes"
                );
                self.halt(&reaper.watched(), call_runs).await;
            }
            sleep(LOOK).await;
        }
    }

    /// Stops all processes of the sandbox at once, as no walk over them one by one could. The runner of a call then ends
    /// these as it does at a timeout; where no call runs, they are killed here.
    async fn halt(&self, own: &[i32], call_runs: bool) {
        send(-1, Signal::SIGSTOP);
        let table = processes::table();
        let entered: HashSet<Identity> = processes::entered_from_outside(&table).into_iter().collect();
        let let_be = |process: &Process| {
            let pid = process.identity.pid;
            pid == 1 || own.contains(&pid) || entered.contains(&process.identity)
        };
        for process in table.iter().filter(|process| let_be(process)) {
            send(process.identity.pid, Signal::SIGCONT);
        }
        if !call_runs {
            kill_all_but(let_be).await;
        }
        self.state.halted.store(true, Ordering::Relaxed);
        self.state.halt.notify_one();
    }
}

async fn kill_all_but(let_be: impl Fn(&Process) -> bool) {
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        let mut rest = processes::table();
        rest.retain(|process| !let_be(process) && !process.ended());
        for process in &rest {
            send(process.identity.pid, Signal::SIGKILL);
        }
        if rest.is_empty() || Instant::now() > deadline {
            return;
        }
        sleep(STEP).await;
    }
}

fn bound(most: usize, memory: Option<u64>) -> usize {
    let room = memory.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes / MEMORY_OF_A_PROCESS).unwrap_or(usize::MAX)
    });
    most.min(room.max(FEWEST))
}

/// The memory limit of this process's cgroup, of either version, where it has one.
fn memory_limit() -> Option<u64> {
    [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
}

/// The processes of this pid namespace.
fn count() -> usize {
    fs::read_dir("/proc").map_or(0, |entries| {
        entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
            .count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_memory_limit_has_room_for_fewer() {
        for (memory, expected) in [
            (None, 1000),
            (Some(u64::MAX), 1000),
            (Some(1 << 30), 1000),
            (Some(256 << 20), 256),
            (Some(96 << 20), 96),
            (Some(1 << 20), FEWEST),
        ] {
            assert_eq!(bound(1000, memory), expected, "{memory:?}");
        }
        assert_eq!(bound(10, Some(1 << 20)), 10);
    }

    #[test]
    fn only_process_1_counts() {
        assert!(Crowd::new(1000).is_none());
        assert!(count() >= 1);
    }
}
