//! `operator kubeconfig`: an admin's questions, answered without a cluster. Text for stdout, or lines for stderr.

use std::path::Path;

/// What a kubeconfig will serve.
///
/// # Errors
///
/// Everything that is wrong with it, one line each.
pub fn check(file: &Path) -> Result<String, String> {
    cli_mcp_kubeconfig::offline::check(file)
        .map(|report| report.to_string())
        .map_err(|error| error.to_string())
}

/// Writes what the proxy's ConfigMap would hold.
///
/// # Errors
///
/// What is wrong with a file, one line each.
pub fn render(file: &Path, instance: &Path, ca: &Path, out: &Path) -> Result<String, String> {
    cli_mcp_kubeconfig::offline::render(file, instance, ca, out)
        .map(|()| format!("wrote proxy-config.json and kubeconfig to {}\n", out.display()))
        .map_err(|error| error.to_string())
}
