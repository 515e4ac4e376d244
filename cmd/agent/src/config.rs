//! The command line: flags, their environment variables, and what makes a valid set of them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use cli_mcp_sandbox::token::TokenDigest;
use cli_mcp_sandbox::wire::EgressCheck;
use serde::{Deserialize, Serialize};

/// Bytes of a stream that a reply may be set to keep.
const OUTPUT_LIMITS: std::ops::RangeInclusive<u64> = 1024..=16 << 20;

/// The sandbox agent: runs the commands of one session in one persistent bash and serves it over HTTP.
///
/// Started in a sandbox pod it needs no flags: the pod's environment carries its settings. On a laptop, for a first try:
///
///   SANDBOX_AUTH_TOKEN=secret HOME=/tmp agent --listen 127.0.0.1:8090
///
///   curl -s -H 'Authorization: Bearer secret' -H 'Content-Type: application/json' \
///        -d '{"command":"echo hello"}' http://127.0.0.1:8090/exec
#[derive(Debug, Parser)]
#[command(
    name = "agent",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// What to do; without a subcommand the agent serves.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What else the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask the agent of this pod for its health: exit code 0 when it is ready, else 1 and the reason. A readiness probe
    /// for images without an HTTP client
    Probe(ProbeArgs),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
}

/// Flags of `agent probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The address the agent listens on; a wildcard is asked by loopback
    #[arg(
        long,
        env = "SANDBOX_LISTEN",
        default_value = "0.0.0.0:8090",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,
}

/// A secret that no text shows.
#[derive(Clone)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("[redacted]")
    }
}

impl std::str::FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// As the contract writes it, without regard to case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum EgressCheckArg {
    /// Commands run only while a direct connection to the target fails.
    Required,
    /// No check.
    Disabled,
}

/// Flags of the serving agent.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port to serve on; addresses only, no names
    #[arg(
        long,
        env = "SANDBOX_LISTEN",
        default_value = "0.0.0.0:8090",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,
    /// SHA-256 of the session token, 64 hexadecimal digits: callers of /exec and /cancel present the token itself
    #[arg(long, env = "SANDBOX_AUTH_TOKEN_SHA256", value_name = "HEX", hide_env_values = true)]
    pub auth_token_sha256: Option<Secret>,
    /// The session token in clear, for use without the operator; prefer the variable, a command line can be read by others
    #[arg(long, env = "SANDBOX_AUTH_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub auth_token: Option<Secret>,
    /// SHA-256 of the token that /assign takes; needed when no session token is given: the agent then starts unassigned
    #[arg(
        long,
        env = "SANDBOX_ASSIGN_TOKEN_SHA256",
        value_name = "HEX",
        hide_env_values = true
    )]
    pub assign_token_sha256: Option<Secret>,
    /// Whether commands wait for proof that the network is closed; needs --egress-target and --egress-control
    #[arg(
        long,
        env = "SANDBOX_EGRESS_CHECK",
        value_enum,
        ignore_case = true,
        default_value = "Disabled",
        value_name = "MODE"
    )]
    pub egress_check: EgressCheckArg,
    /// Address that must not be reachable: the API server's service
    #[arg(long, env = "SANDBOX_EGRESS_TARGET", value_name = "ADDRESS:PORT")]
    pub egress_target: Option<SocketAddr>,
    /// Address that must be reachable: the proxy
    #[arg(long, env = "SANDBOX_EGRESS_CONTROL", value_name = "ADDRESS:PORT")]
    pub egress_control: Option<SocketAddr>,
    /// Bytes of each output stream that a reply keeps, 1024 to 16777216; longer output is cut in the middle, and its full
    /// text goes to .cli-mcp/output below the home directory
    #[arg(long, env = "SANDBOX_OUTPUT_LIMIT", default_value_t = 262_144, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(OUTPUT_LIMITS))]
    pub output_limit: u64,
    /// Processes that the sandbox may have, fewer where its memory limit has no room for as many (1 MiB each): with more
    /// all commands are ended, before they fill its memory. 0: no limit. Needs the agent to be process 1, as in a pod
    #[arg(long, env = "SANDBOX_MAX_PROCESSES", default_value_t = 1000, value_name = "COUNT")]
    pub max_processes: usize,
    /// The workspace: home directory and first working directory of the shell
    #[arg(long, env = "HOME", default_value = "/workspace", value_name = "DIRECTORY")]
    pub home: PathBuf,
}

/// A valid set of settings. Holds digests only, as the process that serves does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where to serve.
    pub listen: SocketAddr,
    /// Hexadecimal SHA-256 of the session token; none starts unassigned.
    pub session_digest: Option<String>,
    /// Hexadecimal SHA-256 of the assign token.
    pub assign_digest: Option<String>,
    /// Whether the network must be proven closed.
    pub egress_check: EgressCheck,
    /// `(target, control)`, both given when the check is required.
    pub egress_targets: Option<(SocketAddr, SocketAddr)>,
    /// Bytes of a stream in a reply.
    pub output_limit: usize,
    /// Processes that the sandbox may have; 0 for any number.
    pub max_processes: usize,
    /// The workspace.
    pub home: PathBuf,
}

/// What is wrong with a set of flags: one line that names flag, finding and remedy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Neither a session nor an assign token.
    #[error(
        "no token is set: set SANDBOX_AUTH_TOKEN_SHA256 (or SANDBOX_AUTH_TOKEN) to serve one session, or SANDBOX_ASSIGN_TOKEN_SHA256 to start unassigned"
    )]
    NoToken,
    /// Both forms of the session token.
    #[error(
        "--auth-token (SANDBOX_AUTH_TOKEN) and --auth-token-sha256 (SANDBOX_AUTH_TOKEN_SHA256) are both set: remove one"
    )]
    TwoTokens,
    /// An empty token would be accepted from anyone.
    #[error(
        "--auth-token (SANDBOX_AUTH_TOKEN) must be visible ASCII characters and not empty: set a token, or remove the variable"
    )]
    BadToken,
    /// Not a digest.
    #[error("{0} is not a SHA-256 digest: give 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints them")]
    BadDigest(&'static str),
    /// A required check without its addresses.
    #[error("{0} is not set: --egress-check=Required needs an ADDRESS:PORT there")]
    NoEgressAddress(&'static str),
    /// Not an absolute path.
    #[error("--home (HOME) is {0:?}: give an absolute path")]
    RelativeHome(PathBuf),
}

impl ServeArgs {
    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// [`SettingsError`].
    pub fn settings(self) -> Result<Settings, SettingsError> {
        let digest = |secret: Option<Secret>, name| {
            secret
                .map(|Secret(text)| {
                    TokenDigest::from_hex(&text)
                        .map(TokenDigest::to_hex)
                        .map_err(|_| SettingsError::BadDigest(name))
                })
                .transpose()
        };
        let session_digest = match (self.auth_token, self.auth_token_sha256) {
            (Some(_), Some(_)) => return Err(SettingsError::TwoTokens),
            (Some(Secret(token)), None) => {
                if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(SettingsError::BadToken);
                }
                Some(TokenDigest::of(token.as_bytes()).to_hex())
            }
            (None, hashed) => digest(hashed, "--auth-token-sha256 (SANDBOX_AUTH_TOKEN_SHA256)")?,
        };
        let assign_digest = digest(
            self.assign_token_sha256,
            "--assign-token-sha256 (SANDBOX_ASSIGN_TOKEN_SHA256)",
        )?;
        if session_digest.is_none() && assign_digest.is_none() {
            return Err(SettingsError::NoToken);
        }
        let (egress_check, egress_targets) = match self.egress_check {
            EgressCheckArg::Disabled => (EgressCheck::Disabled, None),
            EgressCheckArg::Required => {
                let target = self.egress_target.ok_or(SettingsError::NoEgressAddress(
                    "--egress-target (SANDBOX_EGRESS_TARGET)",
                ))?;
                let control = self.egress_control.ok_or(SettingsError::NoEgressAddress(
                    "--egress-control (SANDBOX_EGRESS_CONTROL)",
                ))?;
                (EgressCheck::Required, Some((target, control)))
            }
        };
        if !self.home.is_absolute() {
            return Err(SettingsError::RelativeHome(self.home));
        }
        Ok(Settings {
            listen: self.listen,
            session_digest,
            assign_digest,
            egress_check,
            egress_targets,
            output_limit: usize::try_from(self.output_limit).unwrap_or(usize::MAX),
            max_processes: self.max_processes,
            home: self.home,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn settings(arguments: &[&str]) -> Result<Settings, SettingsError> {
        let home: &[&str] = if arguments.iter().any(|argument| argument.starts_with("--home")) {
            &[]
        } else {
            &["--home=/w"]
        };
        let arguments = ["agent"].iter().chain(home).chain(arguments);
        Cli::try_parse_from(arguments).unwrap().serve.settings()
    }

    const DIGEST: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // "secret"

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_clear_token_becomes_its_digest() {
        let settings = settings(&["--auth-token=secret"]).unwrap();
        assert_eq!(settings.session_digest.as_deref(), Some(DIGEST));
        assert!(!serde_json::to_string(&settings).unwrap().contains("\"secret\""));
    }

    #[test]
    fn contradictions_and_gaps_are_named() {
        let digest = format!("--auth-token-sha256={DIGEST}");
        assert_eq!(settings(&[]).unwrap_err(), SettingsError::NoToken);
        assert_eq!(
            settings(&["--auth-token=x", &digest]).unwrap_err(),
            SettingsError::TwoTokens
        );
        assert_eq!(settings(&["--auth-token="]).unwrap_err(), SettingsError::BadToken);
        assert!(matches!(
            settings(&["--assign-token-sha256=zz"]).unwrap_err(),
            SettingsError::BadDigest(_)
        ));
        assert!(matches!(
            settings(&[&digest, "--egress-check=required"]).unwrap_err(),
            SettingsError::NoEgressAddress(_)
        ));
        assert!(matches!(
            settings(&[&digest, "--home=w"]).unwrap_err(),
            SettingsError::RelativeHome(_)
        ));
    }

    #[test]
    fn debug_shows_no_secret() {
        let cli = Cli::try_parse_from(["agent", "--auth-token=hunter2"]).unwrap();
        assert!(!format!("{cli:?}").contains("hunter2"));
    }
}
