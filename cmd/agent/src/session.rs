//! The one task that owns the shell: takes calls from the queue, runs each, and keeps the shell fit for the next.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cli_mcp_sandbox::wire::{ExecResult, OutputStream, StreamChunk};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::capture::Capture;
use crate::holder::{Holder, Slot};
use crate::metrics::{CallOutcome, Metrics};
use crate::pipes::{CallPipes, Input};
use crate::processes::{self, Identity, Roots};
use crate::queue::{Job, Queue, Refusal};
use crate::reaper::{ExitCode, Reaper};
use crate::script::{self, Hazards, Nonce, Status};
use crate::shell::{Answer, Origin, Shell};
use crate::snapshot::{Snapshot, may_change_state};
use crate::spill::SpillFolder;
use crate::stop::{self, Outcome, Scope};
use crate::stream::Decoder;

/// `exit_code` of a call that ran out of time, as `timeout(1)` has it.
const TIMED_OUT: ExitCode = 124;
/// `exit_code` of a call that was cancelled: as after SIGINT.
const CANCELLED: ExitCode = 130;
/// `exit_code` when the shell was killed from outside its own reckoning.
const KILLED: ExitCode = 137;
/// How long a snapshot may take before it is given up.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(1);
/// Calls that go without a snapshot after one was given up.
const SNAPSHOT_PAUSE: u32 = 16;
/// How long a shell may print its state while it ends itself.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// When a running call is first looked at for a shell that is back at its prompt without having said so, and the
/// longest time between two such looks.
const SILENCE: Duration = Duration::from_millis(50);
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// How often a command's status is looked for at once, giving way to bash each time: some tens of microseconds.
const QUICK_LOOKS: usize = 40;
/// Bytes read at once.
const READ_BYTES: usize = 128 << 10;
/// Bytes of a streamed line at most, before JSON.
const CHUNK_BYTES: usize = 16 << 10;
/// How long a client may take for the end of a stream.
const STREAM_END_WAIT: Duration = Duration::from_secs(30);

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

/// How a call ended.
#[derive(Debug)]
enum End {
    Status(Status),
    Shell(ExitCode),
    Deadline,
    Cancelled,
}

/// What became of one try to run a command.
enum Ran {
    Finished(Box<Finished>),
    /// Bash is sure never to have read it.
    Unread,
}

/// A finished call, before it is put into words.
struct Finished {
    end: End,
    exit_code: ExitCode,
    duration: Duration,
    stdout: Capture,
    stderr: Capture,
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
        reset_notice(
            &format!("ended with status {code} {when}"),
            self.state.is_some(),
            current,
        )
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

/// One command while it runs.
struct Running<'a> {
    shell: &'a mut Shell,
    pipes: &'a mut CallPipes,
    nonce: &'a Nonce,
    deadline: Instant,
    cancel: &'a CancellationToken,
}

impl Running<'_> {
    /// Reads what the command writes until it ends, or must.
    async fn watch(self, buffer: &mut [u8], stdout: &mut Capture, stderr: &mut Capture, sink: &mut Sink) -> End {
        let Self {
            shell,
            pipes,
            nonce,
            deadline,
            cancel,
        } = self;
        let mut error_buffer = vec![0; 16 << 10];
        let mut asked: Option<Nonce> = None;
        let mut silence = SILENCE;
        let mut look_at = Instant::now() + silence;
        let mut last_words: Option<Instant> = None;
        // The shortest commands end before this thread could sleep and be woken.
        for _ in 0..QUICK_LOOKS {
            if let Some(status) = shell.poll_status(nonce) {
                return End::Status(status);
            }
            std::thread::yield_now();
        }
        let timer = sleep_until(deadline);
        tokio::pin!(timer);
        loop {
            let limit = if sink.wanted() { CHUNK_BYTES } else { buffer.len() };
            let may_read = !sink.blocked();
            tokio::select! {
                biased;
                ended = shell.hear_more() => {
                    if let Some(code) = ended {
                        return End::Shell(code);
                    }
                    if let Some(status) = shell.poll_status(nonce) {
                        return End::Status(status);
                    }
                    if let Some(status) = asked.as_ref().and_then(|asked| shell.poll_status(asked)) {
                        return End::Status(status);
                    }
                    if shell.ending_with().is_some() && last_words.is_none() {
                        last_words = Some(Instant::now() + LAST_WORDS);
                    }
                }
                () = cancel.cancelled() => return End::Cancelled,
                () = &mut timer => return End::Deadline,
                count = pipes.stdout.read(&mut buffer[..limit]), if may_read && !pipes.stdout.ended() => {
                    stdout.push(&buffer[..count]);
                    sink.push(OutputStream::Stdout, &buffer[..count]);
                }
                count = pipes.stderr.read(&mut error_buffer), if may_read && !pipes.stderr.ended() => {
                    stderr.push(&error_buffer[..count]);
                    sink.push(OutputStream::Stderr, &error_buffer[..count]);
                }
                () = sink.flush(), if sink.blocked() => {}
                () = sleep_until(last_words.unwrap_or(deadline)), if last_words.is_some() => {
                    let code = shell.ending_with().unwrap_or(KILLED);
                    shell.signal(Signal::SIGKILL);
                    shell.exit.wait().await;
                    return End::Shell(code);
                }
                // The wrapper may have broken on what the command left behind: then bash is at its prompt and answers this.
                () = sleep_until(look_at) => {
                    silence = (silence * 2).min(MAX_SILENCE);
                    look_at = Instant::now() + silence;
                    if !shell.at_prompt() {
                        continue;
                    }
                    if asked.is_some() {
                        shell.signal(Signal::SIGKILL);
                        shell.exit.wait().await;
                        return End::Shell(KILLED);
                    }
                    let again = Nonce::new();
                    let hazards = Hazards { time_unusable: true, ..shell.hazards.clone() };
                    if shell.write(&script::probe(&again, &hazards)).is_ok() {
                        shell.hazards = hazards;
                    }
                    asked = Some(again);
                }
            }
        }
    }
}

/// Takes what is in a pipe at this moment, and no more: a background job may go on writing.
fn collect(input: &mut Input, buffer: &mut [u8], capture: &mut Capture, stream: OutputStream, sink: &mut Sink) {
    let mut left = input.waiting();
    while left > 0 {
        let room = left.min(buffer.len()).min(CHUNK_BYTES);
        let Some(count) = input.read_now(&mut buffer[..room]) else {
            return;
        };
        capture.push(&buffer[..count]);
        sink.push(stream, &buffer[..count]);
        left -= count.min(left);
    }
}

fn reset_notice(what: &str, restored: bool, current: bool) -> String {
    if !restored {
        return format!("The shell {what} and was replaced by a fresh one; its state is lost.");
    }
    let age = if current { "" } else { " as they were some calls ago" };
    format!(
        "The shell {what} and was replaced: working directory, variables, functions, aliases, traps and options are restored{age}; \
         its job table and open descriptors are lost."
    )
}

fn result_of(
    finished: Finished,
    seconds: u32,
    session_reset: Option<String>,
    shutting_down: bool,
) -> (ExecResult, CallOutcome, (u64, u64)) {
    let stdout = finished.stdout.finish();
    let mut stderr = finished.stderr.finish();
    let (outcome, note) = match &finished.end {
        End::Status(_) if finished.exit_code == 0 => (CallOutcome::Success, None),
        End::Status(_) => (CallOutcome::Failure, None),
        End::Shell(_) => (CallOutcome::ShellEnded, None),
        End::Deadline => (
            CallOutcome::TimedOut,
            Some(format!("cli-mcp: timed out after {seconds} s; the command was ended")),
        ),
        End::Cancelled if shutting_down => (
            CallOutcome::Cancelled,
            Some("cli-mcp: the sandbox is shutting down; the command was ended".to_owned()),
        ),
        End::Cancelled => (
            CallOutcome::Cancelled,
            Some("cli-mcp: cancelled; the command was ended".to_owned()),
        ),
    };
    if let Some(note) = note {
        if !stderr.text.is_empty() && !stderr.text.ends_with('\n') {
            stderr.text.push('\n');
        }
        stderr.text.push_str(&note);
        stderr.text.push('\n');
    }
    let bytes = (stdout.total, stderr.total);
    let result = ExecResult {
        truncated: stdout.truncated || stderr.truncated,
        stdout: stdout.text,
        stderr: stderr.text,
        exit_code: finished.exit_code,
        duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
        timed_out: matches!(finished.end, End::Deadline),
        session_reset,
    };
    (result, outcome, bytes)
}

/// The streamed form of a call's output. One line waits at most: while it does, nothing more is read, so that a slow
/// client costs no memory; the command's time goes on.
struct Sink {
    lines: Option<mpsc::Sender<Bytes>>,
    decoders: [Decoder; 2],
    waiting: Vec<Bytes>,
}

impl Sink {
    fn new(lines: Option<mpsc::Sender<Bytes>>) -> Self {
        Self {
            lines,
            decoders: Default::default(),
            waiting: Vec::new(),
        }
    }

    fn wanted(&self) -> bool {
        self.lines.is_some()
    }

    fn blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        if self.lines.is_some() {
            let data = self.decoders[stream as usize].push(bytes);
            self.line(stream, data);
        }
    }

    fn line(&mut self, stream: OutputStream, data: String) {
        if data.is_empty() {
            return;
        }
        if let Some(line) = json_line(&StreamChunk { stream, data })
            && let Some(lines) = &self.lines
        {
            let line = if self.waiting.is_empty() {
                match lines.try_send(line) {
                    Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => return,
                    Err(mpsc::error::TrySendError::Full(line)) => line,
                }
            } else {
                line
            };
            self.waiting.push(line);
        }
    }

    /// Waits until the client takes the waiting lines. Cancelled and tried again as output and time go on.
    async fn flush(&mut self) {
        let Some(lines) = &self.lines else { return };
        while !self.waiting.is_empty() {
            match lines.reserve().await {
                Ok(permit) => permit.send(self.waiting.remove(0)),
                Err(_) => self.waiting.clear(),
            }
        }
    }

    /// Sends the rest and the result, without holding up the next call.
    fn finish(mut self, result: &ExecResult) {
        if self.lines.is_none() {
            return;
        }
        let rest = [self.decoders[0].finish(), self.decoders[1].finish()];
        for (stream, data) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(rest) {
            self.line(stream, data);
        }
        self.waiting.extend(json_line(result));
        tokio::spawn(async move {
            // A client that does not read in this time has left.
            let _ = timeout(STREAM_END_WAIT, self.flush()).await;
        });
    }
}

fn json_line<T: serde::Serialize>(value: &T) -> Option<Bytes> {
    let mut line = serde_json::to_vec(value).ok()?;
    line.push(b'\n');
    Some(Bytes::from(line))
}
