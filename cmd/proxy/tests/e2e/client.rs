//! A raw client inside a tunnel: it sends what it is told, and reads responses by a plain parser of its own.

use std::io;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::patiently;
use crate::upstream::Ca;

pub(crate) fn client_config(ca: &Ca) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(ca.der()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

pub(crate) struct Client {
    pub(crate) stream: tokio_rustls::client::TlsStream<TcpStream>,
    pub(crate) buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| {
            line.split(':')
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case(header))
        })
    }

    /// The `metav1.Status` of a refusal.
    pub(crate) fn kubernetes_status(&self) -> serde_json::Value {
        let status: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()));
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], self.status);
        status
    }
}

impl Client {
    pub(crate) async fn send(&mut self, raw: &str) {
        self.send_bytes(raw.as_bytes()).await;
    }

    pub(crate) async fn send_bytes(&mut self, raw: &[u8]) {
        // The proxy may have answered and closed already.
        let _ = self.stream.write_all(raw).await;
        let _ = self.stream.flush().await;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        patiently(self.stream.read_buf(&mut self.buffer)).await
    }

    pub(crate) async fn head(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                return Ok(String::from_utf8_lossy(&self.buffer.drain(..at + 4).collect::<Vec<_>>()).into_owned());
            }
            if self.fill().await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no response"));
            }
        }
    }

    pub(crate) async fn try_response(&mut self) -> io::Result<Response> {
        let head = self.head().await?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let value = |name: &str| {
            head.lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(found, _)| found.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim().to_owned())
        };
        let mut body = Vec::new();
        if let Some(length) = value("content-length").filter(|_| ![204, 304].contains(&status)) {
            let length: usize = length.parse().unwrap();
            while self.buffer.len() < length {
                if self.fill().await? == 0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut"));
                }
            }
            body = self.buffer.drain(..length).collect();
        } else if value("transfer-encoding").is_some() {
            loop {
                let line = self.line().await?;
                let size = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
                while self.buffer.len() < size + 2 {
                    if self.fill().await? == 0 {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut"));
                    }
                }
                body.extend(self.buffer.drain(..size));
                assert_eq!(self.buffer.drain(..2).collect::<Vec<_>>(), b"\r\n");
                if size == 0 {
                    break;
                }
            }
        }
        Ok(Response { status, head, body })
    }

    pub(crate) async fn response(&mut self) -> Response {
        self.try_response().await.unwrap()
    }

    pub(crate) async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer.drain(..at).collect::<Vec<_>>()).into_owned();
                self.buffer.drain(..2);
                return Ok(line);
            }
            if self.fill().await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no line"));
            }
        }
    }

    /// One chunk of a chunked body.
    pub(crate) async fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = usize::from_str_radix(&self.line().await?, 16).map_err(io::Error::other)?;
        while self.buffer.len() < size + 2 {
            if self.fill().await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "cut"));
            }
        }
        let data = self.buffer.drain(..size).collect();
        self.buffer.drain(..2);
        Ok(data)
    }

    /// Raw bytes, at least one.
    pub(crate) async fn some(&mut self) -> String {
        if self.buffer.is_empty() {
            assert_ne!(self.fill().await.unwrap(), 0, "the connection ended");
        }
        String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()
    }

    /// Whether the proxy has ended the connection, and nothing more came.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && matches!(self.fill().await, Ok(0) | Err(_))
    }
}
