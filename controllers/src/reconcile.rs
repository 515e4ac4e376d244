//! One reconcile of one instance, stage after stage, and what happens after a failure.

mod missing;
mod warm_pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cli_mcp_api::labels;
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_sandbox::pod::SandboxTemplate;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::apply::{Applied, Failure, apply};
use crate::build::build;
use crate::caches::Caches;
use crate::context::Context;
use crate::dereference::{Unread, dereference};
use crate::egress;
use crate::error::{self, Error, Result};
use crate::events;
use crate::finalize;
use crate::idle::{self, Limits, Verdict};
use crate::sandboxes::{self, Sandbox};
use crate::status;
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
    let instance = status::with_latest(&context, instance);
    let action = if instance.metadata.deletion_timestamp.is_none() {
        if finalize::is_held(&instance) {
            ensure(&context, &caches, &instance).await?
        } else {
            // The change of the instance asks for the next reconcile.
            finalize::hold(&context, &instance).await?;
            Action::await_change()
        }
    } else if finalize::is_held(&instance) {
        match finalize::cleanup(&context, &instance).await? {
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
    let mut applied = apply(context, caches, &validated, children, &observed).await?;
    context.metrics.wrote(applied.writes);
    let mut followup = Followup::default();
    followup.failed.extend(observed.unread.iter().map(Unread::error));
    followup.failed.extend(observed.awaited_proxy.error(&validated.name));
    refresh_proxy_files(context, &validated, &observed.proxy_pods, &mut followup).await;

    let sandboxes = Sandbox::all(&observed.sandboxes);
    let gate_open = gate_is_open(&validated, &applied, observed.proxy_ready);
    let pool = warm_pool::keep(context, &validated, &sandboxes, gate_open, &mut followup).await;
    end_sessions(context, &validated, &sandboxes, &mut followup).await;
    missing::end(context, caches, instance, &validated.namespace, &mut followup).await;
    let reported = egress::reported_open(&context.client, &validated.namespace, &sandboxes)
        .await
        .unwrap_or_else(|error| {
            followup.failed.push(Error::api("read events of sandboxes")(error));
            None
        });
    if sandboxes.iter().any(egress::is_suspicious) {
        followup.again.push(RETRY_EGRESS);
    }
    let spec_hash = validated.template.as_ref().map(SandboxTemplate::spec_hash);
    let egress = egress::judge(
        validated.spec.sandbox.egress_check,
        spec_hash.as_deref(),
        &sandboxes,
        pool.desired,
        reported,
    );

    applied.failures.extend(followup.failed.iter().map(|error| Failure {
        message: error.to_string(),
        transient: true,
        foreign: false,
    }));
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
    if status::write(context, instance, &status).await? {
        events::publish(context, instance, events::of_transition(before, &status, &validated)).await;
    }
    if applied.failures.iter().any(|failure| failure.transient) {
        followup.again.push(RETRY_CHILDREN);
    }
    followup.action()
}

/// What the stages after apply leave: when to look again, and what was refused. One refusal holds up neither the others nor
/// the status.
#[derive(Default)]
struct Followup {
    again: Vec<Duration>,
    failed: Vec<Error>,
}

impl Followup {
    /// The soonest look, or the first refusal, which is tried again with back-off.
    fn action(self) -> Result<Action> {
        error::first_of(self.failed)?;
        let again = self.again.into_iter().min().unwrap_or(RESYNC);
        Ok(Action::requeue(again.min(RESYNC)))
    }
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

/// Stamps the proxy's pods when what they mount changed: the kubelet syncs a pod's files when the pod changes. While it is
/// not known what they mount they keep their stamp.
async fn refresh_proxy_files(context: &Context, validated: &Validated, pods: &[Arc<Pod>], followup: &mut Followup) {
    let Some(stamp) = &validated.proxy_inputs_hash else {
        return;
    };
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &validated.namespace);
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
            Err(error) => followup
                .failed
                .push(Error::api(format!("stamp pod {}", pod.name_any()))(error)),
        }
    }
}

async fn end_sessions(context: &Context, validated: &Validated, sandboxes: &[Sandbox], followup: &mut Followup) {
    let limits = Limits {
        idle_timeout: validated.idle_timeout,
        max_lifetime: validated.max_lifetime,
    };
    let (over, next) = idle::plan(limits, sandboxes, Timestamp::now());
    followup.again.extend(next);
    if let Some(wait) = context.memory().activity_unknown_for().filter(|_| !over.is_empty()) {
        followup.again.push(wait);
        return;
    }
    for (sandbox, why) in over {
        let still = |fresh: &Sandbox| matches!(limits.judge(fresh, Timestamp::now()), Verdict::Over(_));
        match sandboxes::delete_if(&context.client, &validated.namespace, &sandbox, still).await {
            Ok(true) => {
                context.metrics.sandbox("ended");
                let session = sandbox.session.as_deref().unwrap_or_default();
                tracing::info!(
                    pod = sandbox.name,
                    session,
                    ?why,
                    namespace = validated.namespace,
                    "Ended session"
                );
            }
            // The cache was behind: it will show the activity, or that the sandbox is gone.
            Ok(false) => followup.again.push(Duration::from_secs(1)),
            Err(error) => followup
                .failed
                .push(Error::api(format!("delete sandbox {}", sandbox.name))(error)),
        }
    }
}

#[cfg(test)]
mod tests;
