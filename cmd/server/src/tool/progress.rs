//! Output of a running command as progress notifications, for requests with a progress token.

use cli_mcp_sandbox::wire::{OutputStream, StreamChunk};
use rmcp::RoleServer;
use rmcp::model::{NotificationMetaObject, ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use serde_json::json;

use crate::agent::OutputSink;

/// Key of a notification's `_meta` that names the stream of its text: `stdout` or `stderr`.
const STREAM_META: &str = "cli-mcp.redhat.com/stream";

/// Sends output to one client.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    /// Bytes of output so far: a number that only grows, as the specification asks.
    bytes: f64,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self {
            peer,
            token,
            bytes: 0.0,
        }
    }
}

impl OutputSink for Progress {
    async fn chunk(&mut self, chunk: StreamChunk) {
        if chunk.data.is_empty() {
            return;
        }
        self.bytes += chunk.data.len() as f64;
        let stream = match chunk.stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let mut meta = NotificationMetaObject::new();
        meta.0.0.insert(STREAM_META.to_owned(), json!(stream));
        let mut progress = ProgressNotificationParam::new(self.token.clone(), self.bytes).with_message(chunk.data);
        progress.meta = Some(meta);
        // A client that left cancels the call; nothing more is to be done here.
        if let Err(error) = self.peer.notify_progress(progress).await {
            tracing::debug!(%error, "Failed to send progress");
        }
    }
}
