//! The command line: commands, flags, their environment variables and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use cli_mcp_api::duration::GoDuration;

/// Name of the program's file. kubectl finds it in PATH as the command `kubectl cli-mcp`.
pub const PROGRAM: &str = "kubectl-cli_mcp";

/// What a user writes to run it.
pub const INVOCATION: &str = "kubectl cli-mcp";

/// Sessions of a CliMcpInstance: list them, run commands in them, end them, and find out what is wrong with an instance.
///
/// Start with `kubectl cli-mcp check`, then `kubectl cli-mcp run SESSION -- COMMAND`: SESSION is a name of your own
/// choice, and each session is one persistent shell in a pod of its own.
///
/// Exit codes: 0 when all went well, 1 when something failed, 2 for a bad invocation. `run` ends with the exit code of the
/// command, and with 125 when there is none because the command did not run or nothing is known of its end.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, bin_name = INVOCATION, version, about, long_about, max_term_width = 120, arg_required_else_help = true)]
pub struct Cli {
    /// Which cluster and namespace.
    #[command(flatten)]
    pub place: Place,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster and namespace: as kubectl has it.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Namespace of the instance. Default: that of the context
    #[arg(short, long, global = true, env = "CLI_MCP_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one
    #[arg(long, global = true, env = "CLI_MCP_CONTEXT", value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Kubeconfig to use. Default: the files of KUBECONFIG, else ~/.kube/config
    #[arg(long, global = true, env = "CLI_MCP_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List sessions: age, how long they are idle, their pod, and how their last command ended
    Sessions(SessionsArguments),
    /// Run a command in a session and show its output as it comes
    Run(RunArguments),
    /// End sessions: their shells, files and pods are gone
    Delete(DeleteArguments),
    /// Make a read-only identity, its token, and the Secret that an instance's proxy takes it from
    InvestigationKubeconfig(InvestigationArguments),
    /// Look at an instance from the API server to a sandbox, and say what is wrong and what to do
    Check(CheckArguments),
    /// Print the completion script of a shell, for the program's own name
    ///
    /// For bash: source <(kubectl cli-mcp completion bash) completes kubectl-cli_mcp. Words after kubectl cli-mcp are
    /// completed by kubectl's own completion, when kubectl_complete-cli_mcp is in PATH (make install-plugin puts it there).
    Completion {
        /// Shell to print it for
        shell: Shell,
    },
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document on standard output.
    Json,
}

/// Flag of every command that prints a result.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// How to print the result
    #[arg(short, long, env = "CLI_MCP_OUTPUT", value_enum, default_value_t)]
    pub output: Format,
}

/// Flags of `sessions`.
#[derive(Debug, Args)]
pub struct SessionsArguments {
    /// Only those of this instance. Default: of all in the namespace
    #[arg(short, long, env = "CLI_MCP_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// Of all namespaces; --namespace has no effect then
    #[arg(short = 'A', long, env = "CLI_MCP_ALL_NAMESPACES")]
    pub all_namespaces: bool,
    /// Lines of each server pod's log that are searched for the last commands; 0 asks for no logs
    #[arg(long, env = "CLI_MCP_AUDIT_TAIL", default_value_t = 5000, value_name = "LINES")]
    pub audit_tail: u32,
    /// Format.
    #[command(flatten)]
    pub output: Output,
}

/// How the server is reached and who calls it.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// Name of the instance. Default: the only one of the namespace
    #[arg(short, long, env = "CLI_MCP_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// Base URL of the server, without /mcp. Default: a port-forward to one of its pods
    #[arg(long, env = "CLI_MCP_URL", value_name = "URL")]
    pub url: Option<String>,
    /// File with a bearer token of a client. Default: a token of ten minutes of the instance's client ServiceAccount,
    /// which takes the right to create serviceaccounts/token
    #[arg(long, env = "CLI_MCP_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with the CA of the server's certificate. Default: what the instance's Secret says, else OpenShift's
    /// service CA, else the roots of this machine; with --url the roots of this machine
    #[arg(long, env = "CLI_MCP_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Name of the session, of your own choice: 1 to 63 of a-z, 0-9 and -
    pub session: String,
    /// How to connect.
    #[command(flatten)]
    pub connection: Connection,
    /// The longest the command may run, such as 90s or 5m, from 1s to 5m. Default: the server's, one minute
    #[arg(long, env = "CLI_MCP_TIMEOUT", value_name = "DURATION")]
    pub timeout: Option<GoDuration>,
    /// Run the script in this file; - is standard input
    #[arg(short, long, env = "CLI_MCP_FILE", value_name = "FILE", conflicts_with = "command")]
    pub file: Option<PathBuf>,
    /// Format. json prints the result when the command has ended, and nothing before.
    #[command(flatten)]
    pub output: Output,
    /// The command. One word is a script of its own ('cd /tmp && ls'); several are a command and its arguments, and reach
    /// it as they stand
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "file")]
    pub command: Vec<String>,
}

/// Flags of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// Sessions to end
    #[arg(required = true, value_name = "SESSION")]
    pub sessions: Vec<String>,
    /// How to connect.
    #[command(flatten)]
    pub connection: Connection,
    /// Format.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `investigation-kubeconfig`.
#[derive(Debug, Args)]
pub struct InvestigationArguments {
    /// Name of the instance that shall use it; it need not exist yet
    #[arg(short, long, env = "CLI_MCP_INSTANCE", value_name = "NAME")]
    pub instance: String,
    /// ClusterRole that says what the identity may do. view reads what is in namespaces, but Secrets and access rules, and no
    /// nodes
    #[arg(long, env = "CLI_MCP_CLUSTER_ROLE", default_value = "view", value_name = "ROLE")]
    pub cluster_role: String,
    /// Grant the role in these namespaces only, separated by commas. Default: in the whole cluster
    #[arg(
        long,
        env = "CLI_MCP_IN_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAMESPACE",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub in_namespaces: Vec<String>,
    /// Name of the ServiceAccount
    #[arg(
        long,
        env = "CLI_MCP_SERVICE_ACCOUNT",
        default_value = "cli-mcp-investigator",
        value_name = "NAME"
    )]
    pub service_account: String,
    /// Address of the API server as the proxy's pods reach it
    #[arg(
        long,
        env = "CLI_MCP_SERVER",
        default_value = "https://kubernetes.default.svc",
        value_name = "URL"
    )]
    pub server: String,
    /// Replace what something else has put there: a Secret made by hand, above all. Without it the command stops
    #[arg(long, env = "CLI_MCP_FORCE")]
    pub force: bool,
    /// Print the kubeconfig, with its token, in place of storing it in the Secret
    #[arg(long, env = "CLI_MCP_PRINT")]
    pub print: bool,
    /// Format of what is told about the objects.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Also hold a conversation: start a session, run a command in it, end it
    #[arg(long, env = "CLI_MCP_CALL")]
    pub call: bool,
    /// How to connect; for --call.
    #[command(flatten)]
    pub connection: Connection,
    /// Format.
    #[command(flatten)]
    pub output: Output,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_has_help_and_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        for flag in command
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
            .chain(command.get_arguments())
        {
            assert!(flag.get_help().is_some(), "{} has no help", flag.get_id());
            if flag.get_long().is_some() {
                assert!(flag.get_env().is_some(), "{} has no variable", flag.get_id());
            }
        }
    }

    #[test]
    fn what_follows_the_dashes_is_the_command() {
        let cli = Cli::try_parse_from(["x", "run", "s1", "-n", "ns", "--", "ls", "-l", "--", "a"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.command, ["ls", "-l", "--", "a"]);
        assert_eq!(cli.place.namespace.as_deref(), Some("ns"));
        assert!(Cli::try_parse_from(["x", "run", "s1"]).is_err());
        assert!(Cli::try_parse_from(["x", "run", "s1", "-f", "-", "--", "ls"]).is_err());
    }
}
