//! Log output of every program: JSON lines in a pod, readable text on a terminal, level from `RUST_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

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
    init_with(stream, None);
}

/// The same, beside a layer that takes spans elsewhere.
pub fn init_with(stream: Stream, spans: Option<Box<dyn Layer<Registry> + Send + Sync>>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let (writer, terminal) = match stream {
        Stream::Stdout => (BoxMakeWriter::new(std::io::stdout), std::io::stdout().is_terminal()),
        Stream::Stderr => (BoxMakeWriter::new(std::io::stderr), std::io::stderr().is_terminal()),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(terminal);
    let lines = if terminal {
        lines.with_filter(filter).boxed()
    } else {
        lines.json().flatten_event(true).with_filter(filter).boxed()
    };
    if let Err(error) = tracing_subscriber::registry().with(spans).with(lines).try_init() {
        tracing::debug!(%error, "A log subscriber is already installed");
    }
}
