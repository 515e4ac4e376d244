//! How a program ends, and what it says then (contract, section 12): a bad invocation is one line on stderr and exit
//! code 2, a failure at work one line and exit code 1.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Exit code of an invocation that cannot be served as it stands.
pub const BAD_INVOCATION: u8 = 2;

/// Prints what was asked for, such as help, a completion script or an answer.
#[must_use]
pub fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closes the pipe, such as head, has read what it wants.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Says what is wrong with the invocation.
#[must_use]
pub fn refuse(text: impl Display) -> ExitCode {
    complain(text);
    ExitCode::from(BAD_INVOCATION)
}

/// Says what went wrong at work.
#[must_use]
pub fn fail(text: impl Display) -> ExitCode {
    complain(text);
    ExitCode::FAILURE
}

/// What clap gives in place of arguments: help and version are printed, the rest is a bad invocation. One that says nothing at all
/// gets the help: there is no mistake in it to name.
#[must_use]
pub fn without_arguments(error: &clap::Error, program: &str) -> ExitCode {
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nothing is left to be told where standard error is closed.
        let _ = write!(std::io::stderr().lock(), "{}", error.render());
        ExitCode::from(BAD_INVOCATION)
    } else if error.use_stderr() {
        refuse(one_line(error, program))
    } else {
        print(&error.render().to_string())
    }
}

/// The completion script of a program's command line.
#[must_use]
pub fn completion(shell: clap_complete::Shell, mut command: clap::Command, program: &str) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, program, &mut script);
    print(&String::from_utf8_lossy(&script))
}

fn complain(text: impl Display) {
    // Nothing is left to be told where standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "error: {text}");
}

fn one_line(error: &clap::Error, program: &str) -> String {
    let text = error.render().to_string();
    let what = text
        .lines()
        // The way to help is told at the end, by the name that a user knows.
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(str::trim);
    let joined = what.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    format!("{} (see {program} --help)", joined.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_invocation_is_one_line_that_names_the_flag_and_the_way_to_help() {
        let key = clap::Arg::new("key").long("key-file").required(true);
        let command = clap::Command::new("program").arg(key.value_parser(["a", "b"]));
        let unknown = command
            .clone()
            .try_get_matches_from(["program", "--key-fil"])
            .unwrap_err();
        let missing = command.clone().try_get_matches_from(["program"]).unwrap_err();
        let wrong = command.try_get_matches_from(["program", "--key-file=c"]).unwrap_err();
        for error in [unknown, missing, wrong] {
            let line = one_line(&error, "program");
            assert!(!line.contains('\n') && !line.contains("Usage"), "{line}");
            assert_eq!(line.matches("--help").count(), 1, "{line}");
            assert!(
                line.contains("--key-file") && line.ends_with("(see program --help)"),
                "{line}"
            );
        }
    }
}
