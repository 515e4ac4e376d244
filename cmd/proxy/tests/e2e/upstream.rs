//! The other side: a certificate authority, and a TLS upstream that records what it received.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::harness::local_address;

pub(crate) struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        Self::valid(name, time::Duration::days(-1), time::Duration::days(3650))
    }

    pub(crate) fn valid(name: &str, from: time::Duration, to: time::Duration) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = time::OffsetDateTime::now_utc() + from;
        params.not_after = time::OffsetDateTime::now_utc() + to;
        Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// A certificate and key for these names and addresses; a common name alone when there are none.
    pub(crate) fn issue(&self, names: &[&str]) -> Pair {
        self.issue_valid(names, time::Duration::days(-1), time::Duration::days(10))
    }

    pub(crate) fn issue_valid(&self, names: &[&str], from: time::Duration, to: time::Duration) -> Pair {
        let (mut params, key) = (leaf(names, from, to), KeyPair::generate().unwrap());
        params.use_authority_key_identifier_extension = true;
        pair(&params.signed_by(&key, &self.issuer).unwrap(), &key)
    }
}

/// A certificate and its key.
pub(crate) type Pair = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A certificate that nobody but itself has signed.
pub(crate) fn self_signed(names: &[&str]) -> Pair {
    let (params, key) = (
        leaf(names, time::Duration::days(-1), time::Duration::days(10)),
        KeyPair::generate().unwrap(),
    );
    pair(&params.self_signed(&key).unwrap(), &key)
}

fn leaf(names: &[&str], from: time::Duration, to: time::Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "upstream");
    params.not_before = time::OffsetDateTime::now_utc() + from;
    params.not_after = time::OffsetDateTime::now_utc() + to;
    params.subject_alt_names = names
        .iter()
        .map(|name| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        })
        .collect();
    params
}

fn pair(certificate: &Certificate, key: &KeyPair) -> Pair {
    (
        certificate.der().clone(),
        PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
    )
}

/// The PEM text of a certificate.
pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// One request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }
}

pub(crate) type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;
type Answer = Pin<Box<dyn Future<Output = io::Result<bool>> + Send>>;
pub(crate) type Responder = Arc<dyn Fn(Received, Arc<tokio::sync::Mutex<ServerStream>>) -> Answer + Send + Sync>;

/// Answers every request with these bytes and keeps the connection.
pub(crate) fn answer(bytes: impl Into<Vec<u8>>) -> Responder {
    let bytes = bytes.into();
    Arc::new(move |_, stream| {
        let bytes = bytes.clone();
        Box::pin(async move {
            let mut stream = stream.lock().await;
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            Ok(true)
        })
    })
}

pub(crate) fn ok() -> Responder {
    answer("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}")
}

/// A TLS server that reads requests with a plain parser of its own and records them.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) ca: Ca,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) async fn start(responder: Responder) -> Self {
        let ca = Ca::new("cluster CA");
        let (certificate, key) = ca.issue(&["api.test", "other.test", &local_address().to_string()]);
        Self::start_with(responder, ca, certificate, key, None).await
    }

    /// Speaks one version of TLS, with this certificate.
    pub(crate) async fn speaking(
        version: &'static SupportedProtocolVersion,
        responder: Responder,
        ca: Ca,
        (certificate, key): Pair,
    ) -> Self {
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self::start_config(responder, ca, config).await
    }

    /// Greets whoever connects with these bytes, and ends the connection.
    pub(crate) async fn greeting(bytes: &'static [u8]) -> Self {
        let listener = TcpListener::bind((local_address(), 0)).await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            ca: Ca::new("cluster CA"),
            received: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
        };
        let received = upstream.received.clone();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                let _ = tcp.write_all(bytes).await;
                let _ = tcp.shutdown().await;
                let mut sent = Vec::new();
                let _ = tcp.read_to_end(&mut sent).await;
                let head = String::from_utf8_lossy(&sent).into_owned();
                received.lock().unwrap().push(Received { head, body: sent });
            }
        });
        upstream
    }

    pub(crate) async fn start_with(
        responder: Responder,
        ca: Ca,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        client_ca: Option<&Ca>,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(client_ca) => {
                let mut roots = RootCertStore::empty();
                roots.add(client_ca.der()).unwrap();
                builder.with_client_cert_verifier(
                    rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .unwrap(),
                )
            }
        };
        Self::start_config(responder, ca, builder.with_single_cert(vec![certificate], key).unwrap()).await
    }

    async fn start_config(responder: Responder, ca: Ca, config: ServerConfig) -> Self {
        let listener = TcpListener::bind((local_address(), 0)).await.unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            ca,
            received: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
        };
        let (received, connections, open) = (
            upstream.received.clone(),
            upstream.connections.clone(),
            upstream.open.clone(),
        );
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (acceptor, received, responder, open) =
                    (acceptor.clone(), received.clone(), responder.clone(), open.clone());
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    if let Ok(stream) = acceptor.accept(tcp).await {
                        let _ = serve(stream, &received, &responder).await;
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        upstream
    }

    /// Answers as soon as it has a request's head, and reads no more.
    pub(crate) async fn start_early(bytes: &'static str) -> Self {
        let ca = Ca::new("cluster CA");
        let (certificate, key) = ca.issue(&["api.test"]);
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind((local_address(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(tcp).await else {
                    continue;
                };
                let mut head = Vec::new();
                while !head.windows(4).any(|window| window == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let _ = stream.write_all(bytes.as_bytes()).await;
                let _ = stream.flush().await;
                std::future::pending::<()>().await;
            }
        });
        Self {
            address,
            ca,
            received: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
        }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

async fn serve(stream: ServerStream, received: &Mutex<Vec<Received>>, responder: &Responder) -> io::Result<()> {
    let stream = Arc::new(tokio::sync::Mutex::new(stream));
    let mut buffer = Vec::new();
    loop {
        let mut locked = stream.lock().await;
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if locked.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8(buffer.drain(..end).collect()).expect("the proxy sends text");
        let mut request = Received { head, body: Vec::new() };
        if let Some(length) = request.values("content-length").first() {
            let length: usize = length.parse().unwrap();
            while buffer.len() < length {
                if locked.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
            request.body = buffer.drain(..length).collect();
        } else if !request.values("transfer-encoding").is_empty() {
            while !buffer.ends_with(b"0\r\n\r\n") {
                if locked.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
            request.body = std::mem::take(&mut buffer);
        }
        drop(locked);
        received.lock().unwrap().push(request.clone());
        if !responder(request, stream.clone()).await? {
            return Ok(());
        }
    }
}
