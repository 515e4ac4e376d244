//! A TCP stream as TLS reads it best: rustls asks for 4 KiB at a time, so while a body streams, one system call fetches
//! many of its reads. The buffer exists only then; an idle watch holds none.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How much one system call fetches while a body streams, in bytes.
const BULK: usize = 64 * 1024;

/// How long a peer may be silent, or take nothing of what waits for it.
pub const STALL: Duration = Duration::from_secs(120);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BULK]);
}

/// A TCP stream with a read-ahead that is empty unless data streams.
#[derive(Debug)]
pub struct Socket {
    tcp: TcpStream,
    ahead: Vec<u8>,
    at: usize,
    streaming: bool,
}

impl Socket {
    /// Wraps a stream; `ahead` are bytes that were already read from it (`proxy_cases.md`, case 56).
    #[must_use]
    pub const fn new(tcp: TcpStream, ahead: Vec<u8>) -> Self {
        Self {
            tcp,
            ahead,
            at: 0,
            streaming: false,
        }
    }

    /// The stream beneath.
    #[must_use]
    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    fn serve(&mut self, out: &mut ReadBuf<'_>) {
        let rest = self.ahead.get(self.at..).unwrap_or_default();
        let take = rest.len().min(out.remaining());
        out.put_slice(rest.get(..take).unwrap_or_default());
        self.at += take;
        if self.at >= self.ahead.len() {
            self.ahead = Vec::new();
            self.at = 0;
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            this.serve(out);
            return Poll::Ready(Ok(()));
        }
        if !this.streaming || out.remaining() >= BULK {
            let before = out.filled().len();
            ready!(Pin::new(&mut this.tcp).poll_read(cx, out))?;
            this.streaming = out.remaining() == 0 && out.filled().len() > before;
            return Poll::Ready(Ok(()));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut bulk = ReadBuf::new(scratch);
            ready!(Pin::new(&mut this.tcp).poll_read(cx, &mut bulk))?;
            let read = bulk.filled();
            let take = read.len().min(out.remaining());
            let (now, later) = read.split_at(take);
            out.put_slice(now);
            this.ahead = later.to_vec();
            this.streaming = !later.is_empty();
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}
