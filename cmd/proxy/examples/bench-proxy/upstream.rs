//! The server behind both ways, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

/// The size of the long answer, in bytes.
pub(crate) const LIST: usize = 50_000_000;

/// First argument of the process.
pub(crate) const ROLE: &str = "upstream";

const CHUNK: usize = 16 * 1024;

/// The running process, driven over its standard input and output.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Upstream {
    pub(crate) fn start(
        folder: &Path,
        address: IpAddr,
        certificate: &CertificateDer<'_>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<Self> {
        std::fs::write(folder.join("upstream.crt"), certificate)?;
        std::fs::write(folder.join("upstream.key"), key.secret_der())?;
        let mut child = Command::new(std::env::current_exe()?)
            .args([ROLE.as_ref(), folder.as_os_str(), address.to_string().as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("no stdin")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        Ok(Self {
            address: line.trim().parse().context("the upstream did not start")?,
            child,
            stdin,
            stdout,
        })
    }

    /// Sends an event to all watches.
    pub(crate) fn event(&mut self) -> Result<()> {
        Ok(self.stdin.write_all(b"event\n")?)
    }

    /// How many watches are open.
    pub(crate) fn watches(&mut self) -> Result<usize> {
        self.stdin.write_all(b"watches\n")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers `/version` shortly, `/api/v1/pods` with 50 MB, and a watch with an event whenever a line `event` comes.
pub(crate) async fn serve(folder: &Path, address: IpAddr) -> Result<()> {
    let certificate = CertificateDer::from(std::fs::read(folder.join("upstream.crt"))?);
    let key = PrivateKeyDer::try_from(std::fs::read(folder.join("upstream.key"))?).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let listener = TcpListener::bind((address, 0)).await?;
    let (events, _) = broadcast::channel(16);
    let watches = Arc::new(AtomicUsize::new(0));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let (sender, counter) = (events.clone(), watches.clone());
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, sender, counter) = (acceptor.clone(), sender.clone(), counter.clone());
            // A connection that ends is an ordinary end here.
            tokio::spawn(async move {
                let _ = answer(acceptor, tcp, sender, counter).await;
            });
        }
    });
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.as_str() {
            "event" => {
                events.send(Arc::new(b"6\r\nevent\n\r\n".to_vec()))?;
            }
            _ => writeln!(std::io::stdout(), "{}", watches.load(Ordering::SeqCst))?,
        }
    }
    Ok(())
}

async fn answer(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    events: broadcast::Sender<Arc<Vec<u8>>>,
    watches: Arc<AtomicUsize>,
) -> Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = acceptor.accept(tcp).await?;
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head: Vec<u8> = buffer.drain(..end).collect();
        if head.starts_with(b"GET /api/v1/pods?watch") {
            let mut receiver = events.subscribe();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await?;
            stream.flush().await?;
            watches.fetch_add(1, Ordering::SeqCst);
            let mut byte = [0];
            let ended: Result<()> = loop {
                tokio::select! {
                    event = receiver.recv() => {
                        stream.write_all(&event?).await?;
                        stream.flush().await?;
                    }
                    _ = stream.read(&mut byte) => break Ok(()),
                }
            };
            watches.fetch_sub(1, Ordering::SeqCst);
            return ended;
        } else if head.starts_with(b"GET /api/v1/pods") {
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LIST}\r\n\r\n").as_bytes())
                .await?;
            let piece = vec![b'x'; CHUNK];
            let mut left = LIST;
            while left > 0 {
                let take = left.min(CHUNK);
                stream.write_all(piece.get(..take).unwrap_or_default()).await?;
                left -= take;
            }
        } else {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"major\": \"1\"}\n")
                .await?;
        }
        stream.flush().await?;
    }
}
