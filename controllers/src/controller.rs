//! Runs the reconciler over the namespaces it watches: starts the watches at once, reconciles while told to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cli_mcp_api::v1alpha1::CliMcpInstance;
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::core::{NamespaceResourceScope, Resource};
use kube::runtime::controller::{Config, applier};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caches::Caches;
use crate::context::Context;
use crate::metrics::Metrics;
use crate::reconcile::{error_policy, reconcile};
use crate::settings::Settings;
use crate::trigger::Trigger;

/// Instances that are reconciled at one time.
const CONCURRENCY: u16 = 8;

/// Changes within this time are one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A reconcile sends a few dozen requests, each of which the client gives up on sooner.
const LONGEST_RECONCILE: Duration = Duration::from_secs(10 * 60);

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

/// The reconciler.
pub struct Controller {
    context: Arc<Context>,
    scopes: Vec<(Arc<Caches>, Trigger)>,
}

/// The watches that fill the caches. Dropping them ends them.
pub struct Watches(JoinSet<()>);

/// A watch goes on for ever; one that ends leaves a cache that grows old without anybody seeing it.
#[derive(Debug, thiserror::Error)]
#[error("a watch ended, and what it showed grows old: {0}")]
pub struct WatchEnded(pub String);

impl Watches {
    /// Waits until one of them ends, which none should.
    pub async fn ended(&mut self) -> WatchEnded {
        WatchEnded(match self.0.join_next().await {
            Some(Err(error)) => error.to_string(),
            Some(Ok(())) => "its stream is over".to_owned(),
            None => "there is none".to_owned(),
        })
    }
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
    pub fn stuck(&self, now: Instant) -> Option<String> {
        let memory = self.context.memory();
        let (instance, since) = memory.running.iter().min_by_key(|(_, since)| **since)?;
        let elapsed = now.duration_since(*since);
        (elapsed > LONGEST_RECONCILE).then(|| format!("the reconcile of {instance} has been running for {elapsed:.0?}"))
    }
}

impl Controller {
    /// Starts the watches. A replica that does not lead keeps its caches warm, so that it can take over within
    /// seconds. The caller keeps the watches for as long as it reconciles. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        client: Client,
        settings: Settings,
        scopes: Vec<Scope>,
        metrics: Metrics,
        instance: Option<String>,
    ) -> (Self, Watches) {
        let mut watches = JoinSet::new();
        let (covered, scopes): (_, Vec<(Arc<Caches>, Trigger)>) = scopes
            .into_iter()
            .map(|scope| {
                let trigger = Trigger::default();
                let caches = Arc::new(Caches::start(&client, &scope, &trigger, &mut watches));
                ((scope, caches.clone()), (caches, trigger))
            })
            .unzip();
        metrics.tell_conditions(scopes.iter().map(|(caches, _)| caches.instances.clone()).collect());
        let context = Arc::new(Context::new(client, settings, covered, metrics, instance));
        (Self { context, scopes }, Watches(watches))
    }

    /// A handle that outlives [`Self::run`].
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            caches: self.scopes.iter().map(|(caches, _)| caches.clone()).collect(),
            context: self.context.clone(),
        }
    }

    /// Reconciles until `shutdown`, then lets the reconciles in progress finish.
    pub async fn run(self, shutdown: CancellationToken) {
        let readiness = self.readiness();
        let Self { context, scopes } = self;
        let synced = async {
            while !readiness.synced() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = synced => tracing::info!("Caches are filled, reconciling"),
            () = shutdown.cancelled() => return,
        }
        context.memory().working_since = Some(Instant::now());
        let appliers = scopes.into_iter().map(|(caches, trigger)| {
            let queue = trigger
                .open(&caches.instances)
                .take_until(shutdown.clone().cancelled_owned());
            let config = Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
            let (at_start, for_gone, instances) = (trigger.clone(), trigger, caches.instances.clone());
            let reconciler = move |instance: Arc<CliMcpInstance>, context| {
                at_start.begins(&ObjectRef::from_obj(&*instance));
                Box::pin(reconcile(instance, context))
            };
            applier(
                reconciler,
                error_policy,
                context.clone(),
                caches.instances.clone(),
                queue,
                config,
            )
            .for_each(move |outcome| {
                match outcome {
                    Ok(_) => {}
                    // It went after something of it asked for a reconcile.
                    Err(kube::runtime::controller::Error::ObjectNotFound(gone)) => {
                        let gone = ObjectRef::new(&gone.name).within(gone.namespace.as_deref().unwrap_or_default());
                        for_gone.was_gone(gone, &instances);
                    }
                    Err(error) => tracing::debug!(%error, "Reconcile did not complete"),
                }
                std::future::ready(())
            })
        });
        futures::future::join_all(appliers).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::fake::FakeServer;
    use crate::validate::fixtures;

    #[tokio::test]
    async fn a_reconcile_that_hangs_is_seen_and_one_that_is_over_is_not() {
        let unanswered = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let caches = Arc::new(FakeServer::default().caches());
        let context = Arc::new(Context::new(
            Client::new(unanswered, "ns"),
            fixtures::settings(),
            vec![(Scope::All, caches.clone())],
            Metrics::register(&mut Registry::default()),
            None,
        ));
        let readiness = Readiness {
            caches: vec![caches],
            context: context.clone(),
        };
        let mut hanging = Box::pin(reconcile(Arc::new(fixtures::instance()), context));
        assert!((&mut hanging).now_or_never().is_none());
        let started = Instant::now();
        assert_eq!(readiness.stuck(started), None);
        let told = readiness.stuck(started + LONGEST_RECONCILE * 2).unwrap();
        assert!(told.contains("ns/demo"), "{told}");
        drop(hanging);
        assert_eq!(readiness.stuck(started + LONGEST_RECONCILE * 2), None);
    }

    #[tokio::test]
    async fn a_watch_that_ends_is_told_with_its_cause() {
        let mut watches = Watches(JoinSet::new());
        watches.0.spawn(std::future::pending());
        watches.0.spawn(async { panic!("the test says so") });
        let told = watches.ended().await.to_string();
        assert!(told.contains("the test says so"), "{told}");
        watches.0.spawn(async {});
        assert!(watches.ended().await.to_string().contains("its stream is over"));
    }
}
