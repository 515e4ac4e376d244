//! The one task that owns the shell: takes calls from the queue and runs each.

mod ending;
mod record;
mod replace;

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli_mcp_sandbox::wire::OutputStream;
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::ending::COULD_NOT_GO_ON;
use self::replace::When;
use crate::capture::Capture;
use crate::crowd::Crowd;
use crate::echo::Echo;
use crate::egress::Egress;
use crate::holder::{Holder, Slot};
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::outcome::{Finished, result_of};
use crate::pipes::CallPipes;
use crate::processes::{Identity, Roots};
use crate::queue::{Job, Queue, Refusal};
use crate::reaper::{ExitCode, Reaper};
use crate::running::{End, KILLED, Running, collect, hear_late, may_write_late};
use crate::scope::Scope;
use crate::script::{self, CallPaths, Form, Nonce, Stash, Status};
use crate::shell::Shell;
use crate::sink::Sink;
use crate::snapshot::{Snapshot, may_change_state};
use crate::spill::SpillFolder;

/// `exit_code` of a call that ran out of time, as `timeout(1)` has it.
const TIMED_OUT: ExitCode = 124;
/// `exit_code` of a call that was cancelled: as after SIGINT.
const CANCELLED: ExitCode = 130;
/// Bytes read at once.
const READ_BYTES: usize = 128 << 10;

/// What the session is made with.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// What every bash starts with.
    pub origin: Origin,
    /// Bytes of a stream in a reply.
    pub output_limit: usize,
    /// Where the full text of longer outputs goes.
    pub workspace: PathBuf,
    /// What bounds the number of processes.
    pub crowd: Option<Crowd>,
    /// Whether the network is proven closed: it may be seen open while a call waits.
    pub egress: Egress,
}

/// Owner of the shell.
pub struct Session {
    settings: SessionSettings,
    queue: Queue,
    reaper: Reaper,
    metrics: Metrics,
    alive: Arc<AtomicBool>,
    holder: Option<Holder>,
    shell: Option<Shell>,
    pipes: Option<CallPipes>,
    /// The last state known, and whether it is that after the last call.
    state: Option<Snapshot>,
    state_is_current: bool,
    /// Whether a call since that state may have set a trap.
    unrecorded_traps: bool,
    snapshot_pause: u32,
    /// What the last shell's calls had set of the variables that are taken away between calls.
    stash: Stash,
    /// Processes that were there before the next call.
    earlier: HashSet<Identity>,
    /// What the next result says about a shell that was replaced.
    reset: Option<String>,
    /// The same for the result after that: the shell ended in the call that runs.
    next_reset: Option<String>,
    /// What it says besides of parts of the state that no shell could run with.
    given_up: Option<String>,
    buffer: Vec<u8>,
}

/// How often a command that no shell has read is tried: as the shell is, in a fresh one, and with less and less state.
const ATTEMPTS: usize = 4;

/// What became of one try to run a command.
enum Ran {
    Finished(Box<Finished>),
    /// Bash is sure never to have read it.
    Unread,
    /// The same, and it will where it saves what it puts back among the numbers that commands use.
    Refused,
}

impl Session {
    /// A session whose shell is not started yet. `alive` follows whether it runs.
    #[must_use]
    pub fn new(
        settings: SessionSettings,
        queue: Queue,
        reaper: Reaper,
        metrics: Metrics,
        alive: Arc<AtomicBool>,
    ) -> Self {
        Self {
            settings,
            queue,
            reaper,
            metrics,
            alive,
            holder: None,
            shell: None,
            pipes: None,
            state: None,
            state_is_current: false,
            unrecorded_traps: false,
            snapshot_pause: 0,
            stash: Stash::default(),
            earlier: HashSet::new(),
            reset: None,
            next_reset: None,
            given_up: None,
            buffer: vec![0; READ_BYTES],
        }
    }

    /// Runs calls until `shutdown`, then leaves no process behind.
    pub async fn run(mut self, shutdown: CancellationToken) {
        if let Err(reason) = self.make_ready().await {
            tracing::error!(reason, "Failed to start the shell");
        }
        self.take_snapshot().await;
        while !self.queue.closed() {
            let queue = self.queue.clone();
            let next = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                job = queue.next() => Some(job),
                code = idle(self.shell.as_mut()) => {
                    self.reset = Some(self.shell_ended(code, When::Idle));
                    None
                }
            };
            match next {
                Some(job) => self.call(job).await,
                None => {
                    if let Err(reason) = self.make_ready().await {
                        tracing::error!(reason, "Failed to replace the shell");
                    }
                }
            }
        }
        self.end_everything().await;
    }

    async fn end_everything(&mut self) {
        self.earlier.clear();
        if let Some(shell) = &self.shell {
            shell.signal(Signal::SIGKILL);
        }
        self.scope().kill_all().await;
        self.alive.store(false, Ordering::Relaxed);
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            roots: self.roots(),
            earlier: &self.earlier,
        }
    }

    fn roots(&self) -> Roots {
        Roots {
            agent: i32::try_from(std::process::id()).unwrap_or(0),
            holder: self.holder.as_ref().map_or(0, Holder::pid),
            bash: self.shell.as_ref().map_or(0, |shell| shell.pid),
        }
    }

    async fn call(&mut self, job: Job) {
        if job.cancel.is_cancelled() || job.reply.is_closed() {
            self.queue.finished();
            return;
        }
        let Job {
            command,
            timeout,
            lines,
            reply,
            cancel,
            ..
        } = job;
        if let Some(reason) = self.settings.egress.refusal() {
            self.queue.finished();
            // A caller that left needs no answer.
            let _ = reply.send(Err(Refusal::EgressNotEnforced(reason)));
            return;
        }
        let mut sink = Sink::new(lines);
        let finished = match self.run_anew_if_unread(&command, timeout, &cancel, &mut sink).await {
            Ok(finished) => finished,
            Err(reason) => {
                self.queue.finished();
                // A caller that left needs no answer.
                let _ = reply.send(Err(Refusal::NoShell(reason)));
                return;
            }
        };
        let (finished, reset) = finished;
        let (result, outcome, bytes) = result_of(finished, timeout, reset, self.queue.closed());
        self.queue.finished();
        let summary = (
            result.exit_code,
            result.duration_ms,
            result.truncated,
            result.session_reset.is_some(),
        );
        self.metrics
            .call(outcome, Duration::from_millis(result.duration_ms), bytes);
        sink.finish(&result);
        // A caller that left needs no answer.
        let _ = reply.send(Ok(result));
        tokio::task::yield_now().await;
        let (exit_code, duration_ms, truncated, session_reset) = summary;
        tracing::info!(
            outcome = outcome.as_str(),
            exit_code,
            duration_ms,
            stdout_bytes = bytes.0,
            stderr_bytes = bytes.1,
            truncated,
            session_reset,
            "Call ended"
        );
        self.settle(&command).await;
    }

    /// Runs one command, in a shell freed of what kept it from being read where that is needed; with it comes what is to
    /// be said about a shell that was replaced before.
    async fn run_anew_if_unread(
        &mut self,
        command: &str,
        seconds: u32,
        cancel: &CancellationToken,
        sink: &mut Sink,
    ) -> Result<(Finished, Option<String>), String> {
        if self.settings.crowd.as_ref().is_some_and(Crowd::take_halted) {
            self.note_crowd();
        }
        let mut attempt = 0;
        // One refusal at most comes of each shell.
        for _ in 0..2 * ATTEMPTS {
            self.make_able().await?;
            let may_repeat = attempt == 0;
            match self.run_command(command, seconds, cancel, sink, may_repeat).await? {
                Ran::Finished(finished) => {
                    let new = std::mem::replace(&mut self.reset, self.next_reset.take());
                    let less = self.given_up.take().unwrap_or_default();
                    return Ok((*finished, new.map(|new| new + &less)));
                }
                Ran::Refused => {}
                Ran::Unread => {
                    self.give_way(attempt);
                    attempt += 1;
                    if attempt == ATTEMPTS {
                        break;
                    }
                }
            }
        }
        Err("the shell reads no command".to_owned())
    }

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
        match (has_room, may_have_last_words && !would_be_heard) {
            (true, false) => Form::Covered,
            (true, true) => Form::Bare,
            (false, _) => Form::Among,
        }
    }

    /// Runs one command to its end. An error means that it did not start. `may_repeat`: a shell that ended before it read the
    /// command counts as one that was gone before; more than once, a trap of the user's ends it so.
    async fn run_command(
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

/// Waits for the end of an idle shell, and keeps its pipes empty meanwhile.
async fn idle(shell: Option<&mut Shell>) -> ExitCode {
    let Some(shell) = shell else {
        return std::future::pending().await;
    };
    loop {
        if let Some(code) = shell.hear_more().await {
            return code;
        }
        shell.forget_noise();
    }
}
