//! One reconcile of one instance, stage after stage, and what happens after a failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cli_mcp_api::labels;
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::apply::{Applied, apply};
use crate::build::build;
use crate::caches::Caches;
use crate::context::Context;
use crate::dereference::dereference;
use crate::egress;
use crate::error::{Error, Result, text};
use crate::events;
use crate::finalize;
use crate::idle::{self, Limits, Verdict};
use crate::pool::{self, Wanted};
use crate::sandboxes::{self, Sandbox};
use crate::status::{self, PoolState};
use crate::validate::{Validated, validate};

/// How soon a child that could not be applied is tried again.
const RETRY_CHILDREN: Duration = Duration::from_secs(15);

/// How soon a sandbox that is running and not ready is looked at again: the kubelet's report of its probe is no change
/// of the pod.
const RETRY_EGRESS: Duration = Duration::from_secs(10);

/// The longest time without a look, should a watch have missed something.
const RESYNC: Duration = Duration::from_secs(30 * 60);

/// Sandboxes that are created or deleted at once.
const CONCURRENT_SANDBOXES: usize = 8;

/// The shortest and the longest pause after a failed reconcile.
const FAILED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(120));

/// Reconciles an instance: makes the cluster what it says, or takes it down.
///
/// # Errors
///
/// What must be tried again; see [`error_policy`].
pub async fn reconcile(instance: Arc<CliMcpInstance>, context: Arc<Context>) -> Result<Action> {
    let _measured = context.metrics.reconcile();
    let namespace = instance.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let Some(caches) = context.caches(&namespace).cloned() else {
        return Ok(Action::await_change());
    };
    let _running = Running::start(&context, format!("{namespace}/{}", instance.name_any()));
    let action = if instance.metadata.deletion_timestamp.is_none() {
        if finalize::is_held(&instance) {
            ensure(&context, &caches, &instance).await?
        } else {
            // The change of the instance asks for the next reconcile.
            finalize::hold(&context, &instance).await?;
            Action::await_change()
        }
    } else if finalize::is_held(&instance) {
        match finalize::cleanup(&context, &caches, &instance).await? {
            Some(again) => Action::requeue(again),
            None => {
                finalize::let_go(&context, &instance).await?;
                Action::await_change()
            }
        }
    } else {
        Action::await_change()
    };
    context.memory().failures.remove(&instance.uid().unwrap_or_default());
    Ok(action)
}

/// Notes that a reconcile is running, for `/healthz`.
struct Running<'a> {
    context: &'a Context,
    instance: String,
}

impl<'a> Running<'a> {
    fn start(context: &'a Context, instance: String) -> Self {
        context.memory().running.insert(instance.clone(), Instant::now());
        Self { context, instance }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.context.memory().running.remove(&self.instance);
    }
}

/// Backs off per instance: twice the pause after each failure in a row.
#[must_use]
pub fn error_policy(instance: Arc<CliMcpInstance>, error: &Error, context: Arc<Context>) -> Action {
    context.metrics.failed(error);
    let pause = {
        let mut memory = context.memory();
        let failures = memory.failures.entry(instance.uid().unwrap_or_default()).or_default();
        *failures = failures.saturating_add(1);
        pause_after(*failures)
    };
    let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
    tracing::warn!(namespace, instance = name, %error, again_in = ?pause, "Reconcile failed");
    Action::requeue(pause)
}

fn pause_after(failures: u32) -> Duration {
    FAILED
        .0
        .saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(FAILED.1)
}

async fn ensure(context: &Context, caches: &Caches, instance: &CliMcpInstance) -> Result<Action> {
    let observed = dereference(context, caches, instance).await?;
    let validated = validate(instance, &observed, &context.settings)?;
    let children = build(&validated)?;
    let applied = apply(context, caches, &validated, children, &observed).await?;
    context.metrics.wrote(applied.writes);
    refresh_proxy_files(context, &validated, &observed.proxy_pods).await?;

    let sandboxes = Sandbox::all(&observed.sandboxes);
    let mut again = vec![RESYNC];
    let gate_open = gate_is_open(&validated, &applied, observed.proxy_ready);
    let pool = keep_pool(context, &validated, &sandboxes, gate_open, instance, &mut again).await;
    end_sessions(context, &validated, &sandboxes, &mut again).await?;
    let reported = egress::reported_open(&context.client, &validated.namespace, &sandboxes)
        .await
        .map_err(Error::api("read events of sandboxes"))?;
    if sandboxes.iter().any(egress::is_suspicious) {
        again.push(RETRY_EGRESS);
    }
    let egress = egress::judge(validated.spec.sandbox.egress_check, &sandboxes, pool.desired, reported);

    let before = instance.status.as_ref();
    let status = status::compute(
        before,
        &validated,
        &applied,
        &observed,
        &pool,
        &egress,
        Timestamp::now(),
    );
    if status::write(&context.client, instance, &status).await? {
        events::publish(context, instance, events::of_transition(before, &status, &validated)).await;
    }
    if applied.failures.iter().any(|failure| failure.transient) {
        again.push(RETRY_CHILDREN);
    }
    Ok(Action::requeue(again.into_iter().min().unwrap_or(RESYNC)))
}

/// Contract, section 8: no sandbox before the proxy answers and the policies stand. They must be this instance's: what
/// others wrote under these names closes nothing.
fn gate_is_open(validated: &Validated, applied: &Applied, proxy_ready: bool) -> bool {
    use crate::build::{ChildKind, ChildRef};
    let has = |kind: ChildKind, name: String| applied.children.get(&ChildRef { kind, name });
    let taken = applied.failures.iter().any(|failure| failure.foreign);
    let closed = has(ChildKind::NetworkPolicy, names::sandbox(&validated.name)).is_some_and(|policy| {
        policy
            .data
            .pointer("/spec/policyTypes")
            .and_then(serde_json::Value::as_array)
            .is_some_and(|types| types.iter().any(|type_| type_ == "Egress"))
    });
    closed
        && proxy_ready
        && !taken
        && has(ChildKind::NetworkPolicy, names::proxy(&validated.name)).is_some()
        && has(ChildKind::ConfigMap, names::proxy(&validated.name)).is_some()
}

/// Stamps the proxy's pods when what they mount changed: the kubelet syncs a pod's files when the pod changes.
async fn refresh_proxy_files(context: &Context, validated: &Validated, pods: &[Arc<Pod>]) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &validated.namespace);
    let stamp = &validated.proxy_inputs_hash;
    let outdated = pods.iter().filter(|pod| {
        pod.metadata.deletion_timestamp.is_none() && pod.annotations().get(labels::INPUTS_HASH) != Some(stamp)
    });
    for pod in outdated {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::INPUTS_HASH: stamp}}}));
        let parameters = PatchParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api.patch_metadata(&pod.name_any(), &parameters, &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(Error::api(format!("stamp pod {}", pod.name_any()))(error)),
        }
    }
    Ok(())
}

async fn keep_pool(
    context: &Context,
    validated: &Validated,
    sandboxes: &[Sandbox],
    gate_open: bool,
    instance: &CliMcpInstance,
    again: &mut Vec<Duration>,
) -> PoolState {
    let size = usize::try_from(validated.spec.sandbox.warm_pool_size).unwrap_or_default();
    let mut state = PoolState {
        desired: size,
        gate_closed: !gate_open,
        sessions: sandboxes
            .iter()
            .filter(|sandbox| sandbox.session.is_some() && !sandbox.terminating)
            .count(),
        ..PoolState::default()
    };
    // While the routes cannot be made the former ones stand, and what was built for them stays.
    let (Some(template), Some(key), Some(_)) = (&validated.template, &validated.hmac_key, &validated.proxy_config)
    else {
        state.ready = sandboxes
            .iter()
            .filter(|sandbox| sandbox.session.is_none() && sandbox.ready)
            .count();
        return state;
    };
    let uid = instance.uid().unwrap_or_default();
    let now = Timestamp::now();
    let (plan, last_failure) = {
        let mut memory = context.memory();
        let pool = memory.pools.entry(uid.clone()).or_default();
        let wanted = Wanted {
            size,
            spec_hash: &template.spec_hash(),
            mounts_hash: &validated.mounts_hash,
            expected: pool.unseen(sandboxes, Instant::now()),
            gate_open,
        };
        let plan = pool::plan(&wanted, sandboxes, &pool.backoff, now);
        if plan.failed {
            let reason = plan
                .trouble
                .clone()
                .unwrap_or_else(|| "a sandbox of the pool ended".to_owned());
            pool.backoff.fail(now, reason);
        } else if plan.ready >= size {
            pool.backoff = pool::Backoff::default();
        }
        (plan, pool.backoff.reason.clone())
    };
    again.extend(plan.again);
    let client = &context.client;
    let deletions = plan.delete.iter().map(|(sandbox, cause)| async move {
        let deleted =
            sandboxes::delete_if(client, &validated.namespace, sandbox, |fresh| fresh.session.is_none()).await;
        (sandbox, cause, deleted)
    });
    let deleted: Vec<_> = stream::iter(deletions)
        .buffer_unordered(CONCURRENT_SANDBOXES)
        .collect()
        .await;
    for (sandbox, cause, deleted) in deleted {
        match deleted {
            Ok(true) => {
                context.metrics.sandbox("deleted");
                tracing::info!(
                    pod = sandbox.name,
                    ?cause,
                    namespace = validated.namespace,
                    "Deleted warm sandbox"
                );
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(pod = sandbox.name, %error, "Failed to delete a warm sandbox");
                again.push(RETRY_CHILDREN);
            }
        }
    }
    let creations = (0..plan.create).map(|_| sandboxes::create(client, validated, template, key));
    let created: Vec<_> = stream::iter(creations)
        .buffer_unordered(CONCURRENT_SANDBOXES)
        .collect()
        .await;
    let mut refused = None;
    {
        let mut memory = context.memory();
        let pool = memory.pools.entry(uid).or_default();
        for created in created {
            match created {
                Ok(name) => {
                    context.metrics.sandbox("created");
                    pool.expected.insert(name, Instant::now());
                }
                Err(error) => refused = Some(format!("a sandbox could not be created: {}", text(&error))),
            }
        }
        if let Some(reason) = &refused {
            pool.backoff.fail(now, reason.clone());
            again.extend(pool.backoff.pause(now));
        }
    }
    state.ready = plan.ready;
    state.trouble = plan.trouble.or(refused).or(last_failure);
    state
}

async fn end_sessions(
    context: &Context,
    validated: &Validated,
    sandboxes: &[Sandbox],
    again: &mut Vec<Duration>,
) -> Result<()> {
    let limits = Limits {
        idle_timeout: validated.idle_timeout,
        max_lifetime: validated.max_lifetime,
    };
    let (over, next) = idle::plan(limits, sandboxes, Timestamp::now());
    again.extend(next);
    if let Some(wait) = context.memory().activity_unknown_for().filter(|_| !over.is_empty()) {
        again.push(wait);
        return Ok(());
    }
    for (sandbox, why) in over {
        let still = |fresh: &Sandbox| matches!(limits.judge(fresh, Timestamp::now()), Verdict::Over(_));
        let deleted = sandboxes::delete_if(&context.client, &validated.namespace, &sandbox, still)
            .await
            .map_err(Error::api(format!("delete sandbox {}", sandbox.name)))?;
        if deleted {
            context.metrics.sandbox("ended");
            let session = sandbox.session.as_deref().unwrap_or_default();
            tracing::info!(
                pod = sandbox.name,
                session,
                ?why,
                namespace = validated.namespace,
                "Ended session"
            );
        } else {
            // The cache was behind: it will show the activity, or that the sandbox is gone.
            again.push(Duration::from_secs(1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
