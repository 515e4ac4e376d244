//! Parses and runs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use cli_mcp_docs::blocks;

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
    /// Print the pages whose commands `make test-docs` runs, in its order
    Pages,
    /// Print the shell commands of a page as one script
    Script {
        /// The page, such as docs/install.md
        page: std::path::PathBuf,
        /// Only what stands above this heading, such as '## Clean up'
        #[arg(long, conflicts_with = "from")]
        until: Option<String>,
        /// Only what stands below this heading
        #[arg(long)]
        from: Option<String>,
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
        Command::Pages => print(&format!("{}\n", cli_mcp_docs::RUN.join("\n"))),
        Command::Script { page, until, from } => {
            let text = cli_mcp_docs::read(&page)?;
            let split = |heading: &str| {
                blocks::split_at_heading(&text, heading)
                    .with_context(|| format!("{} has no heading {heading}", page.display()))
            };
            let part = match (&until, &from) {
                (Some(heading), _) => split(heading)?.0.to_owned(),
                (None, Some(heading)) => {
                    let (above, below) = split(heading)?;
                    // Lines keep their numbers.
                    "\n".repeat(above.lines().count()) + below
                }
                (None, None) => text.clone(),
            };
            print(&blocks::script(&part))
        }
    }
}

fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
