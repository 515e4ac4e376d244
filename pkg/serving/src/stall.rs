//! A connection that ends when its client takes nothing of what is written to it: one that stalls would hold its place,
//! and what is to be written, for as long as it likes.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail when none of them made progress for a while.
pub(crate) struct Stalling<S> {
    stream: S,
    patience: Duration,
    /// Set while a write waits.
    due: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            due: None,
        }
    }

    /// What came of a write, or the end of the patience with it.
    fn within<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_ready() {
            self.due = None;
            return written;
        }
        let patience = self.patience;
        let due = self.due.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(due.as_mut().poll(context));
        Poll::Ready(Err(Error::new(
            ErrorKind::TimedOut,
            "the client took nothing of its answer",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.within(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.within(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (near, _far) = duplex(4);
        let error = Stalling::new(near, PATIENCE).write_all(b"too long").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_little_by_little_gets_all() {
        let (near, mut far) = duplex(4);
        let slow = tokio::spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..10 {
                tokio::time::sleep(PATIENCE / 2).await;
                taken.push(far.read_u8().await.unwrap());
            }
            taken
        });
        Stalling::new(near, PATIENCE).write_all(b"0123456789").await.unwrap();
        assert_eq!(slow.await.unwrap(), b"0123456789");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_anything_to_write_does_not_count() {
        let (near, mut far) = duplex(4);
        let mut near = Stalling::new(near, PATIENCE);
        for _ in 0..3 {
            near.write_all(b"abcd").await.unwrap();
            tokio::time::sleep(PATIENCE * 2).await;
            let mut taken = [0; 4];
            far.read_exact(&mut taken).await.unwrap();
        }
    }
}
