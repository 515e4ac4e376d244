//! Between two calls: the state of the shell on record, and who was there before the next.

use std::collections::HashSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::Session;
use crate::holder::Slot;
use crate::processes;
use crate::reaper::ExitCode;
use crate::scope::Scope;
use crate::script::{self, Before, Nonce};
use crate::shell::Answer;
use crate::snapshot::{may_change_state, may_set_traps};
use crate::sys;

/// How long a snapshot may take before it is given up.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(1);
/// How long the shell may take after that, before it is ended. On a busy machine a sandbox may get no processor for seconds,
/// and a shell that only waits for it must not be lost.
const SHELL_WAIT: Duration = Duration::from_secs(20);
/// Calls that go without a snapshot after one was given up.
const SNAPSHOT_PAUSE: u32 = 16;

/// How a try to take a snapshot went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// Well, or another try would do no better.
    Done,
    /// Its line was lost to what the last command left: an alias called like a keyword, a parser inside `[[`.
    LineLost,
    /// The shell's memory is spoilt.
    Unsound,
}

/// Statuses of a subshell that its memory ended: SIGABRT and SIGSEGV.
const SPOILT: [ExitCode; 2] = [134, 139];

/// Whether the user's own limit leaves a bash no room for a subshell: it would try for 15 s, and then wait for its jobs with
/// the next list. Only what is sure counts; root is above this limit.
pub(super) fn has_no_room(bash: i32) -> bool {
    let limit = |pid| sys::resource_limit(pid, sys::PROCESSES).map_or(u64::MAX, |(_, soft, _)| soft);
    let lowered = limit(bash) < limit(0);
    lowered && !sys::is_root() && usize::try_from(limit(bash)).is_ok_and(|limit| limit <= processes::table().len())
}

impl Session {
    /// Between calls: fresh pipes, the state on record, and who was there before.
    pub(super) async fn settle(&mut self, command: &str) {
        if let Err(reason) = self.make_ready().await {
            tracing::error!(reason, "Failed to make the shell ready");
            return;
        }
        let changed = self.state.as_ref().is_none_or(|state| may_change_state(command, state));
        if changed || !self.state_is_current {
            self.state_is_current = false;
            self.take_snapshot().await;
        }
        if !self.state_is_current {
            let state = self.state.as_ref();
            self.unrecorded_traps |= state.is_none_or(|state| may_set_traps(command, state));
        }
        if changed && let Some(shell) = &mut self.shell {
            shell.look_for_room();
        }
        self.note_earlier();
    }

    /// Remembers which processes of the sandbox are there. Most often there are none, which costs two small reads.
    pub(super) fn note_earlier(&mut self) {
        let roots = self.roots();
        self.earlier.clear();
        let quiet = processes::children(roots.bash).is_some_and(|children| children.is_empty())
            && processes::children(roots.agent).is_some_and(|children| {
                children
                    .iter()
                    .all(|child| *child == roots.bash || *child == roots.holder)
            });
        if !quiet {
            let found = processes::of_call(&processes::table(), roots, &HashSet::new());
            self.earlier.extend(found.into_iter().map(|process| process.identity));
        }
    }

    /// Puts the state of the idle shell on record, or gives up after a moment.
    pub(super) async fn take_snapshot(&mut self) {
        if self.snapshot_pause > 0 {
            self.snapshot_pause -= 1;
            if let Some(shell) = &self.shell {
                // A shell that reads no more is found out by the next call.
                let _ = shell.write(script::resync(&shell.before.flags).as_bytes());
            }
            return;
        }
        if self.shell.as_ref().is_some_and(|shell| has_no_room(shell.pid)) {
            return;
        }
        let mut tried = self.try_snapshot().await;
        if tried == Tried::LineLost {
            tried = self.try_snapshot().await;
        }
        if tried == Tried::Unsound {
            // It would abort at one of the next lines that it reads: an innocent command's.
            self.retire("was no longer sound after an unclosed $(").await;
        }
    }

    async fn try_snapshot(&mut self) -> Tried {
        self.note_earlier();
        let roots = self.roots();
        let (Some(shell), Some(holder)) = (&mut self.shell, &self.holder) else {
            return Tried::Done;
        };
        let _ = shell.take_state();
        let nonce = Nonce::new();
        let before = shell.before.clone();
        let line = script::snapshot(
            &nonce,
            &before.flags,
            &shell.hazards,
            &holder.path(Slot::Script),
            &holder.path(Slot::Snapshot),
            &shell.channel,
        );
        shell.forget_noise();
        if shell.write(&line).is_err() {
            return Tried::Done;
        }
        let Some(mut answer) = shell.answer_of_subshell(&nonce, Instant::now() + SNAPSHOT_WAIT).await else {
            self.snapshot_pause = SNAPSHOT_PAUSE;
            if !shell.at_prompt() {
                shell.signal(Signal::SIGKILL);
                shell.exit.wait().await;
            }
            return Tried::Done;
        };
        if answer == Answer::Nothing {
            self.snapshot_pause = SNAPSHOT_PAUSE;
            Scope {
                roots,
                earlier: &self.earlier,
            }
            .kill_all()
            .await;
            answer = shell.answer_or_prompt(&nonce, Instant::now() + SHELL_WAIT).await;
        }
        if answer == Answer::Nothing && shell.at_prompt() {
            self.snapshot_pause = 0;
            let again = Nonce::new();
            if shell
                .write(&script::recover(&again, &shell.hazards, &shell.channel))
                .is_ok()
                && let Answer::Status(_) = shell.answer(&again, Instant::now() + SNAPSHOT_WAIT).await
            {
                shell.before = Before {
                    aliases: Some(before.aliases.unwrap_or(true)),
                    ..before
                };
                shell.hazards.aliased_keywords = true;
                return Tried::LineLost;
            }
        }
        match answer {
            Answer::Status(status) => {
                // Its own status is the subshell's; what the call left stands.
                shell.before = before;
                match shell.take_state() {
                    Some(mut state) => {
                        if let Some(on) = shell.before.aliases {
                            state.set_expand_aliases(on);
                        }
                        shell.hazards = state.hazards();
                        self.state = Some(state);
                        self.state_is_current = true;
                        self.unrecorded_traps = false;
                    }
                    None => self.snapshot_pause = SNAPSHOT_PAUSE,
                }
                if SPOILT.contains(&status.code) {
                    return Tried::Unsound;
                }
            }
            // The next call finds out and starts another.
            Answer::Ended(_) => {}
            Answer::Nothing => {
                shell.signal(Signal::SIGKILL);
                shell.exit.wait().await;
            }
        }
        Tried::Done
    }
}
