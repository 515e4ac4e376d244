//! Writes the children that differ, by server-side apply with one field manager. An object that is not ours is
//! reported and left alone.

mod child;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cli_mcp_api::{labels, names};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::Value;

use self::child::{Outcome, apply_child, is_ours, parameters, read, remove};
use crate::auth_delegator::{self, Standing};
use crate::build::{Child, ChildKind, ChildRef, Children};
use crate::caches::Caches;
use crate::context::Context;
use crate::dereference::Observed;
use crate::error::{Result, text};
use crate::generate;
use crate::validate::Validated;

/// A child that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What is wrong and, where the admin can do something, what.
    pub message: String,
    /// Trying again may help without anybody doing anything.
    pub transient: bool,
    /// The name is taken by an object that is not this instance's.
    pub foreign: bool,
}

/// The children after apply. Only this stage makes one, and status is computed only from it.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// Children as they are now.
    pub children: BTreeMap<ChildRef, Arc<DynamicObject>>,
    /// What could not be applied.
    pub failures: Vec<Failure>,
    /// Number of writes that were sent.
    pub writes: usize,
}

/// Creates missing generate-once Secrets, applies every child that differs, and removes those that should not be.
///
/// # Errors
///
/// When a Secret cannot be generated. Refusals of the API server are [`Applied::failures`], so that one child does not
/// hold up the others.
pub async fn apply(
    context: &Context,
    caches: &Caches,
    validated: &Validated,
    mut children: Children,
    observed: &Observed,
) -> Result<Applied> {
    let mut applied = Applied::default();
    generate_once(context, validated, &mut applied).await?;
    let mut taken = BTreeSet::new();
    // The account first, so that it is known whose it is, and the binding before the pods that need it.
    let accounts_end = children
        .apply
        .partition_point(|child| child.reference.kind <= ChildKind::ServiceAccount);
    let others = children.apply.split_off(accounts_end);
    apply_all(context, validated, observed, children.apply, &mut taken, &mut applied).await;
    let account = server_account(validated, &taken, &applied);
    auth_delegator::keep(context, caches, account, &mut applied).await;
    apply_all(context, validated, observed, others, &mut taken, &mut applied).await;
    // Children that cannot be built now go on as they are: their state counts too.
    for (reference, live) in &observed.children {
        if is_ours(live, validated) {
            applied
                .children
                .entry(reference.clone())
                .or_insert_with(|| live.clone());
        }
    }
    remove_all(context, validated, observed, children.remove, &mut applied).await;
    Ok(applied)
}

/// Removes what should not be. One whose labels somebody took away is not in the caches: it is asked for once in each
/// generation of the spec.
async fn remove_all(
    context: &Context,
    validated: &Validated,
    observed: &Observed,
    references: Vec<ChildRef>,
    applied: &mut Applied,
) {
    let uid = &validated.owner.uid;
    let looked = context.memory().looked_for_strays.get(uid) == Some(&validated.generation);
    let mut removed = true;
    for reference in references {
        let live = match observed.children.get(&reference) {
            None if !looked => read(context, validated, &reference).await,
            known => Ok(known.cloned()),
        };
        let outcome = match live {
            Ok(Some(live)) if is_ours(&live, validated) => {
                applied.children.remove(&reference);
                applied.writes += 1;
                remove(context, validated, &reference, &live).await
            }
            Ok(_) => Ok(()),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = outcome {
            removed = false;
            applied.failures.push(failure);
        }
    }
    if removed && !looked {
        let mut memory = context.memory();
        memory.looked_for_strays.insert(uid.clone(), validated.generation);
    }
}

/// The account of the server, and whose it is now.
fn server_account(
    validated: &Validated,
    taken: &BTreeSet<ChildRef>,
    applied: &Applied,
) -> (auth_delegator::Account, Standing) {
    let account = ChildRef {
        kind: ChildKind::ServiceAccount,
        name: names::server(&validated.name),
    };
    let standing = if applied.children.contains_key(&account) {
        Standing::Own
    } else if taken.contains(&account) {
        Standing::Foreign
    } else {
        Standing::Unknown
    };
    ((validated.namespace.clone(), account.name), standing)
}

/// Applies in order. `taken` are the children whose names are somebody else's.
async fn apply_all(
    context: &Context,
    validated: &Validated,
    observed: &Observed,
    children: Vec<Child>,
    taken: &mut BTreeSet<ChildRef>,
    applied: &mut Applied,
) {
    for mut child in children {
        if let Some(foundation) = foundations(&child.reference)
            .into_iter()
            .find(|one| taken.contains(one))
        {
            applied.failures.push(withheld(&child.reference, &foundation));
            continue;
        }
        if let Err(failure) = bind_to_account(&mut child, applied) {
            applied.failures.push(failure);
            continue;
        }
        let known = observed.children.get(&child.reference).cloned();
        match apply_child(context, validated, &child, known).await {
            Ok(Outcome { live, written }) => {
                applied.writes += usize::from(written);
                applied.children.insert(child.reference, live);
            }
            Err(failure) => {
                if failure.foreign {
                    taken.insert(child.reference);
                }
                applied.failures.push(failure);
            }
        }
    }
}

/// What a child gives power to, or gets it from, by name. When one of these is somebody else's the child is not applied:
/// a binding would grant a role that others write, a pod would run with their account or their routes.
fn foundations(child: &ChildRef) -> Vec<ChildRef> {
    let kinds: &[ChildKind] = match child.kind {
        ChildKind::RoleBinding => &[ChildKind::Role, ChildKind::ServiceAccount],
        ChildKind::Deployment => &[ChildKind::ServiceAccount, ChildKind::ConfigMap],
        _ => &[],
    };
    let named = |kind: &ChildKind| ChildRef {
        kind: *kind,
        name: child.name.clone(),
    };
    kinds.iter().map(named).collect()
}

fn withheld(child: &ChildRef, foundation: &ChildRef) -> Failure {
    Failure {
        message: format!("{child} is not applied while {foundation} is not this instance's"),
        transient: true,
        foreign: true,
    }
}

/// A pod's token is for one ServiceAccount, by its UID
/// (<https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/>): when an account is made again under its
/// name, the pods that have a token of the former one are replaced, or the API server would refuse them until the token expires.
fn bind_to_account(child: &mut Child, applied: &Applied) -> Result<(), Failure> {
    let mounts_token = child
        .object
        .data
        .pointer("/spec/template/spec/automountServiceAccountToken");
    if child.reference.kind != ChildKind::Deployment || mounts_token != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let account = ChildRef {
        kind: ChildKind::ServiceAccount,
        name: child.reference.name.clone(),
    };
    let uid = applied.children.get(&account).and_then(|account| account.uid());
    let Some(uid) = uid else {
        return Err(Failure {
            message: format!("{} waits for {account}", child.reference),
            transient: true,
            foreign: false,
        });
    };
    child.object.data["spec"]["template"]["metadata"]["annotations"][labels::ACCOUNT_UID] = Value::from(uid);
    Ok(())
}

/// Creates, and never changes, the Secrets that are generated once.
async fn generate_once(context: &Context, validated: &Validated, applied: &mut Applied) -> Result<()> {
    let Validated {
        name,
        namespace,
        controller,
        ..
    } = validated;
    let mut secrets = Vec::new();
    if validated.needs_ca {
        secrets.push(generate::ca_secret(
            namespace,
            name,
            controller.clone(),
            time::OffsetDateTime::now_utc(),
        )?);
    }
    if validated.needs_hmac {
        secrets.push(generate::hmac_secret(namespace, name, controller.clone()));
    }
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    for secret in secrets {
        applied.writes += 1;
        match api.create(&parameters(), &secret).await {
            Ok(_) => tracing::info!(secret = secret.name_any(), namespace, "Generated Secret"),
            // Our cache is behind: what exists stays.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => applied.failures.push(Failure {
                message: format!("Secret {} could not be created: {}", secret.name_any(), text(&error)),
                transient: true,
                foreign: false,
            }),
        }
    }
    Ok(())
}
