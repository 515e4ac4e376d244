//! The attacker's own sandbox as an object of the cluster that it runs in: with a credential that may write pods and policies
//! there, it changes what operator and server know it by.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::{self, arena};
use cli_mcp_attack::liar::LIAR;
use cli_mcp_attack::network;
use cli_mcp_attack::shell::Shell;
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::{cluster, instance, kubectl};

/// A pod as it is now, a field of it; empty when it is gone.
fn field(namespace: &str, pod: &str, path: &str) -> Result<String> {
    let path = format!("jsonpath={{{path}}}");
    kubectl::ok(&["-n", namespace, "get", "pod", pod, "--ignore-not-found", "-o", &path])
}

/// How long new sessions are begun beside the sandbox that marks itself.
const TRIED_FOR: Duration = Duration::from_secs(60);

/// The command by which a session patches the metadata of its own pod, by the cluster's API and its own credential.
fn patch(namespace: &str, metadata: &str) -> String {
    format!("kubectl -n {namespace} patch pod $(hostname) --type=merge -p '{{\"metadata\":{metadata}}}'")
}

/// The session does. It may be ended before it has its answer.
async fn patch_own(session: &Session, namespace: &str, metadata: &str) -> Result<()> {
    let result = session.bash(&patch(namespace, metadata)).await?;
    ensure!(
        result.exit_code == Some(0) || result.is_error,
        "the control: the credential may not change pods: {result:?}"
    );
    Ok(())
}

/// Tried: with a credential that may write pods of the instance's namespace, taking the sandbox out of its instance: without
/// the labels that policies, operator and server select by, with another's, or without its owner, so that nothing holds it
/// back and it outlives DELETE and every timeout.
/// Stopped by: the operator, which knows a sandbox by what nobody can change (name, ServiceAccount, time of creation), and
/// deletes one that lost its labels or its owner.
#[tokio::test(flavor = "multi_thread")]
async fn leaving_the_instance() -> Result<()> {
    let arena = arena()?;
    let namespace = &arena.home.namespace;
    let victim = arena.victim().await?;
    let kept = victim.bash("hostname").await?.stdout;
    for (id, metadata) in [
        ("no-component", r#"{"labels":{"cli-mcp.redhat.com/component":null}}"#),
        ("no-instance", r#"{"labels":{"cli-mcp.redhat.com/instance":null}}"#),
        (
            "other-component",
            r#"{"labels":{"cli-mcp.redhat.com/component":"proxy"}}"#,
        ),
        ("no-owner", r#"{"ownerReferences":null}"#),
        ("nothing-left", r#"{"labels":null,"ownerReferences":null}"#),
    ] {
        let session = arena.home.session(id).await?;
        let pod = session.bash("hostname").await?.stdout;
        let uid = field(namespace, pod.trim(), ".metadata.uid")?;
        patch_own(&session, namespace, metadata).await?;
        cluster::eventually("the end of a sandbox that left its instance", async || {
            let now = field(namespace, pod.trim(), ".metadata.uid")?;
            ensure!(now != uid, "{id}: {pod} still runs");
            Ok(())
        })
        .await?;
        let after = arena.home.session(id).await?;
        ensure!(after.bash("echo well").await?.stdout == "well\n");
        ensure!(after.delete().await? == 204);
    }
    ensure!(
        victim.bash("hostname").await?.stdout == kept,
        "the victim's sandbox is another"
    );
    instance::wait_ready(namespace, &arena.home.name)
}

/// Tried: with the same credential, taking the session's label off, also with every other mark of a sandbox of the pool, so
/// that the next session claims this sandbox.
/// Stopped by: the agent, which is assigned and takes no other token, so that the server ends the sandbox and takes another;
/// and the operator, which deletes an unassigned sandbox that the pool did not make or has no use for.
#[tokio::test(flavor = "multi_thread")]
async fn offering_ones_own_sandbox_to_the_next() -> Result<()> {
    let arena = arena()?;
    let namespace = &arena.home.namespace;
    for round in 0..3 {
        let session = arena.home.session("offerer").await?;
        let pod = session
            .bash("echo attack-trap | tee /workspace/trap; hostname")
            .await?
            .stdout;
        let pod = pod.lines().last().context("no hostname")?.to_owned();
        let uid = field(namespace, &pod, ".metadata.uid")?;
        let offered = patch_own(
            &session,
            namespace,
            r#"{"labels":{"cli-mcp.redhat.com/session-id":null},"annotations":{"cli-mcp.redhat.com/mounts-hash":"x"}}"#,
        );
        let (first, second) = (format!("unwary-{round}"), format!("wary-{round}"));
        let next = async |id: &str| -> Result<()> {
            let next = arena.home.session(id).await?;
            let result = next.bash("hostname; ls /workspace").await?;
            ensure!(
                result.exit_code == Some(0) && !result.stdout.contains(&pod) && !result.stdout.contains("trap"),
                "{id}: {result:?}"
            );
            ensure!(next.delete().await? == 204);
            Ok(())
        };
        let (offered, first, second) = tokio::join!(offered, next(&first), next(&second));
        offered?;
        first?;
        second?;
        cluster::eventually("the end of the sandbox that was offered", async || {
            let now = field(namespace, &pod, ".metadata.uid")?;
            ensure!(now != uid, "{pod} still runs");
            Ok(())
        })
        .await?;
        arena.home.endpoint.connect("offerer").await?.delete().await?;
    }
    Ok(())
}

/// Tried: with the same credential, marking one's own sandbox as one with an open network, and keeping it from being ready, so
/// that no new session starts.
/// Stopped by: the agent, which runs before the commands and takes probes as they come; the server, which takes the mark off when the
/// sandbox runs a command. Where a sandbox is not ready all the same, new sessions are refused meanwhile, see "What is not
/// prevented": sessions that run go on, and the end of the marked one ends it.
#[tokio::test(flavor = "multi_thread")]
async fn marking_ones_own_sandbox_as_open() -> Result<()> {
    let (apart, _guard) = arena::apart().await?;
    let victim = apart.session("victim").await?;
    victim.bash("kept=$$").await?;
    let marker = apart.session("marker").await?;
    let pod = marker.bash("hostname").await?.stdout;
    // The mark goes with each call that its sandbox serves: it is made behind their back, again and again.
    let mark = patch(
        &apart.namespace,
        r#"{"annotations":{"cli-mcp.redhat.com/egress":"NotEnforced"}}"#,
    );
    let marks = format!("(for _ in {{1..60}}; do sleep 3; {mark}; done) >/dev/null 2>&1 &");
    marker.bash(&format!("{LIAR}{marks}")).await?;
    // The agent runs before the liars, so that they may never get so far. Where they do, who is refused is told by whom.
    let end = Instant::now() + TRIED_FOR;
    while Instant::now() < end {
        let begun = apart.endpoint.connect("refused").await?.bash("true").await?;
        ensure!(
            begun.exit_code == Some(0) || begun.is_error && begun.text.contains(pod.trim()),
            "a session neither begins nor is told why not: {begun:?}"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let marked = field(
        &apart.namespace,
        pod.trim(),
        r".metadata.annotations.cli-mcp\.redhat\.com/egress",
    )?;
    ensure!(marked == "NotEnforced", "the control: the mark of its own: {marked:?}");
    let result = victim.bash("[ \"$kept\" = $$ ] && echo well").await?;
    ensure!(result.stdout == "well\n", "the victim suffers: {result:?}");
    ensure!(marker.delete().await? == 204);
    for id in ["victim", "refused"] {
        let session = apart.session(id).await?;
        ensure!(session.bash("echo well").await?.stdout == "well\n");
        ensure!(session.delete().await? == 204);
    }
    instance::wait_ready(&apart.namespace, &apart.name)
}

/// Tried: with a credential that may write NetworkPolicies, deleting the policy that holds one's own sandbox, and connecting
/// to the API server before it is back.
/// Stopped by: the operator, which makes it anew at once; the server begins no session meanwhile, and an agent that finds its
/// network open takes no command. (A connection from that moment may last, see "What is not prevented".)
#[tokio::test(flavor = "multi_thread")]
async fn deleting_ones_own_policy() -> Result<()> {
    const PROGRAM: &str = r#"
import socket, subprocess, time
def connects():
    try:
        socket.create_connection((API, 443), timeout=1).close()
        return True
    except OSError:
        return False
before = connects()
deleted = subprocess.run(["kubectl", "-n", NAMESPACE, "delete", "networkpolicy", POLICY, "--wait=false"], capture_output=True).returncode
end = time.time() + 90
closed = 0
while time.time() < end and closed < 5:
    closed = 0 if connects() else closed + 1
print(before, deleted, closed)
"#;
    let (apart, _guard) = arena::apart().await?;
    let policy = format!("cli-mcp-{}-sandbox", apart.name);
    let read = |path: &str| {
        let path = format!("jsonpath={{{path}}}");
        kubectl::ok(&[
            "-n",
            &apart.namespace,
            "get",
            "networkpolicy",
            &policy,
            "--ignore-not-found",
            "-o",
            &path,
        ])
    };
    let (uid, spec) = (read(".metadata.uid")?, read(".spec")?);
    let attacker = Shell::Assigned(apart.session("digger").await?);
    let api = network::service_address("default", "kubernetes")?;
    let output = attacker
        .python(&format!(
            "API, NAMESPACE, POLICY = {api:?}, {:?}, {policy:?}\n{PROGRAM}",
            apart.namespace
        ))
        .await?;
    ensure!(
        output == "False 0 5\n",
        "the network stays open, or never was closed: {output}"
    );
    ensure!(read(".metadata.uid")? != uid, "the control: the policy was not deleted");
    ensure!(read(".spec")? == spec, "{}", read(".spec")?);
    let next = apart.session("after-the-digging").await?;
    ensure!(next.bash("echo well").await?.stdout == "well\n");
    ensure!(next.delete().await? == 204);
    if let Shell::Assigned(attacker) = attacker {
        attacker.delete().await?;
    }
    instance::wait_ready(&apart.namespace, &apart.name)
}
