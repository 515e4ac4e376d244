//! Carries the plan of the warm pool out: reads what it lacks, deletes, creates, and remembers.

use std::time::Instant;

use cli_mcp_sandbox::pod::SandboxTemplate;
use cli_mcp_sandbox::token::HmacKey;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;

use super::{CONCURRENT_SANDBOXES, Followup};
use crate::context::Context;
use crate::error::{Error, text};
use crate::pool::{self, BuiltFrom, Plan, Wanted};
use crate::sandboxes::{self, Sandbox};
use crate::status::PoolState;
use crate::validate::Validated;

/// Why a pool lacks sandboxes while what they are built from is broken.
const WAITS: &str = "none is made until what the condition Ready names is mended";

/// Brings the pool to its size, as far as that can be done now, and tells how it is.
pub(super) async fn keep(
    context: &Context,
    validated: &Validated,
    sandboxes: &[Sandbox],
    gate_open: bool,
    followup: &mut Followup,
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
    let inputs = match (&validated.template, &validated.hmac_key, &validated.proxy_config) {
        (Some(template), Some(key), Some(_)) => Some((template, key)),
        _ => None,
    };
    let spec_hash = inputs.map(|(template, _)| template.spec_hash());
    let wanted = Wanted {
        size,
        current: spec_hash.as_deref().map(|spec_hash| BuiltFrom {
            spec_hash,
            mounts_hash: &validated.mounts_hash,
        }),
        expected: 0,
        gate_open,
    };
    let now = Timestamp::now();
    forget_other_failures(context, validated, spec_hash.as_deref(), sandboxes);
    let mut plan = planned(context, validated, &wanted, sandboxes, now, followup).await;
    if let Some(sandbox) = &plan.unexplained {
        match sandboxes::latest_warning(&context.client, &validated.namespace, sandbox).await {
            Ok(Some(warning)) => plan.trouble = Some(format!("pod {}: {warning}", sandbox.name)),
            Ok(None) => {}
            // What is told without it says where to look.
            Err(error) => tracing::warn!(pod = sandbox.name, %error, "Failed to read the events of a warm sandbox"),
        }
    }
    let uid = &validated.owner.uid;
    let last_failure = {
        let mut memory = context.memory();
        let pool = memory.pools.entry(uid.clone()).or_default();
        if plan.failed {
            let reason = plan
                .trouble
                .clone()
                .unwrap_or_else(|| "a sandbox of the pool ended".to_owned());
            pool.backoff.fail(now, reason);
        } else if plan.ready >= size {
            pool.backoff = pool::Backoff::default();
        }
        pool.backoff.reason.clone()
    };
    followup.again.extend(plan.again);
    delete(context, validated, &plan, followup).await;
    let created = match inputs {
        Some((template, key)) => create(&context.client, validated, template, key, plan.create).await,
        None => Vec::new(),
    };
    let mut refused = None;
    {
        let mut memory = context.memory();
        let pool = memory.pools.entry(uid.clone()).or_default();
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
            followup.again.extend(pool.backoff.pause(now));
        }
        followup.again.extend(pool.expected.overdue_in(Instant::now()));
    }
    state.ready = plan.ready;
    // Without a problem the inputs come by themselves: a new instance's Secrets, the address of its proxy.
    let waits = inputs.is_none() && plan.lacking > 0 && !validated.problems.is_empty();
    state.trouble = waits
        .then(|| WAITS.to_owned())
        .or(plan.trouble)
        .or(refused)
        .or(last_failure);
    state
}

/// Failures count no longer once their cause is gone: what sandboxes are built from has changed, or one that was made later is
/// ready, in the pool or taken from it.
fn forget_other_failures(context: &Context, validated: &Validated, spec_hash: Option<&str>, sandboxes: &[Sandbox]) {
    let Some(spec_hash) = spec_hash else { return };
    let built_from = format!("{spec_hash} {}", validated.mounts_hash);
    let mut memory = context.memory();
    let pool = memory.pools.entry(validated.owner.uid.clone()).or_default();
    let is_mended = sandboxes
        .iter()
        .any(|sandbox| sandbox.ready && sandbox.spec_hash == spec_hash && pool.backoff.is_before(sandbox.created));
    if is_mended || pool.built_from.as_ref() != Some(&built_from) {
        pool.backoff = pool::Backoff::default();
        pool.built_from = Some(built_from);
    }
}

/// The plan, made from the cache; from one LIST where the cache does not show in time what was created, and the pool would
/// be filled for it once more.
async fn planned(
    context: &Context,
    validated: &Validated,
    wanted: &Wanted<'_>,
    sandboxes: &[Sandbox],
    now: Timestamp,
    followup: &mut Followup,
) -> Plan {
    let uid = &validated.owner.uid;
    let (plan, is_overdue) = {
        let mut memory = context.memory();
        let pool = memory.pools.entry(uid.clone()).or_default();
        let wanted = Wanted {
            expected: pool.expected.unseen(sandboxes, Instant::now()),
            ..wanted.clone()
        };
        let plan = pool::plan(&wanted, sandboxes, &pool.backoff, now);
        (plan, pool.expected.is_overdue(Instant::now()))
    };
    if plan.create == 0 || !is_overdue {
        return plan;
    }
    match sandboxes::list(&context.client, validated).await {
        Ok(listed) => {
            let mut memory = context.memory();
            let pool = memory.pools.entry(uid.clone()).or_default();
            pool.expected.listed(&listed, Instant::now());
            pool::plan(wanted, &listed, &pool.backoff, now)
        }
        Err(error) => {
            followup.failed.push(Error::api("list sandboxes")(error));
            Plan { create: 0, ..plan }
        }
    }
}

async fn delete(context: &Context, validated: &Validated, plan: &Plan, followup: &mut Followup) {
    let (client, namespace) = (&context.client, &validated.namespace);
    let deletions = plan.delete.iter().map(|(sandbox, cause)| async move {
        let deleted = sandboxes::delete_if(client, namespace, sandbox, |fresh| cause.holds(fresh)).await;
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
                tracing::info!(pod = sandbox.name, ?cause, namespace, "Deleted warm sandbox");
            }
            Ok(false) => {}
            Err(error) => followup
                .failed
                .push(Error::api(format!("delete sandbox {}", sandbox.name))(error)),
        }
    }
}

/// Creates them in batches that double, and no more once one was refused: what refuses one refuses all, mostly.
async fn create(
    client: &Client,
    validated: &Validated,
    template: &SandboxTemplate,
    key: &HmacKey,
    number: usize,
) -> Vec<kube::Result<String>> {
    let mut created = Vec::new();
    let mut batch = 1;
    while created.len() < number && created.iter().all(Result::is_ok) {
        let creations = (created.len()..number)
            .take(batch)
            .map(|_| sandboxes::create(client, validated, template, key));
        created.extend(
            stream::iter(creations)
                .buffer_unordered(CONCURRENT_SANDBOXES)
                .collect::<Vec<_>>()
                .await,
        );
        batch *= 2;
    }
    created
}
