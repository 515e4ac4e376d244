//! Starting the shell, and putting another in its place: from which state, and what the next result says of it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use nix::sys::signal::Signal;

use super::ending::COULD_NOT_BEGIN;
use super::{ATTEMPTS, Session};
use crate::holder::Holder;
use crate::outcome::{Restored, reset_notice};
use crate::pipes::CallPipes;
use crate::reaper::ExitCode;
use crate::script::Stash;
use crate::shell::Shell;
use crate::snapshot::Snapshot;

impl Session {
    /// Makes holder, shell and pipes what a call needs; starts what is missing. Where processes that calls have left take
    /// all room, they are ended: nobody else could, since that takes a shell.
    pub(super) async fn make_ready(&mut self) -> Result<(), String> {
        if let Some(code) = self.shell.as_ref().and_then(|shell| shell.exit.code()) {
            self.reset = Some(self.shell_ended(code, When::Idle));
        }
        let Err(reason) = self.start_what_is_missing().await else {
            return Ok(());
        };
        self.earlier.clear();
        let ended = self.scope().clear().await;
        if ended == 0 {
            return Err(reason);
        }
        tracing::warn!(
            ended,
            reason,
            "Ended all processes of the sandbox: no shell could be started beside them"
        );
        self.start_what_is_missing().await?;
        self.note_end_of_jobs("no shell could be started beside it");
        Ok(())
    }

    /// As [`Self::make_ready`], and puts another shell in place of one that has no way left to source a file: what would answer
    /// there would be heard in the command's place, and may have been streamed.
    pub(super) async fn make_able(&mut self) -> Result<(), String> {
        self.make_ready().await?;
        if self
            .shell
            .as_ref()
            .is_some_and(|shell| shell.hazards.no_way_to_source())
        {
            self.give_way(0);
            self.retire(COULD_NOT_BEGIN).await;
            self.make_ready().await?;
        }
        Ok(())
    }

    /// A shell that could not even begin a command is made again from less and less of the state: the reset's line says so.
    pub(super) fn give_way(&mut self, attempt: usize) {
        let Some(state) = &mut self.state else { return };
        let without = if attempt == 0 {
            if state.hazards_restored().no_way_to_source() {
                state.without_shadows();
            }
            return;
        } else if attempt + 2 < ATTEMPTS {
            self.stash = Stash::default();
            if let Some(shell) = &mut self.shell {
                shell.before.stash = Stash::default();
            }
            state.without_shadows();
            state.without_limits();
            "prompts, functions named like builtins and resource limits"
        } else {
            self.state = None;
            "anything of its state"
        };
        self.given_up = Some(format!(
            " No shell could run a command with all of it: it is restored without {without}."
        ));
    }

    /// The next result says that there were too many processes.
    pub(super) fn note_crowd(&mut self) {
        if let Some(crowd) = &self.settings.crowd {
            self.note_end_of_jobs(&format!("the sandbox had more than {} processes", crowd.most()));
        }
    }

    fn note_end_of_jobs(&mut self, reason: &str) {
        let notice = format!("What earlier calls had left running was ended: {reason}.");
        self.reset = Some(match self.reset.take() {
            Some(reset) => format!("{reset} {notice}"),
            None => notice,
        });
    }

    /// Starts what is missing, once more where the holder broke off meanwhile: a command that ends all processes may have
    /// met it before its end was seen.
    async fn start_what_is_missing(&mut self) -> Result<(), String> {
        match self.try_to_start().await {
            Err(reason) if !self.holder.as_ref().is_some_and(Holder::alive) => {
                tracing::warn!(reason, "The descriptor holder broke off, starting another");
                self.try_to_start().await
            }
            tried => tried,
        }
    }

    async fn try_to_start(&mut self) -> Result<(), String> {
        let reason = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        if !self.holder.as_ref().is_some_and(Holder::alive) {
            self.pipes = None;
            let holder = Holder::start(&self.reaper).map_err(|error| reason("descriptor holder", &error))?;
            if let Some(shell) = &mut self.shell {
                let moved = shell.go_on_with(&holder).await;
                moved.map_err(|error| reason("descriptor holder", &error))?;
            }
            self.holder = Some(holder);
        }
        if self.shell.is_none() {
            self.start_shell().await.map_err(|error| reason("bash", &error))?;
        }
        if self.pipes.is_none() {
            let holder = self.holder.as_ref().ok_or("descriptor holder: none")?;
            let pipes = CallPipes::prepare(holder).await;
            self.pipes = Some(pipes.map_err(|error| reason("pipes", &error))?);
        }
        Ok(())
    }

    /// Starts a shell from the state known, or from none where a shell starts only so.
    async fn start_shell(&mut self) -> Result<(), String> {
        let holder = self.holder.as_ref().ok_or("no descriptor holder")?;
        let origin = &self.settings.origin;
        let state = self.state.as_ref();
        let mut started = match Shell::start(origin, holder, &self.reaper, state).await {
            Ok(shell) => shell,
            Err(error) if state.is_some() => {
                tracing::warn!(%error, "Failed to restore the shell's state, starting a plain one");
                let plain = Shell::start(origin, holder, &self.reaper, None).await;
                let plain = plain.map_err(|error| error.to_string())?;
                self.state = None;
                self.reset = Some(format!(
                    "The shell was replaced by a fresh one; its state could not be restored ({error})."
                ));
                plain
            }
            Err(error) => return Err(error.to_string()),
        };
        if let (Some(reset), Some(state)) = (&mut self.reset, &self.state) {
            reset.push_str(&unrestored_notice(state, &started));
        }
        if self.state.is_some() {
            started.before.stash = std::mem::take(&mut self.stash);
        }
        self.shell = Some(started);
        self.alive.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The shell is gone: the next result will say so, and the next shell starts from the best state known.
    #[must_use]
    pub(super) fn shell_ended(&mut self, code: ExitCode, when: When) -> String {
        let place = match when {
            When::Idle => "between two calls",
            When::InCall => "in the last call",
        };
        self.shell_lost(&format!("ended with status {code} {place}"), when, None)
    }

    /// As [`Self::shell_ended`], for a shell of which only the working directory may be known.
    #[must_use]
    pub(super) fn shell_lost(&mut self, what: &str, when: When, directory: Option<PathBuf>) -> String {
        let mut shell = self.shell.take();
        self.alive.store(false, Ordering::Relaxed);
        self.metrics.reset();
        self.snapshot_pause = 0;
        if let Some(shell) = &shell {
            self.stash = shell.before.stash.clone();
        }
        let mut untold = String::new();
        let restored = match (shell.as_mut().and_then(Shell::take_state), &mut self.state) {
            (Some(mut saved), earlier) => {
                let known = earlier.as_ref().map(|state| (state, self.state_is_current));
                untold = take_untold(&mut saved, known);
                *earlier = Some(saved);
                Restored::AsLeft
            }
            (None, None) => Restored::Nothing,
            (None, Some(state)) if !self.state_is_current => {
                let last_seen = shell
                    .as_ref()
                    .map(|shell| PathBuf::from(OsStr::from_bytes(&shell.directory)));
                match directory.or(last_seen).filter(|path| path.is_absolute()) {
                    Some(directory) => {
                        state.move_to(&directory);
                        Restored::OlderButDirectory
                    }
                    None => Restored::Older,
                }
            }
            (None, Some(_)) if when == When::Idle => Restored::AsLeft,
            (None, Some(state)) => match directory.as_deref() {
                Some(directory) => {
                    state.move_to(directory);
                    Restored::BeforeCallButDirectory
                }
                None => Restored::BeforeCall,
            },
        };
        if shell.is_some_and(|shell| shell.before.flags.contains('r')) {
            untold.push_str(" It was restricted (`set -r`), and could run no call so; the new one is not.");
        }
        // The next shell is made from this state, whatever its age.
        self.state_is_current = true;
        self.unrecorded_traps = false;
        reset_notice(what, restored) + &untold
    }

    /// Replaces an idle shell that would not serve the next command, for this reason.
    pub(super) async fn retire(&mut self, what: &str) {
        let Some(shell) = &mut self.shell else { return };
        shell.signal(Signal::SIGKILL);
        shell.exit.wait().await;
        self.reset = Some(self.shell_lost(what, When::Idle, None));
        if let Err(reason) = self.make_ready().await {
            tracing::error!(reason, "Failed to replace the shell");
        }
    }
}

/// Takes over into a state that a shell printed as it ended what bash did not let it see, from the state known before and
/// whether that is the one before the call. Returns what the line of the replaced shell says of it.
fn take_untold(saved: &mut Snapshot, known: Option<(&Snapshot, bool)>) -> String {
    if !saved.ended_in_function() {
        if let Some((earlier, true)) = known {
            saved.keep_debug_trap(earlier);
        }
        return String::new();
    }
    let earlier = match known {
        Some((earlier, _)) => earlier,
        None => &Snapshot::default(),
    };
    saved.take_hidden(earlier);
    let traps: Vec<&str> = saved.hidden_traps().collect();
    let traps = match traps.split_last() {
        Some((last, others)) if !others.is_empty() => format!(" and the {} and {last} traps", others.join(", ")),
        Some((last, _)) => format!(" and the {last} trap"),
        None => String::new(),
    };
    let age = match known {
        Some((_, true)) => "as that call found them",
        Some((_, false)) => "as they were some calls ago",
        None => "lost",
    };
    format!(" It ended inside a function: positional parameters{traps} are {age}.")
}

/// What the line of a replaced shell says of parts of its state that could not be brought back.
fn unrestored_notice(state: &Snapshot, started: &Shell) -> String {
    let mut notice = String::new();
    if started.directory != state.directory {
        let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        notice = format!(
            " {} is gone, the working directory is now {}.",
            shown(&state.directory),
            shown(&started.directory)
        );
    }
    let functions: Vec<String> = started
        .unrestored
        .iter()
        .filter_map(|number| state.function_name(*number))
        .collect();
    if !functions.is_empty() {
        notice.push_str(&format!(
            " Not restored, since bash does not read its own text of them again: {}.",
            functions.join(", ")
        ));
    }
    let builtins: Vec<&str> = state.switched_on_again().collect();
    if !builtins.is_empty() {
        notice.push_str(&format!(
            " Switched on again, since the shell is led by them: {}.",
            builtins.join(", ")
        ));
    }
    notice
}

/// When a shell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// No call ran.
    Idle,
    /// A call ran.
    InCall,
}
