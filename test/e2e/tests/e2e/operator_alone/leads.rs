//! Several replicas, one Lease: they hand over, and who has lost the Lease writes nothing more.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cli_mcp_e2e::setup::apply;
use cli_mcp_e2e::{cluster, kubectl};

use super::faulty_server::{FaultyServer, Plan};
use super::process::{Alone, Operator, Run, say};

/// Longer than a leader writes without a renewal (`RENEW_DEADLINE` in cmd/operator/src/election.rs).
const LEASE_IS_OVER: Duration = Duration::from_secs(12);

fn holder(namespace: &str) -> Result<String> {
    let path = "jsonpath={.spec.holderIdentity}";
    kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "lease",
        "cli-mcp-operator-leader",
        "--ignore-not-found",
        "-o",
        path,
    ])
}

async fn leads(namespace: &str, identity: &str) -> Result<()> {
    cluster::eventually(&format!("the lead of {identity}"), async || {
        let holder = holder(namespace)?;
        ensure!(holder == identity, "{holder:?} leads");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn replicas_hand_over_and_a_lost_lease_stops_all_writes() -> Result<()> {
    let name = "e2e-leader";
    let _alone = Alone::take(&[name])?;
    let folder = tempfile::tempdir()?;
    let start = |identity: &'static str, kubeconfig: Option<&Path>| {
        let run = Run {
            leader: Some(identity),
            kubeconfig,
            ..Run::of_one(name)
        };
        Operator::start(folder.path(), identity, &run)
    };
    // What the second one writes is seen on its way.
    let between = FaultyServer::start(1).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, between.kubeconfig())?;
    let mut first = start("first", None)?;
    leads(name, "first").await?;
    let mut second = start("second", Some(&kubeconfig))?;
    // A replica that does not lead is ready, and writes nothing.
    second.ready().await?;
    ensure!(!second.log()?.contains("Leading"), "two lead");

    // SIGTERM: the Lease is given back, and the other leads without waiting for it to run out.
    let began = Instant::now();
    first.signal("TERM")?;
    let status = first.ended().await?;
    ensure!(status.success(), "{status}");
    ensure!(first.log()?.contains("Released the Lease"), "{}", first.log()?);
    leads(name, "second").await?;
    say(&format!(
        "handed over {:.1} s after SIGTERM",
        began.elapsed().as_secs_f64()
    ))?;

    // A leader that is stopped for longer than its Lease lasts wakes up, and learns nothing of the Lease for a while: it
    // has work to do, tries, and ends without a write.
    second.signal("STOP")?;
    between.set(Plan::SilentLeases);
    apply(name, "fenced", "{proxy: {targets: [{type: kubernetes}]}}")?;
    tokio::time::sleep(LEASE_IS_OVER).await;
    between.take_writes();
    second.signal("CONT")?;
    let status = second.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    let log = second.log()?;
    ensure!(
        log.contains("was lost") && log.contains("the write was held back"),
        "{log}"
    );
    let written = between.take_writes();
    ensure!(written.is_empty(), "{written:?} after the Lease was lost");
    let third = start("third", None)?;
    leads(name, "third").await?;
    let managers = "jsonpath={.metadata.finalizers}";
    cluster::eventually("the work of the new leader", async || {
        let finalizers = kubectl::ok(&["-n", name, "get", "climcpinstance", "fenced", "-o", managers])?;
        ensure!(finalizers.contains("cli-mcp.redhat.com/finalizer"), "{finalizers}");
        Ok(())
    })
    .await?;

    // SIGKILL: the Lease runs out.
    let began = Instant::now();
    third.kill()?;
    let fourth = start("fourth", None)?;
    leads(name, "fourth").await?;
    say(&format!(
        "taken over {:.1} s after SIGKILL",
        began.elapsed().as_secs_f64()
    ))?;
    let transitions = "jsonpath={.spec.leaseTransitions}";
    let transitions = kubectl::ok(&["-n", name, "get", "lease", "cli-mcp-operator-leader", "-o", transitions])?;
    ensure!(transitions == "3", "{transitions} transitions");
    kubectl::ok(&["-n", name, "delete", "climcpinstance", "fenced", "--timeout=120s"])?;
    drop(fourth);
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}
