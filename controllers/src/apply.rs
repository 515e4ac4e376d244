//! Writes the children that differ, by server-side apply with one field manager. An object that is not ours is
//! reported and left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cli_mcp_api::{labels, names};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::auth_delegator;
use crate::build::{Child, ChildKind, ChildRef, Children};
use crate::caches::Caches;
use crate::context::Context;
use crate::dereference::Observed;
use crate::difference::{differs, is_foreign};
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
    children: Children,
    observed: &Observed,
) -> Result<Applied> {
    let mut applied = Applied::default();
    generate_once(context, validated, &mut applied).await?;
    auth_delegator::keep(context, caches, &mut applied).await;
    let mut taken = BTreeSet::new();
    for mut child in children.apply {
        if let Some(foundation) = foundations(&child.reference)
            .into_iter()
            .find(|one| taken.contains(one))
        {
            applied.failures.push(withheld(&child.reference, &foundation));
            continue;
        }
        if let Err(failure) = bind_to_account(&mut child, &applied) {
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
    // Children that cannot be built now go on as they are: their state counts too.
    for (reference, live) in &observed.children {
        if is_ours(live, validated) {
            applied
                .children
                .entry(reference.clone())
                .or_insert_with(|| live.clone());
        }
    }
    for reference in children.remove {
        if let Some(live) = observed
            .children
            .get(&reference)
            .filter(|live| is_ours(live, validated))
        {
            applied.children.remove(&reference);
            applied.writes += 1;
            if let Err(failure) = remove(context, validated, &reference, live).await {
                applied.failures.push(failure);
            }
        }
    }
    Ok(applied)
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

struct Outcome {
    live: Arc<DynamicObject>,
    written: bool,
}

/// Whether this instance controls an object.
fn is_ours(object: &DynamicObject, validated: &Validated) -> bool {
    controller(object).is_some_and(|owner| owner.uid == validated.controller.uid)
}

/// Whether the operator applied this object and somebody took its owner reference away.
async fn lost_its_owner(api: &Api<DynamicObject>, object: &DynamicObject) -> kube::Result<bool> {
    if controller(object).is_some() {
        return Ok(false);
    }
    // The caches hold no managed fields of our own.
    let whole = api.get_opt(&object.name_any()).await?;
    Ok(whole.is_some_and(|whole| {
        let mut entries = whole.metadata.managed_fields.iter().flatten();
        entries.any(|entry| entry.manager.as_deref() == Some(names::FIELD_MANAGER))
    }))
}

fn controller(object: &DynamicObject) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    object
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
}

async fn apply_child(
    context: &Context,
    validated: &Validated,
    child: &Child,
    known: Option<Arc<DynamicObject>>,
) -> Result<Outcome, Failure> {
    let reference = &child.reference;
    let api = api(context, validated, reference.kind);
    let live = match known {
        Some(live) => Some(live),
        // Not among the objects with our labels: it does not exist, or it is somebody else's.
        None => api
            .get_opt(&reference.name)
            .await
            .map_err(|error| refused(reference, &error))?
            .map(Arc::new),
    };
    let desired = serde_json::to_value(&child.object).map_err(|error| fault(reference, &error))?;
    let Some(live) = live else {
        let live = patch(&api, reference, desired).await?;
        return Ok(Outcome {
            live: Arc::new(live),
            written: true,
        });
    };
    if !is_ours(&live, validated)
        && !lost_its_owner(&api, &live)
            .await
            .map_err(|error| refused(reference, &error))?
    {
        return Err(foreign(reference, &live, validated));
    }
    if live.metadata.deletion_timestamp.is_some() {
        return Err(Failure {
            message: format!("{reference} is being deleted and is made again when it is gone"),
            transient: true,
            foreign: false,
        });
    }
    if !child_differs(reference.kind, &desired, &live)? {
        return Ok(Outcome { live, written: false });
    }
    let mut guarded = desired.clone();
    // The object we looked at, and not one that took its name since.
    guarded["metadata"]["uid"] = Value::from(live.uid());
    let mut now = patch(&api, reference, guarded).await?;
    if child_differs(reference.kind, &desired, &now)? {
        // Apply takes nothing away that another manager added: replacing does. Its entry goes too, or it would own what
        // is equal in both, and the object would seem touched for ever.
        let mut whole = child.object.clone();
        whole.metadata.resource_version = now.resource_version();
        whole.metadata.uid = now.uid();
        let entries = now.metadata.managed_fields.take().unwrap_or_default();
        whole.metadata.managed_fields = Some(entries.into_iter().filter(|entry| !is_foreign(entry)).collect());
        let parameters = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        now = api
            .replace(&reference.name, &parameters, &whole)
            .await
            .map_err(|error| refused(reference, &error))?;
    }
    tracing::info!(child = %reference, namespace = validated.namespace, instance = validated.name, "Applied child");
    Ok(Outcome {
        live: Arc::new(now),
        written: true,
    })
}

/// Policies and permissions must be exactly ours: what somebody added there opens something.
fn child_differs(kind: ChildKind, desired: &Value, live: &DynamicObject) -> Result<bool, Failure> {
    let foreign = live.metadata.managed_fields.iter().flatten().any(is_foreign);
    let live = serde_json::to_value(live).map_err(|error| Failure {
        message: error.to_string(),
        transient: false,
        foreign: false,
    })?;
    let exact = match kind {
        ChildKind::NetworkPolicy => &["spec"][..],
        ChildKind::Role => &["rules"],
        ChildKind::RoleBinding => &["roleRef", "subjects"],
        ChildKind::ConfigMap => &["data"],
        ChildKind::Service | ChildKind::ServiceAccount | ChildKind::Deployment | ChildKind::PodDisruptionBudget => &[],
    };
    let more = exact.iter().any(|field| differs(&live[field], &desired[field]));
    let selector = "/spec/selector";
    let widened = live
        .pointer(selector)
        .zip(desired.pointer(selector))
        .is_some_and(|(live, desired)| differs(live, desired));
    // On OpenShift every ServiceAccount gets a pull secret from its controllers.
    let touched = kind != ChildKind::ServiceAccount && foreign;
    Ok(more || widened || touched || differs(desired, &live))
}

async fn patch(api: &Api<DynamicObject>, reference: &ChildRef, object: Value) -> Result<DynamicObject, Failure> {
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    match api.patch(&reference.name, &parameters, &Patch::Apply(&object)).await {
        Err(kube::Error::Api(status)) if is_immutable(&status) => {
            api.delete(&reference.name, &DeleteParams::default())
                .await
                .map_err(|error| refused(reference, &error))?;
            Err(Failure {
                message: format!("{reference} cannot be changed back and is made again"),
                transient: true,
                foreign: false,
            })
        }
        other => other.map_err(|error| refused(reference, &error)),
    }
}

/// Whether a field differs that can only be set at creation, such as a selector or a roleRef.
fn is_immutable(status: &Status) -> bool {
    status.is_invalid()
        && ["immutable", "cannot change roleRef"]
            .iter()
            .any(|text| status.message.contains(text))
}

async fn remove(
    context: &Context,
    validated: &Validated,
    reference: &ChildRef,
    live: &DynamicObject,
) -> Result<(), Failure> {
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: live.uid(),
        resource_version: None,
    });
    match api(context, validated, reference.kind)
        .delete(&reference.name, &parameters)
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(refused(reference, &error)),
    }
}

fn api(context: &Context, validated: &Validated, kind: ChildKind) -> Api<DynamicObject> {
    Api::namespaced_with(context.client.clone(), &validated.namespace, &kind.api_resource())
}

fn foreign(reference: &ChildRef, live: &DynamicObject, validated: &Validated) -> Failure {
    let ours_before = controller(live)
        .is_some_and(|owner| owner.kind == validated.controller.kind && owner.name == validated.controller.name);
    if ours_before {
        return Failure {
            message: format!("{reference} belongs to an earlier instance of this name and is being collected"),
            transient: true,
            foreign: false,
        };
    }
    Failure {
        message: format!(
            "{reference} exists and does not belong to this instance: delete or rename it, or rename the instance"
        ),
        transient: true,
        foreign: true,
    }
}

fn refused(reference: &ChildRef, error: &kube::Error) -> Failure {
    Failure {
        message: format!("{reference} could not be applied: {}", text(error)),
        transient: true,
        foreign: false,
    }
}

fn fault(reference: &ChildRef, error: &serde_json::Error) -> Failure {
    Failure {
        message: format!("{reference}: {error}"),
        transient: false,
        foreign: false,
    }
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
    let parameters = PostParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    for secret in secrets {
        applied.writes += 1;
        match api.create(&parameters, &secret).await {
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
