//! `agent probe`: asks the agent of this pod for its health, so that an image needs no HTTP client for its readiness.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// How long each step of a probe may take.
const WAIT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 << 10;

/// Why the agent is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nothing answers.
    #[error("no answer from the agent at {0}: {1}")]
    Unreachable(SocketAddr, io::Error),
    /// The agent says why.
    #[error("not ready: {0}")]
    NotReady(String),
}

/// The address by which a listener is reached from its own pod.
#[must_use]
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

/// Asks once.
///
/// # Errors
///
/// [`ProbeError`] unless the agent answers 200.
pub fn probe(listen: SocketAddr) -> Result<(), ProbeError> {
    let address = reachable(listen);
    let answer = ask(address).map_err(|error| ProbeError::Unreachable(address, error))?;
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let reason = answer
        .split_once("\r\n\r\n")
        .map_or(answer.as_str(), |(_, body)| body)
        .trim();
    Err(ProbeError::NotReady(reason.chars().take(1024).collect()))
}

fn ask(address: SocketAddr) -> io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, WAIT)?;
    connection.set_read_timeout(Some(WAIT))?;
    connection.set_write_timeout(Some(WAIT))?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    connection.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answering(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let _ = connection.read(&mut [0; 1024]).unwrap();
            connection.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn ready_only_with_200_and_the_reason_otherwise() {
        assert!(probe(answering("HTTP/1.1 200 OK\r\n\r\n{}")).is_ok());
        let error = probe(answering(
            "HTTP/1.1 503 Service Unavailable\r\n\r\n{\"error\":\"EgressNotEnforced: x\"}",
        ))
        .unwrap_err();
        assert!(error.to_string().contains("EgressNotEnforced: x"), "{error}");
    }

    #[test]
    fn a_wildcard_is_reached_by_loopback() {
        assert_eq!(reachable(([0, 0, 0, 0], 8090).into()), ([127, 0, 0, 1], 8090).into());
        assert_eq!(reachable("[::]:1".parse().unwrap()), "[::1]:1".parse().unwrap());
        assert_eq!(reachable(([10, 0, 0, 7], 1).into()), ([10, 0, 0, 7], 1).into());
    }
}
