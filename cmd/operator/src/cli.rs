//! The flags of the operator, their environment variables and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Operator of CliMcpInstances: each becomes an MCP server with one tool, bash, whose commands run in hardened pods that
/// reach Kubernetes only through a credential proxy.
///
/// Without a command it runs, in a pod or on a laptop against the current context of the kubeconfig. Install the
/// CustomResourceDefinition first: kubectl apply -k config/crd
#[derive(Debug, Parser)]
#[command(
    name = "operator",
    version,
    about,
    long_about,
    max_term_width = 120,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// Flags of `run`, which is the default.
    #[command(flatten)]
    pub run: RunArguments,

    /// What to do instead.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controllers (the default)
    Run(Box<RunArguments>),
    /// Check or render an investigation kubeconfig, without a cluster
    Kubeconfig {
        /// Which of the two.
        #[command(subcommand)]
        command: KubeconfigCommand,
    },
    /// Print the completion script of a shell
    Completion {
        /// Shell to print it for
        shell: Shell,
    },
}

/// Questions about kubeconfigs.
#[derive(Debug, Subcommand)]
pub enum KubeconfigCommand {
    /// Say everything that is wrong with an investigation kubeconfig, or what it will serve
    Check {
        /// The kubeconfig, as it would stand in the Secret under the key kubeconfig
        file: PathBuf,
    },
    /// Write what the proxy's ConfigMap would hold: proxy-config.json and the dummy kubeconfig of the sandboxes
    Render {
        /// The investigation kubeconfig
        file: PathBuf,
        /// Manifest of the CliMcpInstance (YAML or JSON)
        #[arg(long)]
        instance: PathBuf,
        /// Certificate of the proxy's CA (PEM), to stand in the dummy kubeconfig
        #[arg(long)]
        ca: PathBuf,
        /// Folder to write to; it is created when it does not exist
        #[arg(long)]
        out: PathBuf,
    },
}

/// Flags of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArguments {
    /// Take part in leader election over the Lease cli-mcp-operator-leader, so that of several replicas one works
    #[arg(long, env = "LEADER_ELECT")]
    pub leader_elect: bool,

    /// Where /healthz and /readyz are served over plain HTTP, as :port or address:port; 0 serves neither
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: String,

    /// Where /metrics is served, as :port or address:port; 0 does not serve it. Loopback is plain HTTP; any other address
    /// is HTTPS, and callers need a token that may get the non-resource URL /metrics
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = "0")]
    pub metrics_bind_address: String,

    /// Folder with tls.crt and tls.key of the metrics listener, read again when they change. Unset: a self-signed
    /// certificate
    #[arg(long, env = "METRICS_CERT_PATH")]
    pub metrics_cert_path: Option<PathBuf>,

    /// Namespaces to watch, separated by commas; * is all. Empty: the operator's own, which on a laptop is the namespace
    /// of the current context
    #[arg(long, env = "WATCH_NAMESPACE", default_value = "", hide_default_value = true)]
    pub watch_namespace: String,

    /// What an empty list of namespaces to watch stands for, as --watch-namespace has it. OLM writes an empty list for all
    /// namespaces, so its bundle says *
    #[arg(long, env = "DEFAULT_WATCH_NAMESPACE", default_value = "", hide_default_value = true)]
    pub default_watch_namespace: String,

    /// The operator's own namespace, where its Lease lives. Empty: that of its ServiceAccount or current context
    #[arg(long, env = "POD_NAMESPACE", default_value = "", hide_default_value = true)]
    pub namespace: String,

    /// Name of this replica in the Lease and in events. Empty: the host's name and a random suffix
    #[arg(long, env = "POD_NAME", default_value = "", hide_default_value = true)]
    pub pod_name: String,

    /// Image of the MCP servers; required
    #[arg(long, env = "RELATED_IMAGE_SERVER")]
    pub server_image: Option<String>,

    /// Image of the credential proxies; required
    #[arg(long, env = "RELATED_IMAGE_PROXY")]
    pub proxy_image: Option<String>,

    /// Image of the sandboxes whose instance names none; required
    #[arg(long, env = "RELATED_IMAGE_SANDBOX")]
    pub sandbox_image: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_of_run_has_help_and_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        for flag in command.get_arguments() {
            let Some(long) = flag.get_long().filter(|long| !matches!(*long, "help" | "version")) else {
                continue;
            };
            assert!(flag.get_help().is_some(), "--{long} has no help");
            assert!(flag.get_env().is_some(), "--{long} has no variable");
        }
    }

    #[test]
    fn run_is_the_default_command() {
        let direct = Cli::try_parse_from(["operator", "--leader-elect"]).unwrap();
        assert!(direct.command.is_none() && direct.run.leader_elect);
        let named = Cli::try_parse_from(["operator", "run", "--leader-elect"]).unwrap();
        assert!(matches!(named.command, Some(Command::Run(run)) if run.leader_elect));
    }
}
