//! A proxy that nothing gets to and nothing comes from, and then all of them.

use anyhow::{Context, Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

use crate::gate::{self, Precondition};
use crate::node;

/// While one of several proxies is cut off, sessions begin and reach the API through the others as soon as its endpoint is
/// withdrawn. While all are, no session begins, and those that have a sandbox go on without the network.
///
/// # Errors
///
/// What does not hold.
pub async fn strike(instance: &Instance) -> Result<()> {
    let proxies = addresses(instance)?;
    ensure!(proxies.len() > 1, "one of several proxies, not of {proxies:?}");

    let cut = node::cut_off(&proxies[..1])?;
    cluster::eventually("the withdrawal of the proxy that is cut off", async || {
        let ready = gate::ready_proxies(instance)?;
        ensure!(!ready.is_empty() && !ready.contains(&proxies[0]), "{ready:?}");
        Ok(())
    })
    .await?;
    let session = instance.session("partitioned").await?;
    // The node's rules follow the EndpointSlices.
    cluster::eventually("the way through another proxy", async || {
        reaches_the_api(&session).await
    })
    .await?;
    for attempt in 0..5 {
        reaches_the_api(&session)
            .await
            .with_context(|| format!("attempt {attempt}, while {} is cut off", proxies[0]))?;
    }
    cut.end()?;

    let cut = node::cut_off(&proxies)?;
    gate::stays_shut(instance, Precondition::ProxyEndpoint).await?;
    let result = session.bash("echo on").await?;
    ensure!(
        result.stdout == "on\n" && result.session_reset.is_none(),
        "a session does not go on while the proxies are cut off: {result:?}"
    );
    cut.end()?;
    cluster::eventually("the way through the proxies", async || reaches_the_api(&session).await).await?;
    ensure!(session.delete().await? == 204);
    Ok(())
}

/// A command of the session is answered by the investigated API.
///
/// # Errors
///
/// When it is not.
pub async fn reaches_the_api(session: &Session) -> Result<()> {
    let result = session.bash("kubectl get --raw /version").await?;
    ensure!(
        result.exit_code == Some(0) && result.stdout.contains("gitVersion"),
        "{result:?}"
    );
    Ok(())
}

fn addresses(instance: &Instance) -> Result<Vec<String>> {
    let list = kubectl::ok(&[
        "-n",
        &instance.namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/component=proxy",
        "-o",
        "jsonpath={range .items[?(@.status.phase==\"Running\")]}{.status.podIP} {.metadata.deletionTimestamp}{\"\\n\"}{end}",
    ])?;
    Ok(list
        .lines()
        // With a time of deletion the line ends otherwise.
        .filter_map(|line| line.strip_suffix(' '))
        .map(str::to_owned)
        .collect())
}
