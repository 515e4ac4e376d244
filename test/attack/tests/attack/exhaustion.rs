//! Using up what others need. Beside each attack a victim's session goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_attack::arena::{self, Arena, arena};
use cli_mcp_attack::{network, python};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::Forward;
use cli_mcp_e2e::{cluster, kubectl};
use futures::future::join_all;

/// A session that asks its own shell and the API in a loop, for as long as the attack lasts.
struct Victim {
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Victim {
    async fn begin(arena: &Arena) -> Result<Self> {
        let session = arena.victim().await?;
        session.bash("kept=$$").await?;
        let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn({
            let (over, served) = (over.clone(), served.clone());
            async move {
                while !over.load(Ordering::Relaxed) {
                    let result = session
                        .bash("[ \"$kept\" = $$ ] && kubectl get --raw /version >/dev/null && echo well")
                        .await?;
                    ensure!(result.stdout == "well\n", "the victim suffers: {result:?}");
                    served.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
                Ok(())
            }
        });
        Ok(Self { over, served, task })
    }

    /// Whether it is known how the victim fares: a call came through since the attack began, or one failed.
    fn has_told(&self) -> bool {
        self.task.is_finished() || self.served.load(Ordering::Relaxed) > 0
    }

    /// Ends the loop with the attack; an error when any of its calls failed, or when none came through since the attack began.
    async fn end(self) -> Result<()> {
        let served = self.served.load(Ordering::Relaxed);
        self.over.store(true, Ordering::Relaxed);
        self.task.await??;
        ensure!(served > 0, "the victim was not served while the attack lasted");
        Ok(())
    }
}

/// So often an attack that is over before the victim's first call is made again.
const REPETITIONS: usize = 5;

/// Runs a command in a sandbox of its own, with a victim beside it. The sandbox may die of it. Returns the text of the first
/// result.
async fn beside_a_victim(name: &str, command: &str) -> Result<(Session, String)> {
    let arena = arena()?;
    let session = arena.home.session(name).await?;
    let victim = Victim::begin(arena).await?;
    let attack = || session.call(serde_json::json!({"command": command, "timeout": 20}));
    let result = attack().await;
    for _ in 1..REPETITIONS {
        if victim.has_told() {
            break;
        }
        // How it ends shows in the first.
        let _ = attack().await;
    }
    victim.end().await?;
    let result = result?;
    Ok((session, format!("{}{}{}", result.stdout, result.stderr, result.text)))
}

/// The session answers again, in the same sandbox or in a new one.
async fn answers_again(session: Session) -> Result<()> {
    cluster::eventually("an answer after the attack", async || {
        let result = session.bash("echo again").await?;
        ensure!(result.stdout == "again\n", "{result:?}");
        Ok(())
    })
    .await?;
    ensure!(session.delete().await? == 204);
    Ok(())
}

/// The numbers that a program has printed after the word.
fn figures<N: std::str::FromStr>(text: &str) -> Result<Vec<N>> {
    text.lines()
        .find_map(|line| line.strip_prefix("FIGURES "))
        .with_context(|| text.to_owned())?
        .split(' ')
        .map(|number| number.parse().ok().with_context(|| text.to_owned()))
        .collect()
}

fn node_is_ready() -> Result<()> {
    let ready = kubectl::ok(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}{.items[*].status.conditions[?(@.type==\"DiskPressure\")].status}",
    ])?;
    ensure!(ready.starts_with("True") && !ready.ends_with("True"), "node: {ready}");
    Ok(())
}

/// Tried: a fork bomb.
/// Stopped by: the pod's memory and CPU limits and the kubelet's `podPidsLimit`; the agent, which runs before all that it started, ends what is more than its bound on processes, or at the timeout.
#[tokio::test(flavor = "multi_thread")]
async fn fork_bomb() -> Result<()> {
    let (session, text) = beside_a_victim("bomb", "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 60").await?;
    ensure!(!text.is_empty());
    node_is_ready()?;
    cluster::eventually("the end of the bomb's processes", async || {
        let left = session.bash("set -- /proc/[0-9]*; echo $#").await?;
        // The agent, the shell, and now and then a probe.
        ensure!(left.stdout.trim().parse::<u32>()? < 16, "{left:?}");
        Ok(())
    })
    .await?;
    answers_again(session).await
}

/// Tried: more memory than the limit, in one process and in `/dev/shm`.
/// Stopped by: the pod's memory limit: the kernel ends what is in the pod, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn memory() -> Result<()> {
    let (session, text) = beside_a_victim(
        "memory",
        "python3 -c 'x = []\nwhile True: x.append(bytearray(b\"x\") * (8 << 20))'; echo ended $?; head -c 1G /dev/zero >/dev/shm/fill; echo filled $?; rm -f /dev/shm/fill",
    )
    .await?;
    ensure!(
        !text.contains("ended 0") && !text.contains("filled 0"),
        "there is no limit: {text}"
    );
    node_is_ready()?;
    answers_again(session).await
}

/// Tried: filling the disk, in the workspace and in `/tmp`, with large files and with very many.
/// Stopped by: `workspaceSizeLimit` and the `ephemeral-storage` limit of the sandbox: the kubelet evicts the pod, and only it.
#[tokio::test(flavor = "multi_thread")]
async fn disk() -> Result<()> {
    let (session, _) = beside_a_victim(
        "disk",
        "head -c 400M /dev/zero >/tmp/fill; head -c 100M /dev/zero >/workspace/fill; for i in $(seq 2000); do : >/tmp/$i; done; sync; sleep 1; echo full",
    )
    .await?;
    let pod = || {
        kubectl::ok(&[
            "-n",
            "attack-home",
            "get",
            "events",
            "--field-selector",
            "reason=Evicted",
            "-o",
            "jsonpath={.items[*].message}",
        ])
    };
    cluster::eventually("the eviction", async || {
        let events = pod()?;
        ensure!(
            events.contains("exceeds the limit") || events.contains("exceeds"),
            "{events:?}"
        );
        Ok(())
    })
    .await?;
    node_is_ready()?;
    let told = session.bash("ls /tmp/fill").await?;
    ensure!(told.session_reset.is_some() || told.exit_code.is_none(), "{told:?}");
    answers_again(session).await
}

/// Tried: very many files, in the workspace and in `/tmp`, so that the node has no inode left for others.
/// Stopped by: the pod's CPU limit, which makes it slow; where a node runs short of inodes, the kubelet evicts who has most of
/// them, see "What is not prevented".
#[tokio::test(flavor = "multi_thread")]
async fn inodes() -> Result<()> {
    const PROGRAM: &str = r#"
import os, time
made, end = 0, time.time() + 14
try:
    while time.time() < end and made < 300000:
        for folder in ("/tmp", "/workspace"):
            os.makedirs(f"{folder}/f{made // 1000}", exist_ok=True)
            os.close(os.open(f"{folder}/f{made // 1000}/{made}", os.O_CREAT | os.O_WRONLY))
        made += 2
except OSError as error:
    print(error)
print("FIGURES", made)
"#;
    let (session, text) = beside_a_victim("inodes", &format!("python3 - <<'PYTHON'\n{PROGRAM}\nPYTHON\n")).await?;
    let made = figures::<u64>(&text)?;
    ensure!(made[0] >= 5_000, "the control: hardly any file: {text}");
    node_is_ready()?;
    answers_again(session).await
}

/// Tried: floods of DNS queries, each from a port of its own, and of UDP to addresses that are not allowed, from a session and
/// from a sandbox of the pool, so that others get no answer from DNS and no connection.
/// Stopped by: the pod's CPU limit; NetworkPolicy drops what is not allowed before it leaves the node.
#[tokio::test(flavor = "multi_thread")]
async fn datagrams() -> Result<()> {
    const PROGRAM: &str = r#"
import random, socket, struct, time
sent, answered, end = 0, 0, time.time() + 12
while time.time() < end:
    name = b"\x08%08x" % random.getrandbits(32) + b"\x07default\x03svc\x07cluster\x05local\0"
    query = struct.pack(">6H", sent & 0xffff, 0x0100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False)
    for target in ((DNS, 53), (OTHER, 9), ("198.51.100.1", 53)):
        try:
            s.sendto(query, target)
            sent += 1
        except OSError:
            pass
    if sent % 50 == 0:
        s.settimeout(0.2)
        try:
            answered += len(s.recv(512)) > 12
        except OSError:
            pass
    s.close()
print("FIGURES", sent, answered)
"#;
    let arena = arena()?;
    let dns = network::service_address("kube-system", "kube-dns")?;
    let program = format!("DNS, OTHER = {dns:?}, {:?}\n{PROGRAM}", network::node_address()?);
    let (session, text) = beside_a_victim("datagrams", &format!("python3 - <<'PYTHON'\n{program}\nPYTHON\n")).await?;
    let victim = Victim::begin(arena).await?;
    let (unassigned, guard) = arena.unassigned().await?;
    let from_pool = unassigned.python(&program).await?;
    drop(guard);
    victim.end().await?;
    for text in [text, from_pool] {
        let figures = figures::<u64>(&text)?;
        ensure!(
            figures[0] >= 3_000 && figures[1] > 0,
            "the control: hardly a datagram, or no answer: {text}"
        );
    }
    answers_again(session).await
}

/// Tried: thousands of descriptors, connections to the agent that never speak, and connections to the proxy, idle and
/// half through a TLS handshake.
/// Stopped by: the container's descriptor limit, or what their memory counts to the pod's; the agent's limit on connections; and
/// the proxy's limit on connections for each client with its time limits.
#[tokio::test(flavor = "multi_thread")]
async fn descriptors_and_sockets() -> Result<()> {
    // A connection that nobody accepted has no inode in the kernel's list.
    const PROGRAM: &str = r#"
import os, resource, socket, time
from urllib.parse import urlparse
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
url = urlparse(os.environ["HTTPS_PROXY"])
proxy = (socket.gethostbyname(url.hostname), url.port)
def connect(address, count, greet):
    made = []
    for n in range(count):
        try:
            s = socket.create_connection(address, timeout=2)
        except OSError as error:
            print(error)
            break
        made.append(s)
        try:
            if greet and n % 2:
                s.sendall(b"CONNECT kubernetes.default.svc:443 HTTP/1.1\r\nHost: kubernetes.default.svc:443\r\n\r\n")
        except OSError:
            pass
    return made
def shut(s):
    s.setblocking(False)
    try:
        while s.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
def accepted(port):
    rows = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" and row[9] != "0" for row in rows)
proxied = connect(proxy, 1500, True)
silent = connect(("127.0.0.1", 8090), 600, False)
time.sleep(2)
held = accepted(8090)
files = []
try:
    while len(files) < 20000:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error)
print("FIGURES", len(proxied), sum(map(shut, proxied)), len(silent), held, len(files))
"#;
    let (session, text) = beside_a_victim("sockets", &format!("python3 - <<'PYTHON'\n{PROGRAM}\nPYTHON\n")).await?;
    let figures: Vec<usize> = figures(&text)?;
    let [proxied, shut, silent, held, files] = figures[..] else {
        bail!("five figures, not {text}");
    };
    ensure!(
        proxied > 512,
        "the control: the proxy did not get more than it takes: {text}"
    );
    ensure!(proxied - shut <= 512, "the proxy holds them all: {text}");
    ensure!(
        silent > 512,
        "the control: the agent did not get more than it takes: {text}"
    );
    ensure!((1..=512).contains(&held), "the agent holds them all: {text}");
    ensure!(
        proxied + silent + files >= 2000,
        "the control: hardly any descriptor: {text}"
    );
    answers_again(session).await
}

/// Tried: endless output, to stdout, stderr and from the background.
/// Stopped by: the agent keeps a bounded head and tail, ends the call in time, and drains the rest.
#[tokio::test(flavor = "multi_thread")]
async fn output() -> Result<()> {
    let (session, text) = beside_a_victim(
        "output",
        "yes >&2 & yes background & head -c 300M /dev/zero | tr '\\0' x; kill %1 %2; echo over",
    )
    .await?;
    ensure!(text.len() < 4 << 20, "{} bytes", text.len());
    answers_again(session).await
}

/// Calls, and reads none of the answers. Prints how many had begun when the time was over, and after a read to the end how
/// many were whole.
const SILENT: &str = r#"
import json, select, socket, ssl, sys, time
given = json.load(sys.stdin)
context = ssl.create_default_context(cadata=given["ca"])
command = "head -c 700000 /dev/zero | tr '\\0' x"
call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": command}}}).encode()
def begin(port):
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("localhost", port))
    s = context.wrap_socket(raw, server_hostname="localhost")
    s.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {given['token']}\r\nX-Session-ID: {given['session']}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {len(call)}\r\n\r\n".encode() + call)
    return s
silent = [begin(port) for port in given["ports"] for _ in range(3)]
time.sleep(30)
begun = sum(bool(select.select([s], [], [], 0)[0]) for s in silent)
print("FIGURES", len(silent), begun)
"#;

/// Tried: calling again and again and reading none of the answers, which are large.
/// Stopped by: the server's limits on what large results take together, and on how long a client may take nothing of its
/// answer.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads() -> Result<()> {
    let arena = arena()?;
    let restarts = arena::restarts(&arena.home)?;
    let session = arena.home.session("silent").await?;
    // A stream that nobody reads holds up the others of its forward.
    let forwards = (0..4)
        .map(|_| Forward::start(&arena.home.namespace, &format!("service/cli-mcp-{}", arena.home.name)))
        .collect::<Result<Vec<_>>>()?;
    let endpoint = &arena.home.endpoint;
    let given = serde_json::json!({
        "ca": String::from_utf8(endpoint.ca_pem.clone().context("no CA")?)?,
        "token": endpoint.token.as_ref().context("no token")?.0,
        "session": "silent",
        "ports": forwards.iter().map(|(_, port)| port).collect::<Vec<_>>(),
    });
    let victim = Victim::begin(arena).await?;
    let output = tokio::task::spawn_blocking(move || python::run(SILENT, &given.to_string())).await??;
    victim.end().await?;
    let figures = figures::<usize>(&output)?;
    ensure!(figures[1] >= 4, "the control: hardly an answer began: {output}");
    drop(forwards);
    arena::not_restarted(&arena.home, &restarts)?;
    answers_again(session).await
}

/// Tried: many busy processes, so that neighbours wait for the processor.
/// Stopped by: the pod's CPU limit.
#[tokio::test(flavor = "multi_thread")]
async fn processor() -> Result<()> {
    // How often the kernel had to stop them depends on what else the machine does; how much they got at most does not.
    const USAGE: &str = "usage() { cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || awk '/^usage_usec/ { print $2 * 1000 }' /sys/fs/cgroup/cpu.stat; }; \
         quota() { cat /sys/fs/cgroup/cpu.max 2>/dev/null || paste -d ' ' /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us; }";
    let (session, text) = beside_a_victim(
        "processor",
        &format!(
            "{USAGE}; began=$(date +%s%N) used=$(usage); \
             for i in $(seq 16); do timeout 8 bash -c 'while :; do :; done' & done 2>/dev/null; wait; \
             echo FIGURES $(quota) $(( $(usage) - used )) $(( $(date +%s%N) - began ))"
        ),
    )
    .await?;
    let figures: Vec<f64> = figures(&text)?;
    let [quota, period, used, elapsed] = figures[..] else {
        bail!("four figures, not {text}");
    };
    ensure!((quota / period - 0.5).abs() < 0.01, "the limit is 500m, not {text}");
    // A process may use up a slice that it was given before the limit was reached.
    ensure!(
        used > 0.0 && used <= (quota / period + 0.1) * elapsed,
        "{used} ns of processor in {elapsed} ns: {text}"
    );
    answers_again(session).await
}

/// Tried: more calls at once than one session may have waiting.
/// Stopped by: the agent's bounded queue; who is refused is told so, and nothing of it runs.
#[tokio::test(flavor = "multi_thread")]
async fn calls() -> Result<()> {
    let arena = arena()?;
    let session = arena.home.session("calls").await?;
    let victim = Victim::begin(arena).await?;
    let (mut asked, mut served) = (0, 0);
    while asked == 0 || (!victim.has_told() && asked < 40 * REPETITIONS) {
        let calls = (asked..asked + 40).map(|number| {
            let arguments = serde_json::json!({"command": format!("echo {number} >>/workspace/ran; sleep 0.2")});
            session.call(arguments)
        });
        let before = served;
        for result in join_all(calls).await {
            let result = result?;
            ensure!(result.exit_code.is_some() || result.is_error, "{result:?}");
            served += usize::from(result.exit_code == Some(0));
        }
        ensure!(served < before + 40, "nothing was refused");
        asked += 40;
    }
    victim.end().await?;
    let ran = session
        .bash("sort -n /workspace/ran | uniq | wc -l; wc -l </workspace/ran")
        .await?;
    ensure!(
        ran.stdout == format!("{served}\n{served}\n"),
        "{served} served: {ran:?}"
    );
    answers_again(session).await
}
