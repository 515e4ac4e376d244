//! Requests fail, watches are cut, the API server is away: the operator converges, and nothing is left over.

use std::time::Duration;

use anyhow::{Result, ensure};
use cli_mcp_e2e::setup::{apply, secrets};
use cli_mcp_e2e::{cluster, kubectl};

use super::faulty_server::{FaultyServer, Plan};
use super::process::{Alone, Operator, Run, say};
use super::{children, generated, is_gone, is_ready, nothing_is_left, pool};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn it_converges_while_requests_fail() -> Result<()> {
    let (name, instance) = ("e2e-faults", "faults");
    let _alone = Alone::take(&[name])?;
    let seed: u64 = std::env::var("E2E_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_129);
    say(&format!("faults of E2E_SEED={seed}"))?;
    secrets(name, instance, None)?;
    let folder = tempfile::tempdir()?;
    let faulty = FaultyServer::start(seed).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, faulty.kubeconfig())?;
    let run = Run {
        kubeconfig: Some(&kubeconfig),
        ..Run::of_one(name)
    };
    let operator = Operator::start(folder.path(), "operator.log", &run)?;
    operator.ready().await?;
    faulty.set(Plan::Faulty(25));
    apply(
        name,
        instance,
        "{sandbox: {warmPoolSize: 2}, proxy: {targets: [{type: kubernetes}]}}",
    )?;
    cluster::eventually("a Ready instance in spite of the faults", async || {
        ensure!(pool(name)?.len() <= 2, "there are more sandboxes than asked for");
        ensure!(is_ready(name, instance)?, "{}", operator.log()?);
        Ok(())
    })
    .await?;
    let complete = children(name)?;
    ensure!(complete.len() == 17, "{complete:?}");
    let before = generated(name, instance)?;

    // The API server is away for longer than any pause, and comes back.
    faulty.set(Plan::Down);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for child in complete.iter().filter(|child| !child.starts_with("secret/")) {
        kubectl::ok(&["-n", name, "delete", child, "--wait=false"])?;
    }
    faulty.set(Plan::Faulty(25));
    cluster::eventually("every child again in spite of the faults", async || {
        ensure!(
            children(name)? == complete && is_ready(name, instance)?,
            "{}",
            operator.log()?
        );
        Ok(())
    })
    .await?;
    ensure!(generated(name, instance)? == before, "a Secret was generated again");
    ensure!(pool(name)?.len() == 2, "{:?}", pool(name)?.len());

    kubectl::ok(&["-n", name, "delete", "climcpinstance", instance, "--wait=false"])?;
    cluster::eventually("the deletion in spite of the faults", async || {
        ensure!(is_gone(name, instance)?, "{}", operator.log()?);
        Ok(())
    })
    .await?;
    nothing_is_left(name).await?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}
