//! Several hostile sandboxes against the program itself: what they make it hold is bounded, and nobody else pays for it.

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::harness::{Ca, Responder, TOKEN, Upstream, establish, kubeconfig, patiently, write_inputs};

const MIB: u64 = 1024 * 1024;
const BUDGET: u64 = 32 * MIB;
const ATTACKERS: u8 = 5;
const STREAMS: usize = 120;

/// The program, as it is shipped, in front of an upstream.
struct Program {
    child: Child,
    address: SocketAddr,
    authority: String,
    name: String,
    ca: Ca,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(upstream: &Upstream) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca = Ca::new("proxy CA");
        let (authority, user) = (upstream.address.to_string(), format!("token: {TOKEN}"));
        let kubeconfig = kubeconfig(&format!("https://{authority}"), &upstream.ca, "", &user);
        write_inputs(folder.path(), Some(&kubeconfig), "[{type: kubernetes}]", &ca);
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxy"));
        for part in ["routes", "kubeconfig", "ca"] {
            command.arg(format!("--{part}-dir={}", folder.path().join(part).display()));
        }
        let mut child = command
            .args(["--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0"])
            .arg(format!("--memory-budget={BUDGET}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let serving = lines.find(|line| line.contains("Serving")).unwrap();
        // An audit line that nobody reads must not stop the program.
        std::thread::spawn(move || lines.count());
        let address = serving.split("listen").nth(1).unwrap();
        let address: String = address.chars().skip_while(|c| !c.is_ascii_digit()).collect();
        let end = address
            .find(|c: char| !c.is_ascii_digit() && !".:".contains(c))
            .unwrap();
        Self {
            child,
            address: address[..end].parse().unwrap(),
            authority,
            name: upstream.address.ip().to_string(),
            ca,
            _folder: folder,
        }
    }

    /// A tunnel of the sandbox at 127.0.0.`client`, and a request in it.
    async fn ask(&self, client: u8, path: &str) -> io::Result<Client> {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind((IpAddr::from(Ipv4Addr::new(127, 0, 0, client)), 0).into())
            .unwrap();
        let tcp = socket.connect(self.address).await.unwrap();
        let mut client = establish(tcp, &self.authority, &self.name, &self.ca).await?;
        let host = &self.authority;
        client
            .send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        Ok(client)
    }

    /// The most memory that it has had so far, in bytes, without the kernel's.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }
}

/// Answers a watch with a line each time it is told to, lists without end, and everything else at once. Counts what is
/// taken of the lists.
fn cluster(next: Arc<Notify>, taken: Arc<AtomicU64>) -> Responder {
    Arc::new(move |request, stream| {
        let (next, taken) = (next.clone(), taken.clone());
        Box::pin(async move {
            let mut stream = stream.lock().await;
            if request.line().contains("watch=1") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .await?;
                loop {
                    stream.flush().await?;
                    next.notified().await;
                    stream.write_all(b"6\r\nevent\n\r\n").await?;
                }
            }
            if request.line().contains("/pods") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
                    .await?;
                loop {
                    stream.write_all(&[b'x'; 64 * 1024]).await?;
                    taken.fetch_add(64 * 1024, Ordering::Relaxed);
                }
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                .await?;
            stream.flush().await?;
            Ok(true)
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn case_50_hostile_sandboxes_that_read_nothing_neither_fill_the_memory_nor_cut_off_others() {
    let (next, taken) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
    let upstream = Upstream::start(cluster(next.clone(), taken.clone())).await;
    let program = Arc::new(Program::start(&upstream));
    let victim = ATTACKERS + 2;
    let mut watch = program.ask(victim, "/api/v1/nodes?watch=1").await.unwrap();
    assert!(watch.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    let before = program.peak();

    let mut attack = JoinSet::new();
    for attacker in 2..2 + ATTACKERS {
        let program = program.clone();
        attack.spawn(async move {
            let mut stalled = Vec::new();
            for _ in 0..STREAMS {
                // Who has just begun may be the one that is ended.
                stalled.extend(program.ask(attacker, "/api/v1/pods").await);
            }
            stalled
        });
    }
    let stalled = patiently(attack.join_all()).await;
    // As full as it gets.
    let mut last = u64::MAX;
    patiently(async {
        while last != taken.load(Ordering::Relaxed) {
            last = taken.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;

    // Two TLS sessions and a task for each of the connections, of those at least that are not ended at once.
    let connections = u64::from(ATTACKERS) * STREAMS as u64 * 64 * 1024;
    let (peak, bound) = (program.peak(), before + BUDGET + connections);
    println!("peak {} MiB, bound {} MiB", peak / MIB, bound / MIB);
    assert!(peak <= bound, "{} MiB of {}", peak / MIB, bound / MIB);
    next.notify_one();
    assert_eq!(watch.chunk().await.unwrap(), b"event\n");
    let mut small = program.ask(victim, "/api/v1/namespaces").await.unwrap();
    assert_eq!(small.response().await.status, 200);
    drop(stalled);
}
