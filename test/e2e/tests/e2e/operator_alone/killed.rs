//! The operator dies right after each of its writes, of a creation, a change and a deletion, and the next one goes on.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cli_mcp_e2e::setup::{apply, secrets};
use cli_mcp_e2e::{cluster, kubectl};

use super::faulty_server::{FaultyServer, Plan};
use super::process::{Alone, Operator, Run, say};
use super::{children, generated, is_gone, is_ready, nothing_is_left, pool, servers_in_binding};

/// How long nothing is written once an instance is as it should be.
const QUIET: Duration = Duration::from_secs(4);

/// More deaths than an instance has writes.
const DEATHS: usize = 80;

/// Runs operators one after the other, each killed right after its first write was done and before it heard of it, until
/// one has nothing to write and `done` holds. Returns the number of deaths.
async fn die_at_every_write(
    folder: &std::path::Path,
    namespace: &str,
    faulty: &FaultyServer,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<usize> {
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, faulty.kubeconfig())?;
    let run = Run {
        kubeconfig: Some(&kubeconfig),
        ..Run::of_one(namespace)
    };
    let end = Instant::now() + 10 * cluster::PATIENCE;
    let mut deaths = 0;
    let mut last = Vec::new();
    while deaths < DEATHS && Instant::now() < end {
        faulty.set(Plan::SilentAfterWrite);
        let operator = Operator::start(folder, &format!("operator-{deaths}.log"), &run)?;
        operator.ready().await?;
        let died = loop {
            tokio::select! {
                () = faulty.silent() => break true,
                () = tokio::time::sleep(QUIET) => {
                    if done()? {
                        break false;
                    }
                    ensure!(Instant::now() < end, "it does not converge; its last writes: {last:?}\n{}", operator.log()?);
                }
            }
        };
        last = faulty.take_writes();
        operator.kill()?;
        if !died {
            return Ok(deaths);
        }
        deaths += 1;
    }
    bail!("it does not converge after {deaths} deaths; its last writes: {last:?}")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn it_converges_when_killed_at_every_write() -> Result<()> {
    let (name, instance) = ("e2e-killed", "killed");
    let _alone = Alone::take(&[name])?;
    secrets(name, instance, None)?;
    let folder = tempfile::tempdir()?;
    let faulty = FaultyServer::start(1).await?;
    let targets = "targets: [{type: kubernetes}]";

    apply(
        name,
        instance,
        &format!("{{sandbox: {{warmPoolSize: 2}}, proxy: {{{targets}}}}}"),
    )?;
    let mut secret_uids: Option<Vec<String>> = None;
    let mut same_secrets = || -> Result<()> {
        let now = generated(name, instance)?;
        if now.iter().all(|uid| !uid.is_empty()) {
            let first = secret_uids.get_or_insert_with(|| now.clone());
            ensure!(*first == now, "a Secret was generated twice");
        }
        Ok(())
    };
    let created = die_at_every_write(folder.path(), name, &faulty, || {
        same_secrets()?;
        ensure!(pool(name)?.len() <= 2, "there are more sandboxes than asked for");
        is_ready(name, instance)
    })
    .await?;
    // 17 children and Secrets, the finalizer, the shared binding, two sandboxes, a status.
    ensure!(
        created >= 22,
        "only {created} deaths: were there writes that nobody saw?"
    );
    ensure!(
        children(name)?.len() == 17 && pool(name)?.len() == 2,
        "{:?}",
        children(name)?
    );
    ensure!(servers_in_binding(name)? == 1);

    let env = "env: [{name: A, value: b}]";
    apply(
        name,
        instance,
        &format!("{{sandbox: {{warmPoolSize: 1, {env}}}, proxy: {{replicas: 2, {targets}}}}}"),
    )?;
    let updated = die_at_every_write(folder.path(), name, &faulty, || {
        same_secrets()?;
        Ok(is_ready(name, instance)? && pool(name)?.len() == 1)
    })
    .await?;
    ensure!(updated >= 5, "only {updated} deaths");
    ensure!(children(name)?.len() == 18, "{:?}", children(name)?);

    kubectl::ok(&["-n", name, "delete", "climcpinstance", instance, "--wait=false"])?;
    let deleted = die_at_every_write(folder.path(), name, &faulty, || is_gone(name, instance)).await?;
    ensure!(deleted >= 3, "only {deleted} deaths");
    nothing_is_left(name).await?;
    say(&format!(
        "killed at {created} writes of a creation, {updated} of a change, {deleted} of a deletion"
    ))?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}
