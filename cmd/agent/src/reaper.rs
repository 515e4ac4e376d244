//! The one waiter of this process: collects every child and orphan, and tells who asked how its process ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::sys;

/// Exit status as `$?` shows it: a signal adds 128.
pub type ExitCode = u8;

/// How one process ended, once it has.
#[derive(Clone, Debug)]
pub struct Exit(watch::Receiver<Option<ExitCode>>);

impl Exit {
    /// The exit code, when the process has ended.
    #[must_use]
    pub fn code(&self) -> Option<ExitCode> {
        *self.0.borrow()
    }

    /// Waits for the end of the process.
    pub async fn wait(&mut self) -> ExitCode {
        loop {
            if let Some(code) = self.code() {
                return code;
            }
            if self.0.changed().await.is_err() {
                // The reaper lives as long as the program: this does not happen before its end.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Collects ended children. Nothing else in the agent may wait for any process (case 89).
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    watched: Arc<Mutex<HashMap<i32, watch::Sender<Option<ExitCode>>>>>,
}

impl Reaper {
    /// Watches a child that was just started. On the agent's one thread no reaping can come between.
    #[must_use]
    pub fn watch(&self, pid: i32) -> Exit {
        let (sender, receiver) = watch::channel(None);
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pid, sender);
        Exit(receiver)
    }

    /// The children that are watched and have not ended: those that the agent itself has started.
    #[must_use]
    pub fn watched(&self) -> Vec<i32> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.keys().copied().collect()
    }

    /// Collects every process that has ended; called after SIGCHLD.
    pub fn reap(&self) {
        while let Some((pid, code)) = sys::collect_ended() {
            if let Some(sender) = self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid) {
                sender.send_replace(Some(code));
            }
        }
    }
}
