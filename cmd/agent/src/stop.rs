//! Ending a call before its time: its whole process tree is gone afterwards, nothing of its list runs on, and the shell
//! is kept where that can be done with certainty.
//!
//! Everything is frozen first. SIGINT then ends the list only when bash sees its foreground child die of it and has no
//! trap for it; so bash stays frozen until that death is certain. In every other shape the shell is given up: it may save
//! its state and ends, and the caller restores another from it.
//!
//! A child that ignores SIGINT may be a job in the background, which bash starts so without job control, or what it waits for
//! in the foreground: nothing outside bash tells. So none of them is ended, nor woken, before bash is at its prompt. Where
//! that does not come to pass, bash waits for one of them, and its list would go on with its end.
//!
//! What runs outside the command, before and after it, are the agent's own lines, which an interrupt would tear: they are
//! let run to their end.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid, getsid};
use tokio::time::{Instant, sleep, timeout};

use crate::patience::Patience;
use crate::processes::{self, Disposition, Identity, Process};
use crate::reaper::ExitCode;
use crate::scope::{Frozen, Scope, send};
use crate::script::{self, Nonce, Status};
use crate::shell::{Answer, Shell};

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
/// How often in a row an interrupted bash is seen to wait for a child before that counts as its answer.
const LOOKS_AT_WAIT: usize = 3;
/// How long a bash that must go may take to begin to save its state, and then to end.
const SAVE_BEGIN: Duration = Duration::from_secs(1);
const SAVE_WAIT: Duration = Duration::from_secs(3);
/// How long bash may take to what comes next in a line of the agent's own.
const OWN_LINE_WAIT: Duration = Duration::from_secs(1);
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
    /// It waits for a child that ignores SIGINT, or may.
    ChildIgnoresIt,
    /// The command has stopped it where it may take SIGINT for a child's.
    Stopped,
    /// It did not come back to its prompt.
    NoPrompt,
}

/// Where bash stands.
enum Stand {
    /// Inside the command, frozen with all that it has started.
    Inside(Vec<Frozen>),
    /// Outside, or no longer there.
    Outside(Answer),
}

/// The child whose end bash waits for, as far as it can be told: the last one started that does not ignore SIGINT.
fn foreground(frozen: &[Frozen], bash: i32) -> Option<Frozen> {
    frozen
        .iter()
        .filter(|frozen| frozen.process.parent == bash && frozen.interrupt != Disposition::Ignored)
        .max_by_key(|frozen| frozen.process.identity)
        .copied()
}

/// The children of bash of which nothing tells whether it waits for them.
fn heedless(frozen: &[Frozen], bash: i32) -> Vec<Identity> {
    frozen
        .iter()
        .filter(|frozen| frozen.process.parent == bash && frozen.interrupt == Disposition::Ignored)
        .map(|frozen| frozen.process.identity)
        .collect()
}

fn has_child_but(scope: Scope<'_>, bash: i32, known: &[Identity]) -> bool {
    let alive = scope.alive();
    alive
        .iter()
        .any(|process| process.parent == bash && !known.contains(&process.identity))
}

/// Whether a child may be a job of a bash that minds jobs: such a bash goes on with its list when it sees one stand.
fn may_be_a_job(child: Identity, bash: i32) -> bool {
    let of = |pid: i32| Some(Pid::from_raw(pid));
    getsid(of(child.pid)) == getsid(of(bash)) && getpgid(of(child.pid)) != getpgid(of(bash))
}

/// Whether a child has died of SIGINT, has ended otherwise, or lives.
fn end_of(child: Process) -> Option<bool> {
    match processes::process(child.identity.pid) {
        Some(now) if now.identity == child.identity && !now.ended() => None,
        Some(now) if now.identity == child.identity => Some(now.wait_status & 0x7f == Signal::SIGINT as i32),
        _ => Some(false),
    }
}

/// Ends the running call, whose status comes with `call`. `trapped`: SIGINT may run a trap of the user's, so it must not be
/// sent.
pub async fn stop(shell: &mut Shell, scope: Scope<'_>, trapped: bool, call: &Nonce) -> Outcome {
    let nonce = Nonce::new();
    let hazards = shell.hazards.clone();
    shell.leaves_wait = false;
    let quiet = hazards.aliased_keywords;
    let mut waits = 0;
    let mut reason = GivenUp::NoPrompt;
    for attempt in 0..ATTEMPTS {
        let awaited = if attempt == 0 { call } else { &nonce };
        let (frozen, mut answered) = match freeze_at_a_step(shell, scope, trapped, awaited).await {
            Ok(Stand::Inside(frozen)) => (frozen, Answer::Nothing),
            Ok(Stand::Outside(answer)) => (Vec::new(), answer),
            Err(reason) => {
                scope.kill_all().await;
                return lost(shell, reason);
            }
        };
        let heedless = heedless(&frozen, shell.pid);
        if answered == Answer::Nothing {
            if let Err(reason) = interrupt_children(shell, scope, &frozen, &heedless).await {
                scope.kill_all().await;
                return lost(shell, reason);
            }
            if attempt == 0 {
                shell.forget_noise();
            }
            let had_run = processes::has_run(shell.pid);
            shell.signal(Signal::SIGINT);
            shell.signal(Signal::SIGCONT);
            if attempt == 0 {
                // With `errexit` an interrupt ends the shell, which saves its state on the way out: then nobody reads this.
                if let Err(error) = shell.write(&script::probe(&nonce, &hazards, quiet, &shell.channel)) {
                    tracing::debug!(%error, "The interrupted shell does not read");
                }
            }
            answered = answer(shell, &nonce, had_run, !heedless.is_empty()).await;
            // A bash that has just collected a child takes the interrupt for the child's, and goes on with its list.
            if answered == Answer::Nothing && !goes_on(shell.pid, had_run) {
                waits += 1;
                let waits_for_other = || has_child_but(scope, shell.pid, &heedless);
                if !heedless.is_empty() && !waits_for_other() {
                    reason = GivenUp::ChildIgnoresIt;
                    break;
                }
            }
        }
        match answered {
            Answer::Status(mut status) => {
                scope.kill_all().await;
                if quiet && status.aliases.is_none() {
                    status.aliases = shell.before.aliases;
                }
                return Outcome::Kept(status);
            }
            Answer::Ended(code) => {
                scope.kill_all().await;
                return Outcome::Ended(code);
            }
            Answer::Nothing => {
                tracing::debug!(attempt, "The interrupted shell did not come back to its prompt");
                if waits == WAITS {
                    break;
                }
            }
        }
    }
    let outcome = lost(shell, reason);
    shell.signal(Signal::SIGSTOP);
    stand_still(shell.pid).await;
    scope.kill_all().await;
    outcome
}

/// Ends what a frozen bash may wait for by SIGINT, and all else but the `heedless`; leaves the bash where SIGINT ends its
/// list. Else says why that cannot be.
async fn interrupt_children(
    shell: &mut Shell,
    scope: Scope<'_>,
    frozen: &[Frozen],
    heedless: &[Identity],
) -> Result<(), GivenUp> {
    let foreground = foreground(frozen, shell.pid);
    let ended_by_interrupt = interrupt(frozen, foreground.map(|child| child.process)).await;
    tracing::debug!(?frozen, ended_by_interrupt, "Interrupted the call");
    scope.kill_all_but(heedless).await;
    if !ended_by_interrupt {
        return Err(GivenUp::ChildGoesOn);
    }
    if foreground.is_none() {
        leave_wait(shell).await;
    }
    Ok(())
}

/// Brings a frozen bash out of its `wait`, into the agent's trap, where SIGINT would end it there; else leaves it alone. One
/// that waits for a child in the foreground comes to the trap when that has ended.
async fn leave_wait(shell: &mut Shell) {
    let bash = shell.pid;
    if !shell.dialect.wait_is_fatal
        || shell.hazards.aliased_keywords
        || processes::disposition(bash, script::LEAVE_WAIT) != Disposition::Caught
        || processes::waits_for_children(bash) != Some(true)
    {
        return;
    }
    shell.signal(script::LEAVE_WAIT);
    shell.leaves_wait = true;
    shell.signal(Signal::SIGCONT);
    come_to_trap(bash).await;
}

async fn come_to_trap(bash: i32) {
    let mut patience = Patience::new(bash, INTERRUPT_WAIT);
    while processes::has_descriptor(bash, 0) && !patience.is_over() {
        sleep(STEP).await;
    }
}

/// Waits for the status that the interrupted shell was asked for; no longer than until its list is seen to go on, or it is
/// seen to wait on for a child of those that it still has, where it `has_children`.
async fn answer(shell: &mut Shell, nonce: &Nonce, had_run: Duration, has_children: bool) -> Answer {
    let mut patience = Patience::new(shell.pid, PROMPT_WAIT);
    let mut waits = 0;
    loop {
        let answer = shell.answer(nonce, Instant::now() + PROMPT_LOOK).await;
        waits = if processes::sleeps_in_wait(shell.pid) {
            waits + 1
        } else {
            0
        };
        let waits_on = has_children && waits == LOOKS_AT_WAIT;
        if answer != Answer::Nothing || patience.is_over() || waits_on || goes_on(shell.pid, had_run) {
            return answer;
        }
    }
}

/// Whether an interrupted bash, which had run for so long before, works on its list.
fn goes_on(bash: i32, had_run: Duration) -> bool {
    processes::has_run(bash).saturating_sub(had_run) >= PROMPT_WORK
}

/// Ends a frozen bash that cannot be kept. Unless `silent` it may save its state first: an untrapped SIGVTALRM makes it run
/// its EXIT trap, which is the agent's, from wherever it stands, an expansion or a loop, and nothing of the list after it.
pub async fn end(shell: &mut Shell, scope: Scope<'_>, silent: bool) {
    if !silent {
        if shell.leaves_wait {
            // A bash that has both to handle at once handles neither. In the trap its list does not go on.
            shell.signal(Signal::SIGCONT);
            come_to_trap(shell.pid).await;
        }
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

/// Stops bash and the call's processes where it can be told what bash does. Between fork and exec a child still has bash's
/// own handler; and a bash that has just collected a child takes an interrupt for one that the child has handled, and goes on
/// with its list. A moment later it is at its next step. One that SIGINT would not end is not let go on, nor is what the
/// command itself has stopped.
async fn freeze_at_a_step(
    shell: &mut Shell,
    scope: Scope<'_>,
    trapped: bool,
    awaited: &Nonce,
) -> Result<Stand, GivenUp> {
    let bash = shell.pid;
    let mut waits = false;
    let mut outside_in_vain = false;
    let mut tries = 0;
    loop {
        let stood = processes::process(bash).is_some_and(|process| process.stands());
        shell.signal(Signal::SIGSTOP);
        stand_still(bash).await;
        if !outside_in_vain && shell.reads_own_lines() {
            shell.signal(Signal::SIGCONT);
            match leave_own_line(shell, awaited).await {
                Answer::Nothing => outside_in_vain = shell.reads_own_lines(),
                answer => return Ok(Stand::Outside(answer)),
            }
            continue;
        }
        let frozen = scope.freeze();
        if trapped || processes::interrupt_disposition(bash) == Disposition::Ignored {
            return Err(GivenUp::InterruptIsNoEnd);
        }
        let heedless = heedless(&frozen, bash);
        if heedless.iter().any(|child| may_be_a_job(*child, bash)) {
            return Err(GivenUp::ChildIgnoresIt);
        }
        let collects = has_uncollected_child(bash);
        if stood {
            return if collects {
                Err(GivenUp::Stopped)
            } else {
                Ok(Stand::Inside(frozen))
            };
        }
        let between = match foreground(&frozen, bash) {
            Some(child) => !child.stood && is_copy_of(child.process, bash),
            // Its `wait4(2)` goes on, or has come back with a child.
            None => !waits && processes::waits_for_children(bash) == Some(true),
        };
        if !(between || collects) || tries == BETWEEN_TRIES {
            return Ok(Stand::Inside(frozen));
        }
        tries += 1;
        let_go_on(shell, &frozen, &heedless);
        sleep(BETWEEN_WAIT).await;
        waits = comes_to_wait(bash).await;
    }
}

/// Lets all go on that the agent has stopped, but for the children whose end may be what bash waits for.
fn let_go_on(shell: &Shell, frozen: &[Frozen], heedless: &[Identity]) {
    for frozen in frozen.iter().filter(|frozen| !frozen.stood) {
        if !heedless.contains(&frozen.process.identity) {
            send(frozen.process.identity.pid, Signal::SIGCONT);
        }
    }
    shell.signal(Signal::SIGCONT);
}

/// Waits for the answer of a bash in a line of the agent's own, or until it has left that for the command.
async fn leave_own_line(shell: &mut Shell, awaited: &Nonce) -> Answer {
    let mut patience = Patience::new(shell.pid, OWN_LINE_WAIT);
    loop {
        // What has broken its line leaves it at its prompt without an answer.
        let in_vain = patience.is_over() || shell.at_prompt();
        let answer = shell.answer(awaited, Instant::now() + STEP).await;
        if answer != Answer::Nothing || in_vain || !shell.reads_own_lines() {
            return answer;
        }
    }
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
async fn interrupt(frozen: &[Frozen], foreground: Option<Process>) -> bool {
    for attempt in 0..INTERRUPTS {
        for frozen in frozen {
            // What ignores it stays frozen until it is killed; the others die, or run their handler, as they wake.
            if frozen.interrupt != Disposition::Ignored {
                send(frozen.process.identity.pid, Signal::SIGINT);
                if attempt == 0 {
                    send(frozen.process.identity.pid, Signal::SIGCONT);
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
        let frozen = |pid: i32, parent: i32, interrupt| Frozen {
            process: Process {
                identity: Identity {
                    pid,
                    start: u64::try_from(pid).unwrap(),
                },
                parent,
                state: b'T',
                wait_status: 0,
                has_run: Duration::ZERO,
            },
            interrupt,
            stood: false,
        };
        let all = [
            frozen(10, 3, Disposition::Default),
            frozen(11, 3, Disposition::Caught),
            frozen(12, 3, Disposition::Ignored),
            frozen(13, 11, Disposition::Default),
            frozen(14, 11, Disposition::Ignored),
        ];
        assert_eq!(foreground(&all, 3).unwrap().process.identity.pid, 11);
        assert!(foreground(&all[2..], 3).is_none());
        assert_eq!(heedless(&all, 3), [all[2].process.identity]);
    }
}
