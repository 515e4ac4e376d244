//! Entry point of the operator: reads the invocation and runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli_mcp_operator::main(std::env::args_os())
}
