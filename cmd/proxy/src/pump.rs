//! One direction of a message's body: bytes go on as they come, with nothing buffered while nothing comes, so that a
//! thousand idle watches hold no memory for data (`proxy_cases.md`, cases 51 to 53).

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::body::Decoder;

/// How much is read at once, in bytes: four TLS records.
const READ: usize = 64 * 1024;

/// How much is read at once of what must be looked at first, a head, in bytes.
const FILL: usize = 16 * 1024;

/// A read of this size, a TLS record's, has most likely more behind it.
const STREAMING: usize = 16 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Bytes that were read from a peer but not yet used. Not for logs: they may hold a credential.
#[derive(Default)]
pub struct Inbound {
    buffer: Vec<u8>,
    at: usize,
}

impl Inbound {
    /// What is there.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Adds what was read. What was used goes first, once it is no less than what would have to move: each byte is then
    /// moved at most once for each that was used.
    pub fn extend(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.at > 0 && self.at >= self.buffer.len() - self.at {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Throws everything away.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes what was used, and the memory with the last byte.
    pub fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
        if self.at >= self.buffer.len() {
            self.clear();
        }
    }

    /// Takes the first `count` bytes out.
    #[must_use]
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let taken = self.as_slice().get(..count).unwrap_or_default().to_vec();
        self.consume(count);
        taken
    }

    /// Reads once from `source`. `Ready(Ok(0))` is its end.
    pub fn poll_fill<S: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch.get_mut(..FILL).unwrap_or_default());
            ready!(Pin::new(source).poll_read(cx, &mut buffer))?;
            self.extend(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }
}

/// What ended a direction early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PumpError {
    /// The source failed, or ended before its body did, and how.
    Source(io::ErrorKind),
    /// The source's framing is malformed.
    Malformed,
    /// The sink failed, and how.
    Sink(io::ErrorKind),
}

impl PumpError {
    fn sink(error: io::Error) -> Self {
        Self::Sink(error.kind())
    }
}

/// Moves one message from a source to a sink. Not for logs: its head may hold the credential.
pub struct Pump {
    decoder: Decoder,
    rechunk: bool,
    ended: bool,
    broken: Option<io::ErrorKind>,
    out: Vec<u8>,
    at: usize,
    flush: bool,
    wrote: bool,
    sent_head: bool,
    content: u64,
}

impl Pump {
    /// Writes `head`, then the body. With `rechunk`, a body that lasts until its connection ends is sent in chunks.
    #[must_use]
    pub const fn new(head: Vec<u8>, decoder: Decoder, rechunk: bool) -> Self {
        Self {
            decoder,
            rechunk,
            ended: false,
            broken: None,
            out: head,
            at: 0,
            flush: false,
            wrote: false,
            sent_head: false,
            content: 0,
        }
    }

    /// Bytes of the body that passed.
    #[must_use]
    pub const fn content(&self) -> u64 {
        self.content
    }

    /// Whether the sink has taken a byte.
    #[must_use]
    pub const fn has_written(&self) -> bool {
        self.wrote
    }

    /// Whether the sink has taken the head, so that its memory is free.
    #[must_use]
    pub const fn has_sent_head(&self) -> bool {
        self.sent_head
    }

    /// Bytes that the sink has not taken.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.out.len() - self.at
    }

    /// The head, when the sink has not taken a byte of it.
    #[must_use]
    pub fn into_unsent(self) -> Option<Vec<u8>> {
        (!self.wrote).then_some(self.out)
    }

    /// Uses what was already read, so that head and body leave in one write.
    ///
    /// # Errors
    ///
    /// [`PumpError::Malformed`].
    pub fn absorb(&mut self, inbound: &mut Inbound) -> Result<(), PumpError> {
        while !inbound.is_empty() && !self.decoder.is_done() {
            let input = inbound.as_slice();
            let step = self.decoder.step(input).map_err(|_| PumpError::Malformed)?;
            self.content += step.content;
            let piece = input.get(step.forward.clone()).unwrap_or_default();
            if self.rechunk {
                append_chunk(piece, &mut self.out);
            } else {
                self.out.extend_from_slice(piece);
            }
            inbound.consume(step.consumed);
        }
        Ok(())
    }

    /// Moves what can be moved. Ready when the whole message is with the sink's kernel.
    pub fn poll<S, D>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        inbound: &mut Inbound,
        sink: &mut D,
    ) -> Poll<Result<(), PumpError>>
    where
        S: AsyncRead + Unpin,
        D: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.poll_drain(cx, sink))?;
            if self.ended || self.decoder.is_done() {
                return Pin::new(sink).poll_flush(cx).map_err(PumpError::sink);
            }
            if !inbound.is_empty() {
                self.absorb(inbound)?;
                continue;
            }
            if let Some(kind) = self.broken {
                return Poll::Ready(Err(PumpError::Source(kind)));
            }
            let moved = SCRATCH.with_borrow_mut(|scratch| {
                let mut buffer = ReadBuf::new(scratch);
                match self.poll_gather(cx, source, &mut buffer) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) if buffer.filled().is_empty() => Poll::Ready(
                        self.broken
                            .map_or_else(|| self.end(), |kind| Err(PumpError::Source(kind))),
                    ),
                    Poll::Ready(()) => Poll::Ready(self.forward(cx, buffer.filled(), inbound, sink)),
                }
            });
            match moved {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => {
                    if self.flush {
                        match Pin::new(sink).poll_flush(cx) {
                            Poll::Ready(Ok(())) => self.flush = false,
                            Poll::Ready(Err(error)) => return Poll::Ready(Err(PumpError::sink(error))),
                            Poll::Pending => {}
                        }
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads once; while a body streams, several records at once, so that they leave in one system call. Ready with
    /// nothing is the end.
    fn poll_gather<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<()> {
        loop {
            let before = buffer.filled().len();
            match Pin::new(&mut *source).poll_read(cx, buffer) {
                Poll::Pending if before == 0 => return Poll::Pending,
                Poll::Pending => return Poll::Ready(()),
                Poll::Ready(Err(error)) => self.broken = Some(error.kind()),
                Poll::Ready(Ok(())) => {}
            }
            let read = buffer.filled().len() - before;
            if self.broken.is_some() || read < STREAMING || buffer.remaining() < STREAMING {
                return Poll::Ready(());
            }
        }
    }

    fn poll_drain<D: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, sink: &mut D) -> Poll<Result<(), PumpError>> {
        while let Some(rest) = self.out.get(self.at..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *sink).poll_write(cx, rest)).map_err(PumpError::sink)? {
                0 => return Poll::Ready(Err(PumpError::Sink(io::ErrorKind::WriteZero))),
                written => {
                    self.at += written;
                    self.flush = true;
                    self.wrote = true;
                }
            }
        }
        if !self.out.is_empty() {
            self.out = Vec::new();
            self.at = 0;
        }
        self.sent_head = true;
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) -> Result<(), PumpError> {
        if self.decoder != Decoder::UntilClose {
            return Err(PumpError::Source(io::ErrorKind::UnexpectedEof));
        }
        if self.rechunk {
            self.out.extend_from_slice(b"0\r\n\r\n");
        }
        self.ended = true;
        Ok(())
    }

    fn forward<D: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        mut data: &[u8],
        inbound: &mut Inbound,
        sink: &mut D,
    ) -> Result<(), PumpError> {
        while !data.is_empty() && !self.decoder.is_done() {
            let step = self.decoder.step(data).map_err(|_| PumpError::Malformed)?;
            self.content += step.content;
            let piece = data.get(step.forward.clone()).unwrap_or_default();
            if self.rechunk {
                append_chunk(piece, &mut self.out);
            } else if self.out.is_empty() && !piece.is_empty() {
                match Pin::new(&mut *sink).poll_write(cx, piece) {
                    Poll::Ready(Ok(written)) => {
                        self.flush = true;
                        self.out.extend_from_slice(piece.get(written..).unwrap_or_default());
                    }
                    Poll::Ready(Err(error)) => return Err(PumpError::sink(error)),
                    Poll::Pending => self.out.extend_from_slice(piece),
                }
            } else {
                self.out.extend_from_slice(piece);
            }
            data = data.get(step.consumed..).unwrap_or_default();
        }
        inbound.extend(data);
        Ok(())
    }
}

fn append_chunk(piece: &[u8], out: &mut Vec<u8>) {
    if !piece.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
