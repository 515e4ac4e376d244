//! Options of TCP connections.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// No delay for small writes, and probes of a silent peer after 30 s (`proxy_cases.md`, case 52). After `stall` the kernel,
/// which alone knows, gives up a peer that answers no probe, acknowledges nothing, or keeps its window shut while something
/// waits for it; elsewhere than on Linux after some more probes, and not for a shut window.
///
/// # Errors
///
/// When the stream is already broken.
pub fn tune(tcp: &TcpStream, stall: Duration) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    let socket = SockRef::from(tcp);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&probes)?;
    // Takes the place of a number of probes.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(stall))?;
    #[cfg(not(target_os = "linux"))]
    let _ = stall;
    Ok(())
}
