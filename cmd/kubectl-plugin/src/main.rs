//! Parses and runs.

use std::process::ExitCode;

use clap::Parser;
use cli_mcp_kubectl_plugin::cli::{Cli, INVOCATION};
use cli_mcp_kubectl_plugin::complete;
use cli_mcp_serving::exit;

fn main() -> ExitCode {
    // Before clap: the words of an unfinished line are no invocation.
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some((complete::ASK, line)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return complete::answer(line);
    }
    match Cli::try_parse() {
        Ok(cli) => cli_mcp_kubectl_plugin::run(cli),
        Err(error) => exit::without_arguments(&error, INVOCATION),
    }
}
