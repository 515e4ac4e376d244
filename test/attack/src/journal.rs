//! The logs that must stay true: the API server's audit, and the audit lines of server and proxy.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::Value;

use crate::arena;

/// A name that no earlier run used: the API server's audit log outlives a run, and may not be counted over two.
#[must_use]
pub fn unique(name: &str) -> String {
    static RUN: OnceLock<u128> = OnceLock::new();
    let run = RUN.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |time| time.as_millis())
    });
    format!("{name}-{run:x}")
}

/// How the URI of a command in a sandbox of the pool goes on: an administrator sends the attack itself by it.
const OF_SHELL: &str = "/exec?command=bash&command=-c&";

/// The API server's audit entries whose URI has this marker; none in a cluster whose audit log cannot be read from here.
///
/// # Errors
///
/// When the log cannot be read.
pub fn api_entries(marker: &str) -> Result<Option<Vec<Value>>> {
    if !cluster::is_dev() {
        return Ok(None);
    }
    let path = cluster::setting("DEVCLUSTER_AUDIT_LOG")?;
    let log = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    Ok(Some(
        log.lines()
            .filter(|line| line.contains(marker))
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|entry: &Value| {
                entry["requestURI"]
                    .as_str()
                    .is_some_and(|uri| uri.contains(marker) && !uri.contains(OF_SHELL))
            })
            .collect(),
    ))
}

/// The lines that the pods of a component wrote to their logs, each parsed: a line that is no JSON is an error.
///
/// # Errors
///
/// When a log cannot be read, or has a line that is no JSON object.
pub fn lines(instance: &Instance, component: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for pod in arena::pods(instance, component)? {
        let log = kubectl::ok(&["-n", &instance.namespace, "logs", &pod])?;
        for line in log.lines() {
            let value: Value =
                serde_json::from_str(line).with_context(|| format!("{pod}: a line that is no JSON: {line:?}"))?;
            ensure!(value.is_object(), "{pod}: {line:?}");
            found.push(value);
        }
    }
    Ok(found)
}
