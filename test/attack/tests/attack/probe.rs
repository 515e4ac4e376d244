//! Lying to the kubelet.

use std::time::Duration;

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::{self, arena};
use cli_mcp_attack::liar::LIAR;
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

/// So long the operator takes for a probe that fails to say that policies are still settling (10 s), and until it looks again
/// (10 s); and a probe more.
const BELIEVED_AFTER: Duration = Duration::from_secs(35);

/// Tried: forging the readiness probe of one's own sandbox, so that its instance seems to have an open network and no
/// session starts any more: in a session, and in a sandbox of the pool, as who got in there would.
/// Stopped by: the mode of the agent's file, which nobody may read: the kernel lets no process of the same user open the
/// descriptors of one that runs it. The operator believes the kubelet's word about unassigned sandboxes only; of a session's
/// sandbox the server asks the agent itself.
#[tokio::test(flavor = "multi_thread")]
async fn forging_the_readiness_probe() -> Result<()> {
    let arena = arena()?;
    let session = arena.home.session("liar").await?;
    let pod = session.bash("hostname").await?.stdout;
    lies(&arena.home, &Shell::Assigned(session), pod.trim()).await?;
    let (unassigned, _guard) = arena.claimable().await?;
    let Shell::Unassigned { namespace, pod } = &unassigned else {
        anyhow::bail!("not a sandbox of the pool");
    };
    let lied = lies(&arena.neighbour, &unassigned, pod).await;
    kubectl::ok(&["-n", namespace, "delete", "pod", pod])?;
    lied?;
    // Other sessions still start.
    for instance in [&arena.home, &arena.neighbour] {
        let other = instance.session("after-the-lie").await?;
        ensure!(other.bash("echo well").await?.stdout == "well\n");
        ensure!(other.delete().await? == 204);
    }
    let liar = arena.home.endpoint.connect("liar").await?;
    ensure!(liar.delete().await? == 204);
    Ok(())
}

/// Lies in this sandbox of the instance: nothing of the lie gets to the kubelet, and the instance stays what it is.
async fn lies(instance: &Instance, shell: &Shell, pod: &str) -> Result<()> {
    shell.ok(LIAR).await?;
    let namespace = &instance.namespace;
    // The control: probes are found, and end as the liar wants.
    cluster::eventually("the pod's loss of readiness", async || {
        let ready = "jsonpath={.status.containerStatuses[0].ready}";
        let ready = kubectl::ok(&["-n", namespace, "get", "pod", pod, "-o", ready])?;
        ensure!(ready == "false", "{ready}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(BELIEVED_AFTER).await;
    let fields = format!("involvedObject.name={pod},reason=Unhealthy");
    let told = "jsonpath={.items[*].message}";
    let told = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "events",
        "--field-selector",
        &fields,
        "-o",
        told,
    ])?;
    ensure!(!told.is_empty(), "the control: the kubelet reports no failed probe");
    let enforced = arena::condition(instance, "EgressEnforced")?;
    ensure!(
        enforced.starts_with("True"),
        "{}: EgressEnforced: {enforced}; the kubelet was told {told}",
        shell.kind()
    );
    ensure!(
        !told.contains("attack-lie"),
        "{}: the kubelet was told {told}",
        shell.kind()
    );
    Ok(())
}
