//! Stopping bash and what a call has started where it can be told what bash does.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid, getsid};
use tokio::time::{Instant, sleep};

use crate::patience::Patience;
use crate::processes::{self, Disposition, Identity, Process};
use crate::scope::{Frozen, Scope, send};
use crate::script::Nonce;
use crate::shell::{Answer, Shell};
use crate::stop::{GivenUp, STEP};

/// How long a stopped bash may take to stand still.
const STAND_WAIT: Duration = Duration::from_millis(100);
/// How long bash may take to what comes next in a line of the agent's own.
const OWN_LINE_WAIT: Duration = Duration::from_secs(1);
/// How often, and for how long, a bash that is between two steps is given time to take the next.
const BETWEEN_TRIES: usize = 8;
const BETWEEN_WAIT: Duration = Duration::from_millis(5);

/// Where bash stands.
pub(crate) enum Stand {
    /// Inside the command, frozen with all that it has started.
    Inside(Vec<Frozen>),
    /// Outside, or no longer there.
    Outside(Answer),
}

/// The child whose end bash waits for, as far as it can be told: the last one started that does not ignore SIGINT.
pub(crate) fn foreground(frozen: &[Frozen], bash: i32) -> Option<Frozen> {
    frozen
        .iter()
        .filter(|frozen| frozen.process.parent == bash && frozen.interrupt != Disposition::Ignored)
        .max_by_key(|frozen| frozen.process.identity)
        .copied()
}

/// The children of bash of which nothing tells whether it waits for them.
pub(crate) fn heedless(frozen: &[Frozen], bash: i32) -> Vec<Identity> {
    frozen
        .iter()
        .filter(|frozen| frozen.process.parent == bash && frozen.interrupt == Disposition::Ignored)
        .map(|frozen| frozen.process.identity)
        .collect()
}

/// Whether a child may be a job of a bash that minds jobs: such a bash goes on with its list when it sees one stand.
fn may_be_a_job(child: Identity, bash: i32) -> bool {
    let of = |pid: i32| Some(Pid::from_raw(pid));
    getsid(of(child.pid)) == getsid(of(bash)) && getpgid(of(child.pid)) != getpgid(of(bash))
}

/// Stops bash and the call's processes where it can be told what bash does. Between fork and exec a child still has bash's
/// own handler; and a bash that has just collected a child takes an interrupt for one that the child has handled, and goes on
/// with its list, as does a copy of it. A moment later it is at its next step. One that SIGINT would not end is not let go
/// on, nor is what the command itself has stopped.
pub(crate) async fn at_a_step(
    shell: &mut Shell,
    scope: Scope<'_>,
    may_be_trapped: bool,
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
        let seen = shell.traps.as_ref();
        let trapped = seen.and_then(|traps| traps.interrupt_runs_trap(may_be_trapped));
        let trapped = trapped.unwrap_or(may_be_trapped);
        if trapped || processes::interrupt_disposition(bash) == Disposition::Ignored {
            return Err(GivenUp::InterruptIsNoEnd);
        }
        let heedless = heedless(&frozen, bash);
        if heedless.iter().any(|child| may_be_a_job(*child, bash)) {
            return Err(GivenUp::ChildIgnoresIt);
        }
        let table = processes::table();
        let collects = has_uncollected_child(&table, bash);
        if stood {
            return if collects {
                Err(GivenUp::Stopped)
            } else {
                Ok(Stand::Inside(frozen))
            };
        }
        let between = match foreground(&frozen, bash) {
            Some(child) => !child.stood && is_unsettled_copy(child.process, bash, &frozen),
            // Its `wait4(2)` goes on, or has come back with a child.
            None => !waits && processes::waits_for_children(bash) == Some(true),
        };
        let copy_collects = || {
            let mut copies = frozen
                .iter()
                .filter(|frozen| !frozen.stood && is_copy_of(frozen.process, bash));
            copies.any(|copy| has_uncollected_child(&table, copy.process.identity.pid))
        };
        if tries == BETWEEN_TRIES || !(between || collects || copy_collects()) {
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

fn has_uncollected_child(table: &[Process], pid: i32) -> bool {
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
pub(crate) async fn stand_still(pid: i32) {
    let mut patience = Patience::new(pid, STAND_WAIT);
    while processes::process(pid).is_some_and(|process| !process.stands() && !process.ended()) && !patience.is_over() {
        sleep(STEP).await;
    }
}

/// Whether a process that handles SIGINT is bash's own program.
fn is_copy_of(process: Process, bash: i32) -> bool {
    let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let pid = process.identity.pid;
    processes::interrupt_disposition(pid) == Disposition::Caught
        && program(pid).is_some()
        && program(pid) == program(bash)
}

/// Whether a child is bash itself, forked and about to become another program or a subshell. What is a subshell or another
/// bash for good catches SIGINT too, but ends by it. SIGQUIT tells them apart, which bash ignores: a child gets back what the
/// user has for it just after SIGINT. Where the user ignores it as well, one with a child, or that waits for one, is settled.
fn is_unsettled_copy(child: Process, bash: i32, frozen: &[Frozen]) -> bool {
    let arguments = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
    let pid = child.identity.pid;
    processes::disposition(pid, Signal::SIGQUIT) == Disposition::Ignored
        && is_copy_of(child, bash)
        && frozen.iter().all(|frozen| frozen.process.parent != pid)
        && processes::waits_for_children(pid) != Some(true)
        && arguments(pid) == arguments(bash)
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
                group: 3,
                session: 3,
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
