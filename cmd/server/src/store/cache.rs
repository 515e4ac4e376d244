//! The store shared between calls and the watch: reading without a wait, and waiting for a change without a poll.

use std::sync::{PoisonError, RwLock};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::SandboxStore;

/// A [`SandboxStore`] with waiting.
#[derive(Debug)]
pub struct SandboxCache {
    store: RwLock<SandboxStore>,
    changed: watch::Sender<()>,
}

impl SandboxCache {
    /// An empty cache of [`SandboxStore::of_owner`].
    #[must_use]
    pub fn of_owner(owner: Option<String>) -> Self {
        Self {
            store: RwLock::new(SandboxStore::of_owner(owner)),
            changed: watch::Sender::new(()),
        }
    }

    /// Reads the store as it is.
    pub fn read<T>(&self, look: impl FnOnce(&SandboxStore) -> T) -> T {
        look(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies an event of the watch and wakes who waits.
    pub fn apply(&self, event: &Event<Pod>) {
        self.write(|store| store.apply(event));
    }

    /// Takes the answer to a write of our own and wakes who waits.
    pub fn observe(&self, pod: &Pod) {
        self.write(|store| store.observe(pod));
    }

    /// Changes the store and wakes who waits.
    pub fn write<T>(&self, change: impl FnOnce(&mut SandboxStore) -> T) -> T {
        let result = change(&mut self.store.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
        result
    }

    /// Waits until `look` finds what it is after. It is asked now and after each change.
    pub async fn wait_for<T>(&self, mut look: impl FnMut(&SandboxStore) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(found) = self.read(&mut look) {
                return found;
            }
            // The sender lives as long as self.
            let _ = changes.changed().await;
        }
    }
}
