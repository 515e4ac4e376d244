//! A connection's way from TCP to an established tunnel: CONNECT read strictly, target matched exactly, then TLS and
//! nothing but TLS (`proxy.md`, steps 1 and 2; `proxy_cases.md`, cases 20 to 25 and 56).

use std::net::IpAddr;
use std::sync::Arc;

use cli_mcp_kubeconfig::Authority;
use cli_mcp_serving::socket::tune;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::dial::DialError;
use crate::head::{Framing, Head, HeadError, find_end};
use crate::large_heads::LARGE_HEAD;
use crate::memory::HANDSHAKE;
use crate::metrics::Open;
use crate::proxy::{Entry, Shared};
use crate::refusal::{Refusal, phrase};
use crate::socket::Socket;
use crate::state::{Backend, Destination};
use crate::tunnel::Tunnel;

/// Label of requests to what is no target: what a client asks for must not become a label.
const NO_TARGET: &str = "none";

/// A fatal `unrecognized_name` alert in a plaintext TLS record (RFC 8446, section 6; RFC 6066, section 3).
const UNRECOGNIZED_NAME: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x70];

/// Reads the head of what came to the proxy's port.
///
/// # Errors
///
/// The refusal, with the target as far as it was understood.
pub fn parse_connect(raw: &[u8]) -> Result<Authority, (Refusal, String)> {
    let refuse = |status, message: String, target: &str| Err((Refusal::new(status, message), shown(target)));
    let line = raw.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let Some(target) = line.strip_prefix("CONNECT ").and_then(|rest| {
        rest.strip_suffix(" HTTP/1.1")
            .or_else(|| rest.strip_suffix(" HTTP/1.0"))
    }) else {
        let mut words = line.split(' ');
        return match (words.next(), words.next()) {
            (Some(_), Some(target)) if target.contains("://") => refuse(
                403,
                "plaintext requests are not proxied: use https, and CONNECT to reach it".into(),
                target,
            ),
            _ => refuse(400, "this port takes CONNECT requests only".into(), ""),
        };
    };
    let authority = match Authority::parse(target) {
        Ok(authority) => authority,
        Err(error) => {
            return refuse(
                403,
                format!("{:?} is not an exact host:port: {error}", shown(target)),
                target,
            );
        }
    };
    let head = match Head::parse(raw.to_vec()) {
        Ok(head) => head,
        Err(error) => return refuse(error.status(), error.to_string(), target),
    };
    match head.request_framing() {
        Ok(Framing::Empty | Framing::Length(0)) if head.values("host").count() <= 1 => Ok(authority),
        Ok(Framing::Empty | Framing::Length(0)) => refuse(400, "more than one Host header".into(), target),
        Ok(_) => refuse(400, "a CONNECT request has no body".into(), target),
        Err(error) => refuse(error.status(), error.to_string(), target),
    }
}

/// A refused target as messages and audit show it: the part that names a host, without user information.
fn shown(target: &str) -> String {
    let target = target.split_once("://").map_or(target, |(_, rest)| rest);
    let authority = target.split(['/', '?', '#']).next().unwrap_or_default();
    authority
        .rsplit('@')
        .next()
        .unwrap_or_default()
        .chars()
        .take(300)
        .collect()
}

/// Serves one connection to its end.
pub async fn serve(mut tcp: TcpStream, client: IpAddr, shared: &Shared) {
    if tune(&tcp, shared.timeouts.stall).is_err() {
        return;
    }
    let accepted = match take_connect(&mut tcp, client, shared).await {
        None => return,
        Some(Ok(accepted)) => accepted,
        Some(Err(refused)) => {
            Entry::begin(shared, client, &refused.target, &refused.label, "CONNECT")
                .deny(refused.refusal.status, &refused.reason);
            return refuse(tcp, &refused.refusal).await;
        }
    };
    if tcp
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .is_err()
    {
        return;
    }
    let _open = Open::new(&shared.metrics.tunnels);
    let Accepted {
        authority,
        destination,
        config,
        ahead,
    } = accepted;
    let label = authority.to_string();
    let handshake = Box::pin(handshake(Socket::new(tcp, ahead), &destination, config));
    let mut share = shared.memory.share(client);
    let unopened = |reason: &str| Entry::begin(shared, client, &label, &label, "CONNECT").deny(0, reason);
    let stream = match share
        .during(|| HANDSHAKE, timeout(shared.timeouts.handshake, handshake))
        .await
    {
        Ok(Ok(Ok(stream))) => stream,
        Ok(Ok(Err(reason))) => return unopened(&reason),
        Ok(Err(_)) => return unopened("no TLS handshake in time"),
        Err(over) => return unopened(&over.to_string()),
    };
    let kubernetes = destination.is_kubernetes();
    drop(destination);
    Tunnel {
        stream: Box::new(stream),
        client,
        authority,
        label,
        kubernetes,
        share,
        shared,
    }
    .serve()
    .await;
}

/// A CONNECT that becomes a tunnel.
struct Accepted {
    authority: Authority,
    destination: Arc<Destination>,
    config: Arc<ServerConfig>,
    /// What came behind it.
    ahead: Vec<u8>,
}

/// A CONNECT that does not.
struct Refused {
    refusal: Refusal,
    /// For the audit line.
    target: String,
    reason: String,
    /// For the metrics.
    label: String,
}

impl Refused {
    fn because(refusal: Refusal, target: String, label: &str) -> Self {
        Self {
            reason: refusal.message.clone(),
            refusal,
            target,
            label: label.to_owned(),
        }
    }
}

/// Reads a CONNECT and judges it. `None` when the client left, or took too long.
async fn take_connect(tcp: &mut TcpStream, client: IpAddr, shared: &Shared) -> Option<Result<Accepted, Refused>> {
    let (authority, ahead) = read_head(tcp, client, shared).await?;
    Some(judge_connect(authority, ahead, shared).await)
}

async fn judge_connect(
    authority: Result<Authority, (Refusal, String)>,
    ahead: Vec<u8>,
    shared: &Shared,
) -> Result<Accepted, Refused> {
    let authority = authority.map_err(|(refusal, target)| Refused::because(refusal, target, NO_TARGET))?;
    let label = authority.to_string();
    let state = shared.state.load_full();
    let Some(destination) = state.destination(&authority).cloned() else {
        let message =
            format!("{label} is not a target of this sandbox: only exactly listed host:port pairs are reachable");
        return Err(Refused::because(Refusal::new(403, message), label, NO_TARGET));
    };
    let checked = timeout(shared.timeouts.handshake, check_public_name(&destination)).await;
    let too_late = |_| Err(Refusal::new(504, format!("{label} cannot be resolved in time")));
    checked
        .unwrap_or_else(too_late)
        .map_err(|refusal| Refused::because(refusal, label.clone(), &label))?;
    let config = state.minter.server_config(&authority.host).map_err(|error| {
        tracing::error!(%error, target = %label, "Cannot make a certificate");
        Refused {
            refusal: Refusal::new(502, "the proxy cannot make a certificate for this target"),
            target: label.clone(),
            reason: error.to_string(),
            label: label.clone(),
        }
    })?;
    Ok(Accepted {
        authority,
        destination,
        config,
        ahead,
    })
}

/// TLS, and nothing but TLS, in the name of the target.
async fn handshake(
    socket: Socket,
    destination: &Destination,
    config: Arc<ServerConfig>,
) -> Result<TlsStream<Socket>, String> {
    let start = LazyConfigAcceptor::new(Acceptor::default(), socket)
        .await
        .map_err(|error| format!("what came in the tunnel is no TLS handshake: {error}"))?;
    check_sni(start, destination)
        .await?
        .into_stream(config)
        .await
        .map_err(|error| format!("the client ended the TLS handshake: {error}"))
}

/// Reads a CONNECT: what it asks for, or what is wrong with it, and the bytes behind it. `None` when the client left
/// first, or took too long.
async fn read_head(
    tcp: &mut TcpStream,
    client: IpAddr,
    shared: &Shared,
) -> Option<(Result<Authority, (Refusal, String)>, Vec<u8>)> {
    const LONGEST: usize = 64 * 1024;
    let refuse = |status, message: String| Some((Err((Refusal::new(status, message), String::new())), Vec::new()));
    let malformed = |error: HeadError| refuse(error.status(), error.to_string());
    let deadline = Instant::now() + shared.timeouts.handshake;
    let mut buffer = Vec::with_capacity(1024);
    let mut scanned = 0;
    let mut place = None;
    loop {
        let end = match find_end(&buffer, scanned) {
            Ok(end) => end,
            Err(error) => return malformed(error),
        };
        let length = end.unwrap_or(buffer.len());
        if length > LONGEST {
            return malformed(HeadError::TooLarge);
        }
        if place.is_none() && length > LARGE_HEAD {
            match shared.large_heads.take(client, deadline).await {
                Ok(taken) => place = Some(taken),
                Err(crowded) => return refuse(503, crowded.to_string()),
            }
        }
        if let Some(end) = end {
            let ahead = buffer.split_off(end);
            return Some((parse_connect(&buffer), ahead));
        }
        scanned = buffer.len();
        match timeout_at(deadline, tcp.read_buf(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return None,
        }
    }
}

/// A name on the allowlist that leads to a private address is refused before there is a tunnel. Dialling checks again.
async fn check_public_name(destination: &Destination) -> Result<(), Refusal> {
    let Backend::Allowlist(upstream) = &destination.target else {
        return Ok(());
    };
    match upstream.dialer.addresses().await {
        Ok(_) => Ok(()),
        Err(error @ DialError::Refused { .. }) => Err(Refusal::new(403, error.to_string())),
        Err(error) => Err(Refusal::new(error.status(), error.to_string())),
    }
}

async fn check_sni(
    mut start: StartHandshake<Socket>,
    destination: &Destination,
) -> Result<StartHandshake<Socket>, String> {
    let sni = start.client_hello().server_name().map(str::to_owned);
    match sni {
        Some(sni) if !destination.accepts_sni(&sni) => {
            // The client learns which of its names is wrong; whether it reads it is its affair.
            let _ = start.io.write_all(&UNRECOGNIZED_NAME).await;
            let _ = start.io.shutdown().await;
            Err(format!(
                "the TLS handshake is for {sni}, the tunnel for {}",
                destination.label
            ))
        }
        _ => Ok(start),
    }
}

async fn refuse(mut tcp: TcpStream, refusal: &Refusal) {
    let body = format!("{}\n", refusal.message);
    let response = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        refusal.status,
        phrase(refusal.status),
        body.len(),
    );
    let end = async {
        tcp.write_all(response.as_bytes()).await?;
        tcp.shutdown().await?;
        // What the client still sends must not become a reset that overtakes the answer.
        let mut scratch = [0_u8; 1024];
        while tcp.read(&mut scratch).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(Duration::from_secs(1), end).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<String, u16> {
        parse_connect(head.as_bytes())
            .map(|authority| authority.to_string())
            .map_err(|(refusal, _)| refusal.status)
    }

    #[test]
    fn connect_is_read_strictly() {
        assert_eq!(
            parse("CONNECT Api.Example:6443 HTTP/1.1\r\nHost: api.example:6443\r\n\r\n"),
            Ok("api.example:6443".into())
        );
        assert_eq!(
            parse("CONNECT [2001:db8::1]:443 HTTP/1.0\r\n\r\n"),
            Ok("[2001:db8::1]:443".into())
        );
        assert_eq!(
            parse("CONNECT a:443 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
            Ok("a:443".into())
        );
        for (head, status) in [
            ("CONNECT api HTTP/1.1\r\n\r\n", 403),
            ("CONNECT u@api:443 HTTP/1.1\r\n\r\n", 403),
            ("CONNECT  api:443 HTTP/1.1\r\n\r\n", 403),
            ("CONNECT api:443/x HTTP/1.1\r\n\r\n", 403),
            ("CONNECT https://api:443 HTTP/1.1\r\n\r\n", 403),
            ("CONNECT api:443? HTTP/1.1\r\n\r\n", 403),
            ("CONNECT \u{e9}:443 HTTP/1.1\r\n\r\n", 403),
            ("GET http://api:443/x HTTP/1.1\r\n\r\n", 403),
            ("POST https://api:443/x HTTP/1.1\r\n\r\n", 403),
            ("GET /healthz HTTP/1.1\r\n\r\n", 400),
            ("connect api:443 HTTP/1.1\r\n\r\n", 400),
            ("CONNECT api:443\r\n\r\n", 400),
            ("CONNECT api:443 HTTP/2.0\r\n\r\n", 400),
            ("SSH-2.0-x\r\n\r\n", 400),
            ("CONNECT api:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\n", 400),
            ("CONNECT api:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("CONNECT api:443 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("CONNECT api:443 HTTP/1.1\r\n folded\r\n\r\n", 400),
            (
                "CONNECT api:443 HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
                400,
            ),
        ] {
            assert_eq!(parse(head), Err(status), "{head:?}");
        }
        let fields = "X: y\r\n".repeat(257);
        assert_eq!(parse(&format!("CONNECT api:443 HTTP/1.1\r\n{fields}\r\n")), Err(431));
    }

    #[test]
    fn what_is_refused_is_shown_without_user_information() {
        let shown = |head: &str| parse_connect(head.as_bytes()).unwrap_err();
        for head in [
            "CONNECT u:hunter2@api:443 HTTP/1.1\r\n\r\n",
            "CONNECT https://u:hunter2@api:443/x HTTP/1.1\r\n\r\n",
            "GET http://u:hunter2@api:443/x?token=hunter2 HTTP/1.1\r\n\r\n",
        ] {
            let (refusal, target) = shown(head);
            assert_eq!(target, "api:443", "{head:?}");
            assert!(!refusal.message.contains("hunter2"), "{}", refusal.message);
        }
        let (_, target) = shown(&format!("CONNECT {}:443 HTTP/1.1\r\n\r\n", "a".repeat(10_000)));
        assert_eq!(target.len(), 300);
    }
}
