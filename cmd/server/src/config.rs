//! The flags of the server and their environment variables (contract, section 4). What they mean together is
//! [`settings`]'s.

pub mod settings;
mod values;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use clap_complete::Shell;
use cli_mcp_api::duration::GoDuration;

/// MCP server of one CliMcpInstance: one tool, bash, that runs commands in the sandbox pod of the caller's session.
///
/// Every flag is also an environment variable: CLI_MCP_ and the flag's name in upper snake case.
#[derive(Clone, Debug, Parser)]
#[command(name = "server", version, about, long_about, max_term_width = 120)]
pub struct Cli {
    /// How clients talk to the server: stdio serves one client on standard input and output, http serves many and needs
    /// --stateless.
    #[arg(long, env = "CLI_MCP_TRANSPORT", value_enum, default_value_t = TransportKind::Stdio)]
    pub transport: TransportKind,

    /// Where http listens, as host:port. Anything but loopback needs TLS and --authorization=kubernetes.
    #[arg(long, env = "CLI_MCP_ADDRESS", default_value = "localhost:8080")]
    pub address: String,

    /// Serve http without any state of a client between two requests, so that every replica serves every session.
    #[arg(long, env = "CLI_MCP_STATELESS")]
    pub stateless: bool,

    /// Where plain HTTP serves /live, /health and /metrics, as ip:port, for the kubelet and Prometheus. Unset: only the
    /// main listener serves them.
    #[arg(long, env = "CLI_MCP_HEALTH_ADDRESS")]
    pub health_address: Option<String>,

    /// Namespace of the sandboxes.
    #[arg(long, env = "CLI_MCP_NAMESPACE")]
    pub namespace: String,

    /// Name of the CliMcpInstance that this server belongs to.
    #[arg(long, env = "CLI_MCP_INSTANCE_NAME")]
    pub instance_name: String,

    /// Image of the sandboxes.
    #[arg(long, env = "CLI_MCP_SANDBOX_IMAGE")]
    pub sandbox_image: String,

    /// File with the key that session tokens are derived from: at least 32 random bytes, taken as they are.
    #[arg(long, env = "CLI_MCP_HMAC_KEY_FILE")]
    pub hmac_key_file: PathBuf,

    /// ServiceAccount of the sandboxes; it needs no permission and gets no token.
    #[arg(long, env = "CLI_MCP_SANDBOX_SERVICE_ACCOUNT")]
    pub sandbox_service_account: String,

    /// Local use: Secret whose kubeconfig is mounted into the sandboxes as it is. Required unless the proxy flags are
    /// given.
    #[arg(long, env = "CLI_MCP_KUBECONFIG_SECRET")]
    pub kubeconfig_secret: Option<String>,

    /// Kubeconfig of the server's own client. Unset: the pod's ServiceAccount, else KUBECONFIG, else ~/.kube/config.
    #[arg(long, env = "CLI_MCP_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,

    /// CPU that a sandbox requests.
    #[arg(long, env = "CLI_MCP_SANDBOX_CPU_REQUEST", default_value = "100m")]
    pub sandbox_cpu_request: String,

    /// CPU limit of a sandbox.
    #[arg(long, env = "CLI_MCP_SANDBOX_CPU_LIMIT", default_value = "500m")]
    pub sandbox_cpu_limit: String,

    /// Memory that a sandbox requests.
    #[arg(long, env = "CLI_MCP_SANDBOX_MEMORY_REQUEST", default_value = "128Mi")]
    pub sandbox_memory_request: String,

    /// Memory limit of a sandbox.
    #[arg(long, env = "CLI_MCP_SANDBOX_MEMORY_LIMIT", default_value = "512Mi")]
    pub sandbox_memory_limit: String,

    /// All compute resources of a sandbox as the JSON of a ResourceRequirements; replaces the four flags above.
    #[arg(long, env = "CLI_MCP_SANDBOX_RESOURCES")]
    pub sandbox_resources: Option<String>,

    /// Always, IfNotPresent or Never. Empty: Kubernetes' default for the image's tag.
    #[arg(long, env = "CLI_MCP_SANDBOX_IMAGE_PULL_POLICY", default_value = "")]
    pub sandbox_image_pull_policy: String,

    /// Secrets to pull the sandbox's image with, separated by commas.
    #[arg(long, env = "CLI_MCP_SANDBOX_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub sandbox_image_pull_secrets: Vec<String>,

    /// Size limit of /workspace, such as 1Gi. Empty: 2Gi.
    #[arg(long, env = "CLI_MCP_SANDBOX_WORKSPACE_SIZE_LIMIT", default_value = "")]
    pub sandbox_workspace_size_limit: String,

    /// RuntimeClass of the sandboxes, such as gVisor's. Empty: the cluster's default.
    #[arg(long, env = "CLI_MCP_SANDBOX_RUNTIME_CLASS", default_value = "")]
    pub sandbox_runtime_class: String,

    /// Labels of the nodes that sandboxes run on, as a JSON object.
    #[arg(long, env = "CLI_MCP_SANDBOX_NODE_SELECTOR", default_value = "")]
    pub sandbox_node_selector: String,

    /// Taints that sandboxes tolerate, as a JSON list of Toleration.
    #[arg(long, env = "CLI_MCP_SANDBOX_TOLERATIONS", default_value = "")]
    pub sandbox_tolerations: String,

    /// More environment variables of the sandboxes, as a JSON list of EnvVar. Names that the sandbox sets itself are
    /// ignored.
    #[arg(long, env = "CLI_MCP_SANDBOX_ENV", default_value = "")]
    pub sandbox_env: String,

    /// Owner of the pods that the server creates, as the JSON of an OwnerReference: for garbage collection, and because no
    /// other pod is taken for a sandbox then.
    #[arg(long, env = "CLI_MCP_SANDBOX_OWNER")]
    pub sandbox_owner: Option<String>,

    /// The most sessions at one time; 0: no limit.
    #[arg(long, env = "CLI_MCP_MAX_SESSIONS", default_value_t = 0)]
    pub max_sessions: u32,

    /// Accepted and without effect: the operator ends idle sessions.
    #[arg(long, env = "CLI_MCP_IDLE_TIMEOUT", default_value = "30m")]
    pub idle_timeout: GoDuration,

    /// Accepted and without effect: the operator fills the warm pool.
    #[arg(long, env = "CLI_MCP_WARM_POOL_SIZE", default_value_t = 0)]
    pub warm_pool_size: u32,

    /// Service of the credential proxy. The three proxy flags go together; with them no sandbox is created or claimed
    /// before the proxy and the network policies are in place.
    #[arg(long, env = "CLI_MCP_PROXY_SERVICE")]
    pub proxy_service: Option<String>,

    /// Secret with the certificate of the proxy's CA under ca.crt.
    #[arg(long, env = "CLI_MCP_PROXY_CA_SECRET")]
    pub proxy_ca_secret: Option<String>,

    /// ConfigMap with the dummy kubeconfig under kubeconfig.
    #[arg(long, env = "CLI_MCP_DUMMY_KUBECONFIG_CONFIGMAP")]
    pub dummy_kubeconfig_configmap: Option<String>,

    /// Whether sandboxes must prove that their network is closed. Default: Required with the proxy flags, else Disabled.
    #[arg(long, env = "CLI_MCP_EGRESS_CHECK")]
    pub egress_check: Option<EgressCheckFlag>,

    /// address:port that no sandbox may reach: the API server's Service.
    #[arg(long, env = "CLI_MCP_EGRESS_TARGET")]
    pub egress_target: Option<String>,

    /// address:port that every sandbox must reach: the proxy's Service.
    #[arg(long, env = "CLI_MCP_EGRESS_CONTROL")]
    pub egress_control: Option<String>,

    /// Where agents listen, as ip:port with port 8090, an IPv6 address in brackets. Empty: their default, every IPv4 address.
    #[arg(long, env = "CLI_MCP_SANDBOX_LISTEN", default_value = "")]
    pub sandbox_listen: String,

    /// Certificate chain of the http listener, PEM; read again when the file changes.
    #[arg(long, env = "CLI_MCP_TLS_CERT_FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// Private key of the http listener, PEM; read again when the file changes.
    #[arg(long, env = "CLI_MCP_TLS_PRIVATE_KEY_FILE")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Who may call over http: none lets everyone on this machine (loopback only); kubernetes checks the bearer token by
    /// TokenReview and the right to climcpinstances/mcp of this instance by SubjectAccessReview.
    #[arg(long, env = "CLI_MCP_AUTHORIZATION", value_enum, default_value_t = Authorization::None)]
    pub authorization: Authorization,

    /// More names by which clients reach the http listener, separated by commas, each host or host:port: those of an
    /// Ingress or Route. Loopback names, the listener's own address, the Service's names and those in the certificate
    /// are always accepted.
    #[arg(long, env = "CLI_MCP_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,

    /// Web pages that may call the http listener, separated by commas, each scheme://host or scheme://host:port. Origins
    /// on loopback are accepted when the listener is on loopback.
    #[arg(long, env = "CLI_MCP_ALLOWED_ORIGINS", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,

    /// The most connections of one client address at one time over http; more are closed. Clients behind an Ingress or
    /// another proxy have one address together.
    #[arg(long, env = "CLI_MCP_MAX_CONNECTIONS_PER_CLIENT", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_client: u32,

    /// How the server reaches the agent in a sandbox: direct (the pod's address), port-forward (through the API server),
    /// or auto (the pod's address, and where that cannot be reached the API server).
    #[arg(long, env = "CLI_MCP_SANDBOX_CONNECTION", value_enum, default_value_t = SandboxConnection::Auto)]
    pub sandbox_connection: SandboxConnection,

    /// How commands appear in the audit lines: digest (length and SHA-256), full, or none.
    #[arg(long, env = "CLI_MCP_AUDIT_COMMANDS", value_enum, default_value_t = AuditCommands::Digest)]
    pub audit_commands: AuditCommands,

    /// The session of a stdio client whose requests name none in _meta.
    #[arg(long, env = "CLI_MCP_SESSION_ID")]
    pub session_id: Option<String>,

    /// How long calls in progress may go on after SIGTERM. The pod's termination grace must be longer.
    #[arg(long, env = "CLI_MCP_DRAIN_TIMEOUT", default_value = "25s")]
    pub drain_timeout: GoDuration,

    /// Print the completion script of a shell and exit.
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completion: Option<Shell>,
}

/// Values of `--transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// One client on standard input and output.
    Stdio,
    /// Streamable HTTP on `/mcp`.
    Http,
}

/// Values of `--authorization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Authorization {
    /// No check; loopback only.
    None,
    /// TokenReview and SubjectAccessReview.
    Kubernetes,
}

/// Values of `--sandbox-connection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxConnection {
    /// Direct, and where that cannot be had through the API server.
    Auto,
    /// The pod's address only.
    Direct,
    /// The API server's port-forward only.
    PortForward,
}

/// Values of `--audit-commands`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditCommands {
    /// Length and SHA-256.
    Digest,
    /// The command itself.
    Full,
    /// Nothing.
    None,
}

/// Values of `--egress-check`, spelled as in the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EgressCheckFlag {
    /// The agent must prove it.
    #[value(name = "Required")]
    Required,
    /// No proof.
    #[value(name = "Disabled")]
    Disabled,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::settings::Settings;
    use super::*;

    #[test]
    fn sandboxes_listen_where_the_flag_says_and_without_it_as_they_always_did() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), [7; 32]).unwrap();
        let hmac_key_file = format!("--hmac-key-file={}", key.path().display());
        let template = |more: &[&str]| {
            let required = [
                "server",
                "--namespace=ns",
                "--instance-name=demo",
                "--sandbox-image=localhost/sandbox:dev",
                "--sandbox-service-account=cli-mcp-demo-sandbox",
                "--kubeconfig-secret=kc",
                &hmac_key_file,
            ];
            let cli = Cli::try_parse_from(required.iter().chain(more)).unwrap();
            Settings::try_from(cli).unwrap().template
        };
        let listen = |more: &[&str]| template(more).listen.map(|listen| listen.to_string());
        assert_eq!(listen(&["--sandbox-listen=[::]:8090"]).as_deref(), Some("[::]:8090"));
        assert_eq!(listen(&[]), None);
        assert_eq!(listen(&["--sandbox-listen="]), None);
    }

    #[test]
    fn every_flag_has_its_variable_and_help() {
        let command = Cli::command();
        command.clone().debug_assert();
        for flag in command.get_arguments() {
            let Some(long) = flag.get_long() else { continue };
            assert!(flag.get_help().is_some(), "--{long} has no help");
            if matches!(long, "help" | "version" | "completion") {
                continue;
            }
            let expected = format!("CLI_MCP_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(
                flag.get_env().map(|name| name.to_string_lossy().into_owned()),
                Some(expected),
                "--{long}"
            );
        }
    }
}
