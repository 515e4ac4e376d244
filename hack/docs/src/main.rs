//! Parses and runs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Writes the parts of docs/ that follow from the code.
#[derive(Parser)]
#[command(name = "docs", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write docs/reference and the lists of docs/troubleshoot.md
    Generate,
    /// Print the shell commands of a page as one script
    Script {
        /// The page, such as docs/install.md
        page: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do where stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let repository = cli_mcp_docs::repository();
    match command {
        Command::Generate => {
            for page in cli_mcp_docs::pages(&repository)? {
                let path = repository.join(&page.path);
                std::fs::write(&path, page.content).with_context(|| format!("cannot write {}", path.display()))?;
            }
            Ok(())
        }
        Command::Script { page } => {
            let script = cli_mcp_docs::blocks::script(&cli_mcp_docs::read(&page)?);
            Ok(std::io::stdout().lock().write_all(script.as_bytes())?)
        }
    }
}
