//! Entry point of the MCP server: reads the invocation and runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli_mcp_server::run()
}
