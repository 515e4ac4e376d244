//! The operator as a library: its command line, and what each command does.
//!
//! [`cli`] reads the invocation, [`operate`] runs the controllers under [`lease`] leader election, [`offline`] answers
//! questions about kubeconfigs without a cluster.

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
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command, KubeconfigCommand};
use crate::operate::OperateError;

/// Exit code of an invocation that cannot be served as it stands.
const BAD_INVOCATION: u8 = 2;

/// Runs the invocation and says how it ended: 0, 1 for a failure at work, 2 for a bad invocation.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // --help and --version.
            return print(&error.render().to_string());
        }
        Err(error) => return refuse(&cli::one_line(&error)),
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
        Some(Command::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "operator", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

fn run(arguments: &cli::RunArguments) -> ExitCode {
    let settings = match invocation::Invocation::try_from(arguments) {
        Ok(settings) => settings,
        Err(error) => return refuse(&error.to_string()),
    };
    cli_mcp_serving::logging::init(cli_mcp_serving::logging::Stream::Stdout);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the asynchronous runtime cannot be started: {error}")),
    };
    match runtime.block_on(operate::operate(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ OperateError::Listen { .. }) => refuse(&error.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

fn answer(result: Result<String, String>) -> ExitCode {
    match result {
        Ok(text) => print(&text),
        Err(lines) => {
            let mut code = ExitCode::SUCCESS;
            for line in lines.lines() {
                code = refuse(line);
            }
            code
        }
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closes the pipe, such as head, has read what it wants.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn refuse(line: &str) -> ExitCode {
    complain(line);
    ExitCode::from(BAD_INVOCATION)
}

fn fail(line: &str) -> ExitCode {
    complain(line);
    ExitCode::FAILURE
}

fn complain(line: &str) {
    // Nothing is left to tell it to when stderr is gone.
    let _ = writeln!(std::io::stderr().lock(), "error: {line}");
}
