//! What the server knows of its instance's sandboxes: a pure store fed by a watch and by the answers to its own writes,
//! so that no call needs a LIST. Sharing and waiting are [`cache`]'s.

pub mod cache;
#[cfg(test)]
pub(crate) mod fixtures;
mod losses;
mod preference;
mod sandbox;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use cli_mcp_sandbox::pod::is_owned_by;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;

use self::losses::Losses;
use self::preference::preference;
pub use self::sandbox::{ENDED_ANNOTATION, Phase, REPLACES_ANNOTATION, Sandbox};
use crate::session::SessionId;

/// How many deleted pods are remembered, so that a late answer to a write cannot bring one back.
const REMEMBERED_DELETIONS: usize = 1024;

/// The sandboxes of one instance.
#[derive(Debug, Default)]
pub struct SandboxStore {
    /// UID of the instance; none in local use, where nobody owns them.
    owner: Option<String>,
    by_name: HashMap<String, Arc<Sandbox>>,
    by_session: HashMap<SessionId, BTreeSet<String>>,
    pool: BTreeSet<String>,
    losses: Losses,
    deleted: VecDeque<String>,
    relist: Option<Relist>,
    synced: bool,
    /// The latest version that the watch brought; answers to writes do not count, as they tell of one pod alone.
    watched: Option<u128>,
}

/// A LIST in progress: what it brought so far, and which pods were first heard of in an answer to a write meanwhile.
#[derive(Debug, Default)]
struct Relist {
    listed: HashMap<String, Arc<Sandbox>>,
    observed: HashSet<String>,
}

impl SandboxStore {
    /// A store of what belongs to the object with this UID; without one, of every pod that is watched.
    #[must_use]
    pub fn of_owner(owner: Option<String>) -> Self {
        Self {
            owner,
            ..Self::default()
        }
    }

    /// Reads a pod, see [`Sandbox::from_pod`]. None also for one that carries the instance's labels and is not its own: the
    /// operator neither counts nor collects it.
    #[must_use]
    pub fn read(&self, pod: &Pod) -> Option<Sandbox> {
        let foreign = self.owner.as_ref().is_some_and(|owner| !is_owned_by(pod, owner));
        if foreign { None } else { Sandbox::from_pod(pod) }
    }

    /// Whether one whole LIST has been seen.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Whether everything that was written before this state of a sandbox is in the store: a watch brings the changes of
    /// all pods in the order of their versions, and a LIST all of them up to its own.
    #[must_use]
    pub fn is_up_to(&self, sandbox: &Sandbox) -> bool {
        let versions = sandbox.version().zip(self.watched);
        versions.is_some_and(|(written, watched)| written <= watched)
    }

    /// Applies what the watch says.
    pub fn apply(&mut self, event: &Event<Pod>) {
        match event {
            Event::Apply(pod) => {
                self.reached(pod);
                if let Some(sandbox) = self.read(pod) {
                    self.put(sandbox);
                }
            }
            Event::Delete(pod) => {
                self.reached(pod);
                if let (Some(name), Some(uid)) = (&pod.metadata.name, &pod.metadata.uid) {
                    // The last state of the pod tells why it went; the entry may be older.
                    if let Some(last) = self.read(pod) {
                        self.put(last);
                    }
                    self.remember_deletion(uid);
                    if self.by_name.get(name).is_some_and(|sandbox| sandbox.uid == *uid) {
                        self.remove(name);
                    }
                }
            }
            Event::Init => self.relist = Some(Relist::default()),
            Event::InitApply(pod) => {
                let sandbox = self.read(pod);
                if let (Some(relist), Some(sandbox)) = (&mut self.relist, sandbox) {
                    relist.listed.insert(sandbox.name.clone(), Arc::new(sandbox));
                }
            }
            Event::InitDone => self.finish_relist(),
        }
    }

    /// Takes the answer to a create, claim or delete of our own: the watch may be some milliseconds behind.
    pub fn observe(&mut self, pod: &Pod) {
        let Some(sandbox) = self.read(pod) else { return };
        if self.deleted.contains(&sandbox.uid) {
            return;
        }
        let known = self
            .by_name
            .get(&sandbox.name)
            .is_some_and(|known| known.uid == sandbox.uid);
        // What was known before the LIST and is not in it is gone, however late an answer about it comes.
        if let Some(relist) = &mut self.relist
            && !known
        {
            relist.observed.insert(sandbox.name.clone());
        }
        self.put(sandbox);
    }

    /// The sandboxes that carry a session's label, the one that everybody uses first: a claimed pod before a created
    /// one, then by name; dead, terminating and ended ones last.
    #[must_use]
    pub fn of_session(&self, session: &SessionId) -> Vec<Arc<Sandbox>> {
        let names = self.by_session.get(session).into_iter().flatten();
        let mut found: Vec<Arc<Sandbox>> = names.filter_map(|name| self.by_name.get(name)).cloned().collect();
        found.sort_by(|a, b| (!a.usable(), !a.claimed, &a.name).cmp(&(!b.usable(), !b.claimed, &b.name)));
        found
    }

    /// A sandbox by the pod's name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Sandbox>> {
        self.by_name.get(name)
    }

    /// Ready pods of the pool that were built as this server builds, in an order that depends on the session: replicas
    /// that get the same session at once try the same pod first, different sessions spread over the pool.
    #[must_use]
    pub fn claimable(&self, session: &SessionId, spec_hash: &str) -> Vec<Arc<Sandbox>> {
        let mut found: Vec<Arc<Sandbox>> = self
            .pool
            .iter()
            .filter_map(|name| self.by_name.get(name))
            .filter(|sandbox| sandbox.usable() && sandbox.ready && sandbox.spec_hash.as_deref() == Some(spec_hash))
            .cloned()
            .collect();
        found.sort_by_cached_key(|sandbox| preference(session, &sandbox.name));
        found
    }

    /// Number of sessions that have a living sandbox.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.by_session.values().filter(|names| self.any_usable(names)).count()
    }

    /// Number of ready pods of the pool.
    #[must_use]
    pub fn ready_pool(&self) -> usize {
        self.pool
            .iter()
            .filter(|name| self.by_name.get(*name).is_some_and(|s| s.usable() && s.ready))
            .count()
    }

    /// A sandbox that shows an open network: where one is not held back, none is.
    #[must_use]
    pub fn open_network(&self) -> Option<&Arc<Sandbox>> {
        self.by_name.values().find(|sandbox| sandbox.shows_open())
    }

    /// UIDs of all sandboxes.
    #[must_use]
    pub fn uids(&self) -> HashSet<String> {
        self.by_name.values().map(|sandbox| sandbox.uid.clone()).collect()
    }

    /// Why the session's earlier sandbox is gone: whoever makes the next one writes it there. It stands until that one is
    /// here.
    #[must_use]
    pub fn loss(&self, session: &SessionId) -> Option<String> {
        self.losses.get(session).cloned()
    }

    /// Notes why the session's sandbox, which the caller is about to remove, is no more.
    pub fn record_loss(&mut self, session: &SessionId, reason: String) {
        self.losses.record(session.clone(), reason);
    }

    /// A client has been told what this sandbox replaces.
    pub fn told(&mut self, sandbox: &Sandbox) {
        if let Some(known) = self.by_name.get_mut(&sandbox.name)
            && known.uid == sandbox.uid
        {
            Arc::make_mut(known).replaces = None;
        }
    }

    /// A sandbox was marked as ended; the watch tells it later.
    pub fn mark_ended(&mut self, sandbox: &Sandbox) {
        if let Some(known) = self.by_name.get_mut(&sandbox.name)
            && known.uid == sandbox.uid
        {
            Arc::make_mut(known).ended = true;
        }
    }

    /// Whether the session has a living sandbox.
    #[must_use]
    pub fn has_sandbox(&self, session: &SessionId) -> bool {
        let names = self.by_session.get(session);
        names.is_some_and(|names| self.any_usable(names))
    }

    /// Forgets why the session's earlier sandbox is gone.
    pub fn forget_loss(&mut self, session: &SessionId) {
        self.losses.forget(session);
    }

    fn any_usable(&self, names: &BTreeSet<String>) -> bool {
        let mut sandboxes = names.iter().filter_map(|name| self.by_name.get(name));
        sandboxes.any(|sandbox| sandbox.usable())
    }

    fn reached(&mut self, pod: &Pod) {
        let version = pod.metadata.resource_version.as_deref();
        self.watched = self.watched.max(version.and_then(|version| version.parse().ok()));
    }

    fn put(&mut self, mut sandbox: Sandbox) {
        if let Some(known) = self.by_name.get(&sandbox.name) {
            if known.newer_than(&sandbox) {
                return;
            }
            if known.uid == sandbox.uid && known.session == sandbox.session && known.replaces.is_none() {
                // Told already; the note of that may be on its way still.
                sandbox.replaces = None;
            }
            if known.uid == sandbox.uid {
                self.unindex(&sandbox.name);
            } else {
                let replaced = known.uid.clone();
                self.remember_deletion(&replaced);
                self.remove(&sandbox.name);
            }
        }
        if let Some(session) = &sandbox.session
            && sandbox.usable()
        {
            // What it replaces stands on it.
            self.losses.forget(session);
        }
        let sandbox = Arc::new(sandbox);
        self.index(&sandbox);
        self.by_name.insert(sandbox.name.clone(), sandbox);
    }

    fn index(&mut self, sandbox: &Sandbox) {
        match &sandbox.session {
            Some(session) => {
                self.by_session
                    .entry(session.clone())
                    .or_default()
                    .insert(sandbox.name.clone());
            }
            None => {
                self.pool.insert(sandbox.name.clone());
            }
        }
    }

    fn unindex(&mut self, name: &str) {
        self.pool.remove(name);
        let Some(session) = self.by_name.get(name).and_then(|sandbox| sandbox.session.clone()) else {
            return;
        };
        if let Some(names) = self.by_session.get_mut(&session) {
            names.remove(name);
            if names.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }

    fn remove(&mut self, name: &str) {
        self.unindex(name);
        let Some(gone) = self.by_name.remove(name) else { return };
        if let Some(session) = &gone.session
            && !gone.ended
            && !self.has_sandbox(session)
        {
            self.losses.record(session.clone(), gone.loss());
        }
    }

    fn remember_deletion(&mut self, uid: &str) {
        if self.deleted.len() == REMEMBERED_DELETIONS {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid.to_owned());
    }

    fn finish_relist(&mut self) {
        let Some(relist) = self.relist.take() else { return };
        let gone: Vec<String> = self
            .by_name
            .keys()
            .filter(|name| !relist.listed.contains_key(*name) && !relist.observed.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            if let Some(uid) = self.by_name.get(&name).map(|sandbox| sandbox.uid.clone()) {
                self.remember_deletion(&uid);
            }
            self.remove(&name);
        }
        // Not the later of this and what was: a store of the API server that was restored counts anew.
        self.watched = relist.listed.values().filter_map(|sandbox| sandbox.version()).max();
        for sandbox in relist.listed.into_values() {
            self.put(Arc::unwrap_or_clone(sandbox));
        }
        self.synced = true;
    }
}

#[cfg(test)]
mod tests;
