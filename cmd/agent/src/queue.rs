//! Who runs next: one call at a time, first come first served, and at most sixteen waiting (case 87).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cli_mcp_sandbox::wire::ExecResult;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::metrics::{CallOutcome, Metrics};
use crate::request::MAX_BODY_BYTES;

/// Calls that may wait.
pub const MAX_WAITING: usize = 16;
/// Bytes of those that wait, their bodies or their commands: a sandbox may have 64 MiB for all that runs in it.
pub const MAX_WAITING_BYTES: usize = 2 * MAX_BODY_BYTES;

/// Why a call got no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bounded queue is full: 409.
    #[error("{MAX_WAITING} commands are waiting already; try again when one has ended")]
    Full,
    /// Those that wait are too large together: 409.
    #[error(
        "the commands that wait are too large together, over {MAX_WAITING_BYTES} bytes; try again when one has ended, or write long input to a file in pieces"
    )]
    TooLarge,
    /// No shell can be had: 503.
    #[error("the shell cannot be started: {0}; retry, or free memory and processes of the sandbox")]
    NoShell(String),
    /// The network is not proven closed, or no longer: 503.
    #[error("{0}")]
    EgressNotEnforced(String),
    /// The agent is going away: 503.
    #[error("the sandbox is shutting down")]
    ShuttingDown,
}

impl Refusal {
    /// The outcome of a call that was refused so.
    #[must_use]
    pub fn outcome(&self) -> CallOutcome {
        match self {
            Self::Full | Self::TooLarge => CallOutcome::QueueFull,
            Self::NoShell(_) => CallOutcome::NoShell,
            Self::EgressNotEnforced(_) => CallOutcome::EgressNotEnforced,
            Self::ShuttingDown => CallOutcome::ShuttingDown,
        }
    }
}

/// One call on its way to the shell.
#[derive(Debug)]
pub struct Job {
    id: u64,
    /// The bytes for bash.
    pub command: String,
    /// Seconds it may run.
    pub timeout: u32,
    /// Where lines go as output arrives, when the caller wants them.
    pub lines: Option<mpsc::Sender<Bytes>>,
    /// Where the result goes.
    pub reply: oneshot::Sender<Result<ExecResult, Refusal>>,
    /// Cancelled when the caller left, asked for it, or the agent shuts down.
    pub cancel: CancellationToken,
}

/// What the caller of a queued job holds: dropping it before the result is a client that left (case 106).
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    queue: Queue,
    cancel: CancellationToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel.cancel();
        let mut inner = self.queue.lock();
        let waits = inner.waiting.iter().position(|job| job.id == self.id);
        if waits.and_then(|at| inner.waiting.remove(at)).is_some() {
            self.queue.metrics.not_run(CallOutcome::ClientLeft);
        }
    }
}

/// Room for a call whose command is still on its way; free again when dropped.
#[derive(Debug)]
pub struct Place {
    queue: Queue,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        inner.places -= 1;
        inner.place_bytes -= self.bytes;
    }
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Job>,
    /// Calls whose commands are still on their way, and the bytes that these may come to.
    places: usize,
    place_bytes: usize,
    running: Option<CancellationToken>,
    next_id: u64,
    closed: bool,
}

impl Inner {
    fn bytes(&self) -> usize {
        let commands: usize = self.waiting.iter().map(|job| job.command.len()).sum();
        self.place_bytes + commands
    }
}

/// The calls that wait, and a handle on the one that runs.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    inner: Arc<Mutex<Inner>>,
    arrived: Arc<Notify>,
    metrics: Metrics,
}

impl Queue {
    /// An empty queue that notes in `metrics` which calls were never run.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a call whose body has at most so many bytes, before that is read.
    ///
    /// # Errors
    ///
    /// [`Refusal::Full`], [`Refusal::TooLarge`] and [`Refusal::ShuttingDown`].
    pub fn reserve(&self, bytes: usize) -> Result<Place, Refusal> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        // While nothing runs, the first of those waiting is about to.
        let most = MAX_WAITING + usize::from(inner.running.is_none());
        if inner.waiting.len() + inner.places >= most {
            return Err(Refusal::Full);
        }
        if inner.bytes() + bytes > MAX_WAITING_BYTES {
            return Err(Refusal::TooLarge);
        }
        inner.places += 1;
        inner.place_bytes += bytes;
        Ok(Place {
            queue: self.clone(),
            bytes,
        })
    }

    /// Adds a call in its place. Its command is no longer than the body was.
    ///
    /// # Errors
    ///
    /// [`Refusal::ShuttingDown`].
    pub fn add(
        &self,
        place: Place,
        command: String,
        timeout: u32,
        lines: Option<mpsc::Sender<Bytes>>,
    ) -> Result<(Ticket, oneshot::Receiver<Result<ExecResult, Refusal>>), Refusal> {
        drop(place);
        let mut inner = self.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        let id = inner.next_id;
        inner.next_id += 1;
        let (reply, result) = oneshot::channel();
        let cancel = CancellationToken::new();
        inner.waiting.push_back(Job {
            id,
            command,
            timeout,
            lines,
            reply,
            cancel: cancel.clone(),
        });
        self.arrived.notify_one();
        Ok((
            Ticket {
                id,
                queue: self.clone(),
                cancel,
            },
            result,
        ))
    }

    /// Waits for the next call; it counts as running until [`Self::finished`].
    pub async fn next(&self) -> Job {
        loop {
            {
                let mut inner = self.lock();
                if let Some(job) = inner.waiting.pop_front() {
                    inner.running = Some(job.cancel.clone());
                    return job;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// The running call has its result.
    pub fn finished(&self) {
        self.lock().running = None;
    }

    /// Ends the running call. False when none runs.
    #[must_use]
    pub fn cancel_running(&self) -> bool {
        match &self.lock().running {
            Some(cancel) if !cancel.is_cancelled() => {
                cancel.cancel();
                true
            }
            _ => false,
        }
    }

    /// Takes no more calls, refuses those that wait, and ends the running one.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for job in inner.waiting.drain(..) {
            self.metrics.not_run(CallOutcome::ShuttingDown);
            // A caller that left needs no answer.
            let _ = job.reply.send(Err(Refusal::ShuttingDown));
        }
        if let Some(cancel) = &inner.running {
            cancel.cancel();
        }
    }

    /// Whether [`Self::close`] was called.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.lock().closed
    }

    /// Calls that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Added = (Ticket, oneshot::Receiver<Result<ExecResult, Refusal>>);

    fn add(queue: &Queue, command: impl Into<String>) -> Result<Added, Refusal> {
        let command = command.into();
        queue.add(queue.reserve(command.len())?, command, 1, None)
    }

    fn counts(queue: &Queue, outcome: CallOutcome, count: usize) -> bool {
        let line = format!("cli_mcp_agent_calls_total{{outcome=\"{}\"}} {count}", outcome.as_str());
        queue.metrics.encode(0).contains(&line)
    }

    #[tokio::test]
    async fn one_runs_sixteen_wait_and_the_next_is_refused() {
        let queue = Queue::default();
        let mut tickets = vec![add(&queue, "0").unwrap()];
        assert_eq!(queue.next().await.command, "0");
        for index in 1..=MAX_WAITING {
            tickets.push(add(&queue, index.to_string()).unwrap());
        }
        assert_eq!(add(&queue, "x").unwrap_err(), Refusal::Full);
        drop(tickets.remove(1));
        assert!(counts(&queue, CallOutcome::ClientLeft, 1));
        assert!(add(&queue, "y").is_ok());
        queue.finished();
        assert_eq!(queue.next().await.command, "2");
    }

    #[tokio::test]
    async fn a_call_whose_body_is_on_its_way_has_its_place() {
        let queue = Queue::default();
        let mut places: Vec<_> = (0..=MAX_WAITING).map(|_| queue.reserve(1).unwrap()).collect();
        assert_eq!(queue.reserve(1).unwrap_err(), Refusal::Full);
        let _first = queue.add(places.remove(0), "1".into(), 1, None).unwrap();
        assert_eq!(queue.reserve(1).unwrap_err(), Refusal::Full);
        assert_eq!(queue.next().await.command, "1");
        assert_eq!(queue.reserve(1).unwrap_err(), Refusal::Full);
        places.pop();
        assert!(queue.reserve(1).is_ok());
    }

    #[tokio::test]
    async fn the_bytes_of_all_that_wait_are_bounded() {
        let queue = Queue::default();
        let large = "x".repeat(MAX_BODY_BYTES);
        let _first = add(&queue, large.clone()).unwrap();
        let second = queue.reserve(MAX_BODY_BYTES).unwrap();
        assert_eq!(queue.reserve(1).unwrap_err(), Refusal::TooLarge);
        // A command may be shorter than its body.
        let _second = queue.add(second, "y".into(), 1, None).unwrap();
        assert_eq!(queue.reserve(MAX_BODY_BYTES).unwrap_err(), Refusal::TooLarge);
        let third = queue.reserve(MAX_BODY_BYTES - 1).unwrap();
        drop(third);
        assert_eq!(queue.next().await.command, large);
        assert!(queue.reserve(MAX_BODY_BYTES).is_ok(), "what runs does not wait");
    }

    #[tokio::test]
    async fn cancel_ends_only_what_runs() {
        let queue = Queue::default();
        assert!(!queue.cancel_running());
        let _first = add(&queue, "1").unwrap();
        let _second = add(&queue, "2").unwrap();
        assert!(!queue.cancel_running());
        let job = queue.next().await;
        assert!(queue.cancel_running());
        assert!(job.cancel.is_cancelled());
        queue.finished();
        assert!(!queue.next().await.cancel.is_cancelled());
    }

    #[tokio::test]
    async fn closing_refuses_those_that_wait() {
        let queue = Queue::default();
        let (_ticket, result) = add(&queue, "1").unwrap();
        queue.close();
        assert_eq!(result.await.unwrap(), Err(Refusal::ShuttingDown));
        assert!(counts(&queue, CallOutcome::ShuttingDown, 1));
        assert_eq!(add(&queue, "2").unwrap_err(), Refusal::ShuttingDown);
    }
}
