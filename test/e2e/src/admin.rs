//! What an admin prepares for an instance: the Secrets with its kubeconfig and its certificate, made as the docs say.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cluster;

/// Runs `kubectl cli-mcp investigation-kubeconfig`, and returns what it prints.
///
/// # Errors
///
/// When it fails: the error holds what it printed.
pub fn investigation_kubeconfig(namespace: &str, instance: &str, more: &[&str]) -> Result<String> {
    let plugin = Path::new(&cluster::setting("E2E_BIN_DIR")?).join("kubectl-cli_mcp");
    run(Command::new(plugin)
        .args([
            "investigation-kubeconfig",
            "--namespace",
            namespace,
            "--instance",
            instance,
        ])
        .args(more))
}

/// Runs `hack/tls-secret.sh`; the CA goes to the file.
///
/// # Errors
///
/// When it fails: the error holds what it printed.
pub fn certificate(namespace: &str, instance: &str, ca: &Path) -> Result<()> {
    let script = cluster::repository().join("hack/tls-secret.sh");
    run(Command::new(script)
        .args(["--namespace", namespace, "--instance", instance, "--ca-out"])
        .arg(ca))
    .map(drop)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
