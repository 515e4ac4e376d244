//! What an admin prepares for an instance: the Secrets with its kubeconfig and its certificate, made as the docs say.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{cluster, kubectl};

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

/// Exchanges the investigation kubeconfig for one with this token, as docs/rotation.md says.
///
/// # Errors
///
/// When it cannot be made, or the API server refuses it.
pub fn replace_credential(namespace: &str, instance: &str, token: &str) -> Result<()> {
    let mut kubeconfig: Value = serde_yaml::from_str(&investigation_kubeconfig(namespace, instance, &["--print"])?)?;
    kubeconfig["users"][0]["user"] = json!({ "token": token });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), kubeconfig.to_string())?;
    let secret = kubectl::ok(&[
        "-n",
        namespace,
        "create",
        "secret",
        "generic",
        &format!("cli-mcp-{instance}-kubeconfig"),
        &format!("--from-file=kubeconfig={}", file.path().display()),
        "--dry-run=client",
        "-o",
        "yaml",
    ])?;
    kubectl::apply(&secret)
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
