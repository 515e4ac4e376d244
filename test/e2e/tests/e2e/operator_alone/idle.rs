//! What ten instances cost while nothing happens, read from the API server's own audit log.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::setup::{apply, secrets};
use cli_mcp_e2e::{cluster, instance, kubectl};
use jiff::Timestamp;
use serde_json::Value;

use super::process::{Alone, Operator, Run, say};

const INSTANCES: usize = 10;

/// Requests of the operator between two moments, but for watches, which are what it lives on.
fn requests(log: &str, from: Timestamp, to: Timestamp) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in BufReader::new(std::fs::File::open(log)?).lines() {
        let Ok(entry) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let received: Timestamp = text("requestReceivedTimestamp")
            .parse()
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let ours = text("userAgent").starts_with("cli-mcp-operator/") && text("stage") == "ResponseComplete";
        if ours && text("verb") != "watch" && received >= from && received <= to {
            found.push(format!("{} {}", text("verb"), text("requestURI")));
        }
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn ten_idle_instances_cost_no_write_and_no_list() -> Result<()> {
    let Ok(log) = std::env::var("DEVCLUSTER_AUDIT_LOG") else {
        return say("SKIPPED: the audit log can be read on the development cluster only");
    };
    let idle = std::env::var("E2E_IDLE_SECONDS").ok();
    let idle = Duration::from_secs(idle.map_or(Ok(60), |text| text.parse()).context("E2E_IDLE_SECONDS")?);
    let name = "e2e-idle-ten";
    let _alone = Alone::take(&[name])?;
    let folder = tempfile::tempdir()?;
    let run = Run::of_one(name);
    let operator = Operator::start(folder.path(), "operator.log", &run)?;
    operator.ready().await?;
    let small = "{requests: {cpu: 1m, memory: 8Mi}, limits: {memory: 128Mi}}";
    let spec = format!(
        "{{serverContainer: {{resources: {small}}}, sandbox: {{warmPoolSize: 1, resources: {small}}}, proxy: {{targets: [{{type: kubernetes}}]}}}}"
    );
    let instances: Vec<String> = (0..INSTANCES).map(|number| format!("idle-{number}")).collect();
    for instance in &instances {
        secrets(name, instance, None)?;
        apply(name, instance, &spec)?;
    }
    for instance in &instances {
        instance::wait_ready(name, instance)?;
    }
    // What follows Ready, such as a last event of a pod, is over when some seconds bring no request.
    cluster::eventually("a quiet moment", async || {
        let from = Timestamp::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let seen = requests(&log, from, Timestamp::now())?;
        ensure!(seen.is_empty(), "{seen:?}");
        Ok(())
    })
    .await?;
    let from = Timestamp::now();
    tokio::time::sleep(idle).await;
    let seen = requests(&log, from, Timestamp::now())?;
    say(&format!(
        "{INSTANCES} instances, {} s: {} requests other than watches",
        idle.as_secs(),
        seen.len()
    ))?;
    ensure!(seen.is_empty(), "{seen:?}");
    // That the log shows the operator's requests at all.
    kubectl::ok(&["-n", name, "delete", "climcpinstance", &instances[0], "--timeout=120s"])?;
    ensure!(
        !requests(&log, from, Timestamp::now())?.is_empty(),
        "the audit log shows nothing of the operator"
    );
    kubectl::ok(&["-n", name, "delete", "climcpinstance", "--all", "--timeout=180s"])?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}
