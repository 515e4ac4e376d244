//! Takes an instance down in order: no server that could create sandboxes, then no sandboxes, then no proxy that would serve
//! whoever reaches it, then the rest by owner references. The policies stay until the last sandbox and the last proxy are gone.

use std::time::Duration;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_sandbox::pod::is_owned_by;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::auth_delegator::{self, BindingError};
use crate::context::Context;
use crate::dereference::is_pod_of_deployment;
use crate::error::{self, Error, Result};
use crate::escaped::{self, Lost};
use crate::status;

/// How soon to look again; changes of the pods ask for it sooner.
const AGAIN: Duration = Duration::from_secs(5);

/// Whether the instance waits for the operator before it goes.
#[must_use]
pub fn is_held(instance: &CliMcpInstance) -> bool {
    instance
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == names::FINALIZER)
}

/// Makes the instance wait for the operator before it goes. Nothing is made of it before that, so its status tells when
/// that is refused.
///
/// # Errors
///
/// When the API server refuses; a conflict means that the instance changed, and is tried again.
pub async fn hold(context: &Context, instance: &CliMcpInstance) -> Result<()> {
    let mut finalizers = instance.finalizers().to_vec();
    finalizers.push(names::FINALIZER.to_owned());
    let held = set_finalizers(context, instance, finalizers).await;
    if let Err(error) = &held
        && !error.is_conflict()
    {
        tell(
            context,
            instance,
            "Nothing is made before the finalizer is set",
            Some(error),
        )
        .await?;
    }
    held
}

/// Tells in the status what the instance waits for, and what was refused.
async fn tell(context: &Context, instance: &CliMcpInstance, waits: &str, refused: Option<&Error>) -> Result<()> {
    let message = match refused {
        Some(error) => format!("{waits}. It is tried again: {error}"),
        None => waits.to_owned(),
    };
    let status = status::held_up(instance, &message, Timestamp::now());
    status::write(context, instance, &status).await?;
    Ok(())
}

/// Lets the instance go. One that is gone already is no error.
///
/// # Errors
///
/// As [`hold`].
pub async fn let_go(context: &Context, instance: &CliMcpInstance) -> Result<()> {
    let mut finalizers = instance.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != names::FINALIZER);
    set_finalizers(context, instance, finalizers).await
}

/// Guarded by the version that was read, so that no finalizer of others is lost.
async fn set_finalizers(context: &Context, instance: &CliMcpInstance, finalizers: Vec<String>) -> Result<()> {
    let namespace = instance.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let name = instance.name_any();
    let api: Api<CliMcpInstance> = Api::namespaced(context.client.clone(), &namespace);
    let metadata = json!({"resourceVersion": instance.resource_version(), "finalizers": finalizers});
    let parameters = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match api
        .patch(&name, &parameters, &Patch::Merge(json!({"metadata": metadata})))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(Error::api(format!("set the finalizer of {namespace}/{name}"))(error)),
    }
}

/// Finalizer of `kubectl delete --cascade=orphan`: the garbage collector is about to take the instance's name off
/// everything that was made for it, which is to stay
/// (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#orphaned-dependents>).
const ORPHAN: &str = "orphan";

/// What is left of an instance that is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Pods that the server's Deployment should have; 0 when it is gone or not ours.
    pub server_replicas: i32,
    /// Pods of the server.
    pub server_pods: usize,
    /// Sandboxes.
    pub sandboxes: usize,
    /// Pods that the proxy's Deployment should have; 0 when it is gone or not ours.
    pub proxy_replicas: i32,
    /// Pods of the proxy.
    pub proxy_pods: usize,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Scale the server to nothing.
    ScaleServerDown,
    /// Wait until its pods are gone.
    AwaitServer,
    /// Delete the sandboxes and wait until they are gone.
    DeleteSandboxes,
    /// Scale the proxy to nothing: without its policy it would serve every pod of the cluster.
    ScaleProxyDown,
    /// Wait until its pods are gone.
    AwaitProxy,
    /// Nothing is left: the finalizer goes.
    Finish,
}

/// Decides the next step.
#[must_use]
pub fn next(remains: Remains) -> Step {
    match remains {
        Remains {
            server_replicas: 1.., ..
        } => Step::ScaleServerDown,
        Remains { server_pods: 1.., .. } => Step::AwaitServer,
        Remains { sandboxes: 1.., .. } => Step::DeleteSandboxes,
        Remains {
            proxy_replicas: 1.., ..
        } => Step::ScaleProxyDown,
        Remains { proxy_pods: 1.., .. } => Step::AwaitProxy,
        _ => Step::Finish,
    }
}

/// A Deployment of the instance: the pods that it should have, and those that it has. Nothing of one that is not ours.
#[derive(Default)]
struct Workload {
    replicas: i32,
    pods: Vec<Pod>,
}

/// What was found of an instance that is being deleted.
struct Found {
    server: Workload,
    sandboxes: Vec<Pod>,
    proxy: Workload,
}

/// Looks for what is left, not in the caches: what they do not show yet must not outlive the instance.
async fn find(context: &Context, instance: &CliMcpInstance, namespace: &str) -> Result<Found> {
    let (name, uid) = (instance.name_any(), instance.uid().unwrap_or_default());
    let mut sandboxes = list(context, namespace, &name, Component::Sandbox).await?;
    sandboxes.retain(|pod| is_owned_by(pod, &uid));
    // Not those that only lost their owner: the garbage collector lets go of an instance's children where it was told to.
    let escaped = escaped::find(&context.client, namespace, instance)
        .await
        .map_err(Error::api(format!("list pods of {namespace}/{name}")))?;
    let unlabelled = escaped.into_iter().filter(|(_, lost)| *lost == Lost::Label);
    sandboxes.extend(unlabelled.map(|(pod, _)| Pod {
        metadata: pod.metadata,
        ..Pod::default()
    }));
    Ok(Found {
        server: workload(context, instance, namespace, &names::server(&name), Component::Server).await?,
        sandboxes,
        proxy: workload(context, instance, namespace, &names::proxy(&name), Component::Proxy).await?,
    })
}

async fn list(context: &Context, namespace: &str, instance: &str, component: Component) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let parameters = ListParams::default().labels(&labels::selector_string(instance, component));
    let listed = pods.list(&parameters).await;
    let listed = listed.map_err(Error::api(format!("list pods of {namespace}/{instance}")))?;
    Ok(listed.items)
}

async fn workload(
    context: &Context,
    instance: &CliMcpInstance,
    namespace: &str,
    deployment: &str,
    component: Component,
) -> Result<Workload> {
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    let found = deployments
        .get_opt(deployment)
        .await
        .map_err(Error::api(format!("read Deployment {namespace}/{deployment}")))?;
    let uid = instance.uid().unwrap_or_default();
    if let Some(found) = &found
        && !found.owner_references().iter().any(|owner| owner.uid == uid)
    {
        return Ok(Workload::default());
    }
    let mut pods = list(context, namespace, &instance.name_any(), component).await?;
    pods.retain(|pod| is_pod_of_deployment(pod, deployment));
    let replicas = found.and_then(|found| found.spec?.replicas);
    Ok(Workload {
        replicas: replicas.unwrap_or_default(),
        pods,
    })
}

async fn scale_down(context: &Context, namespace: &str, deployment: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    let parameters = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
    ignore_gone(deployments.patch(deployment, &parameters, &patch).await)
        .map_err(Error::api(format!("scale Deployment {namespace}/{deployment} to 0")))
}

/// Takes the next step. `None`: nothing is left, and the finalizer may go. The status tells what is waited for, and what
/// was refused.
///
/// # Errors
///
/// When the API server refuses.
pub async fn cleanup(context: &Context, instance: &CliMcpInstance) -> Result<Option<Duration>> {
    let namespace = instance.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let name = instance.name_any();
    let server = names::server(&name);
    if instance.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
        let waits = "Being deleted without its children: waits until the garbage collector has let go of them";
        tell(context, instance, waits, None).await?;
        return Ok(Some(AGAIN));
    }
    let found = match find(context, instance, &namespace).await {
        Ok(found) => found,
        Err(error) => {
            let waits = "Being deleted: what is left of it could not be read";
            tell(context, instance, waits, Some(&error)).await?;
            return Err(error);
        }
    };
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let remains = Remains {
        server_replicas: found.server.replicas,
        server_pods: found.server.pods.len(),
        sandboxes: found.sandboxes.len(),
        proxy_replicas: found.proxy.replicas,
        proxy_pods: found.proxy.pods.len(),
    };
    let step = next(remains);
    tracing::info!(namespace, instance = name, ?step, ?remains, "Taking the instance down");
    let mut refused = Vec::new();
    match step {
        Step::ScaleServerDown => refused.extend(scale_down(context, &namespace, &server).await.err()),
        Step::ScaleProxyDown => refused.extend(scale_down(context, &namespace, &names::proxy(&name)).await.err()),
        Step::AwaitServer | Step::AwaitProxy => {}
        Step::DeleteSandboxes => {
            let staying = found.sandboxes.iter();
            for sandbox in staying.filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let parameters = DeleteParams::default().preconditions(Preconditions {
                    uid: sandbox.uid(),
                    resource_version: None,
                });
                let deleted = ignore_gone(pods.delete(&sandbox.name_any(), &parameters).await)
                    .map_err(Error::api(format!("delete pod {namespace}/{}", sandbox.name_any())));
                refused.extend(deleted.err());
            }
        }
        Step::Finish => {
            match auth_delegator::let_go(context).await {
                Ok(_) => {}
                // Whoever made it decides what becomes of it: no reason to hold the instance.
                Err(error @ BindingError::Foreign) => tracing::warn!(%error, "The shared binding is left as it is"),
                // Nobody would come back to it once the last instance is gone.
                Err(BindingError::Refused(error)) => {
                    let action = format!("take {namespace}/{server} out of the shared ClusterRoleBinding");
                    refused.push(Error::api(action)(error));
                }
            }
            if refused.is_empty() {
                forget(context, instance, &namespace);
                return Ok(None);
            }
        }
    }
    tell(context, instance, &waits_for(step, &found), refused.first()).await?;
    error::first_of(refused)?;
    Ok(Some(AGAIN))
}

/// What holds a deletion up, for who asks why the instance is still there.
fn waits_for(step: Step, found: &Found) -> String {
    let (what, pods) = match step {
        Step::ScaleServerDown | Step::AwaitServer => ("the pods of its server are gone", &found.server.pods),
        Step::DeleteSandboxes => ("its sandboxes are gone", &found.sandboxes),
        Step::ScaleProxyDown | Step::AwaitProxy => ("the pods of its proxy are gone", &found.proxy.pods),
        Step::Finish => {
            return "Being deleted: waits until its server is taken out of the shared ClusterRoleBinding".to_owned();
        }
    };
    format!("Being deleted: waits until {what}{}", named(pods))
}

/// The first of these pods, and how many more there are.
fn named(pods: &[Pod]) -> String {
    match pods {
        [] => String::new(),
        [one] => format!(": {}", one.name_any()),
        [one, others @ ..] => format!(": {} and {} more", one.name_any(), others.len()),
    }
}

fn forget(context: &Context, instance: &CliMcpInstance, namespace: &str) {
    let mut memory = context.memory();
    let uid = instance.uid().unwrap_or_default();
    memory.pools.remove(&uid);
    memory.failures.remove(&uid);
    memory.written.remove(&uid);
    memory.looked_for_strays.remove(&uid);
    memory.looked_for_escaped.remove(&uid);
    memory.made_headless.remove(&uid);
    let name = instance.name_any();
    let mut secrets = vec![names::proxy_ca(&name), names::hmac(&name), names::tls(&name)];
    secrets.extend(instance.kubeconfig_secret());
    for secret in secrets {
        memory.secrets.remove(&(namespace.to_owned(), secret));
    }
}

fn ignore_gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_go_only_when_nothing_can_make_another_and_the_proxy_when_nobody_is_left_to_use_it() {
        let mut remains = Remains {
            server_replicas: 2,
            server_pods: 2,
            sandboxes: 5,
            proxy_replicas: 1,
            proxy_pods: 1,
        };
        assert_eq!(next(remains), Step::ScaleServerDown);
        remains.server_replicas = 0;
        assert_eq!(next(remains), Step::AwaitServer);
        remains.server_pods = 0;
        assert_eq!(next(remains), Step::DeleteSandboxes);
        remains.sandboxes = 0;
        assert_eq!(next(remains), Step::ScaleProxyDown);
        remains.proxy_replicas = 0;
        assert_eq!(next(remains), Step::AwaitProxy);
        remains.proxy_pods = 0;
        assert_eq!(next(remains), Step::Finish);
    }
}
