//! The streamed form of a call's output: lines of JSON for a client that may be slow, or gone.

use std::time::Duration;

use bytes::Bytes;
use cli_mcp_sandbox::wire::{ExecResult, OutputStream, StreamChunk};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::stream::Decoder;

/// How long a client may take for the end of a stream.
const STREAM_END_WAIT: Duration = Duration::from_secs(30);

/// The streamed form of a call's output. One line waits at most: while it does, nothing more is read, so that a slow
/// client costs no memory; the command's time goes on.
pub(crate) struct Sink {
    lines: Option<mpsc::Sender<Bytes>>,
    decoders: [Decoder; 2],
    waiting: Vec<Bytes>,
}

impl Sink {
    pub(crate) fn new(lines: Option<mpsc::Sender<Bytes>>) -> Self {
        Self {
            lines,
            decoders: Default::default(),
            waiting: Vec::new(),
        }
    }

    pub(crate) fn wanted(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) fn blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        if self.lines.is_some() {
            let data = self.decoders[stream as usize].push(bytes);
            self.line(stream, data);
        }
    }

    fn line(&mut self, stream: OutputStream, data: String) {
        if data.is_empty() {
            return;
        }
        if let Some(line) = json_line(&StreamChunk { stream, data })
            && let Some(lines) = &self.lines
        {
            let line = if self.waiting.is_empty() {
                match lines.try_send(line) {
                    Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => return,
                    Err(mpsc::error::TrySendError::Full(line)) => line,
                }
            } else {
                line
            };
            self.waiting.push(line);
        }
    }

    /// Waits until the client takes the waiting lines. Cancelled and tried again as output and time go on.
    pub(crate) async fn flush(&mut self) {
        let Some(lines) = &self.lines else { return };
        while !self.waiting.is_empty() {
            match lines.reserve().await {
                Ok(permit) => permit.send(self.waiting.remove(0)),
                Err(_) => self.waiting.clear(),
            }
        }
    }

    /// Sends the rest and the result, without holding up the next call.
    pub(crate) fn finish(mut self, result: &ExecResult) {
        if self.lines.is_none() {
            return;
        }
        let rest = [self.decoders[0].finish(), self.decoders[1].finish()];
        for (stream, data) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(rest) {
            self.line(stream, data);
        }
        self.waiting.extend(json_line(result));
        tokio::spawn(async move {
            // A client that does not read in this time has left.
            let _ = timeout(STREAM_END_WAIT, self.flush()).await;
        });
    }
}

fn json_line<T: serde::Serialize>(value: &T) -> Option<Bytes> {
    let mut line = serde_json::to_vec(value).ok()?;
    line.push(b'\n');
    Some(Bytes::from(line))
}
