//! The status of an instance, computed from what was applied and seen; and its write, when it changed.

use std::sync::Arc;

use cli_mcp_api::conditions::{self, reasons};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::{CliMcpInstance, CliMcpInstanceStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{CustomResourceExt, Resource};
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::apply::Applied;
use crate::build::{ChildKind, ChildRef};
use crate::context::Context;
use crate::dereference::Observed;
use crate::egress::{self, Egress};
use crate::error::{Error, Result};
use crate::trouble;
use crate::validate::Validated;

/// What became of the warm pool in this reconcile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Unassigned sandboxes that are ready and current.
    pub ready: usize,
    /// Unassigned sandboxes that there should be.
    pub desired: usize,
    /// Why sandboxes of the pool do not start or cannot be created.
    pub trouble: Option<String>,
    /// Sandboxes are missing and may not be created yet (contract, section 8).
    pub gate_closed: bool,
    /// Number of sessions.
    pub sessions: usize,
}

/// Status, reason and message of a condition.
type Judgement = (&'static str, &'static str, String);

/// Computes the status. Deterministic but for `now`, which shows only where a condition flips.
#[must_use]
pub fn compute(
    before: Option<&CliMcpInstanceStatus>,
    validated: &Validated,
    applied: &Applied,
    observed: &Observed,
    pool: &PoolState,
    egress: &Egress,
    now: Timestamp,
) -> CliMcpInstanceStatus {
    let old = |type_: &str| {
        before
            .into_iter()
            .flat_map(|status| &status.conditions)
            .find(|condition| condition.type_ == type_)
    };
    let server = rollout(
        validated,
        applied,
        names::server(&validated.name),
        &observed.server_pods,
    );
    let proxy = rollout(validated, applied, names::proxy(&validated.name), &observed.proxy_pods);
    let egress = egress::condition(egress, old(conditions::EGRESS_ENFORCED));
    let same_spec = old(conditions::WARM_POOL_READY)
        .is_some_and(|old| old.status == "True" && old.observed_generation == validated.generation);
    let warm = warm_pool(pool, same_spec);
    let proxy_ready = proxy_ready(&proxy, validated, observed.proxy_ready);
    let ready = ready(validated, applied, &[&proxy, &server], &[&proxy_ready, &egress, &warm]);
    let judged = [
        (conditions::READY, ready),
        (conditions::PROXY_READY, proxy_ready),
        (conditions::WARM_POOL_READY, warm),
        (conditions::EGRESS_ENFORCED, egress),
    ];
    let conditions = judged
        .into_iter()
        .map(|(type_, (status, reason, message))| Condition {
            last_transition_time: old(type_)
                .filter(|old| old.status == status)
                .map_or(Time(now), |old| old.last_transition_time.clone()),
            message,
            observed_generation: validated.generation,
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: type_.to_owned(),
        })
        .collect();
    let count = |number: usize| Some(i32::try_from(number).unwrap_or(i32::MAX));
    CliMcpInstanceStatus {
        observed_generation: validated.generation,
        conditions,
        warm_pool_ready: count(pool.ready),
        warm_pool_desired: count(pool.desired),
        sessions: count(pool.sessions),
        resolved_sandbox_image: Some(validated.sandbox_image.clone()),
        client_service_account: Some(names::client(&validated.name)),
        url: Some(format!(
            "https://{}.{}.svc:{}/mcp",
            names::server(&validated.name),
            validated.namespace,
            names::SERVER_PORT
        )),
    }
}

/// How far a Deployment is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rollout {
    /// All pods are new and available.
    Done,
    /// Enough pods are available, and not all of them are new.
    Rolling(String),
    /// Too few pods are available; whether there is at least one.
    Unavailable { message: String, some: bool },
    /// It does not exist yet.
    Absent(String),
}

fn rollout(validated: &Validated, applied: &Applied, name: String, pods: &[Arc<Pod>]) -> Rollout {
    let reference = ChildRef {
        kind: ChildKind::Deployment,
        name,
    };
    let Some(deployment) = applied.children.get(&reference) else {
        return Rollout::Absent(format!("{reference} is not made yet: {}", awaited(validated)));
    };
    let number = |path: &str| {
        deployment
            .data
            .pointer(path)
            .and_then(Value::as_i64)
            .unwrap_or_default()
    };
    let wanted = number("/spec/replicas");
    let available = number("/status/availableReplicas");
    let current = number("/status/observedGeneration") >= deployment.metadata.generation.unwrap_or_default();
    let updated = number("/status/updatedReplicas");
    let rolled = current && updated >= wanted && number("/status/replicas") <= wanted;
    let unready = || {
        pods.iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !trouble::is_ready(pod))
    };
    let reason = unready()
        .find_map(|pod| Some(format!("pod {}: {}", pod.name_any(), trouble::of(pod)?)))
        .or_else(|| stalled(deployment));
    let with_reason = |text: String| match (&reason, unready().next()) {
        (Some(reason), _) => format!("{text}: {reason}"),
        (None, Some(pod)) => format!(
            "{text}. Pod {0} is starting; if it does not become ready: kubectl -n {1} describe pod {0}",
            pod.name_any(),
            validated.namespace
        ),
        (None, None) => text,
    };
    if available < wanted || (!rolled && reason.is_some()) {
        return Rollout::Unavailable {
            message: with_reason(format!("{reference}: {available} of {wanted} pods are available")),
            some: available > 0,
        };
    }
    if rolled {
        Rollout::Done
    } else {
        Rollout::Rolling(format!(
            "{reference} is being rolled out: {updated} of {wanted} pods are new"
        ))
    }
}

/// What the Deployments of an instance are made from, and what of it is not there yet.
fn awaited(validated: &Validated) -> String {
    if validated.needs_ca || validated.needs_hmac {
        "its Secrets are being generated".to_owned()
    } else if validated.template.is_none() {
        format!("Service {} has no cluster IP yet", names::proxy(&validated.name))
    } else {
        "the condition Ready tells why".to_owned()
    }
}

/// What the Deployment's own controller says: a quota, a policy, a deadline.
fn stalled(deployment: &DynamicObject) -> Option<String> {
    let conditions = deployment.data.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| {
            (condition["type"] == "ReplicaFailure" && condition["status"] == "True")
                || (condition["type"] == "Progressing" && condition["status"] == "False")
        })
        .and_then(|condition| condition["message"].as_str().map(str::to_owned))
}

/// The pods alone do not serve: the gate (contract, section 8) and the sandboxes go by the Service.
fn proxy_ready(proxy: &Rollout, validated: &Validated, has_endpoint: bool) -> Judgement {
    match proxy {
        Rollout::Done | Rollout::Rolling(_) | Rollout::Unavailable { some: true, .. } if !has_endpoint => (
            "False",
            reasons::NO_READY_ENDPOINT,
            format!(
                "Service {0} has no ready endpoint, though the Deployment has a pod: no sandbox is made. Kubernetes makes its EndpointSlice \
                 within seconds; if it does not: kubectl -n {1} annotate service {0} --overwrite looked-at=\"$(date)\"",
                names::proxy(&validated.name),
                validated.namespace
            ),
        ),
        Rollout::Done | Rollout::Rolling(_) | Rollout::Unavailable { some: true, .. } => (
            "True",
            reasons::AVAILABLE,
            "The credential proxy has a ready pod".to_owned(),
        ),
        Rollout::Unavailable { message, some: false } => ("False", reasons::DEPLOYMENT_UNAVAILABLE, message.clone()),
        Rollout::Absent(message) => match validated.problems.first() {
            Some(problem) => ("False", problem.reason, bounded(problem.message.clone())),
            None => ("False", reasons::RECONCILING, message.clone()),
        },
    }
}

/// A claim takes a sandbox out of the pool, and the pool is filled again: that is no loss of readiness, so a pool that
/// was full for this spec stays ready until its sandboxes fail, or are not ready for so long that the pool calls it trouble.
fn warm_pool(pool: &PoolState, was_ready_for_this_spec: bool) -> Judgement {
    let PoolState {
        ready,
        desired,
        trouble,
        ..
    } = pool;
    if *desired == 0 {
        return ("True", reasons::AVAILABLE, "No warm pool is asked for".to_owned());
    }
    if ready >= desired {
        return ("True", reasons::AVAILABLE, "The warm pool is full".to_owned());
    }
    if let Some(trouble) = trouble {
        return (
            "False",
            reasons::WARM_POOL_UNHEALTHY,
            format!("{ready} of {desired} warm sandboxes are ready: {trouble}"),
        );
    }
    if was_ready_for_this_spec {
        return ("True", reasons::AVAILABLE, "The warm pool is being refilled".to_owned());
    }
    let waiting = if pool.gate_closed {
        ": waiting for a ready proxy and its network policies"
    } else {
        ""
    };
    (
        "False",
        reasons::WARM_POOL_NOT_READY,
        format!("{ready} of {desired} warm sandboxes are ready{waiting}"),
    )
}

fn ready(validated: &Validated, applied: &Applied, deployments: &[&Rollout], conditions: &[&Judgement]) -> Judgement {
    if let Some(problem) = validated.problems.first() {
        let messages: Vec<&str> = validated
            .problems
            .iter()
            .map(|problem| problem.message.as_str())
            .collect();
        return ("False", problem.reason, bounded(messages.join(". Then: ")));
    }
    if !applied.failures.is_empty() {
        let messages: Vec<&str> = applied
            .failures
            .iter()
            .map(|failure| failure.message.as_str())
            .collect();
        return ("False", reasons::CHILDREN_NOT_READY, bounded(messages.join("; ")));
    }
    let unavailable = deployments.iter().find_map(|rollout| match rollout {
        Rollout::Unavailable { message, .. } => Some(message),
        _ => None,
    });
    if let Some(message) = unavailable {
        return ("False", reasons::DEPLOYMENT_UNAVAILABLE, bounded(message.clone()));
    }
    // What is only on its way is told below.
    let failed = conditions
        .iter()
        .find(|condition| condition.0 == "False" && condition.1 != reasons::RECONCILING);
    if let Some(condition) = failed {
        return (*condition).clone();
    }
    let unfinished = deployments.iter().find_map(|rollout| match rollout {
        Rollout::Rolling(message) | Rollout::Absent(message) => Some(message),
        _ => None,
    });
    match unfinished {
        Some(message) => ("False", reasons::RECONCILING, message.clone()),
        None => ("True", reasons::AVAILABLE, "The instance serves sessions".to_owned()),
    }
}

/// The message of a condition has at most 32,768 bytes; a screen has fewer.
fn bounded(text: String) -> String {
    const LONGEST: usize = 2000;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The status of an instance of which only this is known: as it was, and not Ready.
#[must_use]
pub fn held_up(instance: &CliMcpInstance, message: &str, now: Timestamp) -> CliMcpInstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    let generation = instance.metadata.generation;
    let (old, others): (Vec<_>, Vec<_>) = status
        .conditions
        .into_iter()
        .partition(|condition| condition.type_ == conditions::READY);
    let since = old.into_iter().find(|old| old.status == "False");
    let ready = Condition {
        last_transition_time: since.map_or(Time(now), |old| old.last_transition_time),
        message: message.to_owned(),
        observed_generation: generation,
        reason: reasons::RECONCILING.to_owned(),
        status: "False".to_owned(),
        type_: conditions::READY.to_owned(),
    };
    status.conditions = std::iter::once(ready).chain(others).collect();
    status.observed_generation = generation;
    status
}

/// A status that was written, and the version of the instance that the write made.
#[derive(Clone, Debug)]
pub struct Written {
    resource_version: String,
    status: CliMcpInstanceStatus,
}

/// The instance with the status that it has as far as is known: while the cache is behind a write of our own, what was
/// written. A transition would otherwise be seen, written and told again by each reconcile until the watch catches up.
#[must_use]
pub fn with_latest(context: &Context, instance: Arc<CliMcpInstance>) -> Arc<CliMcpInstance> {
    let uid = instance.uid().unwrap_or_default();
    let mut memory = context.memory();
    match memory.written.get(&uid) {
        Some(written) if is_behind(instance.meta().resource_version.as_deref(), &written.resource_version) => {
            let mut latest = Arc::unwrap_or_clone(instance);
            latest.status = Some(written.status.clone());
            Arc::new(latest)
        }
        Some(_) => {
            memory.written.remove(&uid);
            instance
        }
        None => instance,
    }
}

/// Whether the cache shows an earlier version than the written one. Versions are compared as numbers
/// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>); of what is no number only the
/// cache is believed.
fn is_behind(cached: Option<&str>, written: &str) -> bool {
    let number = |version: &str| version.parse::<u128>().ok();
    let (cached, written) = (cached.and_then(number), number(written));
    cached.zip(written).is_some_and(|(cached, written)| cached < written)
}

/// Writes the status, unless it is what the instance has, and remembers it for [`with_latest`].
///
/// # Errors
///
/// When the API server refuses; an instance that is gone is no error.
pub async fn write(context: &Context, instance: &CliMcpInstance, status: &CliMcpInstanceStatus) -> Result<bool> {
    if instance.status.as_ref() == Some(status) {
        return Ok(false);
    }
    let name = instance.name_any();
    let namespace = instance.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let resource = CliMcpInstance::api_resource();
    let body = serde_json::json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "uid": instance.meta().uid},
        "status": status,
    });
    let api: Api<CliMcpInstance> = Api::namespaced(context.client.clone(), &namespace);
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    match api.patch_status(&name, &parameters, &Patch::Apply(&body)).await {
        Ok(answer) => {
            let written = Written {
                resource_version: answer.resource_version().unwrap_or_default(),
                status: status.clone(),
            };
            context
                .memory()
                .written
                .insert(instance.uid().unwrap_or_default(), written);
            Ok(true)
        }
        Err(kube::Error::Api(refusal)) if refusal.is_not_found() => Ok(false),
        Err(error) => Err(Error::api(format!("write the status of {namespace}/{name}"))(error)),
    }
}

#[cfg(test)]
mod tests;
