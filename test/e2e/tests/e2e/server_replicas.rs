//! Two replicas of the server and real pods: races for a session, deaths of sandboxes and servers at every stage of a call,
//! a rollout under load. What is asserted throughout: one sandbox a session, and no command that runs twice.

mod rollout;
mod two;

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_e2e::{cluster, kubectl, node};
use futures::future::join_all;

use self::two::{Replica, Replicas, lines, patient};

/// How many sessions begin at once, and over a pool of how many. In full (`make test-races`) it is 50 over 10; a
/// machine of two cores that runs every test at once gets fewer.
fn crowd() -> Result<(usize, usize)> {
    let number = |name: &str, default: usize| match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    };
    Ok((number("E2E_SESSIONS", 8)?, number("E2E_POOL", 3)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn races_of_two_replicas_end_with_one_sandbox_a_session_and_each_command_once() -> Result<()> {
    let (sessions, pool) = crowd()?;
    let two = Replicas::create("e2e-races", pool)?;

    let mut first_calls = Vec::new();
    for n in 0..100 {
        let session = two.ends[n % 2].endpoint.connect("one").await?;
        first_calls.push(async move { (n, session.bash(&format!("echo {n} >>/workspace/ran")).await) });
    }
    let mut done = HashSet::new();
    for (n, result) in join_all(first_calls).await {
        let result = result?;
        match result.exit_code {
            Some(0) => ensure!(done.insert(n.to_string())),
            // The shell of a session takes 16 commands at a time.
            None => ensure!(
                result.text.contains("busy") && result.text.contains("not run"),
                "{result:?}"
            ),
            Some(_) => bail!("{result:?}"),
        }
    }
    ensure!(two.sandboxes("one")?.len() == 1, "{:?}", two.sandboxes("one")?);
    let one = two.ends[0].endpoint.connect("one").await?;
    let ran = lines(&one, "/workspace/ran").await?;
    ensure!(
        ran.len() == done.len() && ran.iter().cloned().collect::<HashSet<_>>() == done,
        "what ran is not what was answered: {ran:?} {done:?}"
    );
    one.delete().await?;

    let mut crowd = Vec::new();
    for n in 0..sessions {
        let session = two.ends[n % 2].endpoint.connect(&format!("crowd-{n}")).await?;
        crowd.push(async move {
            let result = patient(&session, "echo once >>/workspace/ran; cat /workspace/ran; hostname").await;
            (session, result)
        });
    }
    let mut hosts = HashMap::new();
    for (n, (session, result)) in join_all(crowd).await.into_iter().enumerate() {
        let result = result?;
        let host = result
            .stdout
            .strip_prefix("once\n")
            .with_context(|| format!("{result:?}"))?;
        if let Some(other) = hosts.insert(host.to_owned(), n) {
            bail!("sessions {n} and {other} share {host}");
        }
        ensure!(two.sandboxes(&format!("crowd-{n}"))?.len() == 1);
        session.delete().await?;
    }
    two.end()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_or_server_that_dies_at_any_stage_of_a_call_costs_no_session() -> Result<()> {
    let mut two = Replicas::create("e2e-deaths", 1)?;
    let [first, second] = &two.ends[..] else {
        bail!("two servers")
    };

    // Before a call: the next one gets another sandbox, and says so, whichever replica it comes through.
    let (here, there) = (first.endpoint.connect("s").await?, second.endpoint.connect("s").await?);
    patient(&here, "echo x >/workspace/mark").await?;
    two.kill(&two.sandboxes("s")?[0])?;
    let after = cluster::eventually("the replacement", async || {
        let result = patient(&there, "cat /workspace/mark").await?;
        ensure!(
            result.exit_code == Some(1),
            "the dead sandbox still answers: {result:?}"
        );
        Ok(result)
    })
    .await?;
    ensure!(after.session_reset.is_some(), "{after:?}");
    cluster::eventually("the note that the client was told", async || {
        let pod = kubectl::ok(&[
            "-n",
            &two.instance.namespace,
            "get",
            &two.sandboxes("s")?[0],
            "-o",
            "yaml",
        ])?;
        ensure!(!pod.contains("cli-mcp.redhat.com/replaces"), "{pod}");
        Ok(())
    })
    .await?;
    let told = patient(&here, "true").await?;
    ensure!(told.session_reset.is_none(), "told twice: {told:?}");

    lose_between_claim_and_assignment(&two, second).await?;

    // While it starts: the call outlives the pod.
    let starting = second.endpoint.connect("starting").await?;
    let death = async {
        let pod = cluster::eventually("the pod of the session", async || {
            two.sandboxes("starting")?.pop().context("no pod")
        });
        two.kill(&pod.await?)
    };
    let call = patient(&starting, "echo x >>/workspace/ran; cat /workspace/ran");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    let result = result?;
    // It may have been in the middle of the command by then.
    ensure!(result.stdout == "x\n" || result.text.contains("died"), "{result:?}");
    ensure!(patient(&starting, "echo on").await?.stdout == "on\n");
    starting.delete().await?;

    // In the middle of a command.
    let death = async {
        two.started("s").await?;
        two.kill(&two.sandboxes("s")?[0])
    };
    let call = here.bash("echo started >/workspace/mark; sleep 60; echo twice >>/workspace/mark");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    let result = result?;
    // Its agent may still have the last word.
    let ended = result.exit_code == Some(130) && result.stderr.contains("shutting down");
    let died = result.exit_code.is_none() && result.text.contains("died") && result.text.contains("may have run");
    ensure!(result.is_error && (ended || died), "{result:?}");
    let next = patient(&here, "cat /workspace/mark").await?;
    ensure!(
        next.exit_code == Some(1) && next.session_reset.is_some(),
        "sent again, or not told: {next:?}"
    );

    // The server dies in the middle of a command: the client loses its connection, and the session goes on elsewhere.
    let death = async {
        two.started("s").await?;
        two.kill(&format!("pod/{}", first.pod))
    };
    let call = here.bash("echo started >>/workspace/mark; sleep 60; echo ended >>/workspace/mark");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    ensure!(
        result.is_err(),
        "a call through a dead server has no result: {result:?}"
    );
    let mark = patient(&there, "cat /workspace/mark").await?;
    ensure!(mark.stdout == "started\n" && mark.session_reset.is_none(), "{mark:?}");
    there.delete().await?;
    two.forward()?;
    two.end()
}

/// A call whose warm sandbox is claimed and dies before it was assigned goes on in another one: nothing was sent to its shell.
async fn lose_between_claim_and_assignment(two: &Replicas, through: &Replica) -> Result<()> {
    if !cluster::is_dev() {
        // The node's processes can be stopped on the repository's own cluster only.
        return Ok(());
    }
    let namespace = two.instance.namespace.as_str();
    let warm = "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id";
    cluster::eventually("a warm sandbox", async || {
        let pods = kubectl::names(namespace, "pods", warm)?;
        ensure!(!pods.is_empty(), "none yet");
        let ready = ["--for=condition=Ready", "--timeout=60s", &pods[0]];
        kubectl::ok(&[&["-n", namespace, "wait"], &ready[..]].concat())
    })
    .await?;
    let session = through.endpoint.connect("between").await?;
    // Who is stopped answers no request to assign it.
    let held = node::hold(&node::processes("agent", &[namespace])?)?;
    let death = async {
        let pod = cluster::eventually("the claim", async || two.sandboxes("between")?.pop().context("no pod")).await?;
        two.kill(&pod)?;
        held.end()
    };
    let call = patient(&session, "echo x >>/workspace/ran; cat /workspace/ran");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    let result = result?;
    // Told as a reset or not: no server can know that no other one has run a command in there.
    ensure!(result.exit_code == Some(0) && result.stdout == "x\n", "{result:?}");
    ensure!(two.sandboxes("between")?.len() == 1, "{:?}", two.sandboxes("between")?);
    ensure!(session.delete().await? == 204);
    Ok(())
}
