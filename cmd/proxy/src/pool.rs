//! Kept connections of one upstream: a new tunnel need not pay for a second handshake.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use crate::dial::UpstreamStream;

/// The most idle connections that are kept.
const MAX_IDLE: usize = 32;

/// How long an idle connection is kept: well under the 90 s after which an API server closes it, so that a request is
/// hardly ever sent into a closing connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Idle connections, the freshest last.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<(Instant, UpstreamStream)>>,
}

impl Pool {
    /// A connection that is still open as far as can be seen.
    pub fn take(&self) -> Option<UpstreamStream> {
        loop {
            let (since, mut stream) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if since.elapsed() < IDLE_TIMEOUT && is_open(&mut stream) {
                return Some(stream);
            }
        }
    }

    /// Keeps a connection for the next request.
    pub fn put(&self, stream: UpstreamStream) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), stream));
        }
    }

    /// Drops what is too old or was closed by the upstream.
    pub fn sweep(&self) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain_mut(|(since, stream)| since.elapsed() < IDLE_TIMEOUT && is_open(stream));
    }
}

/// An idle connection has nothing to say: data or an end both mean that it is of no use.
fn is_open(stream: &mut UpstreamStream) -> bool {
    let mut byte = [0_u8; 1];
    let mut context = Context::from_waker(Waker::noop());
    matches!(
        Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)),
        Poll::Pending
    )
}
