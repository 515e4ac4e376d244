//! One command: from the line that runs it to what became of it and of its shell.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use cli_mcp_sandbox::wire::OutputStream;
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ending::COULD_NOT_GO_ON;
use super::replace::When;
use super::{Session, record};
use crate::capture::Capture;
use crate::crowd::Crowd;
use crate::echo::Echo;
use crate::holder::Slot;
use crate::outcome::Finished;
use crate::pipes::CallPipes;
use crate::reaper::ExitCode;
use crate::running::{End, KILLED, Running, collect, hear_late, may_write_late};
use crate::script::{self, CallPaths, Form, Nonce, Status};
use crate::shell::Shell;
use crate::sink::Sink;
use crate::snapshot::{Snapshot, may_change_state, may_lower_limits};
use crate::spill::SpillFolder;

/// `exit_code` of a call that ran out of time, as `timeout(1)` has it.
const TIMED_OUT: ExitCode = 124;
/// `exit_code` of a call that was cancelled: as after SIGINT.
const CANCELLED: ExitCode = 130;

/// What became of one try to run a command.
pub(super) enum Ran {
    Finished(Box<Finished>),
    /// Bash is sure never to have read it.
    Unread,
    /// The same, and it will where it saves what it puts back among the numbers that commands use.
    Refused,
}

impl Session {
    /// How the next command of a shell gets its descriptors.
    fn form(&self, shell: &Shell, command: &str) -> Form {
        let state = self.state.as_ref();
        let may_have_last_words = self.may_trap_the_end(command);
        let would_be_heard = shell.before.flags.contains('x')
            || state.is_none_or(Snapshot::traps_commands)
            || shell.dialect.negation_exempts && command.contains("ERR");
        // What cannot change the shell does nothing to its descriptors: numbers out of its way are not worth their time.
        let minds = state.is_none_or(|state| may_change_state(command, state));
        // The error by which such a shell tells its status discards what would follow it.
        let time_unusable = shell.hazards.time_unusable || script::may_rename_time(command);
        let has_room = minds && shell.has_room && !time_unusable;
        // Under a low limit of descriptors a bash that has the call's own could not tell its status.
        let may_lower_limit = state.is_none_or(|state| may_lower_limits(command, state));
        match (has_room, may_have_last_words && !would_be_heard && !may_lower_limit) {
            (true, false) => Form::Covered,
            (true, true) => Form::Bare,
            (false, _) => Form::Among,
        }
    }

    /// Runs one command to its end. An error means that it did not start. `may_repeat`: a shell that ended before it read the
    /// command counts as one that was gone before; more than once, a trap of the user's ends it so.
    pub(super) async fn run_command(
        &mut self,
        command: &str,
        seconds: u32,
        cancel: &CancellationToken,
        sink: &mut Sink,
        may_repeat: bool,
    ) -> Result<Ran, String> {
        if !self.earlier.is_empty() {
            self.note_earlier();
        }
        let (Some(mut pipes), Some(mut shell), Some(holder)) =
            (self.pipes.take(), self.shell.take(), self.holder.as_ref())
        else {
            return Err("no shell".to_owned());
        };
        let folder = SpillFolder::new(&self.settings.workspace);
        let mut stdout = Capture::new("stdout", self.settings.output_limit, folder.clone());
        let mut stderr = Capture::new("stderr", self.settings.output_limit, folder);
        let nonce = Nonce::new();
        shell.forget_noise();
        // Only a status that takes a subshell is worth the look.
        shell.before.no_room = shell.before.code > 1 && record::has_no_room(shell.pid);
        let form = self.form(&shell, command);
        let channel = shell.channel.clone();
        let line = script::call(
            &nonce,
            &shell.before,
            &shell.hazards,
            shell.dialect,
            form,
            command.as_bytes(),
            &CallPaths {
                command: holder.path(Slot::Command),
                stdout: holder.path(Slot::Stdout),
                stderr: holder.path(Slot::Stderr),
                channel: channel.clone(),
            },
        );
        let offered = pipes.offer(command.as_bytes()).and_then(|()| shell.write(&line));
        if let Err(error) = offered {
            // Not even the line reached a shell that is about to end, or cannot be written to: nothing has run.
            tracing::debug!(%error, "The shell does not read");
            if holder.alive() {
                shell.signal(Signal::SIGKILL);
                shell.exit.wait().await;
            }
            self.shell = Some(shell);
            return Ok(Ran::Unread);
        }
        let started = Instant::now();
        let deadline = started + Duration::from_secs(u64::from(seconds));
        let mut echo = shell.echo.clone();
        let running = Running {
            shell: &mut shell,
            pipes: &mut pipes,
            nonce: &nonce,
            deadline,
            cancel,
            crowd: self.settings.crowd.as_ref(),
            echo: &mut echo,
        };
        if let Some(crowd) = &self.settings.crowd {
            crowd.call_begins();
        }
        let end = running.watch(&mut self.buffer, &mut stdout, &mut stderr, sink).await;
        let mut torn = None;
        if !matches!(end, End::Status(_)) {
            // What a shell has said that could tell its status in no other way may still wait.
            collect(
                &mut pipes.stderr,
                &mut self.buffer,
                &mut stderr,
                &mut echo,
                OutputStream::Stderr,
                sink,
            );
            torn = echo.torn.cut(&nonce, &channel).flatten();
        }
        let exit_code = match &end {
            End::Shell(_) if let Some(status) = &torn => status.code,
            End::Status(status) => status.code,
            End::Shell(code) => *code,
            End::Deadline => TIMED_OUT,
            End::Cancelled => CANCELLED,
            End::Crowded { .. } => KILLED,
        };
        if may_repeat && matches!(end, End::Shell(_)) && pipes.command_unread() {
            self.shell = Some(shell);
            return Ok(Ran::Unread);
        }
        let refused = matches!(end, End::Status(Status { refused: true, .. }));
        if refused && form != Form::Among && pipes.command_unread() {
            shell.has_room = false;
            self.shell = Some(shell);
            pipes.drain_in_background();
            return Ok(Ran::Refused);
        }
        let was_read = self.take_back(shell, &pipes, &end, exit_code, command, &nonce).await;
        if self.settings.crowd.as_ref().is_some_and(Crowd::call_ended) {
            self.earlier.clear();
            self.scope().clear().await;
            if !matches!(end, End::Crowded { .. }) {
                self.note_crowd();
            }
        }
        if !was_read {
            pipes.drain_in_background();
            return Ok(Ran::Unread);
        }
        if matches!(end, End::Status(_)) && may_write_late(command) {
            if let Some(holder) = &self.holder {
                // Where that fails the wait is as long as it may be, and the next call finds another holder.
                let _ = CallPipes::leave_to_writers(holder).await;
            }
            hear_late(&mut pipes, &mut self.buffer, &mut stdout, &mut stderr, &mut echo, sink).await;
        }
        let duration = started.elapsed();
        collect(
            &mut pipes.stdout,
            &mut self.buffer,
            &mut stdout,
            &mut Echo::default(),
            OutputStream::Stdout,
            sink,
        );
        collect(
            &mut pipes.stderr,
            &mut self.buffer,
            &mut stderr,
            &mut echo,
            OutputStream::Stderr,
            sink,
        );
        pipes.drain_in_background();
        if let Some(shell) = self.shell.as_ref().filter(|_| form == Form::Bare) {
            // A shell that reads no more is found out by the next call.
            let _ = shell.write(shell.channel.cover(&shell.hazards).as_bytes());
        }
        if torn.is_none() && self.may_have_lacked_last_words(&end, command) {
            echo.torn.cut(&nonce, &channel);
        }
        if let Some(code) = self.shell.as_ref().and_then(|shell| shell.exit.code()) {
            // One that was ended while it printed its state has said before how it would end.
            let code = if let End::Shell(code) = end { code } else { code };
            self.next_reset = Some(match torn {
                Some(status) => {
                    let directory = PathBuf::from(OsString::from_vec(status.directory));
                    let directory = directory.is_absolute().then_some(directory);
                    self.shell_lost(COULD_NOT_GO_ON, When::InCall, directory)
                }
                None => self.shell_ended(code, When::InCall),
            });
        }
        let rest = echo.rest(self.may_show_traps(&end));
        stderr.push(&rest);
        sink.push(OutputStream::Stderr, &rest);
        Ok(Ran::Finished(Box::new(Finished {
            end,
            exit_code,
            duration,
            stdout,
            stderr,
        })))
    }
}
