//! The one ClusterRoleBinding that all instances share: it lets their servers have tokens reviewed.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};

use cli_mcp_api::names;

use crate::apply::{Applied, Failure};
use crate::build::{auth_delegator, is_auth_delegator};
use crate::caches::Caches;
use crate::context::Context;
use crate::error::text;

/// Keeps the shared ClusterRoleBinding at the servers of live instances.
pub async fn keep(context: &Context, caches: &Caches, applied: &mut Applied) {
    let known = caches.auth_delegator.state().first().cloned();
    match write(context, known.as_deref()).await {
        Ok(written) => applied.writes += usize::from(written),
        Err(failure) => applied.failures.push(failure),
    }
}

/// How often the shared binding is read again because another instance, or another operator, wrote it meanwhile.
const BINDING_ATTEMPTS: usize = 5;

/// Writes the shared ClusterRoleBinding if it differs; true if it did.
///
/// # Errors
///
/// When it is somebody else's, or the API server refuses.
pub async fn write(context: &Context, live: Option<&ClusterRoleBinding>) -> Result<bool, Failure> {
    let name = names::AUTH_DELEGATOR_BINDING;
    let api: Api<ClusterRoleBinding> = Api::all(context.client.clone());
    let failure = |message: String| Failure {
        message,
        transient: true,
        foreign: false,
    };
    let mut live = live.cloned();
    for _ in 0..BINDING_ATTEMPTS {
        if live.as_ref().is_some_and(|live| !is_auth_delegator(live)) {
            return Err(failure(format!(
                "ClusterRoleBinding {name} refers to another role than {}: it is not the operator's. Delete or rename it",
                names::AUTH_DELEGATOR_ROLE
            )));
        }
        let desired = auth_delegator(&context.servers(), live.as_ref(), |namespace| {
            context.watches(namespace)
        });
        let subjects = live.as_ref().map(|live| live.subjects.as_deref().unwrap_or_default());
        if subjects == Some(desired.subjects.as_deref().unwrap_or_default()) {
            return Ok(false);
        }
        let written = if live.is_none() {
            let parameters = PostParams {
                field_manager: Some(names::FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            api.create(&parameters, &desired).await
        } else {
            let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
            api.patch(name, &parameters, &Patch::Apply(&desired)).await
        };
        let refused = |error: &kube::Error| failure(format!("ClusterRoleBinding {name}: {}", text(error)));
        match written {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                live = api.get_opt(name).await.map_err(|error| refused(&error))?;
            }
            Err(error) => return Err(refused(&error)),
        }
    }
    Err(failure(format!(
        "ClusterRoleBinding {name} is being written by many at once"
    )))
}
