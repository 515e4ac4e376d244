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
use tokio::time::{Instant, sleep, timeout};

use crate::freeze::{Stand, at_a_step, foreground, heedless, stand_still};
use crate::patience::Patience;
use crate::processes::{self, Disposition, Identity, Process};
use crate::reaper::ExitCode;
use crate::scope::{Frozen, Scope, send};
use crate::script::{self, Nonce, Status};
use crate::shell::{Answer, Shell};

/// How often a program that handles SIGINT is asked, and how long it has each time.
const INTERRUPTS: usize = 3;
const INTERRUPT_WAIT: Duration = Duration::from_millis(100);
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
/// How often a list is interrupted that goes on, and how often of them a bash is waited for in full.
const ATTEMPTS: usize = 30;
const WAITS: usize = 3;
/// How long a shell is worth to the client that waits for the end of its call.
const STOP_WAIT: Duration = Duration::from_secs(10);
pub(crate) const STEP: Duration = Duration::from_millis(1);

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
pub(crate) enum GivenUp {
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

fn has_child_but(scope: Scope<'_>, bash: i32, known: &[Identity]) -> bool {
    let alive = scope.alive();
    alive
        .iter()
        .any(|process| process.parent == bash && !known.contains(&process.identity))
}

/// What came of the child that bash waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    /// There is none, or SIGINT has ended it: it ends bash's list too.
    Interrupted,
    /// It had ended before SIGINT came to it, which it neither ignores nor handles: bash will take SIGINT for the child's.
    HadEnded,
    /// It handles SIGINT, or lives.
    GoesOn,
}

/// Whether a child has died of SIGINT, has ended otherwise, or lives.
fn end_of(child: Process) -> Option<bool> {
    match processes::process(child.identity.pid) {
        Some(now) if now.identity == child.identity && !now.ended() => None,
        Some(now) if now.identity == child.identity => Some(now.wait_status & 0x7f == Signal::SIGINT as i32),
        _ => Some(false),
    }
}

/// Ends the running call, whose status comes with `call`. `may_be_trapped`: SIGINT may run a trap of the user's,
/// so it must not be sent where nothing tells better.
pub async fn stop(shell: &mut Shell, scope: Scope<'_>, may_be_trapped: bool, call: &Nonce) -> Outcome {
    let nonce = Nonce::new();
    let hazards = shell.hazards.clone();
    shell.leaves_wait = false;
    let quiet = hazards.aliased_keywords;
    let (mut asked, mut waits) = (false, 0);
    let give_up_at = Instant::now() + STOP_WAIT;
    let mut reason = GivenUp::NoPrompt;
    for attempt in 0..ATTEMPTS {
        let awaited = if asked { &nonce } else { call };
        let (frozen, mut answered) = match at_a_step(shell, scope, may_be_trapped, awaited).await {
            Ok(Stand::Inside(frozen)) => (frozen, Answer::Nothing),
            Ok(Stand::Outside(answer)) => (Vec::new(), answer),
            Err(reason) => {
                scope.kill_all().await;
                return lost(shell, reason);
            }
        };
        let heedless = heedless(&frozen, shell.pid);
        if answered == Answer::Nothing {
            match interrupt_children(shell, scope, &frozen, &heedless).await {
                Child::Interrupted => {}
                Child::HadEnded => {
                    // Looked at again at its next step.
                    shell.signal(Signal::SIGCONT);
                    continue;
                }
                Child::GoesOn => {
                    scope.kill_all().await;
                    return lost(shell, GivenUp::ChildGoesOn);
                }
            }
            let first = !std::mem::replace(&mut asked, true);
            if first {
                shell.forget_noise();
            }
            let had_run = processes::has_run(shell.pid);
            shell.signal(Signal::SIGINT);
            shell.signal(Signal::SIGCONT);
            if first {
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
                if waits == WAITS || Instant::now() > give_up_at {
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

/// Ends what a frozen bash may wait for by SIGINT, and all else but the `heedless`. Where that makes it certain that SIGINT ends
/// bash's list, bash is left where it does.
async fn interrupt_children(shell: &mut Shell, scope: Scope<'_>, frozen: &[Frozen], heedless: &[Identity]) -> Child {
    let foreground = foreground(frozen, shell.pid);
    let child = interrupt(scope, frozen, foreground).await;
    tracing::debug!(?frozen, ?child, "Interrupted the call");
    scope.kill_all_but(heedless).await;
    if foreground.is_none() {
        leave_wait(shell).await;
    }
    child
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
        shell.signal(script::LAST_WORDS);
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

/// The shell is gone already, or is given up: the log says why, since the session loses its jobs by it.
fn lost(shell: &Shell, reason: GivenUp) -> Outcome {
    if let Some(code) = shell.exit.code() {
        return Outcome::Ended(code);
    }
    let state = processes::process(shell.pid).map_or('?', |bash| char::from(bash.state));
    tracing::warn!(?reason, %state, "Giving the shell up");
    Outcome::Lost
}

/// Lets the call's processes die of SIGINT, and tells what came of bash's foreground child. What that has started meanwhile is
/// interrupted with it: a shell takes the interrupt for one that its child has handled, if the child does not die of it.
async fn interrupt(scope: Scope<'_>, frozen: &[Frozen], foreground: Option<Frozen>) -> Child {
    for attempt in 0..INTERRUPTS {
        let again = if attempt == 0 { Vec::new() } else { scope.freeze() };
        for frozen in if attempt == 0 { frozen } else { &again } {
            // What ignores it stays frozen until it is killed; the others die, or run their handler, as they wake.
            if frozen.interrupt != Disposition::Ignored {
                send(frozen.process.identity.pid, Signal::SIGINT);
                send(frozen.process.identity.pid, Signal::SIGCONT);
            }
        }
        let Some(foreground) = foreground else {
            return Child::Interrupted;
        };
        let mut patience = Patience::new(foreground.process.identity.pid, INTERRUPT_WAIT);
        while !patience.is_over() {
            match end_of(foreground.process) {
                Some(true) => return Child::Interrupted,
                Some(false) if foreground.interrupt == Disposition::Default => return Child::HadEnded,
                Some(false) => return Child::GoesOn,
                None => {}
            }
            sleep(STEP).await;
        }
    }
    Child::GoesOn
}
