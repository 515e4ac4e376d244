//! The operator as a library: its command line, and what each command does.
//!
//! [`cli`] reads the invocation, [`operate`] runs the controllers under [`lease`] leader election, [`offline`] answers
//! questions about kubeconfigs without a cluster.

pub mod api_server;
pub mod cli;
pub mod election;
pub mod fence;
pub mod invocation;
pub mod lease;
pub mod metrics;
pub mod namespaces;
pub mod offline;
pub mod operate;
pub mod probes;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli_mcp_serving::exit;

use crate::cli::{Cli, Command, KubeconfigCommand};
use crate::operate::OperateError;

/// Runs the invocation and says how it ended: 0, 1 for a failure at work, 2 for a bad invocation.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::without_arguments(&error, "operator"),
    };
    match cli.command {
        None => run(&cli.run),
        Some(Command::Run(run_arguments)) => run(&run_arguments),
        Some(Command::Kubeconfig {
            command: KubeconfigCommand::Check { file },
        }) => answer(offline::check(&file)),
        Some(Command::Kubeconfig {
            command:
                KubeconfigCommand::Render {
                    file,
                    instance,
                    ca,
                    out,
                },
        }) => answer(offline::render(&file, &instance, &ca, &out)),
        Some(Command::Completion { shell }) => exit::completion(shell, Cli::command(), "operator"),
    }
}

fn run(arguments: &cli::RunArguments) -> ExitCode {
    let settings = match invocation::Invocation::try_from(arguments) {
        Ok(settings) => settings,
        Err(error) => return exit::refuse(error),
    };
    cli_mcp_serving::logging::init(cli_mcp_serving::logging::Stream::Stdout);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::fail(format_args!("the asynchronous runtime cannot be started: {error}")),
    };
    match runtime.block_on(operate::operate(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ (OperateError::Listen { .. } | OperateError::Metrics(_))) => exit::refuse(error),
        Err(error) => exit::fail(error),
    }
}

fn answer(result: Result<String, String>) -> ExitCode {
    match result {
        Ok(text) => exit::print(&text),
        Err(lines) => {
            let mut code = ExitCode::SUCCESS;
            for line in lines.lines() {
                code = exit::refuse(line);
            }
            code
        }
    }
}
