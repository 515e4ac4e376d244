//! One shutdown signal for a whole program: SIGTERM from the kubelet, or SIGINT from a terminal.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first SIGTERM or SIGINT.
///
/// # Errors
///
/// When the signal handlers cannot be registered.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "Received signal, shutting down");
        cancelled.cancel();
    });
    Ok(token)
}
