//! The one task that owns the shell: takes calls from the queue, runs each, and keeps the shell fit for the next.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli_mcp_sandbox::wire::{ExecResult, OutputStream};
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::capture::Capture;
use crate::holder::{Holder, Slot};
use crate::metrics::Metrics;
use crate::outcome::{Finished, reset_notice, result_of};
use crate::pipes::CallPipes;
use crate::processes::{self, Identity, Roots};
use crate::queue::{Job, Queue, Refusal};
use crate::reaper::{ExitCode, Reaper};
use crate::running::{End, KILLED, Running, collect};
use crate::script::{self, Nonce};
use crate::shell::{Answer, Origin, Shell};
use crate::sink::Sink;
use crate::snapshot::{Snapshot, may_change_state};
use crate::spill::SpillFolder;
use crate::stop::{self, Outcome, Scope};

/// `exit_code` of a call that ran out of time, as `timeout(1)` has it.
const TIMED_OUT: ExitCode = 124;
/// `exit_code` of a call that was cancelled: as after SIGINT.
const CANCELLED: ExitCode = 130;
/// How long a snapshot may take before it is given up.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(1);
/// Calls that go without a snapshot after one was given up.
const SNAPSHOT_PAUSE: u32 = 16;
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
    snapshot_pause: u32,
    /// Processes that were there before the next call.
    earlier: HashSet<Identity>,
    /// What the next result says about a shell that was replaced.
    reset: Option<String>,
    /// The same for the result after that: the shell ended in the call that runs.
    next_reset: Option<String>,
    buffer: Vec<u8>,
}

/// What became of one try to run a command.
enum Ran {
    Finished(Box<Finished>),
    /// Bash is sure never to have read it.
    Unread,
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
            snapshot_pause: 0,
            earlier: HashSet::new(),
            reset: None,
            next_reset: None,
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
                    self.reset = Some(self.shell_ended(code, "between two calls"));
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

    /// Makes holder, shell and pipes what a call needs; starts what is missing.
    async fn make_ready(&mut self) -> Result<(), String> {
        let reason = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        if self.shell.as_ref().is_some_and(|shell| shell.exit.code().is_some()) {
            let code = self
                .shell
                .as_ref()
                .and_then(|shell| shell.exit.code())
                .unwrap_or(KILLED);
            self.reset = Some(self.shell_ended(code, "between two calls"));
        }
        if !self.holder.as_ref().is_some_and(Holder::alive) {
            self.pipes = None;
            let holder = Holder::start(&self.reaper).map_err(|error| reason("descriptor holder", &error))?;
            self.holder = Some(holder);
        }
        let Some(holder) = &self.holder else {
            return Err("descriptor holder: none".to_owned());
        };
        if self.shell.is_none() {
            let started = match Shell::start(&self.settings.origin, holder, &self.reaper, self.state.as_ref()).await {
                Ok(shell) => shell,
                Err(error) if self.state.is_some() => {
                    tracing::warn!(%error, "Failed to restore the shell's state, starting a plain one");
                    self.state = None;
                    self.reset = Some(format!(
                        "The shell was replaced by a fresh one; its state could not be restored ({error})."
                    ));
                    Shell::start(&self.settings.origin, holder, &self.reaper, None)
                        .await
                        .map_err(|error| reason("bash", &error))?
                }
                Err(error) => return Err(reason("bash", &error)),
            };
            if let (Some(reset), Some(state)) = (&mut self.reset, &self.state)
                && started.directory != state.directory
            {
                reset.push_str(&format!(
                    " {} is gone, the working directory is now {}.",
                    state.directory, started.directory
                ));
            }
            self.shell = Some(started);
            self.alive.store(true, Ordering::Relaxed);
        }
        if self.pipes.is_none() {
            self.pipes = Some(
                CallPipes::prepare(holder)
                    .await
                    .map_err(|error| reason("pipes", &error))?,
            );
        }
        Ok(())
    }

    /// The shell is gone: the next result will say so, and the next shell starts from the best state known.
    #[must_use]
    fn shell_ended(&mut self, code: ExitCode, when: &str) -> String {
        self.shell_lost(&format!("ended with status {code} {when}"))
    }

    #[must_use]
    fn shell_lost(&mut self, what: &str) -> String {
        let mut shell = self.shell.take();
        self.alive.store(false, Ordering::Relaxed);
        self.metrics.reset();
        let saved = shell.as_mut().and_then(Shell::take_state);
        let current = saved.is_some() || self.state_is_current;
        if let Some(saved) = saved {
            self.state = Some(saved);
        }
        // The next shell is made from this state, whatever its age.
        self.state_is_current = true;
        reset_notice(what, self.state.is_some(), current)
    }

    /// Replaces the shell that read an unclosed `$(`: bash 5.2 goes on, and aborts at one of the next lines that it reads,
    /// which would then be an innocent command's.
    async fn retire(&mut self) {
        let Some(shell) = &mut self.shell else { return };
        shell.signal(Signal::SIGKILL);
        shell.exit.wait().await;
        self.reset = Some(self.shell_lost("was no longer sound after an unclosed $("));
        if let Err(reason) = self.make_ready().await {
            tracing::error!(reason, "Failed to replace the shell");
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
        let unsound = left_unclosed_substitution(&result);
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
        if unsound {
            self.retire().await;
        }
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
        for _ in 0..3 {
            self.make_ready().await?;
            match self.run_command(command, seconds, cancel, sink).await? {
                Ran::Finished(finished) => {
                    let new = std::mem::replace(&mut self.reset, self.next_reset.take());
                    return Ok((*finished, new));
                }
                Ran::Unread => {
                    if let Some(state) = self.state.as_mut().filter(|state| state.hazards().no_way_to_source()) {
                        state.without_shadows();
                    }
                }
            }
        }
        Err("the shell reads no command".to_owned())
    }

    /// Runs one command to its end. An error means that it did not start.
    async fn run_command(
        &mut self,
        command: &str,
        seconds: u32,
        cancel: &CancellationToken,
        sink: &mut Sink,
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
        let line = script::call(
            &nonce,
            &shell.before,
            &shell.hazards,
            &holder.path(Slot::Command),
            &holder.path(Slot::Stdout),
            &holder.path(Slot::Stderr),
        );
        let offered = pipes
            .offer(command.as_bytes(), holder)
            .await
            .and_then(|()| shell.write(&line));
        if let Err(error) = offered {
            // Not even the line reached a shell that is about to end, or cannot be written to: nothing has run.
            tracing::debug!(%error, "The shell does not read");
            shell.signal(Signal::SIGKILL);
            shell.exit.wait().await;
            self.shell = Some(shell);
            return Ok(Ran::Unread);
        }
        let started = Instant::now();
        let deadline = started + Duration::from_secs(u64::from(seconds));
        let running = Running {
            shell: &mut shell,
            pipes: &mut pipes,
            nonce: &nonce,
            deadline,
            cancel,
        };
        let end = running.watch(&mut self.buffer, &mut stdout, &mut stderr, sink).await;
        let roots = Roots {
            bash: shell.pid,
            ..self.roots()
        };
        let scope = Scope {
            roots,
            earlier: &self.earlier,
        };
        let exit_code = match &end {
            End::Status(status) => status.code,
            End::Shell(code) => *code,
            End::Deadline => TIMED_OUT,
            End::Cancelled => CANCELLED,
        };
        match &end {
            End::Status(status) => {
                let mut status = status.clone();
                if pipes.command_unread() {
                    // Something of the user's stood in for the sourcing builtin: no command runs in this shell.
                    shell.signal(Signal::SIGKILL);
                    shell.exit.wait().await;
                    self.shell = Some(shell);
                    return Ok(Ran::Unread);
                }
                status.code = exit_code;
                shell.settle(status);
                self.shell = Some(shell);
            }
            End::Shell(_) => self.shell = Some(shell),
            End::Deadline | End::Cancelled => {
                let trapped = command.contains("trap") || self.state.as_ref().is_some_and(Snapshot::traps_interrupt);
                match stop::stop(&mut shell, scope, trapped).await {
                    Outcome::Kept(mut status) => {
                        status.code = exit_code;
                        shell.settle(status);
                        self.shell = Some(shell);
                    }
                    Outcome::Ended(_) => self.shell = Some(shell),
                    Outcome::Lost => {
                        let directory = processes::working_directory(shell.pid);
                        shell.signal(Signal::SIGKILL);
                        shell.exit.wait().await;
                        scope.kill_all().await;
                        self.shell = Some(shell);
                        self.shell_replaced(directory);
                    }
                }
            }
        }
        let duration = started.elapsed();
        collect(
            &mut pipes.stdout,
            &mut self.buffer,
            &mut stdout,
            OutputStream::Stdout,
            sink,
        );
        collect(
            &mut pipes.stderr,
            &mut self.buffer,
            &mut stderr,
            OutputStream::Stderr,
            sink,
        );
        pipes.stdout.drain_in_background();
        pipes.stderr.drain_in_background();
        if let Some(code) = self.shell.as_ref().and_then(|shell| shell.exit.code()) {
            self.next_reset = Some(self.shell_ended(code, "in the last call"));
        }
        Ok(Ran::Finished(Box::new(Finished {
            end,
            exit_code,
            duration,
            stdout,
            stderr,
        })))
    }

    /// The shell could not be brought back from a call that was ended: its state is that before the call, but for the
    /// working directory, which can be seen from outside.
    fn shell_replaced(&mut self, directory: Option<PathBuf>) {
        self.shell = None;
        self.alive.store(false, Ordering::Relaxed);
        self.metrics.reset();
        if let (Some(state), Some(directory)) = (&mut self.state, directory.as_deref().and_then(|path| path.to_str())) {
            let same = std::fs::canonicalize(&state.directory).is_ok_and(|path| path.to_str() == Some(directory));
            if !same {
                directory.clone_into(&mut state.directory);
            }
        }
        self.next_reset = Some(reset_notice(
            "had to be ended with the last call",
            self.state.is_some(),
            self.state_is_current,
        ));
    }

    /// Between calls: fresh pipes, the state on record, and who was there before.
    async fn settle(&mut self, command: &str) {
        if let Err(reason) = self.make_ready().await {
            tracing::error!(reason, "Failed to make the shell ready");
            return;
        }
        let changed = self.state.as_ref().is_none_or(|state| may_change_state(command, state));
        if changed || !self.state_is_current {
            self.state_is_current = false;
            self.take_snapshot().await;
        }
        self.note_earlier();
    }

    /// Remembers which processes of the sandbox are there. Most often there are none, which costs two small reads.
    fn note_earlier(&mut self) {
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
    async fn take_snapshot(&mut self) {
        if self.snapshot_pause > 0 {
            self.snapshot_pause -= 1;
            return;
        }
        self.note_earlier();
        let roots = self.roots();
        let (Some(shell), Some(holder)) = (&mut self.shell, &self.holder) else {
            return;
        };
        let _ = shell.take_state();
        let nonce = Nonce::new();
        let before = shell.before.clone();
        let line = script::snapshot(
            &nonce,
            &shell.hazards,
            &holder.path(Slot::Script),
            &holder.path(Slot::Snapshot),
        );
        shell.forget_noise();
        if shell.write(&line).is_err() {
            return;
        }
        let mut answer = shell.answer(&nonce, Instant::now() + SNAPSHOT_WAIT).await;
        if answer == Answer::Nothing {
            self.snapshot_pause = SNAPSHOT_PAUSE;
            Scope {
                roots,
                earlier: &self.earlier,
            }
            .kill_all()
            .await;
            answer = shell.answer(&nonce, Instant::now() + SNAPSHOT_WAIT).await;
        }
        match answer {
            Answer::Status(_) => {
                // Its own status is the subshell's; what the call left stands.
                shell.before = before;
                match shell.take_state() {
                    Some(state) => {
                        shell.hazards = state.hazards();
                        self.state = Some(state);
                        self.state_is_current = true;
                    }
                    None => self.snapshot_pause = SNAPSHOT_PAUSE,
                }
            }
            // The next call finds out and starts another.
            Answer::Ended(_) => {}
            Answer::Nothing => {
                shell.signal(Signal::SIGKILL);
                shell.exit.wait().await;
            }
        }
    }
}

/// Whether bash's parser met the end of the command inside `$(`. Taken from what the call printed, which a command can
/// forge: it then gets a fresh shell, and nothing else.
fn left_unclosed_substitution(result: &ExecResult) -> bool {
    result.exit_code == 2 && result.stderr.contains("unexpected EOF while looking for matching `)'")
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
