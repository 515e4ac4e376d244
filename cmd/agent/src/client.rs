//! The client at the far end of a connection, which is seen to leave while a call of its waits or runs. The HTTP library
//! sees that as well, but only where nothing has come after the request: else it reads no further until it has answered.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::sys;

/// A connection's client.
#[derive(Clone, Debug)]
pub struct Client {
    /// A descriptor of its own: what is noted of one is not noted for the other.
    socket: Arc<AsyncFd<OwnedFd>>,
    closing: CancellationToken,
}

impl Client {
    /// The client of a connection that ends by `closing`.
    ///
    /// # Errors
    ///
    /// When the descriptors have run out.
    pub fn of(connection: &TcpStream, closing: CancellationToken) -> io::Result<Self> {
        let socket = connection.as_fd().try_clone_to_owned()?;
        Ok(Self {
            socket: Arc::new(sys::watch_readable(socket)?),
            closing,
        })
    }

    /// Ends the connection when the client leaves, and with it the call. One that only closes its sending side has left: the
    /// HTTP library takes it so too.
    pub async fn leaves(&self) -> Infallible {
        while let Ok(mut guard) = self.socket.readable().await
            && !guard.ready().is_read_closed()
        {
            guard.clear_ready();
        }
        self.closing.cancel();
        std::future::pending().await
    }
}
