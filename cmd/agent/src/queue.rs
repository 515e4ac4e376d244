//! Who runs next: one call at a time, first come first served, and at most sixteen waiting (case 87).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cli_mcp_sandbox::wire::ExecResult;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Calls that may wait.
pub const MAX_WAITING: usize = 16;

/// Why a call got no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bounded queue is full: 409.
    #[error("{MAX_WAITING} commands are waiting already; try again when one has ended")]
    Full,
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
        self.queue.lock().waiting.retain(|job| job.id != self.id);
    }
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Job>,
    running: Option<CancellationToken>,
    next_id: u64,
    closed: bool,
}

/// The calls that wait, and a handle on the one that runs.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    inner: Arc<Mutex<Inner>>,
    arrived: Arc<Notify>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call.
    ///
    /// # Errors
    ///
    /// [`Refusal::Full`] and [`Refusal::ShuttingDown`].
    pub fn add(
        &self,
        command: String,
        timeout: u32,
        lines: Option<mpsc::Sender<Bytes>>,
    ) -> Result<(Ticket, oneshot::Receiver<Result<ExecResult, Refusal>>), Refusal> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(Refusal::ShuttingDown);
        }
        // While nothing runs, the first of those waiting is about to.
        if inner.waiting.len() >= MAX_WAITING + usize::from(inner.running.is_none()) {
            return Err(Refusal::Full);
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

    #[tokio::test]
    async fn one_runs_sixteen_wait_and_the_next_is_refused() {
        let queue = Queue::default();
        let mut tickets = vec![queue.add("0".into(), 1, None).unwrap()];
        assert_eq!(queue.next().await.command, "0");
        for index in 1..=MAX_WAITING {
            tickets.push(queue.add(index.to_string(), 1, None).unwrap());
        }
        assert_eq!(queue.add("x".into(), 1, None).unwrap_err(), Refusal::Full);
        drop(tickets.remove(1));
        assert!(queue.add("y".into(), 1, None).is_ok());
        queue.finished();
        assert_eq!(queue.next().await.command, "2");
    }

    #[tokio::test]
    async fn cancel_ends_only_what_runs() {
        let queue = Queue::default();
        assert!(!queue.cancel_running());
        let _first = queue.add("1".into(), 1, None).unwrap();
        let _second = queue.add("2".into(), 1, None).unwrap();
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
        let (_ticket, result) = queue.add("1".into(), 1, None).unwrap();
        queue.close();
        assert_eq!(result.await.unwrap(), Err(Refusal::ShuttingDown));
        assert_eq!(queue.add("2".into(), 1, None).unwrap_err(), Refusal::ShuttingDown);
    }
}
