//! Flags and environment variables, from the command lines that the programs parse with.

use clap::{Arg, Command, CommandFactory};

use super::cell;

/// The page.
pub(super) fn page() -> String {
    let mut page = "# Flags and environment variables\n\n\
        A flag wins over its variable. `--help` of each program says the same.\n"
        .to_owned();
    let programs = [
        ("operator", cli_mcp_operator::cli::Cli::command()),
        ("server", cli_mcp_server::config::Cli::command()),
        ("proxy", cli_mcp_proxy::config::Args::command()),
        ("agent", cli_mcp_agent::config::Cli::command()),
        ("kubectl cli-mcp", cli_mcp_kubectl_plugin::cli::Cli::command()),
    ];
    for (name, mut command) in programs {
        // Global flags reach the commands below only when the whole is built.
        command.build();
        page.push_str(&format!("\n## {name}\n"));
        section(name, &command, &mut page);
    }
    page
}

fn section(name: &str, command: &Command, page: &mut String) {
    if let Some(about) = command.get_about() {
        page.push_str(&format!("\n{}\n", cell(&about.to_string())));
    }
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version"))
        .collect();
    if !shown.is_empty() {
        page.push_str("\n| flag | variable | default | meaning |\n|---|---|---|---|\n");
        shown.iter().for_each(|argument| page.push_str(&row(argument)));
    }
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
    {
        let name = format!("{name} {}", inner.get_name());
        page.push_str(&format!("\n### {name}\n"));
        section(&name, inner, page);
    }
}

fn row(argument: &Arg) -> String {
    let value = argument
        .get_value_names()
        .filter(|_| argument.get_action().takes_values())
        .and_then(|names| names.first())
        .map(ToString::to_string);
    let name = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("`-{short}`, `--{long}`"),
        (Some(long), None) => format!("`--{long}`"),
        _ => format!("`{}`", value.as_deref().unwrap_or(argument.get_id().as_str())),
    };
    let variable = argument
        .get_env()
        .map(|name| format!("`{}`", name.to_string_lossy()))
        .unwrap_or_default();
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .filter(|value| !value.is_empty() && argument.get_action().takes_values())
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| argument.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        help = format!("{}. One of {}", help.trim_end_matches('.'), values.join(", "));
    }
    format!("| {name} | {variable} | {} | {} |\n", defaults.join(", "), cell(&help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_there_with_its_variables() {
        let page = page();
        for text in [
            "| `--metrics-bind-address` | `METRICS_BIND_ADDRESS` | `0` |",
            "| `--idle-timeout` | `CLI_MCP_IDLE_TIMEOUT` | `30m` |",
            "| `--drain-timeout` | `CLI_MCP_DRAIN_TIMEOUT` | `25s` |",
            "`SANDBOX_OUTPUT_LIMIT`",
            "### operator kubeconfig check",
            "### kubectl cli-mcp investigation-kubeconfig",
        ] {
            assert!(page.contains(text), "{text} in\n{page}");
        }
    }
}
