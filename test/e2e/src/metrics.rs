//! What the programs say of themselves.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::instance::Forward;
use crate::kubectl;

/// Namespace of the operator.
pub const OPERATOR: &str = "cli-mcp-operator-system";

/// Status and body of the operator's `GET /metrics` with this bearer token. A forward ends with the pod that it leads to, so each scrape has
/// its own.
///
/// # Errors
///
/// When the operator cannot be reached.
pub fn of_operator(token: Option<&str>) -> Result<(u16, String)> {
    let (_forward, port) = Forward::start(OPERATOR, "deployment/cli-mcp-operator-controller-manager")?;
    let headers = tempfile::NamedTempFile::new()?;
    if let Some(token) = token {
        std::fs::write(headers.path(), format!("Authorization: Bearer {token}\n"))?;
    }
    let output = Command::new("curl")
        // The certificate is self-signed, and this is loopback.
        .args([
            "--silent",
            "--show-error",
            "--insecure",
            "--write-out",
            "\n%{http_code}",
        ])
        .arg("--header")
        .arg(format!("@{}", headers.path().display()))
        .arg(format!("https://localhost:{port}/metrics"))
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (body, code) = text.rsplit_once('\n').context("no status")?;
    Ok((code.parse()?, body.to_owned()))
}

/// The metrics of a pod of a server or a proxy, by its name, which it serves in clear beside its health.
///
/// # Errors
///
/// When the API server does not get them.
pub fn of_pod(namespace: &str, pod: &str) -> Result<String> {
    kubectl::ok(&[
        "get",
        "--raw",
        &format!("/api/v1/namespaces/{namespace}/pods/{pod}:8081/proxy/metrics"),
    ])
}

/// The value of a series without labels.
#[must_use]
pub fn value(text: &str, series: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        let text = "# TYPE tasks gauge\ntasks_more 7\ntasks 5\n";
        assert_eq!(value(text, "tasks"), Some(5));
        assert_eq!(value(text, "task"), None);
    }
}
