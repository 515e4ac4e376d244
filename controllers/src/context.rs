//! What every reconcile shares: client, caches, settings, recorder, metrics, and the little that is remembered between
//! two reconciles.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cli_mcp_api::names;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};

use crate::auth_delegator::{Account, Standing};
use crate::build::{ChildKind, ChildRef, controller};
use crate::caches::Caches;
use crate::controller::Scope;
use crate::dereference::SecretContent;
use crate::idle::ACTIVITY_LAG;
use crate::metrics::Metrics;
use crate::pool::{Backoff, Expected};
use crate::settings::Settings;
use crate::status::Written;

/// Shared by all reconciles.
pub struct Context {
    /// The client; its writes are fenced by the leader election.
    pub client: Client,
    /// What the operator knows of itself.
    pub settings: Settings,
    /// Caches by scope.
    pub scopes: Vec<(Scope, Arc<Caches>)>,
    /// Publishes events. One recorder, because it counts repeats.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Metrics,
    memory: Mutex<Memory>,
}

/// What is remembered between two reconciles. Losing it costs reads and patience, never a wrong decision.
#[derive(Default)]
pub struct Memory {
    /// Contents of Secrets by namespace and name, valid for one version.
    pub secrets: HashMap<(String, String), Arc<SecretContent>>,
    /// Reconciles in progress, by namespace/name, with their start.
    pub running: HashMap<String, Instant>,
    /// Failed reconciles in a row by UID of the instance.
    pub failures: HashMap<String, u32>,
    /// Pools by UID of the instance.
    pub pools: HashMap<String, PoolMemory>,
    /// Statuses that were written and that the cache may not show yet, by UID of the instance.
    pub written: HashMap<String, Written>,
    /// In which generation children without our labels were looked for last, by UID of the instance.
    pub looked_for_strays: HashMap<String, Option<i64>>,
    /// Instances, by UID, whose sandboxes without their labels were looked for since this process began.
    pub looked_for_escaped: BTreeSet<String>,
    /// Services that got no cluster IP when they were made last, by UID of the instance: deleting them again would be no help.
    pub made_headless: HashMap<String, BTreeSet<ChildRef>>,
    /// Since when this replica reconciles.
    pub working_since: Option<Instant>,
}

impl Memory {
    /// How long the servers may still take to write what happened while nobody reconciled. An API server that was away
    /// has let nobody write that a session is active.
    #[must_use]
    pub fn activity_unknown_for(&self) -> Option<Duration> {
        let left = ACTIVITY_LAG.saturating_sub(self.working_since?.elapsed());
        (!left.is_zero()).then_some(left)
    }
}

/// What is remembered of a pool.
#[derive(Default)]
pub struct PoolMemory {
    /// Its failures, of sandboxes that were built from this.
    pub backoff: Backoff,
    /// Hash of what it was last built from: with another, earlier failures say nothing.
    pub built_from: Option<String>,
    /// Sandboxes that were created and that the cache may not show yet.
    pub expected: Expected,
}

impl Context {
    /// A context. `instance` names this replica in events.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Settings,
        scopes: Vec<(Scope, Arc<Caches>)>,
        metrics: Metrics,
        instance: Option<String>,
    ) -> Self {
        let reporter = Reporter {
            controller: names::FIELD_MANAGER.to_owned(),
            instance,
        };
        let recorder = Recorder::new(client.clone(), reporter);
        Self {
            client,
            settings,
            scopes,
            recorder,
            metrics,
            memory: Mutex::default(),
        }
    }

    /// What is remembered. Held for a moment, never over an await.
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caches that cover a namespace.
    #[must_use]
    pub fn caches(&self, namespace: &str) -> Option<&Arc<Caches>> {
        self.scopes
            .iter()
            .find(|(scope, _)| scope.covers(namespace))
            .map(|(_, caches)| caches)
    }

    /// Whether this operator watches a namespace.
    #[must_use]
    pub fn watches(&self, namespace: &str) -> bool {
        self.caches(namespace).is_some()
    }

    /// The ServiceAccounts that are named for the servers of all live instances, and whose they are.
    #[must_use]
    pub fn servers(&self) -> BTreeMap<Account, Standing> {
        let accounts = ChildKind::ServiceAccount.api_resource();
        let mut servers = BTreeMap::new();
        for (_, caches) in &self.scopes {
            for instance in caches.instances.state() {
                let (Some(namespace), None) = (instance.namespace(), &instance.metadata.deletion_timestamp) else {
                    continue;
                };
                let name = names::server(&instance.name_any());
                let reference = ObjectRef::new_with(&name, accounts.clone()).within(&namespace);
                let standing = match caches.children[&ChildKind::ServiceAccount].get(&reference) {
                    None => Standing::Unknown,
                    Some(account)
                        if controller(&account).is_some_and(|owner| instance.uid().as_ref() == Some(&owner.uid)) =>
                    {
                        Standing::Own
                    }
                    Some(_) => Standing::Foreign,
                };
                servers.insert((namespace, name), standing);
            }
        }
        servers
    }
}
