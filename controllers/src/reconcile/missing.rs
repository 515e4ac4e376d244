//! Ends the sandboxes that lost a label or their owner: nothing holds them back, and nobody else would end them.

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_sandbox::pod::{is_owned_by, is_sandbox_name};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::Followup;
use crate::caches::Caches;
use crate::context::Context;
use crate::error::Error;
use crate::escaped;

/// Looks for them once a process, and whenever the watch missed one: a steady state costs nothing.
pub(super) async fn end(
    context: &Context,
    caches: &Caches,
    instance: &CliMcpInstance,
    namespace: &str,
    followup: &mut Followup,
) {
    let uid = instance.uid().unwrap_or_default();
    let departed = caches.departed.take(&ObjectRef::from_obj(instance));
    let first = !context.memory().looked_for_escaped.contains(&uid);
    if !first && !departed && !shows_one_without_owner(caches, namespace, instance, &uid) {
        return;
    }
    // Whatever fails is looked for again with the retry.
    context.memory().looked_for_escaped.remove(&uid);
    let found = match escaped::find(&context.client, namespace, instance).await {
        Ok(found) => found,
        Err(error) => {
            followup
                .failed
                .push(Error::api("list pods by their ServiceAccount")(error));
            return;
        }
    };
    let mut ended = true;
    for (pod, lost) in found
        .iter()
        .filter(|(pod, _)| pod.metadata.deletion_timestamp.is_none())
    {
        let name = pod.name_any();
        tracing::warn!(
            pod = name,
            namespace,
            ?lost,
            "Ends a sandbox that somebody took out of its instance"
        );
        match escaped::delete(&context.client, namespace, pod).await {
            Ok(()) => context.metrics.sandbox("ended"),
            Err(error) => {
                ended = false;
                followup
                    .failed
                    .push(Error::api(format!("delete sandbox {name}"))(error));
            }
        }
    }
    if ended {
        context.memory().looked_for_escaped.insert(uid);
    }
}

/// Whether the cache has a sandbox by its labels and its name that is nobody's.
fn shows_one_without_owner(caches: &Caches, namespace: &str, instance: &CliMcpInstance, uid: &str) -> bool {
    let name = instance.name_any();
    caches.pods_of(namespace, &name).iter().any(|pod| {
        let component = pod.labels().get(labels::COMPONENT).map(String::as_str);
        component == Some(Component::Sandbox.as_str())
            && is_sandbox_name(&name, &pod.name_any())
            && !is_owned_by(pod, uid)
            && pod.metadata.deletion_timestamp.is_none()
            && pod.creation_timestamp() >= instance.creation_timestamp()
    })
}
