//! Flags and environment of the program (contract, section 10).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use clap_complete::Shell;
use cli_mcp_api::duration::GoDuration;

/// The credential proxy of an instance: whatever runs in a sandbox reaches exactly the instance's targets, as exactly
/// one identity.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy", version)]
pub struct Args {
    /// Address for the sandboxes: they send CONNECT requests here
    #[arg(long, env = "CLI_MCP_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,

    /// Address for probes (/healthz, /readyz) and /metrics
    #[arg(long, env = "CLI_MCP_HEALTH_LISTEN", default_value = "0.0.0.0:8081")]
    pub health_listen: SocketAddr,

    /// Directory with proxy-config.json, the ConfigMap that the operator writes
    #[arg(long, env = "CLI_MCP_ROUTES_DIR", default_value = "/etc/cli-mcp/routes")]
    pub routes_dir: PathBuf,

    /// Directory with kubeconfig, the investigation kubeconfig's Secret; may be missing without a kubernetes target
    #[arg(long, env = "CLI_MCP_KUBECONFIG_DIR", default_value = "/etc/cli-mcp/kubeconfig")]
    pub kubeconfig_dir: PathBuf,

    /// Directory with ca.crt and ca.key, the CA that the sandboxes trust
    #[arg(long, env = "CLI_MCP_CA_DIR", default_value = "/etc/cli-mcp/ca")]
    pub ca_dir: PathBuf,

    /// Most connections at a time, of all clients together; more get a 503
    #[arg(long, env = "CLI_MCP_MAX_CONNECTIONS", default_value_t = 4096, value_parser = positive)]
    pub max_connections: usize,

    /// Most connections at a time of one client address
    #[arg(long, env = "CLI_MCP_MAX_CONNECTIONS_PER_CLIENT", default_value_t = 512, value_parser = positive)]
    pub max_connections_per_client: usize,

    /// Memory that all streams may hold together, the kernel's buffers included, such as 384Mi; beyond it the client that
    /// holds most loses a stream. Keep it under two fifths of the container's limit
    #[arg(long, env = "CLI_MCP_MEMORY_BUDGET", default_value = "384Mi", value_parser = bytes)]
    pub memory_budget: usize,

    /// How long open streams may go on after SIGTERM, such as 25s; keep it under the pod's grace period
    #[arg(long, env = "CLI_MCP_DRAIN_TIMEOUT", default_value = "25s")]
    pub drain_timeout: GoDuration,

    /// File of PEM certificates that replace the public roots: for allowlist targets, and clusters without a CA
    #[arg(long, env = "SSL_CERT_FILE")]
    pub ssl_cert_file: Option<PathBuf>,

    /// Print the completion script of this shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completion: Option<Shell>,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("write a number from 1 up".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// As Kubernetes writes it: a whole number of bytes, or of Ki, Mi or Gi.
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.split_at_checked(text.len().saturating_sub(2)) {
        Some((number, "Ki")) => (number, 1 << 10),
        Some((number, "Mi")) => (number, 1 << 20),
        Some((number, "Gi")) => (number, 1 << 30),
        _ => (text, 1),
    };
    positive(number)
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "write a number of bytes from 1 up, such as 384Mi or 1Gi".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_contract() {
        let args = Args::parse_from(["proxy"]);
        assert_eq!(args.listen, "0.0.0.0:8080".parse().unwrap());
        assert_eq!(args.health_listen, "0.0.0.0:8081".parse().unwrap());
        assert_eq!(args.max_connections, 4096);
        assert_eq!(args.max_connections_per_client, 512);
        assert_eq!(args.memory_budget, 384 * 1024 * 1024);
        assert_eq!(args.drain_timeout.0, Duration::from_secs(25));
        assert_eq!(args.kubeconfig_dir, PathBuf::from("/etc/cli-mcp/kubeconfig"));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert!(Args::try_parse_from(["proxy", "--max-connections=0"]).is_err());
        assert!(Args::try_parse_from(["proxy", "--drain-timeout=25"]).is_err());
    }

    #[test]
    fn a_size_is_written_as_kubernetes_writes_it() {
        for (text, expected) in [
            ("1", 1),
            ("64Ki", 65_536),
            ("384Mi", 402_653_184),
            ("2Gi", 2_147_483_648),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "0",
            "0Mi",
            "Mi",
            "-1",
            "1.5Gi",
            "1G",
            "1 Mi",
            "1mi",
            "99999999999Gi",
            "\u{e9}i",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
