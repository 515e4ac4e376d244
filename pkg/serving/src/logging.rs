//! Log output of every program: JSON lines in a pod, readable text on a terminal, level from `RUST_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Where log lines go. A program that speaks a protocol on stdout logs to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output: the convention in a pod.
    Stdout,
    /// Standard error: for programs whose stdout carries a protocol or a result.
    Stderr,
}

/// What is logged unless `RUST_LOG` says otherwise. The MCP library reports every request at info.
const DEFAULT: &str = "info,rmcp=warn";

/// Installs the global subscriber. Level and targets come from `RUST_LOG` (default `info`).
///
/// A second call does nothing: the first subscriber stays.
pub fn init(stream: Stream) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let (writer, terminal) = match stream {
        Stream::Stdout => (BoxMakeWriter::new(std::io::stdout), std::io::stdout().is_terminal()),
        Stream::Stderr => (BoxMakeWriter::new(std::io::stderr), std::io::stderr().is_terminal()),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(terminal);
    let installed = if terminal {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    if let Err(error) = installed {
        tracing::debug!(%error, "A log subscriber is already installed");
    }
}
