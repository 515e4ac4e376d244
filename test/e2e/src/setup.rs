//! What an instance is made of, step by step, for tests that need the steps: a namespace, the admin's Secrets, the
//! manifest; and what its conditions say.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::{admin, kubectl};

/// Makes a namespace anew that enforces the `restricted` Pod Security Standard.
///
/// # Errors
///
/// When kubectl fails.
pub fn namespace(name: &str) -> Result<()> {
    // An earlier run's instance has certificates of its own.
    kubectl::ok(&["delete", "namespace", name, "--ignore-not-found", "--timeout=180s"])?;
    kubectl::apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n  labels: {{pod-security.kubernetes.io/enforce: restricted}}\n"
    ))
}

/// Makes the Secrets of an admin. The certificate of the CA goes to a file, where a client is to verify the server.
///
/// # Errors
///
/// When either cannot be made.
pub fn secrets(namespace: &str, instance: &str, ca: Option<&Path>) -> Result<()> {
    admin::investigation_kubeconfig(namespace, instance, &[])?;
    admin::certificate(namespace, instance, ca.unwrap_or(Path::new("/dev/null")))
}

/// Applies an instance; the spec is YAML.
///
/// # Errors
///
/// When the spec is no YAML, or the API server refuses it.
pub fn apply(namespace: &str, instance: &str, spec: &str) -> Result<()> {
    let spec: Value = serde_yaml::from_str(spec)?;
    let manifest = json!({"apiVersion": "cli-mcp.redhat.com/v1alpha1", "kind": "CliMcpInstance",
        "metadata": {"name": instance, "namespace": namespace}, "spec": spec});
    kubectl::apply(&manifest.to_string())
}

/// Merges a patch, in JSON, into an instance.
///
/// # Errors
///
/// When the API server refuses it.
pub fn patch(namespace: &str, instance: &str, patch: &str) -> Result<()> {
    kubectl::ok(&[
        "-n",
        namespace,
        "patch",
        "climcpinstance",
        instance,
        "--type=merge",
        "-p",
        patch,
    ])?;
    Ok(())
}

/// A condition as it stands; each part is empty while nobody has written it.
#[derive(Debug, Default)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, and what to do.
    pub message: String,
}

impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.status, self.reason, self.message)
    }
}

/// Reads a condition of an instance.
///
/// # Errors
///
/// When the instance cannot be read.
pub fn condition(namespace: &str, instance: &str, type_: &str) -> Result<Condition> {
    let text = kubectl::ok(&["-n", namespace, "get", "climcpinstance", instance, "-o", "json"])?;
    let live: Value = serde_json::from_str(&text)?;
    let conditions = live["status"]["conditions"].as_array().into_iter().flatten();
    Ok(conditions
        .into_iter()
        .find(|condition| condition["type"] == type_)
        .map(|condition| {
            let part = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
            Condition {
                status: part("status"),
                reason: part("reason"),
                message: part("message"),
            }
        })
        .unwrap_or_default())
}
