//! The `agent` program: parses and runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli_mcp_agent::program::main()
}
