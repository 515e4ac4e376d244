//! The one task that owns the shell: takes calls from the queue and runs each.

mod ending;
mod record;
mod replace;
mod run;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli_mcp_sandbox::wire::ExecResult;
use nix::sys::signal::Signal;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::replace::When;
use self::run::Ran;
use crate::crowd::Crowd;
use crate::egress::Egress;
use crate::holder::Holder;
use crate::metrics::{CallOutcome, Metrics};
use crate::origin::Origin;
use crate::outcome::{Finished, result_of};
use crate::pipes::CallPipes;
use crate::processes::{Identity, Roots};
use crate::queue::{Job, Queue, Refusal};
use crate::reaper::{ExitCode, Reaper};
use crate::scope::Scope;
use crate::script::Stash;
use crate::shell::Shell;
use crate::sink::Sink;
use crate::snapshot::Snapshot;

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
            self.metrics.not_run(CallOutcome::ClientLeft);
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
            self.refuse(reply, Refusal::EgressNotEnforced(reason));
            return;
        }
        let mut sink = Sink::new(lines);
        let finished = match self.run_anew_if_unread(&command, timeout, &cancel, &mut sink).await {
            Ok(finished) => finished,
            Err(reason) => {
                self.refuse(reply, Refusal::NoShell(reason));
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

    /// Answers a call whose turn had come and that was not run.
    fn refuse(&self, reply: oneshot::Sender<Result<ExecResult, Refusal>>, reason: Refusal) {
        self.queue.finished();
        self.metrics.not_run(reason.outcome());
        // A caller that left needs no answer.
        let _ = reply.send(Err(reason));
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
