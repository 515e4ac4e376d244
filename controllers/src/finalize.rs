//! Takes an instance down in order: no server that could create sandboxes, then no sandboxes, then the rest by owner
//! references. The policies stay until the last sandbox is gone.

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
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Scale the server to nothing.
    ScaleDown,
    /// Wait until its pods are gone.
    AwaitServer,
    /// Delete the sandboxes and wait until they are gone.
    DeleteSandboxes,
    /// Nothing is left: the finalizer goes.
    Finish,
}

/// Decides the next step.
#[must_use]
pub fn next(remains: Remains) -> Step {
    match remains {
        Remains {
            server_replicas: 1.., ..
        } => Step::ScaleDown,
        Remains { server_pods: 1.., .. } => Step::AwaitServer,
        Remains { sandboxes: 1.., .. } => Step::DeleteSandboxes,
        _ => Step::Finish,
    }
}

/// What was found of an instance that is being deleted.
struct Found {
    server_replicas: i32,
    server_pods: Vec<Pod>,
    sandboxes: Vec<Pod>,
}

/// Looks for what is left, not in the caches: what they do not show yet must not outlive the instance.
async fn find(context: &Context, instance: &CliMcpInstance, namespace: &str) -> Result<Found> {
    let (name, uid) = (instance.name_any(), instance.uid().unwrap_or_default());
    let server = names::server(&name);
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let deployment = deployments
        .get_opt(&server)
        .await
        .map_err(Error::api(format!("read Deployment {namespace}/{server}")))?;
    let left_to_others = deployment
        .as_ref()
        .is_some_and(|deployment| !deployment.owner_references().iter().any(|owner| owner.uid == uid));
    let list = async |component: Component| {
        let parameters = ListParams::default().labels(&labels::selector_string(&name, component));
        pods.list(&parameters)
            .await
            .map_err(Error::api(format!("list pods of {namespace}/{name}")))
    };
    let (mut server_pods, mut sandboxes) = (
        list(Component::Server).await?.items,
        list(Component::Sandbox).await?.items,
    );
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
    server_pods.retain(|pod| is_pod_of_deployment(pod, &server));
    if left_to_others {
        server_pods.clear();
    }
    Ok(Found {
        server_replicas: deployment
            .filter(|_| !left_to_others)
            .and_then(|deployment| deployment.spec?.replicas)
            .unwrap_or_default(),
        server_pods,
        sandboxes,
    })
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
    let Found {
        server_replicas,
        server_pods,
        sandboxes,
    } = match find(context, instance, &namespace).await {
        Ok(found) => found,
        Err(error) => {
            let waits = "Being deleted: what is left of it could not be read";
            tell(context, instance, waits, Some(&error)).await?;
            return Err(error);
        }
    };
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let remains = Remains {
        server_replicas,
        server_pods: server_pods.len(),
        sandboxes: sandboxes.len(),
    };
    let step = next(remains);
    tracing::info!(namespace, instance = name, ?step, ?remains, "Taking the instance down");
    let mut refused = Vec::new();
    match step {
        Step::ScaleDown => {
            let parameters = PatchParams {
                field_manager: Some(names::FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
            let scaled = ignore_gone(deployments.patch(&server, &parameters, &patch).await)
                .map_err(Error::api(format!("scale Deployment {namespace}/{server} to 0")));
            refused.extend(scaled.err());
        }
        Step::AwaitServer => {}
        Step::DeleteSandboxes => {
            for sandbox in sandboxes.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
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
    tell(
        context,
        instance,
        &waits_for(step, &server_pods, &sandboxes),
        refused.first(),
    )
    .await?;
    error::first_of(refused)?;
    Ok(Some(AGAIN))
}

/// What holds a deletion up, for who asks why the instance is still there.
fn waits_for(step: Step, server_pods: &[Pod], sandboxes: &[Pod]) -> String {
    match step {
        Step::ScaleDown | Step::AwaitServer => format!(
            "Being deleted: waits until the pods of its server are gone{}",
            named(server_pods)
        ),
        Step::DeleteSandboxes => format!("Being deleted: waits until its sandboxes are gone{}", named(sandboxes)),
        Step::Finish => {
            "Being deleted: waits until its server is taken out of the shared ClusterRoleBinding".to_owned()
        }
    }
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
    fn sandboxes_go_only_when_nothing_can_make_another() {
        let remains = |server_replicas, server_pods, sandboxes| Remains {
            server_replicas,
            server_pods,
            sandboxes,
        };
        assert_eq!(next(remains(2, 2, 5)), Step::ScaleDown);
        assert_eq!(next(remains(0, 1, 5)), Step::AwaitServer);
        assert_eq!(next(remains(0, 0, 5)), Step::DeleteSandboxes);
        assert_eq!(next(remains(0, 0, 0)), Step::Finish);
    }
}
