//! The development cluster as kubectl, the API and the node show it.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::INSTANCE;

const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn kubectl(args: &[&str]) -> Result<String> {
    run(Command::new("kubectl").args(args))
}

pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) async fn first(pods: &Api<Pod>, selector: &str) -> Result<Pod> {
    let list = pods.list(&ListParams::default().labels(selector)).await?;
    list.items
        .into_iter()
        .next()
        .with_context(|| format!("no pod with {selector}"))
}

pub(crate) fn address(pod: &Pod) -> Result<String> {
    pod.status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address")
}

pub(crate) async fn unassigned(pods: &Api<Pod>) -> Result<usize> {
    let pool = ListParams::default().labels("cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id");
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    Ok(pods.list(&pool).await?.items.iter().filter(|pod| ready(pod)).count())
}

pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(began.elapsed() < PATIENCE, "it did not come to be");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until there is no sandbox but the warm one.
pub(crate) async fn gone(pods: &Api<Pod>) -> Result<()> {
    let others =
        ListParams::default().labels("cli-mcp.redhat.com/component=sandbox,cli-mcp.redhat.com/session-id!=warm");
    eventually(async || Ok(pods.list(&others).await?.items.is_empty().then_some(()))).await
}

/// Waits, as closely as can be told, until a pod's agent takes connections.
pub(crate) async fn answers(pods: &Api<Pod>, name: &str) -> Result<()> {
    let began = Instant::now();
    let ip = loop {
        if let Some(ip) = pods.get(name).await?.status.and_then(|status| status.pod_ip) {
            break ip;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    while tokio::net::TcpStream::connect((ip.as_str(), 8090)).await.is_err() {
        if began.elapsed() > PATIENCE {
            bail!("{name} does not answer");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Resident memory of the server, in MiB.
pub(crate) fn resident() -> Result<f64> {
    let wanted = format!("--instance-name={INSTANCE}");
    for process in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if !line
            .split(|byte| *byte == 0)
            .any(|argument| argument == wanted.as_bytes())
        {
            continue;
        }
        let status = std::fs::read_to_string(process.path().join("status"))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        return Ok(kib.context("no VmRSS")?.parse::<f64>()? / 1024.0);
    }
    bail!("the server's process is not in /proc: run this in the node")
}
