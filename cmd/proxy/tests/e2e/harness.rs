//! A lab: upstream, proxy and raw client, all on this machine.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_kubeconfig::{Authority, Kubeconfig, Routes};
use cli_mcp_proxy::audit::Sink;
use cli_mcp_proxy::dial::{Resolve, SystemResolver};
use cli_mcp_proxy::large_heads::LargeHeads;
use cli_mcp_proxy::memory::Memory;
use cli_mcp_proxy::metrics::Metrics;
use cli_mcp_proxy::proxy::{Shared, Timeouts};
use cli_mcp_proxy::reload::{Directories, Reloader};
use cli_mcp_proxy::server::{Proxy, Settings};
use cli_mcp_proxy::tunnel::Tunnel;
use prometheus_client::registry::Registry;
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::client::client_config;
pub(crate) use crate::client::{Client, Response};
pub(crate) use crate::upstream::{Ca, Responder, Upstream, answer, ok};

/// The credential that must reach the upstream, and nobody else.
pub(crate) const TOKEN: &str = "s3cr3t-investigation-credential-0123456789";

/// What the proxy's flag has as its default, in bytes.
const MEMORY_BUDGET: usize = 384 * 1024 * 1024;

/// Only against hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("did not happen")
}

/// An address of this machine that is not loopback: API servers on loopback are refused. Nothing is sent.
pub(crate) fn local_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").unwrap();
    let address = socket.local_addr().unwrap().ip();
    assert!(
        !address.is_loopback() && !address.is_unspecified(),
        "this test needs an address that is not loopback"
    );
    address
}

struct StaticResolver(HashMap<String, Vec<IpAddr>>);

impl Resolve for StaticResolver {
    fn lookup<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            self.0
                .get(name)
                .cloned()
                .ok_or_else(|| io::Error::other("no such host"))
        })
    }
}

/// What a lab's proxy is started with.
pub(crate) struct Setup {
    pub(crate) kubeconfig: Option<String>,
    /// YAML list of `spec.proxy.targets`.
    pub(crate) targets: String,
    pub(crate) names: Vec<(&'static str, &'static str)>,
    pub(crate) timeouts: Timeouts,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_client: usize,
    pub(crate) memory_budget: usize,
    pub(crate) drain_timeout: Duration,
    pub(crate) public_ca: Option<String>,
    /// Instead of `names`.
    pub(crate) resolver: Option<Arc<dyn Resolve>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            targets: "[{type: kubernetes}]".into(),
            names: Vec::new(),
            timeouts: Timeouts::default(),
            max_connections: 4096,
            max_connections_per_client: 512,
            memory_budget: MEMORY_BUDGET,
            drain_timeout: Duration::from_secs(25),
            public_ca: None,
            resolver: None,
        }
    }
}

impl Setup {
    /// Changes the kubeconfig's text.
    pub(crate) fn edit(&mut self, change: impl FnOnce(String) -> String) {
        self.kubeconfig = self.kubeconfig.take().map(change);
    }

    /// Replaces the trusted certificates.
    pub(crate) fn trust(&mut self, pem: &str) {
        self.edit(|text| {
            let (before, rest) = text.split_once("certificate-authority-data: ").unwrap();
            let (_, after) = rest.split_once('}').unwrap();
            format!("{before}certificate-authority-data: {}}}{after}", STANDARD.encode(pem))
        });
    }
}

/// A kubeconfig of one cluster. `user` is the YAML of the user's fields.
pub(crate) fn kubeconfig(server: &str, ca: &Ca, cluster_extra: &str, user: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
         clusters: [{{name: k, cluster: {{server: \"{server}\", certificate-authority-data: {}{cluster_extra}}}}}], \
         users: [{{name: u, user: {{{user}}}}}]}}",
        STANDARD.encode(ca.pem())
    )
}

/// A tunnel to `authority` over a connection to a proxy, with TLS that trusts the proxy's CA.
pub(crate) async fn establish(mut tcp: TcpStream, authority: &str, server_name: &str, ca: &Ca) -> io::Result<Client> {
    tcp.write_all(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes())
        .await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if patiently(tcp.read(&mut byte)).await? == 0 {
            return Err(io::Error::other(String::from_utf8_lossy(&head).into_owned()));
        }
        head.extend_from_slice(&byte);
    }
    if !head.starts_with(b"HTTP/1.1 200 ") {
        let _ = tcp.read_to_end(&mut head).await;
        return Err(io::Error::other(String::from_utf8_lossy(&head).into_owned()));
    }
    assert_eq!(head, b"HTTP/1.1 200 Connection established\r\n\r\n", "case 56");
    let connector = TlsConnector::from(Arc::new(client_config(ca)));
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let stream = patiently(connector.connect(name, tcp)).await?;
    Ok(Client {
        stream,
        buffer: Vec::new(),
    })
}

pub(crate) struct Lab {
    pub(crate) upstream: Upstream,
    pub(crate) proxy: SocketAddr,
    pub(crate) health: SocketAddr,
    pub(crate) ca: Ca,
    pub(crate) directory: TempDir,
    pub(crate) shutdown: CancellationToken,
    pub(crate) running: Option<tokio::task::JoinHandle<io::Result<()>>>,
    audit: Arc<Mutex<Vec<String>>>,
}

pub(crate) fn directories(directory: &Path) -> Directories {
    Directories {
        routes: directory.join("routes"),
        kubeconfig: directory.join("kubeconfig"),
        ca: directory.join("ca"),
        ssl_cert_file: None,
    }
}

/// The lines that a proxy writes.
pub(crate) fn recording(shared: &mut Shared) -> Arc<Mutex<Vec<String>>> {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let audit = lines.clone();
    shared.audit = Arc::new(move |line| audit.lock().unwrap().push(line.to_owned()));
    lines
}

pub(crate) fn write_inputs(directory: &Path, kubeconfig: Option<&str>, targets: &str, ca: &Ca) {
    let targets: Vec<cli_mcp_api::v1alpha1::Target> = serde_yaml::from_str(targets).unwrap();
    let parsed = kubeconfig.map(|text| Kubeconfig::parse(text.as_bytes()).unwrap());
    let routes = Routes::build(&targets, parsed.as_ref()).unwrap();
    for folder in ["routes", "kubeconfig", "ca"] {
        std::fs::create_dir_all(directory.join(folder)).unwrap();
    }
    std::fs::write(directory.join("routes/proxy-config.json"), routes.to_json()).unwrap();
    if let Some(kubeconfig) = kubeconfig {
        std::fs::write(directory.join("kubeconfig/kubeconfig"), kubeconfig).unwrap();
    }
    std::fs::write(directory.join("ca/ca.crt"), ca.pem()).unwrap();
    std::fs::write(directory.join("ca/ca.key"), ca.key_pem()).unwrap();
}

impl Lab {
    /// A kubernetes target `api.test` with a token, in front of an upstream that answers 200.
    pub(crate) async fn new() -> Self {
        Self::answering(ok()).await
    }

    pub(crate) async fn answering(responder: Responder) -> Self {
        Self::with(Upstream::start(responder).await, |_| {}).await
    }

    /// The upstream's address as an allowlist target, and nothing else.
    pub(crate) async fn allowlisting(upstream: Upstream) -> Self {
        let (address, ca) = (upstream.address, upstream.ca.pem());
        Self::with(upstream, |setup| {
            setup.targets = format!("[{{type: allowlist, domains: [\"{address}\"]}}]");
            setup.kubeconfig = None;
            setup.public_ca = Some(ca);
        })
        .await
    }

    /// `api.test` and `other.test` resolve to the upstream; `adjust` changes the rest.
    pub(crate) async fn with(upstream: Upstream, adjust: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup {
            kubeconfig: Some(kubeconfig(
                &format!("https://api.test:{}", upstream.address.port()),
                &upstream.ca,
                "",
                &format!("token: {TOKEN}"),
            )),
            ..Setup::default()
        };
        adjust(&mut setup);
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new("proxy CA");
        write_inputs(directory.path(), setup.kubeconfig.as_deref(), &setup.targets, &ca);
        let mut names: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for name in ["api.test", "other.test"] {
            names.insert(name.into(), vec![upstream.address.ip()]);
        }
        for (name, address) in &setup.names {
            names.entry((*name).into()).or_default().push(address.parse().unwrap());
        }
        let audit: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = audit.clone();
        let sink: Sink = Arc::new(move |line| lines.lock().unwrap().push(line.to_owned()));
        let public_ca = setup.public_ca.map(|pem| {
            let path = directory.path().join("public.crt");
            std::fs::write(&path, pem).unwrap();
            path
        });
        let proxy = Proxy::bind(Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            health_listen: "127.0.0.1:0".parse().unwrap(),
            directories: Directories {
                ssl_cert_file: public_ca,
                ..directories(directory.path())
            },
            max_connections: setup.max_connections,
            max_connections_per_client: setup.max_connections_per_client,
            memory_budget: setup.memory_budget,
            drain_timeout: setup.drain_timeout,
            timeouts: setup.timeouts,
            resolver: setup.resolver.unwrap_or_else(|| Arc::new(StaticResolver(names))),
            audit: sink,
        })
        .await
        .unwrap();
        let (address, health) = (proxy.address().unwrap(), proxy.health_address().unwrap());
        let shutdown = CancellationToken::new();
        let running = Some(tokio::spawn(proxy.run(shutdown.clone())));
        Self {
            upstream,
            proxy: address,
            health,
            ca,
            directory,
            shutdown,
            running,
            audit,
        }
    }

    /// What a proxy with this lab's files is made of, for tests that drive a part of it.
    pub(crate) fn parts(&self, large_heads: LargeHeads, timeouts: Timeouts) -> (Reloader, Shared) {
        self.parts_resolving(large_heads, timeouts, Arc::new(SystemResolver))
    }

    pub(crate) fn parts_resolving(
        &self,
        large_heads: LargeHeads,
        timeouts: Timeouts,
        resolver: Arc<dyn Resolve>,
    ) -> (Reloader, Shared) {
        let (reloader, state) = Reloader::start(directories(self.directory.path()), resolver).unwrap();
        let metrics = Metrics::new(&mut Registry::default());
        let shared = Shared {
            state: ArcSwap::from_pointee(state),
            audit: Arc::new(|_| {}),
            memory: Memory::new(MEMORY_BUDGET, metrics.held.clone(), metrics.over_memory.clone()),
            metrics,
            drain: CancellationToken::new(),
            timeouts,
            large_heads,
        };
        (reloader, shared)
    }

    /// A tunnel through this stream, whose TLS is established.
    pub(crate) fn tunnel_over<'a, S>(&self, stream: S, shared: &'a Shared) -> Tunnel<'a, S> {
        let client = IpAddr::from([127, 0, 0, 1]);
        Tunnel {
            stream,
            client,
            authority: Authority::parse(&self.authority()).unwrap(),
            label: self.authority(),
            kubernetes: true,
            share: shared.memory.share(client),
            shared,
        }
    }

    /// `api.test:port` of the upstream.
    pub(crate) fn authority(&self) -> String {
        format!("api.test:{}", self.upstream.address.port())
    }

    pub(crate) fn audit(&self) -> Vec<serde_json::Value> {
        self.audit
            .lock()
            .unwrap()
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for an audit line that fits: it is written after the response.
    pub(crate) async fn audited(&self, fits: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        patiently(async {
            loop {
                if let Some(line) = self.audit().into_iter().find(|line| fits(line)) {
                    return line;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    /// Sends a raw head to the proxy's port and reads all that comes back.
    pub(crate) async fn raw(&self, head: &str) -> String {
        let mut tcp = TcpStream::connect(self.proxy).await.unwrap();
        tcp.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = patiently(tcp.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A tunnel to `authority` with TLS that trusts the proxy's CA.
    pub(crate) async fn tunnel_to(&self, authority: &str, server_name: &str) -> Client {
        self.try_tunnel(authority, server_name).await.unwrap()
    }

    pub(crate) async fn try_tunnel(&self, authority: &str, server_name: &str) -> io::Result<Client> {
        establish(TcpStream::connect(self.proxy).await?, authority, server_name, &self.ca).await
    }

    pub(crate) async fn tunnel(&self) -> Client {
        self.tunnel_to(&self.authority(), "api.test").await
    }

    /// Opens a watch of pods.
    pub(crate) async fn watch(&self) -> Client {
        let mut client = self.tunnel().await;
        let host = self.authority();
        client
            .send(&format!("GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        assert!(client.head().await.unwrap().starts_with("HTTP/1.1 200 "));
        client
    }

    /// One request in a tunnel of its own. `HOST` in it stands for the authority.
    pub(crate) async fn request(&self, raw: &str) -> Response {
        let mut client = self.tunnel().await;
        client.send(&raw.replace("HOST", &self.authority())).await;
        client.response().await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.method("GET", path).await
    }

    pub(crate) async fn method(&self, method: &str, path: &str) -> Response {
        self.request(&format!("{method} {path} HTTP/1.1\r\nHost: HOST\r\n\r\n"))
            .await
    }

    pub(crate) async fn health(&self, path: &str) -> (u16, String) {
        let mut tcp = TcpStream::connect(self.health).await.unwrap();
        tcp.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        patiently(tcp.read_to_string(&mut answer)).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}
