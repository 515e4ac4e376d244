//! Runs the reconciler over the namespaces it watches: starts the watches at once, reconciles while told to.

use std::sync::Arc;

use cli_mcp_api::v1alpha1::CliMcpInstance;
use futures::StreamExt;
use futures::channel::mpsc;
use kube::api::{ApiResource, DynamicObject};
use kube::core::{NamespaceResourceScope, Resource};
use kube::runtime::controller::{Config, applier};
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::context::Context;
use crate::metrics::Metrics;
use crate::reconcile::{error_policy, reconcile};
use crate::settings::Settings;

/// Instances that are reconciled at one time.
const CONCURRENCY: u16 = 8;

/// Changes within this time are one reconcile.
const DEBOUNCE: std::time::Duration = std::time::Duration::from_millis(100);

/// A reconcile sends a few dozen requests, each of which the client gives up on sooner.
const LONGEST_RECONCILE: std::time::Duration = std::time::Duration::from_secs(10 * 60);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every namespace.
    All,
    /// One namespace.
    Namespace(String),
}

impl Scope {
    /// Whether a namespace is within.
    #[must_use]
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(watched) => watched == namespace,
        }
    }

    /// The API of a kind.
    pub(crate) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        match self {
            Self::All => Api::all(client.clone()),
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        }
    }

    /// The API of a kind that is known by its name.
    pub(crate) fn dynamic_api(&self, client: &Client, resource: &ApiResource) -> Api<DynamicObject> {
        match self {
            Self::All => Api::all_with(client.clone(), resource),
            Self::Namespace(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        }
    }
}

type Queue = mpsc::UnboundedReceiver<
    Result<kube::runtime::controller::ReconcileRequest<CliMcpInstance>, std::convert::Infallible>,
>;

/// The reconciler with its watches.
pub struct Controller {
    context: Arc<Context>,
    queues: Vec<(Arc<Caches>, Queue)>,
    watches: JoinSet<()>,
}

/// Tells whether the caches are filled and the reconciles make progress.
#[derive(Clone)]
pub struct Readiness {
    caches: Vec<Arc<Caches>>,
    context: Arc<Context>,
}

impl Readiness {
    /// Whether every watch has delivered its first list.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.caches.iter().all(|caches| caches.synced())
    }

    /// A reconcile that has been running for longer than any should, if there is one.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        let memory = self.context.memory();
        let (instance, since) = memory.running.iter().min_by_key(|(_, since)| **since)?;
        let elapsed = since.elapsed();
        (elapsed > LONGEST_RECONCILE).then(|| format!("the reconcile of {instance} has been running for {elapsed:.0?}"))
    }
}

impl Controller {
    /// Starts the watches. A replica that does not lead keeps its caches warm, so that it can take over within
    /// seconds. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        client: Client,
        settings: Settings,
        scopes: Vec<Scope>,
        metrics: Metrics,
        instance: Option<String>,
    ) -> Self {
        let mut watches = JoinSet::new();
        let (scopes, queues): (_, Vec<(Arc<Caches>, Queue)>) = scopes
            .into_iter()
            .map(|scope| {
                let (trigger, queue) = mpsc::unbounded();
                let caches = Arc::new(Caches::start(&client, &scope, &trigger, &mut watches));
                ((scope, caches.clone()), (caches, queue))
            })
            .unzip();
        metrics.tell_conditions(queues.iter().map(|(caches, _)| caches.instances.clone()).collect());
        let context = Arc::new(Context::new(client, settings, scopes, metrics, instance));
        Self {
            context,
            queues,
            watches,
        }
    }

    /// A handle that outlives [`Self::run`].
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            caches: self.queues.iter().map(|(caches, _)| caches.clone()).collect(),
            context: self.context.clone(),
        }
    }

    /// Reconciles until `shutdown`, then lets the reconciles in progress finish.
    pub async fn run(self, shutdown: CancellationToken) {
        let readiness = self.readiness();
        let Self {
            context,
            queues,
            watches,
        } = self;
        let synced = async {
            while !readiness.synced() {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = synced => tracing::info!("Caches are filled, reconciling"),
            () = shutdown.cancelled() => return,
        }
        context.memory().working_since = Some(std::time::Instant::now());
        let appliers = queues.into_iter().map(|(caches, queue)| {
            let queue = queue.take_until(shutdown.clone().cancelled_owned());
            let config = Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
            let reconciler = |instance, context| Box::pin(reconcile(instance, context));
            applier(
                reconciler,
                error_policy,
                context.clone(),
                caches.instances.clone(),
                queue,
                config,
            )
            .for_each(|outcome| async move {
                match outcome {
                    // It went after something of it asked for a reconcile.
                    Ok(_) | Err(kube::runtime::controller::Error::ObjectNotFound(_)) => {}
                    Err(error) => tracing::debug!(%error, "Reconcile did not complete"),
                }
            })
        });
        futures::future::join_all(appliers).await;
        // The watches end here, after the last reconcile that reads from them.
        drop(watches);
    }
}
