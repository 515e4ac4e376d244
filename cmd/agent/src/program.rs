//! The command line's three faces: the program a user starts, and the two that it starts itself as.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli_mcp_serving::{exit, logging};

use crate::config::{Cli, Command};
use crate::{handoff, holder, probe, server};

/// Runs the program named by the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some(holder::SUBCOMMAND) => code_of(&holder::run().map_err(anyhow::Error::from)),
        Some(handoff::SUBCOMMAND) => {
            let number = arguments
                .get(2)
                .and_then(|number| number.to_str()?.parse::<RawFd>().ok());
            code_of(&serve_from_descriptor(number))
        }
        _ => command_line(),
    }
}

fn serve_from_descriptor(number: Option<RawFd>) -> anyhow::Result<()> {
    let number = number.ok_or_else(|| anyhow::anyhow!("{} is internal: start `agent`", handoff::SUBCOMMAND))?;
    let settings = handoff::read_settings(number)?;
    logging::init(logging::Stream::Stdout);
    server::serve(settings)
}

fn command_line() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::without_arguments(&error, "agent"),
    };
    match cli.command {
        Some(Command::Probe(arguments)) => code_of(&probe::probe(arguments.listen).map_err(anyhow::Error::from)),
        Some(Command::Completion { shell }) => exit::completion(shell, Cli::command(), "agent"),
        None => match cli.serve.settings() {
            Ok(settings) => match handoff::start_again(&settings) {
                Ok(never) => match never {},
                Err(error) => code_of(&Err(anyhow::anyhow!("the agent cannot start itself: {error}"))),
            },
            Err(error) => exit::refuse(error),
        },
    }
}

fn code_of(result: &anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::fail(format_args!("{error:#}")),
    }
}
