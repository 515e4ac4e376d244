//! Ending a call before its time: its whole process tree is gone afterwards, nothing of its list runs on, and the shell
//! is kept where that can be done with certainty.
//!
//! Everything is frozen first. SIGINT then ends the list only when bash sees its foreground child die of it and has no
//! trap for it; so bash stays frozen until that death is certain. In every other shape the shell is given up: it may save
//! its state and ends, and the caller restores another from it.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, timeout};

use crate::patience::Patience;
use crate::processes::{self, Disposition, Identity, Process, Roots};
use crate::reaper::ExitCode;
use crate::script::{self, Nonce, Status};
use crate::shell::{Answer, Shell};

/// Rounds of freezing: each finds what was forked before its parent stood still.
const FREEZE_ROUNDS: usize = 100;
/// How often a program that handles SIGINT is asked, and how long it has each time.
const INTERRUPTS: usize = 3;
const INTERRUPT_WAIT: Duration = Duration::from_millis(100);
/// How long a stopped bash may take to stand still.
const STAND_WAIT: Duration = Duration::from_millis(100);
/// How long bash may take from the interrupt to its prompt.
const PROMPT_WAIT: Duration = Duration::from_millis(500);
/// More processor time than bash takes to its prompt: its list goes on.
const PROMPT_WORK: Duration = Duration::from_millis(30);
/// How often a bash is looked at while something is expected of it.
const PROMPT_LOOK: Duration = Duration::from_millis(20);
/// How long a bash that must go may take to begin to save its state, and then to end.
const SAVE_BEGIN: Duration = Duration::from_secs(1);
const SAVE_WAIT: Duration = Duration::from_secs(3);
/// How long killed processes may take to be gone; one in an uninterruptible sleep takes longer, and is left to the kernel.
const KILL_WAIT: Duration = Duration::from_secs(2);
/// How often, and for how long, a bash that is between two steps is given time to take the next.
const BETWEEN_TRIES: usize = 8;
const BETWEEN_WAIT: Duration = Duration::from_millis(5);
/// How often a list is interrupted that goes on, and how often of them a bash is waited for in full.
const ATTEMPTS: usize = 30;
const WAITS: usize = 3;
const STEP: Duration = Duration::from_millis(1);

/// What became of the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is at its prompt again with all its state.
    Kept(Status),
    /// It ended by itself.
    Ended(ExitCode),
    /// It is frozen and must be replaced.
    Lost,
}

/// Why a shell is given up.
#[derive(Clone, Copy, Debug)]
enum GivenUp {
    /// It ignores SIGINT, or may run a trap for it.
    InterruptIsNoEnd,
    /// Its child did not end by SIGINT.
    ChildGoesOn,
    /// It did not come back to its prompt.
    NoPrompt,
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
        let deadline = Instant::now() + KILL_WAIT;
        loop {
            let alive = self.alive();
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
    fn freeze(&self) -> Vec<Process> {
        let mut frozen = BTreeSet::new();
        for _ in 0..FREEZE_ROUNDS {
            let alive = self.alive();
            let before = frozen.len();
            for process in &alive {
                if frozen.insert(process.identity) {
                    send(process.identity.pid, Signal::SIGSTOP);
                }
            }
            if frozen.len() == before {
                return alive;
            }
        }
        self.alive()
    }
}

fn send(pid: i32, signal: Signal) {
    // Gone already is as good.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// The child whose end bash waits for, as far as it can be told: the last one started that does not ignore SIGINT, as
/// background jobs do where job control is off.
fn foreground(frozen: &[(Process, Disposition)], bash: i32) -> Option<Process> {
    frozen
        .iter()
        .filter(|(process, disposition)| process.parent == bash && *disposition != Disposition::Ignored)
        .map(|(process, _)| *process)
        .max_by_key(|process| process.identity)
}

/// Whether a child has died of SIGINT, has ended otherwise, or lives.
fn end_of(child: Process) -> Option<bool> {
    match processes::process(child.identity.pid) {
        Some(now) if now.identity == child.identity && !now.ended() => None,
        Some(now) if now.identity == child.identity => Some(now.wait_status & 0x7f == Signal::SIGINT as i32),
        _ => Some(false),
    }
}

/// Ends the running call. `trapped`: SIGINT may run a trap of the user's, so it must not be sent.
pub async fn stop(shell: &mut Shell, scope: Scope<'_>, trapped: bool) -> Outcome {
    let nonce = Nonce::new();
    let hazards = shell.hazards.clone();
    let quiet = hazards.aliased_keywords;
    let mut waits = 0;
    for attempt in 0..ATTEMPTS {
        let interrupted = match freeze_at_a_step(shell, scope, trapped).await {
            Ok(frozen) => interrupt_children(shell, scope, &frozen).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = interrupted {
            scope.kill_all().await;
            return lost(shell, reason);
        }
        if attempt == 0 {
            shell.forget_noise();
        }
        let had_run = has_run(shell.pid);
        shell.signal(Signal::SIGINT);
        shell.signal(Signal::SIGCONT);
        if attempt == 0 {
            // With `errexit` an interrupt ends the shell, which saves its state on the way out: then nobody reads this.
            if let Err(error) = shell.write(&script::probe(&nonce, &hazards, quiet)) {
                tracing::debug!(%error, "The interrupted shell does not read");
            }
        }
        match answer(shell, &nonce, had_run).await {
            Answer::Status(mut status) => {
                scope.kill_all().await;
                if quiet {
                    status.aliases = shell.before.aliases;
                }
                return Outcome::Kept(status);
            }
            Answer::Ended(code) => {
                scope.kill_all().await;
                return Outcome::Ended(code);
            }
            // A bash that has just collected a child takes the interrupt for the child's, and goes on with its list.
            Answer::Nothing => {
                tracing::debug!(attempt, "The interrupted shell did not come back to its prompt");
                waits += usize::from(!goes_on(shell.pid, had_run));
                if waits == WAITS {
                    break;
                }
            }
        }
    }
    let outcome = lost(shell, GivenUp::NoPrompt);
    shell.signal(Signal::SIGSTOP);
    scope.kill_all().await;
    outcome
}

/// Ends what a frozen bash waits for, and leaves the bash where SIGINT ends its list; else says why that cannot be.
async fn interrupt_children(shell: &Shell, scope: Scope<'_>, frozen: &[(Process, Disposition)]) -> Result<(), GivenUp> {
    let foreground = foreground(frozen, scope.roots.bash);
    let ended_by_interrupt = interrupt(frozen, foreground).await;
    tracing::debug!(?frozen, ended_by_interrupt, "Interrupted the call");
    scope.kill_all().await;
    if !ended_by_interrupt {
        return Err(GivenUp::ChildGoesOn);
    }
    if foreground.is_none() {
        leave_wait(shell).await;
    }
    Ok(())
}

/// Brings a frozen bash out of its `wait`, into the agent's trap, where SIGINT would end it there; else leaves it alone.
async fn leave_wait(shell: &Shell) {
    let bash = shell.pid;
    if !shell.dialect.wait_is_fatal
        || shell.hazards.aliased_keywords
        || processes::disposition(bash, script::LEAVE_WAIT) != Disposition::Caught
        || processes::waits_for_children(bash) != Some(true)
    {
        return;
    }
    shell.signal(script::LEAVE_WAIT);
    shell.signal(Signal::SIGCONT);
    let mut patience = Patience::new(bash, INTERRUPT_WAIT);
    while processes::has_descriptor(bash, 0) && !patience.is_over() {
        sleep(STEP).await;
    }
}

/// Waits for the status that the interrupted shell was asked for; no longer than until its list is seen to go on.
async fn answer(shell: &mut Shell, nonce: &Nonce, had_run: Duration) -> Answer {
    let mut patience = Patience::new(shell.pid, PROMPT_WAIT);
    loop {
        match shell.answer(nonce, Instant::now() + PROMPT_LOOK).await {
            Answer::Nothing if !patience.is_over() && !goes_on(shell.pid, had_run) => {}
            answer => return answer,
        }
    }
}

fn has_run(pid: i32) -> Duration {
    processes::process(pid).map_or(Duration::ZERO, |process| process.has_run)
}

/// Whether an interrupted bash, which had run for so long before, works on its list.
fn goes_on(bash: i32, had_run: Duration) -> bool {
    has_run(bash).saturating_sub(had_run) >= PROMPT_WORK
}

/// Ends a frozen bash that cannot be kept. Unless `silent` it may save its state first: an untrapped SIGVTALRM makes it run
/// its EXIT trap, which is the agent's, from wherever it stands, an expansion or a loop, and nothing of the list after it.
pub async fn end(shell: &mut Shell, scope: Scope<'_>, silent: bool) {
    if !silent {
        shell.signal(Signal::SIGVTALRM);
        shell.signal(Signal::SIGCONT);
        let mut patience = Patience::new(shell.pid, SAVE_BEGIN);
        let mut saving = false;
        while !patience.is_over() {
            if !saving && shell.ending_with().is_some() {
                saving = true;
                patience = Patience::new(shell.pid, SAVE_WAIT);
            }
            if let Ok(Some(_)) = timeout(PROMPT_LOOK, shell.hear_more()).await {
                break;
            }
        }
    }
    shell.signal(Signal::SIGKILL);
    shell.exit.wait().await;
    scope.kill_all().await;
}

/// Stops bash and the call's processes, and notes what each does with SIGINT.
async fn freeze_with_dispositions(shell: &Shell, scope: Scope<'_>) -> Vec<(Process, Disposition)> {
    shell.signal(Signal::SIGSTOP);
    stand_still(shell.pid).await;
    let with_disposition = |process: Process| (process, processes::interrupt_disposition(process.identity.pid));
    scope.freeze().into_iter().map(with_disposition).collect()
}

/// Stops bash and the call's processes where it can be told what bash does. Between fork and exec a child still has bash's
/// own handler; and a bash that has just collected a child takes an interrupt for one that the child has handled, and goes on
/// with its list. A moment later it is at its next step. One that SIGINT would not end is not let go on.
async fn freeze_at_a_step(
    shell: &Shell,
    scope: Scope<'_>,
    trapped: bool,
) -> Result<Vec<(Process, Disposition)>, GivenUp> {
    let bash = scope.roots.bash;
    let mut waits = false;
    for _ in 0..BETWEEN_TRIES {
        let frozen = freeze_with_dispositions(shell, scope).await;
        if trapped || processes::interrupt_disposition(bash) == Disposition::Ignored {
            return Err(GivenUp::InterruptIsNoEnd);
        }
        let between = match foreground(&frozen, bash) {
            Some(child) => is_copy_of(child, bash),
            // Its `wait4(2)` goes on, or has come back with a child.
            None => !waits && processes::waits_for_children(bash) == Some(true),
        };
        if !between && !has_uncollected_child(bash) {
            return Ok(frozen);
        }
        for (process, _) in &frozen {
            send(process.identity.pid, Signal::SIGCONT);
        }
        shell.signal(Signal::SIGCONT);
        sleep(BETWEEN_WAIT).await;
        waits = comes_to_wait(bash).await;
    }
    Ok(freeze_with_dispositions(shell, scope).await)
}

fn has_uncollected_child(pid: i32) -> bool {
    let table = processes::table();
    table.iter().any(|process| process.parent == pid && process.ended())
}

/// Whether a process sleeps in `wait4(2)` once it sleeps.
async fn comes_to_wait(pid: i32) -> bool {
    let mut patience = Patience::new(pid, BETWEEN_WAIT);
    while !patience.is_over() {
        if processes::process(pid).is_none_or(|process| process.state == b'S') {
            return processes::waits_for_children(pid) == Some(true);
        }
        sleep(STEP).await;
    }
    false
}

/// Waits until a stopped process stands. Before that, one that gets no processor may yet start a child, or collect one that
/// ends meanwhile, and nobody else can tell how a collected child ended.
async fn stand_still(pid: i32) {
    let mut patience = Patience::new(pid, STAND_WAIT);
    while processes::process(pid).is_some_and(|process| !process.stands() && !process.ended()) && !patience.is_over() {
        sleep(STEP).await;
    }
}

/// Whether a child that handles SIGINT is bash's own program: forked, and perhaps about to become another.
fn is_copy_of(child: Process, bash: i32) -> bool {
    let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let pid = child.identity.pid;
    processes::interrupt_disposition(pid) == Disposition::Caught
        && program(pid).is_some()
        && program(pid) == program(bash)
}

/// The shell is gone already, or is given up: the log says why, since the session loses its jobs by it.
fn lost(shell: &Shell, reason: GivenUp) -> Outcome {
    if let Some(code) = shell.exit.code() {
        return Outcome::Ended(code);
    }
    let state = processes::process(shell.pid).map_or('?', |bash| char::from(bash.state));
    tracing::warn!(?reason, %state, "Giving the shell up");
    Outcome::Lost
}

/// Lets the call's processes die of SIGINT, and tells whether bash's foreground child did.
async fn interrupt(frozen: &[(Process, Disposition)], foreground: Option<Process>) -> bool {
    for attempt in 0..INTERRUPTS {
        for (process, disposition) in frozen {
            // What ignores it stays frozen until it is killed; the others die, or run their handler, as they wake.
            if *disposition != Disposition::Ignored {
                send(process.identity.pid, Signal::SIGINT);
                if attempt == 0 {
                    send(process.identity.pid, Signal::SIGCONT);
                }
            }
        }
        let Some(foreground) = foreground else { return true };
        let mut patience = Patience::new(foreground.identity.pid, INTERRUPT_WAIT);
        while !patience.is_over() {
            if let Some(by_interrupt) = end_of(foreground) {
                return by_interrupt;
            }
            sleep(STEP).await;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_child_that_minds_interrupts_is_in_the_foreground() {
        let process = |pid: i32, parent: i32| Process {
            identity: Identity {
                pid,
                start: u64::try_from(pid).unwrap(),
            },
            parent,
            state: b'T',
            wait_status: 0,
            has_run: Duration::ZERO,
        };
        let frozen = [
            (process(10, 3), Disposition::Default),
            (process(11, 3), Disposition::Caught),
            (process(12, 3), Disposition::Ignored),
            (process(13, 11), Disposition::Default),
        ];
        assert_eq!(foreground(&frozen, 3).unwrap().identity.pid, 11);
        assert_eq!(foreground(&frozen[2..], 3), None);
    }
}
