//! Parses and runs.

use std::process::ExitCode;

use clap::Parser;
use cli_mcp_kubectl_plugin::cli::{Cli, PROGRAM};
use cli_mcp_serving::exit;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => cli_mcp_kubectl_plugin::run(cli),
        Err(error) => exit::without_arguments(&error, PROGRAM),
    }
}
