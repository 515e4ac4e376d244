//! The cluster under test, and the settings that `make test-e2e` passes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;

/// Longest wait for anything; a bound against hanging, not a figure.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A client of the current context.
///
/// # Errors
///
/// When there is no usable kubeconfig.
pub async fn client() -> Result<Client> {
    // A second install in one process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_default()
        .await
        .context("no usable kubeconfig; run the tests with make test-e2e")
}

/// A setting of `make test-e2e`.
///
/// # Errors
///
/// When it is not set.
pub fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set; run the tests with make test-e2e"))
}

/// Image of one of the programs.
///
/// # Errors
///
/// When the settings are missing.
pub fn image(program: &str) -> Result<String> {
    Ok(format!(
        "{}{program}:{}",
        setting("E2E_IMAGE_PREFIX")?,
        setting("E2E_TAG")?
    ))
}

/// Whether the cluster is the repository's own, whose audit log and node can be reached from here.
#[must_use]
pub fn is_dev() -> bool {
    std::env::var("E2E_CLUSTER").is_ok_and(|cluster| cluster == "dev")
}

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Tries until `attempt` gives a value, with what it saw last in the error.
///
/// # Errors
///
/// When [`PATIENCE`] is over.
pub async fn eventually<T, F, Fut>(what: &str, attempt: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    within(PATIENCE, what, attempt).await
}

/// The same with another bound.
///
/// # Errors
///
/// When the time is over.
pub async fn within<T, F, Fut>(patience: Duration, what: &str, mut attempt: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let end = Instant::now() + patience;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => bail!("{what}: {error:#}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
