//! What the kernel holds for a connection: the pod's memory limit counts it.

use nix::libc;
use nix::sys::socket::getsockopt;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use crate::socket::Socket;

// `sock(7)`, `include/uapi/linux/sock_diag.h`: SK_MEMINFO_RMEM_ALLOC up to SK_MEMINFO_DROPS.
nix::getsockopt_impl!(
    MemoryInfo,
    libc::SOL_SOCKET,
    libc::SO_MEMINFO,
    [u32; 9],
    nix::sys::socket::sockopt::GetStruct<[u32; 9]>
);

#[derive(Clone, Copy)]
struct MemoryInfo;

/// What the kernel holds for one connection, in bytes of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Came, and is not read.
    pub received: usize,
    /// Was written, and the peer has not acknowledged it.
    pub to_send: usize,
}

impl Kernel {
    /// Both.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.received + self.to_send
    }
}

/// A stream for which the kernel may hold memory.
pub trait Connection {
    /// What it holds now; nothing for what is no socket.
    fn kernel(&self) -> Kernel;

    /// Lets the end of the connection throw away what the peer has not taken: otherwise the kernel would keep it for
    /// minutes, and the connection would have no place any more.
    fn cut(&self);
}

impl Connection for TcpStream {
    fn kernel(&self) -> Kernel {
        let number = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        // What cannot be asked is broken, and holds nothing.
        getsockopt(self, MemoryInfo).map_or_else(
            |_| Kernel::default(),
            |[received, _, _, _, _, to_send, _, backlog, _]| Kernel {
                received: number(received).saturating_add(number(backlog)),
                to_send: number(to_send),
            },
        )
    }

    fn cut(&self) {
        // What is broken has thrown it away.
        let _ = self.set_zero_linger();
    }
}

impl Connection for Socket {
    fn kernel(&self) -> Kernel {
        self.tcp().kernel()
    }

    fn cut(&self) {
        self.tcp().cut();
    }
}

impl<S: Connection> Connection for server::TlsStream<S> {
    fn kernel(&self) -> Kernel {
        self.get_ref().0.kernel()
    }

    fn cut(&self) {
        self.get_ref().0.cut();
    }
}

impl<S: Connection> Connection for client::TlsStream<S> {
    fn kernel(&self) -> Kernel {
        self.get_ref().0.kernel()
    }

    fn cut(&self) {
        self.get_ref().0.cut();
    }
}

impl<S: Connection + ?Sized> Connection for Box<S> {
    fn kernel(&self) -> Kernel {
        (**self).kernel()
    }

    fn cut(&self) {
        (**self).cut();
    }
}

/// A pipe within the process, in place of a socket.
impl Connection for DuplexStream {
    fn kernel(&self) -> Kernel {
        Kernel::default()
    }

    fn cut(&self) {}
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_nobody_reads_is_the_kernels_on_both_sides_and_thrown_away_by_a_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (reader, _) = listener.accept().await.unwrap();
        assert_eq!((writer.kernel(), reader.kernel()), Default::default());
        let mut written = 0;
        // Full when nothing more is taken at once.
        while let Ok(Ok(count)) =
            tokio::time::timeout(std::time::Duration::from_millis(200), writer.write(&[0; 64 * 1024])).await
        {
            written += count;
        }
        let held = writer.kernel().to_send + reader.kernel().received;
        assert!(held >= written, "{held} of {written}");
        assert!(writer.kernel().to_send > 0 && reader.kernel().received > 0);
        writer.cut();
        drop(writer);
        let ended = reader.readable().await.and_then(|()| {
            let mut all = vec![0; written + 1];
            loop {
                match reader.try_read(&mut all) {
                    Ok(0) => return Ok("orderly"),
                    Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
        });
        assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
}
