//! Measures the proxy program against direct TLS in one run: the table of figures that it must reach.
//!
//! `cargo run --release --example bench-proxy -- PATH_OF_PROXY` prints the table, and JSON on the last line. The client lives
//! in this process, upstream and proxy each in one of their own: a direct request crosses as many processes as it does
//! in life, and the proxy's memory and CPU are its own.

mod upstream;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_api::v1alpha1::Target;
use cli_mcp_figures::Figure;
use cli_mcp_kubeconfig::{Kubeconfig, Routes};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::upstream::{LIST, Upstream};

/// Watches at once, at which memory is measured, and the bar in MiB where there is one.
const WATCHES: [(usize, Option<f64>); 6] = [
    (1, None),
    (10, None),
    (100, None),
    (500, Some(25.0)),
    (1000, Some(45.0)),
    (2000, None),
];

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn ca(name: &str) -> Result<Issuer> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(1);
    params.not_after = time::OffsetDateTime::now_utc() + time::Duration::days(365);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn leaf(issuer: &Issuer, address: IpAddr) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?.der().clone();
    Ok((
        certificate,
        PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?,
    ))
}

fn local_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket
        .connect("198.51.100.1:9")
        .context("an address that is not loopback is needed")?;
    Ok(socket.local_addr()?.ip())
}

/// How to reach the upstream: directly, or through the proxy.
#[derive(Clone)]
struct Way {
    upstream: SocketAddr,
    proxy: Option<SocketAddr>,
    tls: TlsConnector,
}

impl Way {
    fn new(upstream: SocketAddr, proxy: Option<SocketAddr>, trusted: &Issuer) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der().clone())?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each handshake is a full one, as kubectl's are.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            upstream,
            proxy,
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    async fn open(&self) -> Result<TlsStream<TcpStream>> {
        let mut tcp = TcpStream::connect(self.proxy.unwrap_or(self.upstream)).await?;
        tcp.set_nodelay(true)?;
        if self.proxy.is_some() {
            tcp.write_all(format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", self.upstream).as_bytes())
                .await?;
            let mut answer = vec![0; 39];
            tcp.read_exact(&mut answer).await?;
            ensure!(
                answer.starts_with(b"HTTP/1.1 200 "),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
        Ok(self
            .tls
            .connect(ServerName::IpAddress(self.upstream.ip().into()), tcp)
            .await?)
    }

    async fn send(&self, stream: &mut TlsStream<TcpStream>, path: &str) -> Result<()> {
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.upstream).as_bytes())
            .await?;
        Ok(stream.flush().await?)
    }

    async fn small(&self, stream: &mut TlsStream<TcpStream>) -> Result<()> {
        self.send(stream, "/version").await?;
        let mut buffer = Vec::with_capacity(512);
        while !buffer.ends_with(b"}\n") {
            ensure!(stream.read_buf(&mut buffer).await? > 0, "cut");
        }
        Ok(())
    }

    async fn list(&self) -> Result<Duration> {
        let mut stream = self.open().await?;
        let started = Instant::now();
        self.send(&mut stream, "/api/v1/pods").await?;
        let mut buffer = vec![0; 256 * 1024];
        let mut read = 0;
        while read < LIST {
            let count = stream.read(&mut buffer).await?;
            ensure!(count > 0, "cut");
            read += count;
        }
        Ok(started.elapsed())
    }

    async fn watch(&self) -> Result<TlsStream<TcpStream>> {
        let mut stream = self.open().await?;
        self.send(&mut stream, "/api/v1/pods?watch=1").await?;
        let mut buffer = Vec::new();
        while !buffer.ends_with(b"\r\n\r\n") {
            ensure!(stream.read_buf(&mut buffer).await? > 0, "cut");
        }
        Ok(stream)
    }
}

fn median(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).map_or(0.0, Duration::as_secs_f64) * 1000.0
}

async fn kept(way: &Way, samples: usize) -> Result<f64> {
    let mut stream = way.open().await?;
    for _ in 0..200 {
        way.small(&mut stream).await?;
    }
    let mut times = Vec::new();
    for _ in 0..samples {
        let started = Instant::now();
        way.small(&mut stream).await?;
        times.push(started.elapsed());
    }
    Ok(median(times))
}

async fn fresh(way: &Way, samples: usize) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..samples {
        let started = Instant::now();
        let mut stream = way.open().await?;
        way.small(&mut stream).await?;
        times.push(started.elapsed());
    }
    Ok(median(times))
}

async fn event_delay(way: &Way, upstream: &mut Upstream, samples: usize) -> Result<f64> {
    let mut stream = way.watch().await?;
    let mut times = Vec::new();
    let mut buffer = [0; 64];
    for _ in 0..samples {
        let started = Instant::now();
        upstream.event()?;
        let mut read = 0;
        while read < 11 {
            read += stream.read(&mut buffer).await?;
        }
        times.push(started.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(median(times))
}

struct Proxy {
    child: Child,
    ticks_per_second: f64,
}

impl Proxy {
    /// Resident memory, MiB.
    fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .context("no VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
        Ok(kib / 1024.0)
    }

    /// CPU time so far, ms.
    fn cpu(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| -> Result<f64> { Ok(fields.get(index).context("no field")?.parse()?) };
        Ok((ticks(11)? + ticks(12)?) / self.ticks_per_second * 1000.0)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let program = match arguments.as_slice() {
        [role, folder, address] if role == upstream::ROLE => {
            return upstream::serve(std::path::Path::new(folder), address.parse()?).await;
        }
        [program] => program.clone(),
        _ => bail!("give the path of the proxy program"),
    };
    let address = local_address()?;
    let (cluster_ca, proxy_ca) = (ca("cluster")?, ca("proxy")?);
    let (certificate, key) = leaf(&cluster_ca, address)?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let mut upstream = Upstream::start(folder.path(), address, &certificate, &key)?;
    let server = upstream.address;
    let kubeconfig = |token: &str| {
        format!(
            "{{clusters: [{{name: k, cluster: {{server: \"https://{}\", certificate-authority-data: {}}}}}], users: [{{name: u, user: {{token: \
             {token}}}}}], contexts: [{{name: c, context: {{cluster: k, user: u}}}}]}}",
            server,
            STANDARD.encode(cluster_ca.pem())
        )
    };
    let targets: Vec<Target> = serde_yaml::from_str("[{type: kubernetes}]")?;
    let routes = Routes::build(
        &targets,
        Some(&Kubeconfig::parse(kubeconfig("first-token").as_bytes())?),
    )?;
    std::fs::write(path("proxy-config.json"), routes.to_json())?;
    std::fs::write(path("kubeconfig"), kubeconfig("first-token"))?;
    std::fs::write(path("ca.crt"), proxy_ca.pem())?;
    std::fs::write(path("ca.key"), proxy_ca.key().serialize_pem())?;
    let (listen, health) = (free_port().await?, free_port().await?);
    let child = Command::new(&program)
        .args([
            "--listen",
            &listen.to_string(),
            "--health-listen",
            &health.to_string(),
            "--max-connections-per-client",
            "4096",
        ])
        .args(
            ["--routes-dir", "--kubeconfig-dir", "--ca-dir"]
                .iter()
                .flat_map(|flag| [std::ffi::OsStr::new(*flag), folder.path().as_os_str()]),
        )
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| program.clone())?;
    let ticks_per_second = 100.0;
    let proxy = Proxy {
        child,
        ticks_per_second,
    };
    let direct = Way::new(upstream.address, None, &cluster_ca)?;
    let proxied = Way::new(upstream.address, Some(listen), &proxy_ca)?;
    let mut tries = 0;
    while TcpStream::connect(listen).await.is_err() {
        tries += 1;
        ensure!(tries < 200, "the proxy does not listen");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let idle = proxy.memory()?;

    let small = (kept(&direct, 3000).await?, kept(&proxied, 3000).await?);
    let handshake = (fresh(&direct, 400).await?, fresh(&proxied, 400).await?);
    let (mut direct_list, mut proxied_list, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..7 {
        direct_list.push(direct.list().await?);
        let before = proxy.cpu()?;
        proxied_list.push(proxied.list().await?);
        cpu.push(Duration::from_secs_f64((proxy.cpu()? - before) / 1000.0));
    }
    let list = (median(direct_list), median(proxied_list));
    let delay = (
        event_delay(&direct, &mut upstream, 300).await?,
        event_delay(&proxied, &mut upstream, 300).await?,
    );
    let list_cpu = median(cpu);

    let mut watches = Vec::new();
    let mut memory = Vec::new();
    for (count, bar) in WATCHES {
        while watches.len() < count {
            watches.push(proxied.watch().await?);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let figure = Figure::new(format!("RSS with {count} watches"), proxy.memory()?, "MiB");
        memory.push(match bar {
            Some(bar) => figure.at_most(bar),
            None => figure,
        });
    }
    std::fs::write(path("kubeconfig"), kubeconfig("second-token"))?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    upstream.event()?;
    let mut dropped = 0;
    for watch in &mut watches {
        let mut event = [0; 11];
        if !matches!(
            tokio::time::timeout(Duration::from_secs(10), watch.read_exact(&mut event)).await,
            Ok(Ok(_))
        ) {
            dropped += 1;
        }
    }
    let started = Instant::now();
    drop(watches);
    while upstream.watches()? > 0 && started.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let closed = started.elapsed().as_secs_f64() * 1000.0;

    let ratio = |what, (direct, proxied): (f64, f64)| Figure::new(what, proxied / direct, "x").of(direct, proxied);
    let mut figures = vec![
        ratio("small GET on a kept connection (ms), p50", small).at_most(2.2),
        ratio("new CONNECT + handshake + GET (ms), p50", handshake).at_most(1.5),
        ratio("50 MB LIST (ms), wall", list).at_most(1.5),
        Figure::new("50 MB LIST, CPU of the proxy", list_cpu, "ms").at_most(50.0),
        Figure::new("idle RSS", idle, "MiB").at_most(6.0),
        Figure::new("watch line delay added, p50", delay.1 - delay.0, "ms")
            .of(delay.0, delay.1)
            .at_most(0.08),
        Figure::new("2,000 clients gone, all upstreams closed", closed, "ms").at_most(1000.0),
        Figure::new("watches dropped by a reload", f64::from(dropped), "").at_most(0.0),
    ];
    figures.extend(memory);
    Ok(cli_mcp_figures::print(&figures)?)
}
