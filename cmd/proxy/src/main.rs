//! Parses the command line and runs the proxy.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli_mcp_proxy::RunError;
use cli_mcp_proxy::config::Args;
use cli_mcp_serving::exit;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::without_arguments(&error, "proxy"),
    };
    if let Some(shell) = args.completion {
        return exit::completion(shell, Args::command(), "proxy");
    }
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(RunError::from)
        .and_then(|runtime| runtime.block_on(cli_mcp_proxy::run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ RunError::Start(_)) => exit::refuse(error),
        Err(error @ RunError::Io(_)) => exit::fail(error),
    }
}
