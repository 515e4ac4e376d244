//! `kubectl cli-mcp`: what a person does with sessions and instances, as a kubectl plugin. Each command is a module:
//! what it decides is a function of what was read, and reading is apart.

mod check;
pub mod cli;
mod cluster;
pub mod complete;
mod connect;
mod delete;
mod error;
mod execute;
mod forward;
mod investigation;
mod render;
mod sessions;
mod trust;

use std::process::ExitCode;

use clap::CommandFactory;
use cli_mcp_serving::exit;

use crate::cli::{Cli, Command, PROGRAM};
pub use crate::error::{Error, NO_RESULT};

/// Runs a command.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    if let Command::Completion { shell } = cli.command {
        return exit::completion(shell, Cli::command(), PROGRAM);
    }
    // ring is the one provider of this process; that it is installed already is no error.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread: output is shown in the order it comes in.
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work(cli)),
        Err(error) => exit::fail(format_args!("cannot start: {error}")),
    }
}

async fn work(cli: Cli) -> ExitCode {
    let place = &cli.place;
    let done = match cli.command {
        Command::Sessions(arguments) => sessions::run(place, &arguments).await,
        Command::Run(arguments) => match execute::run(place, &arguments).await {
            Ok(code) => return ExitCode::from(code),
            Err(error @ (Error::Invocation(_) | Error::Output(_))) => return error.report(),
            Err(error) => {
                error.report();
                return ExitCode::from(NO_RESULT);
            }
        },
        Command::Delete(arguments) => delete::run(place, &arguments).await,
        Command::InvestigationKubeconfig(arguments) => investigation::run(place, &arguments).await,
        Command::Check(arguments) => match check::run(place, &arguments).await {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Completion { .. } => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
