//! The server's clients of the API server.

use std::time::Duration;

use anyhow::Context;
use http::{HeaderValue, header};
use kube::config::{ExecInteractiveMode, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::config::settings::{Settings, Transport};
use crate::watch::WatchClient;

/// Longer than any watch is silent: the API server ends one after 290 s.
const WATCH_SILENCE: Duration = Duration::from_secs(330);

/// How the API server's audit log names the server.
const USER_AGENT: &str = concat!("cli-mcp-server/", env!("CARGO_PKG_VERSION"));

/// One for requests and forwarded ports, which may be silent for as long as a command is, and one for watches.
pub(super) struct Clients {
    pub(super) plain: Client,
    pub(super) watches: WatchClient,
}

impl Clients {
    /// Clients as the invocation says.
    pub(super) async fn of(settings: &Settings) -> anyhow::Result<Self> {
        let mut config = match &settings.kubeconfig {
            None => Config::infer()
                .await
                .context("no cluster: give --kubeconfig, or run in a pod")?,
            Some(file) => {
                let kubeconfig =
                    Kubeconfig::read_from(file).with_context(|| format!("--kubeconfig {}", file.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("--kubeconfig {}", file.display()))?
            }
        };
        config
            .headers
            .push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
        if let Transport::Stdio { .. } = settings.transport
            && let Some(plugin) = &mut config.auth_info.exec
        {
            // Standard input carries the protocol: a plugin that reads it would take the client's first message.
            plugin.interactive_mode = Some(ExecInteractiveMode::Never);
        }
        let failed = "the Kubernetes client cannot be made";
        Ok(Self {
            plain: Client::try_from(config.clone()).context(failed)?,
            watches: WatchClient::new(config, WATCH_SILENCE).context(failed)?,
        })
    }
}
