//! What the watches ask to be reconciled, and to whom: nobody while this replica does not lead.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cli_mcp_api::v1alpha1::CliMcpInstance;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::{ObjectRef, Store};

type Request = Result<ReconcileRequest<CliMcpInstance>, Infallible>;

/// What asks for reconciles. Clones ask the same queue.
#[derive(Clone, Default)]
pub struct Trigger(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: OnceLock<UnboundedSender<Request>>,
    /// Instances that were asked for and whose reconcile has not begun. The scheduler begins the time of its debounce anew with
    /// each request: under steady changes it would never be over.
    waiting: Mutex<HashSet<ObjectRef<CliMcpInstance>>>,
}

/// The reconciles that were asked for. kube's scheduler reads it at once and keeps one request an instance.
pub type Queue = UnboundedReceiver<Request>;

impl Trigger {
    /// Asks for the reconcile of an instance. While nobody reconciles this does nothing: a replica that stands by for
    /// weeks would keep every change of these weeks. Nor does it where a reconcile is about to begin.
    pub fn ask(&self, instance: ObjectRef<CliMcpInstance>) {
        if let Some(queue) = self.0.queue.get()
            && self.waiting().insert(instance.clone())
        {
            // The receiver is gone only at shutdown.
            let _ = queue.unbounded_send(Ok(instance.into()));
        }
    }

    /// The reconcile of an instance begins: what changes from now on asks again.
    pub fn begins(&self, instance: &ObjectRef<CliMcpInstance>) {
        self.waiting().remove(instance);
    }

    /// There was none to reconcile. One that was made again since asked in vain, and is in the store.
    pub fn was_gone(&self, instance: ObjectRef<CliMcpInstance>, instances: &Store<CliMcpInstance>) {
        self.begins(&instance);
        if instances.get(&instance).is_some() {
            self.ask(instance);
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashSet<ObjectRef<CliMcpInstance>>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue from now on, with every instance in it. A watch stores an object before it asks: what it has asked for
    /// in vain is in the store.
    #[must_use]
    pub fn open(&self, instances: &Store<CliMcpInstance>) -> Queue {
        let (sender, queue) = unbounded();
        // Opened once, at the takeover: a second queue would get nothing.
        let _ = self.0.queue.set(sender);
        instances
            .state()
            .iter()
            .for_each(|instance| self.ask(ObjectRef::from_obj(&**instance)));
        queue
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::future::FutureExt;
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher;

    use super::*;
    use crate::validate::fixtures;

    fn waiting(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.next().now_or_never().flatten())
            .map(|request| request.map(|request| request.obj_ref.name).unwrap_or_default())
            .collect()
    }

    #[test]
    fn a_replica_that_stands_by_keeps_no_requests_and_takes_over_every_instance() {
        let mut writer = Writer::new(());
        for name in ["a", "b"] {
            let mut instance = fixtures::instance();
            instance.metadata.name = Some(name.to_owned());
            writer.apply_watcher_event(&watcher::Event::Apply(instance));
        }
        let trigger = Trigger::default();
        let of_a_watch = trigger.clone();
        for _ in 0..1000 {
            of_a_watch.ask(ObjectRef::new("a").within("ns"));
        }
        let mut queue = trigger.open(&writer.as_reader());
        let mut all = waiting(&mut queue);
        all.sort();
        assert_eq!(all, ["a", "b"]);
        let instance = ObjectRef::new("a").within("ns");
        trigger.begins(&instance);
        of_a_watch.ask(instance.clone());
        assert_eq!(waiting(&mut queue), ["a"]);
        // Until that reconcile begins, others ask for the same.
        of_a_watch.ask(instance.clone());
        assert!(waiting(&mut queue).is_empty());
        trigger.begins(&instance);
        of_a_watch.ask(instance);
        assert_eq!(waiting(&mut queue), ["a"]);
    }

    #[test]
    fn an_instance_that_is_made_again_while_its_absence_is_told_is_reconciled() {
        let mut writer = Writer::new(());
        let trigger = Trigger::default();
        let mut queue = trigger.open(&writer.as_reader());
        let instance = ObjectRef::new("demo").within("ns");
        trigger.ask(instance.clone());
        assert_eq!(waiting(&mut queue), ["demo"]);
        trigger.was_gone(instance.clone(), &writer.as_reader());
        assert!(waiting(&mut queue).is_empty());

        trigger.ask(instance.clone());
        assert_eq!(waiting(&mut queue), ["demo"]);
        writer.apply_watcher_event(&watcher::Event::Apply(fixtures::instance()));
        trigger.ask(instance.clone());
        assert!(waiting(&mut queue).is_empty(), "it is asked for already");
        trigger.was_gone(instance, &writer.as_reader());
        assert_eq!(waiting(&mut queue), ["demo"]);
    }
}
