//! Holds the demo's conversation and prints it: what each step shows, what it sent, what came back. An answer that is not
//! what the step promises fails the run.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use cli_mcp_demo::session::{Endpoint, Token};
use cli_mcp_demo::steps::{ExecPod, printed, steps};

/// Talks to an instance as an AI agent would, and prints the conversation.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Base URL of the instance's server, without /mcp
    #[arg(long, env = "DEMO_URL", default_value = "https://localhost:8443")]
    url: String,
    /// PEM file with the CA of the server's certificate
    #[arg(long, env = "DEMO_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// File with the bearer token of a client
    #[arg(long, env = "DEMO_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Session id
    #[arg(long, env = "DEMO_SESSION", default_value = "demo")]
    session: String,
    /// `address:port` of the API server, which the sandbox must not reach directly
    #[arg(long, env = "DEMO_API_SERVER")]
    api_server: String,
    /// `namespace/pod` of a running pod that `kubectl exec` is tried on
    #[arg(long, env = "DEMO_EXEC_POD")]
    exec_pod: ExecPod,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do where stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(args: &Args) -> Result<()> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let token = args.token_file.as_ref().map(read).transpose()?;
    let endpoint = Endpoint {
        base_url: args.url.trim_end_matches('/').to_owned(),
        ca_pem: args.ca_file.as_ref().map(read).transpose()?,
        token: token.map(|token| Token(String::from_utf8_lossy(&token).trim().to_owned())),
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Connecting to {}/mcp as session {:?}",
        endpoint.base_url, args.session
    )?;
    let session = endpoint.connect(&args.session).await?;
    writeln!(
        out,
        "The server offers the tools: {}\n",
        session.tools().await?.join(", ")
    )?;
    for step in steps(&args.api_server, &args.exec_pod) {
        writeln!(out, "# {}\n$ {}", step.shows, step.command)?;
        out.flush()?;
        let result = session.bash(&step.command).await?;
        ensure!(result.exit_code.is_some(), "the command did not run: {}", result.text);
        writeln!(out, "{}", printed(&result))?;
        ensure!(step.is_shown_by(&result), "{}", step.otherwise);
    }

    writeln!(out, "# DELETE /sessions/{} ends the session and its pod", args.session)?;
    let status = session.delete().await?;
    ensure!(status == 204, "DELETE answered {status}, expected 204");
    writeln!(out, "  HTTP {status}")?;
    Ok(())
}
