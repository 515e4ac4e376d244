//! The end of a call: what becomes of the shell that it ran in.

use nix::sys::signal::Signal;

use super::Session;
use super::replace::When;
use crate::pipes::CallPipes;
use crate::processes::{self, Roots};
use crate::reaper::ExitCode;
use crate::running::{End, KILLED};
use crate::scope::Scope;
use crate::script::Nonce;
use crate::shell::Shell;
use crate::snapshot::{Snapshot, may_set_traps};
use crate::stop::{self, Outcome};
use crate::trap_table::TrapTable;

/// What is said of a shell that reads no command.
pub(super) const COULD_NOT_BEGIN: &str = "could not begin a command";

/// What is said of a shell that has no descriptors left for another command. Its limit is not brought back.
pub(super) const COULD_NOT_GO_ON: &str =
    "could not go on under the limit of open descriptors that the last call had set";

impl Session {
    /// Whether a trap of the user's for the end of the shell may stand in the place of the agent's.
    pub(super) fn may_trap_the_end(&self, command: &str) -> bool {
        command.contains("trap") || self.state.as_ref().is_some_and(Snapshot::traps_the_end)
    }

    /// Whether the agent's EXIT trap may have failed for want of descriptors at the end of this call: then bash said so.
    pub(super) fn may_have_lacked_last_words(&self, end: &End, command: &str) -> bool {
        let gone_without = self
            .shell
            .as_ref()
            .is_none_or(|shell| shell.exit.code().is_some() && shell.ending_with().is_none());
        let had_none = matches!(end, End::Status(_) | End::Shell(KILLED));
        gone_without && !had_none && !self.may_trap_the_end(command)
    }

    /// Takes the shell of a call back, with what is left to do about the way it ended. False when bash is sure never to
    /// have read the command.
    pub(super) async fn take_back(
        &mut self,
        mut shell: Shell,
        pipes: &CallPipes,
        end: &End,
        exit_code: ExitCode,
        command: &str,
        nonce: &Nonce,
    ) -> bool {
        let roots = Roots {
            bash: shell.pid,
            ..self.roots()
        };
        let scope = Scope {
            roots,
            earlier: &self.earlier,
        };
        match end {
            End::Status(status) => {
                let mut status = status.clone();
                if pipes.command_unread() {
                    if status.aliases.is_some() && !shell.hazards.aliased_keywords {
                        // The line was lost to what the last command left; with aliases off the next is read.
                        shell.hazards.aliased_keywords = true;
                        shell.before.aliases = status.aliases;
                        self.shell = Some(shell);
                    } else {
                        // Something of the user's stood in for the sourcing builtin, or it cannot open its input.
                        shell.signal(Signal::SIGKILL);
                        shell.exit.wait().await;
                        self.shell = Some(shell);
                        self.reset = Some(self.shell_lost(COULD_NOT_BEGIN, When::Idle, None));
                    }
                    return false;
                }
                status.code = exit_code;
                shell.settle(status);
                self.shell = Some(shell);
            }
            End::Shell(_) => self.shell = Some(shell),
            End::Deadline | End::Cancelled | End::Crowded { .. } => {
                let state = self.state.as_ref();
                let may_set_traps = state.is_none_or(|state| may_set_traps(command, state));
                let may_be_trapped =
                    may_set_traps || self.unrecorded_traps || state.is_some_and(Snapshot::traps_interrupt);
                match stop::stop(&mut shell, scope, may_be_trapped, nonce).await {
                    Outcome::Kept(mut status) => {
                        status.code = exit_code;
                        shell.settle(status);
                        self.shell = Some(shell);
                    }
                    Outcome::Ended(_) => self.shell = Some(shell),
                    Outcome::Lost => {
                        let directory = processes::working_directory(shell.pid);
                        // A trap of the user's for the end would be more of the command.
                        let silent = shell
                            .traps
                            .as_ref()
                            .and_then(TrapTable::end_runs_trap)
                            .unwrap_or_else(|| {
                                self.unrecorded_traps
                                    || state.is_some_and(Snapshot::traps_the_end)
                                    || may_set_traps && names_the_end(command)
                            });
                        stop::end(&mut shell, scope, silent).await;
                        self.shell = Some(shell);
                        let what = "had to be ended with the last call";
                        self.next_reset = Some(self.shell_lost(what, When::InCall, directory));
                    }
                }
            }
        }
        true
    }

    /// Whether the shell of a call that ended so may have shown traps of the agent's.
    pub(super) fn may_show_traps(&self, end: &End) -> bool {
        let verbose = match &self.shell {
            Some(shell) => shell.before.flags.contains('v'),
            None => self.state.as_ref().is_none_or(Snapshot::is_verbose),
        };
        verbose && !matches!(end, End::Status(_))
    }
}

/// Whether a command names the end of the shell, or the signal by which the agent ends one, as a trap for it would.
fn names_the_end(command: &str) -> bool {
    ["EXIT", "exit", " 0", "VTALRM", "vtalrm", "26"]
        .iter()
        .any(|name| command.contains(name))
}
