//! Parses the command line and runs the proxy.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli_mcp_proxy::config::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(shell) = args.completion {
        clap_complete::generate(shell, &mut Args::command(), "proxy", &mut std::io::stdout().lock());
        return ExitCode::SUCCESS;
    }
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(cli_mcp_proxy::RunError::from)
        .and_then(|runtime| runtime.block_on(cli_mcp_proxy::run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing more can be done when stderr is closed.
            let _ = writeln!(std::io::stderr().lock(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
