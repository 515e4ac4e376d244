//! The one ClusterRoleBinding that all instances share: it lets their servers have tokens reviewed.

use std::collections::{BTreeMap, BTreeSet};

use cli_mcp_api::names;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};

use crate::apply::{Applied, Failure};
use crate::build::{auth_delegator, is_auth_delegator};
use crate::caches::Caches;
use crate::context::Context;
use crate::error::text;

/// A ServiceAccount, as (namespace, name).
pub type Account = (String, String);

/// Whose the ServiceAccount is that is named for an instance's server. The name alone says nothing: `cli-mcp-a-proxy` is
/// that of the server of `a-proxy`, or of the proxy of `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The instance controls it.
    Own,
    /// Somebody else's.
    Foreign,
    /// The caches do not show it: it is not there yet, or it has none of our labels.
    Unknown,
}

/// Why the shared binding is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum BindingError {
    /// It is somebody else's.
    #[error(
        "ClusterRoleBinding {} refers to another role than {}: it is not the operator's. Delete or rename it",
        names::AUTH_DELEGATOR_BINDING,
        names::AUTH_DELEGATOR_ROLE
    )]
    Foreign,
    /// The API server refused.
    #[error("ClusterRoleBinding {}: {}", names::AUTH_DELEGATOR_BINDING, text(.0))]
    Refused(#[from] kube::Error),
}

/// Keeps the shared ClusterRoleBinding at the servers of live instances. `account` is that of the instance which is being
/// reconciled: what was just applied, the caches may not show.
pub async fn keep(context: &Context, caches: &Caches, account: (Account, Standing), applied: &mut Applied) {
    let known = caches.auth_delegator.state().first().cloned();
    match write(context, known.as_deref(), Some(account)).await {
        Ok(written) => applied.writes += usize::from(written),
        Err(error) => applied.failures.push(Failure {
            message: error.to_string(),
            transient: true,
            foreign: false,
        }),
    }
}

/// Takes the servers of instances that are gone, or are being deleted, out of the shared ClusterRoleBinding.
///
/// # Errors
///
/// As [`write`].
pub async fn let_go(context: &Context) -> Result<bool, BindingError> {
    // Not from the caches: who was bound a moment ago must not stay bound.
    let live = api(context).get_opt(names::AUTH_DELEGATOR_BINDING).await?;
    write(context, live.as_ref(), None).await
}

/// How often the shared binding is read again because another instance, or another operator, wrote it meanwhile.
const BINDING_ATTEMPTS: usize = 5;

/// Writes the shared ClusterRoleBinding if it differs; true if it did.
///
/// # Errors
///
/// When it is somebody else's, or the API server refuses.
async fn write(
    context: &Context,
    live: Option<&ClusterRoleBinding>,
    surely: Option<(Account, Standing)>,
) -> Result<bool, BindingError> {
    let name = names::AUTH_DELEGATOR_BINDING;
    let api = api(context);
    let mut live = live.cloned();
    let mut attempt = 1;
    loop {
        if live.as_ref().is_some_and(|live| !is_auth_delegator(live)) {
            return Err(BindingError::Foreign);
        }
        let mut servers = context.servers();
        servers.extend(surely.clone());
        let desired = auth_delegator(&entitled(servers, live.as_ref()), live.as_ref(), |namespace| {
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
        match written {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status))
                if attempt < BINDING_ATTEMPTS && (status.is_conflict() || status.is_already_exists()) =>
            {
                live = api.get_opt(name).await?;
                attempt += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn api(context: &Context) -> Api<ClusterRoleBinding> {
    Api::all(context.client.clone())
}

/// Who is bound. An account that is not known to be anybody's stays as it is: the reconcile of its own instance knows.
fn entitled(servers: BTreeMap<Account, Standing>, live: Option<&ClusterRoleBinding>) -> BTreeSet<Account> {
    let bound: BTreeSet<Account> = live
        .iter()
        .flat_map(|binding| binding.subjects.iter().flatten())
        .filter_map(|subject| Some((subject.namespace.clone()?, subject.name.clone())))
        .collect();
    servers
        .into_iter()
        .filter(|(account, standing)| match standing {
            Standing::Own => true,
            Standing::Foreign => false,
            Standing::Unknown => bound.contains(account),
        })
        .map(|(account, _)| account)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_nobody_knows_stays_as_it_is() {
        let account = |name: &str| ("ns".to_owned(), name.to_owned());
        let live = auth_delegator(&["bound", "theirs"].map(account).into(), None, |_| true);
        let servers = [
            ("mine", Standing::Own),
            ("theirs", Standing::Foreign),
            ("bound", Standing::Unknown),
            ("new", Standing::Unknown),
        ];
        let servers = servers.map(|(name, standing)| (account(name), standing)).into();
        assert_eq!(entitled(servers, Some(&live)), ["bound", "mine"].map(account).into());
    }
}
