//! One child: read, compared, and made, changed or replaced if it differs and is ours.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_api::names;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Failure;
use crate::build::{Child, ChildKind, ChildRef, cluster_ip, controller};
use crate::context::Context;
use crate::difference::{differs, is_foreign};
use crate::error::text;
use crate::validate::Validated;

/// How often, and how far apart, an address is asked for that may not be free yet.
const ADDRESS_TRIES: usize = 4;
const ADDRESS_PAUSE: Duration = Duration::from_millis(500);

/// A child after it was looked at.
pub(super) struct Outcome {
    pub(super) live: Arc<DynamicObject>,
    pub(super) written: bool,
}

/// Whether this instance controls an object.
pub(super) fn is_ours(object: &DynamicObject, validated: &Validated) -> bool {
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

/// Makes or changes a child, if it differs.
pub(super) async fn apply_child(
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
        None => read(context, validated, reference).await?,
    };
    let desired = serde_json::to_value(&child.object).map_err(|error| fault(reference, &error))?;
    let Some(live) = live else {
        let live = create(&api, child).await?;
        addressed(context, validated, reference, &live)?;
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
    if is_without_address(reference, &live) {
        return Err(make_addressed(context, validated, reference, &live).await);
    }
    if !child_differs(reference.kind, &desired, &live)? {
        return Ok(Outcome { live, written: false });
    }
    own_by_apply(&api, reference)
        .await
        .map_err(|error| refused(reference, &error))?;
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
        now = api
            .replace(&reference.name, &parameters(), &whole)
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

/// Makes a Service with this cluster IP; none where it cannot have it. The API server tells of a Service's deletion before it
/// frees the address.
async fn create_at(api: &Api<DynamicObject>, child: &Child, address: IpAddr) -> Option<kube::Result<DynamicObject>> {
    let mut object = child.object.clone();
    object.data["spec"]["clusterIP"] = Value::from(address.to_string());
    let mut refusal = String::new();
    for _ in 0..ADDRESS_TRIES {
        match api.create(&parameters(), &object).await {
            Err(kube::Error::Api(status)) if status.is_invalid() => refusal = status.message,
            other => return Some(other),
        }
        tokio::time::sleep(ADDRESS_PAUSE).await;
    }
    let child = &child.reference;
    tracing::warn!(%child, %address, refusal, "A child does not get its address back: those who know it do not find it");
    None
}

/// Makes a child that was not there. An apply would take over what somebody made under its name since we looked. A Service gets
/// the address back that its clients know, unless another one has it by now.
async fn create(api: &Api<DynamicObject>, child: &Child) -> Result<DynamicObject, Failure> {
    let made = match child.address {
        Some(address) => match create_at(api, child, address).await {
            Some(made) => made,
            None => api.create(&parameters(), &child.object).await,
        },
        None => api.create(&parameters(), &child.object).await,
    };
    made.map_err(|error| match error {
        kube::Error::Api(status) if status.is_already_exists() => Failure {
            message: format!(
                "{} was made by somebody else meanwhile and is looked at again",
                child.reference
            ),
            transient: true,
            // Until it is known: nothing is granted to it, or through it.
            foreign: true,
        },
        error => refused(&child.reference, &error),
    })
}

/// Whether a Service has no cluster IP. No apply gives a headless one an address, and an alias would get another one than its
/// clients know.
fn is_without_address(reference: &ChildRef, live: &DynamicObject) -> bool {
    reference.kind == ChildKind::Service && cluster_ip(live).is_none()
}

/// Remembers of a Service that was just made whether it got an address, and fails if it did not.
fn addressed(
    context: &Context,
    validated: &Validated,
    reference: &ChildRef,
    made: &DynamicObject,
) -> Result<(), Failure> {
    let mut memory = context.memory();
    let headless = memory.made_headless.entry(validated.owner.uid.clone()).or_default();
    if is_without_address(reference, made) {
        headless.insert(reference.clone());
        return Err(made_headless(validated, reference));
    }
    headless.remove(reference);
    Ok(())
}

/// Deletes a Service without an address, so that it is made again with one; unless it was made so, and would be again. Returns
/// what is to be told of it.
async fn make_addressed(
    context: &Context,
    validated: &Validated,
    reference: &ChildRef,
    live: &DynamicObject,
) -> Failure {
    let made_so = {
        let memory = context.memory();
        let headless = memory.made_headless.get(&validated.owner.uid);
        headless.is_some_and(|headless| headless.contains(reference))
    };
    if made_so {
        return made_headless(validated, reference);
    }
    let deleted = api(context, validated, reference.kind)
        .delete(&reference.name, &only(live.uid()))
        .await;
    let message = match deleted {
        Ok(_) => format!("{reference} has no cluster IP and is made again"),
        // The cache is behind.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
            format!("{reference} had no cluster IP and is looked at again")
        }
        Err(error) => format!(
            "{reference} has no cluster IP and must be made again: {}. The operator could not: {}",
            delete_it(validated, reference),
            text(&error)
        ),
    };
    Failure {
        message,
        transient: true,
        foreign: false,
    }
}

fn made_headless(validated: &Validated, reference: &ChildRef) -> Failure {
    Failure {
        message: format!(
            "{reference} got no cluster IP when it was made: find what changes Services here, such as a mutating webhook, and {}",
            delete_it(validated, reference)
        ),
        transient: true,
        foreign: false,
    }
}

fn delete_it(validated: &Validated, service: &ChildRef) -> String {
    format!(
        "delete it (kubectl -n {} delete service {})",
        validated.namespace, service.name
    )
}

/// Lets apply take away again what was set when the object was made: what a manager has set otherwise, its apply keeps
/// (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#upgrading-from-client-side-apply-to-server-side-apply>).
async fn own_by_apply(api: &Api<DynamicObject>, reference: &ChildRef) -> kube::Result<()> {
    // The caches hold no managed fields of our own.
    let Some(mut whole) = api.get_opt(&reference.name).await? else {
        return Ok(());
    };
    let mut entries = whole.metadata.managed_fields.take().unwrap_or_default();
    let mut ours: Vec<_> = entries
        .iter_mut()
        .filter(|entry| entry.manager.as_deref() == Some(names::FIELD_MANAGER) && entry.subresource.is_none())
        .collect();
    match &mut ours[..] {
        [made] if made.operation.as_deref() == Some("Update") => made.operation = Some("Apply".to_owned()),
        _ => return Ok(()),
    }
    let metadata = json!({"uid": whole.uid(), "resourceVersion": whole.resource_version(), "managedFields": entries});
    let parameters = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"metadata": metadata}));
    api.patch(&reference.name, &parameters, &patch).await.map(|_| ())
}

/// Changes the object of the UID that `object` has.
async fn patch(api: &Api<DynamicObject>, reference: &ChildRef, object: Value) -> Result<DynamicObject, Failure> {
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    match api.patch(&reference.name, &parameters, &Patch::Apply(&object)).await {
        Err(kube::Error::Api(status)) if reference.kind.is_deleted() && is_immutable(&status) => {
            let parameters = only(object["metadata"]["uid"].as_str().map(str::to_owned));
            api.delete(&reference.name, &parameters)
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

/// A child as the API server has it, whatever its labels.
pub(super) async fn read(
    context: &Context,
    validated: &Validated,
    reference: &ChildRef,
) -> Result<Option<Arc<DynamicObject>>, Failure> {
    let read = api(context, validated, reference.kind).get_opt(&reference.name).await;
    read.map(|live| live.map(Arc::new))
        .map_err(|error| refused(reference, &error))
}

/// Deletes a child.
pub(super) async fn remove(
    context: &Context,
    validated: &Validated,
    reference: &ChildRef,
    live: &DynamicObject,
) -> Result<(), Failure> {
    match api(context, validated, reference.kind)
        .delete(&reference.name, &only(live.uid()))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(refused(reference, &error)),
    }
}

/// Deletes the object of this UID, and none that took its name.
fn only(uid: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid,
        resource_version: None,
    })
}

/// Parameters of what makes or replaces an object.
pub(super) fn parameters() -> PostParams {
    PostParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
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
