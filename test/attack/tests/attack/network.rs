//! Going around the proxy.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::{Arena, arena};
use cli_mcp_attack::network::{self, Address};
use cli_mcp_attack::not_proven;
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::cluster;
use cli_mcp_e2e::node::Change;

/// Where it is known that an address answers whom no policy keeps away.
#[derive(Clone, Copy)]
enum Answers {
    /// On the node.
    Node,
    /// In a pod whose egress no policy restricts.
    Pod,
}

/// None of the addresses answers in either sandbox, where the sandbox's own proxy does; and each that is named as
/// `alive` answers elsewhere.
async fn unreachable(arena: &Arena, targets: Vec<Address>, alive: &[Address], answers: Answers) -> Result<()> {
    if cluster::is_dev() {
        let found = match answers {
            Answers::Node => network::reached_from_node(alive)?,
            Answers::Pod => network::reached_from_proxy(&arena.home, alive)?,
        };
        let dead: Vec<_> = alive.iter().filter(|address| !found.contains(*address)).collect();
        ensure!(dead.is_empty(), "the control: nothing listens at {dead:?}");
    } else {
        not_proven(&format!(
            "on this cluster nobody looked whether anything listens at {targets:?}: that a sandbox gets no answer there may say nothing"
        ))?;
    }
    let (shells, _guard) = arena.shells().await?;
    for (shell, instance) in shells.iter().zip([&arena.home, &arena.neighbour]) {
        let control = (
            network::service_address(&instance.namespace, &format!("cli-mcp-{}-proxy", instance.name))?,
            8080,
        );
        // A pod reaches itself whatever the policies say.
        let own = shell.ok("hostname -I").await?;
        let mut all: Vec<_> = targets.iter().filter(|(host, _)| host != own.trim()).cloned().collect();
        all.push(control.clone());
        let found = network::reached(shell, &all).await?;
        ensure!(
            found.contains(&control),
            "{}: the control: the proxy does not answer",
            shell.kind()
        );
        ensure!(found.len() == 1, "{}: reached {found:?}", shell.kind());
    }
    Ok(())
}

fn addresses(host: &str, ports: &[u16]) -> Vec<Address> {
    ports.iter().map(|port| (host.to_owned(), *port)).collect()
}

/// Tried: the API server by its Service, its names, the node's address, and these addresses in IPv6 form.
/// Stopped by: NetworkPolicy of the sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_directly() -> Result<()> {
    let service = network::service_address("default", "kubernetes")?;
    let node = network::node_address()?;
    let mapped = |address: &str| format!("::ffff:{address}");
    let alive = [
        (service.clone(), 443),
        (mapped(&service), 443),
        (node.clone(), 6443),
        (mapped(&node), 6443),
    ];
    let mut targets = addresses(&node, &[443, 8443]);
    targets.extend(alive.clone());
    for name in ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local"] {
        targets.extend(addresses(name, &[443]));
    }
    unreachable(arena()?, targets, &alive, Answers::Pod).await
}

/// Tried: the kubelet's, kube-proxy's, etcd's and other ports of the node, and the machine behind it.
/// Stopped by: NetworkPolicy of the sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_and_its_kubelet() -> Result<()> {
    let node = network::node_address()?;
    let mut targets = addresses(
        &node,
        &[
            22, 80, 111, 443, 2379, 2380, 4194, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10259, 30000,
        ],
    );
    let alive = addresses(&node, &[6443, 10250, 10256]);
    if let Ok(host) = cluster::setting("DEVCLUSTER_HOST_ADDRESS") {
        let listener = tokio::net::TcpListener::bind((host.as_str(), 0)).await?;
        let port = listener.local_addr()?.port();
        targets.push((host.clone(), port));
        let alive = [alive, vec![(host, port)]].concat();
        return unreachable(arena()?, targets, &alive, Answers::Pod).await;
    }
    unreachable(arena()?, targets, &[], Answers::Pod).await
}

/// Tried: metadata services of clouds and what else clouds have at link-local and reserved addresses, also in IPv6 form, by an
/// IPv6 address and by name; other ports than DNS of the node's DNS cache.
/// Stopped by: NetworkPolicy of the sandboxes; their names do not resolve to anything that the proxy would dial.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_services_of_clouds() -> Result<()> {
    const IPV4: [(&str, &[u16]); 8] = [
        ("169.254.169.254", &[80]),
        ("169.254.170.2", &[80]),
        ("169.254.170.23", &[80]),
        ("169.254.169.253", &[80]),
        ("100.100.100.200", &[80]),
        ("192.0.0.192", &[80]),
        ("168.63.129.16", &[80, 32526]),
        ("169.254.20.10", &[80, 8080, 9253]),
    ];
    let listen: Vec<Address> = IPV4.iter().flat_map(|(host, ports)| addresses(host, ports)).collect();
    let mut alive = listen.clone();
    alive.extend(addresses("::ffff:169.254.169.254", &[80]));
    let mut targets = alive.clone();
    for host in ["fd00:ec2::254", "metadata.google.internal"] {
        targets.extend(addresses(host, &[80]));
    }
    // Pods of the development cluster have no IPv6 address that is routed.
    not_proven("that the policy keeps sandboxes from fd00:ec2::254: pods that have no IPv6 address never get there")?;
    let listening = cluster::is_dev()
        .then(|| network::listen_on_node(&listen))
        .transpose()?;
    unreachable(arena()?, targets, &alive, Answers::Pod).await?;
    listening.map_or(Ok(()), Change::end)
}

/// Tried: the node and the neighbours on the same link by their IPv6 link-local addresses, which a pod may have where the
/// cluster's own addresses are IPv4.
/// Stopped by: NetworkPolicy of the sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_link_by_ipv6() -> Result<()> {
    // Who answers to the address of all nodes of the link is where the link leads; the node's own addresses are known besides.
    const PROGRAM: &str = r#"
import socket
from concurrent.futures import ThreadPoolExecutor
links = [line.split() for line in open("/proc/net/if_inet6")]
own = [words for words in links if words[0].startswith("fe80") and words[5] == "eth0"]
print("own", len(own))
def reached(target):
    try:
        socket.create_connection((target[0] + "%eth0", target[1]), timeout=2).close()
        return target
    except OSError:
        return None
targets = [(host, port) for host in HOSTS for port in (22, 443, 6443, 8080, 8081, 8090, 8443, 10250, 10256)]
with ThreadPoolExecutor(48) as pool:
    print("reached", *filter(None, pool.map(reached, targets)))
"#;
    const ALL: &str = "for pid in 1 $(pgrep -x agent) $(pgrep -x proxy); do nsenter --target $pid --net ip -6 -o address show scope link; done";
    if !cluster::is_dev() {
        return not_proven(
            "that sandboxes reach nobody by IPv6 link-local addresses: those of the node are not known here",
        );
    }
    let hosts: BTreeSet<String> = cli_mcp_e2e::node::enter(&["bash", "-c", ALL])?
        .split_whitespace()
        .filter_map(|word| word.strip_suffix("/64"))
        .filter(|address| address.starts_with("fe80:"))
        .map(str::to_owned)
        .collect();
    let hosts: Vec<_> = hosts.into_iter().collect();
    let program = format!("HOSTS = {hosts:?}\n{PROGRAM}");
    let arena = arena()?;
    let control = network::python_in_proxy(&arena.home, &program)?;
    if control.ends_with("\nreached\n") {
        not_proven(
            "that the policy keeps sandboxes from IPv6 link-local addresses: nobody answers there to a pod without a policy either",
        )?;
    }
    let (shells, _guard) = arena.shells().await?;
    for shell in &shells {
        let output = shell.python(&program).await?;
        ensure!(output.ends_with("\nreached\n"), "{}: {hosts:?}: {output}", shell.kind());
    }
    Ok(())
}

/// Tried: every port of every pod: other sandboxes, servers, the operator, the health port of the own proxy, the
/// neighbour's proxy, DNS's other ports.
/// Stopped by: NetworkPolicies of the sandboxes and of the proxies.
#[tokio::test(flavor = "multi_thread")]
async fn every_port_of_every_pod() -> Result<()> {
    let arena = arena()?;
    let _victim = arena.victim().await?;
    let targets = network::pod_ports("home")?;
    let neighbours_proxy: BTreeSet<Address> = network::pod_ports("neighbour")?.into_iter().collect();
    // Each has one proxy of its own; what is in both lists is forbidden to both.
    let both: Vec<_> = targets
        .into_iter()
        .filter(|target| neighbours_proxy.contains(target))
        .collect();
    ensure!(both.len() >= 20, "{both:?}");
    if cluster::is_dev() {
        let alive = network::reached_from_node(&both)?;
        ensure!(alive.len() >= 6, "the control: hardly anything listens: {alive:?}");
    }
    unreachable(arena, both, &[], Answers::Node).await?;
    // The other instance's proxy, which serves another credential.
    let service = |namespace: &str, name: &str| network::service_address(namespace, &format!("cli-mcp-{name}-proxy"));
    let (home, neighbour) = (
        (service("attack-home", "home")?, 8080),
        (service("attack-neighbour", "neighbour")?, 8080),
    );
    let (shells, _guard) = arena.shells().await?;
    for (shell, foreign) in shells.iter().zip([neighbour, home]) {
        let found = network::reached(shell, std::slice::from_ref(&foreign)).await?;
        ensure!(found.is_empty(), "{}: reached {found:?}", shell.kind());
    }
    Ok(())
}

/// Tried: every port of every Service of the cluster.
/// Stopped by: NetworkPolicy of the sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn every_port_of_every_service() -> Result<()> {
    let arena = arena()?;
    let forbidden: BTreeSet<Address> = network::service_ports("neighbour")?.into_iter().collect();
    let targets: Vec<_> = network::service_ports("home")?
        .into_iter()
        .filter(|target| forbidden.contains(target))
        .collect();
    let mut alive = vec![(network::service_address("default", "kubernetes")?, 443)];
    for instance in [&arena.home, &arena.neighbour] {
        let server = network::service_address(&instance.namespace, &format!("cli-mcp-{}", instance.name))?;
        alive.push((server, 8443));
    }
    for address in &alive {
        ensure!(targets.contains(address), "{address:?} is not among {targets:?}");
    }
    unreachable(arena, targets, &alive, Answers::Node).await
}

/// Tried: sending UDP and TCP to a listener that waits in another sandbox of the same instance, as an accomplice would.
/// Stopped by: NetworkPolicy of the sandboxes, which allows nothing between them.
#[tokio::test(flavor = "multi_thread")]
async fn an_accomplice_in_another_sandbox() -> Result<()> {
    const LISTEN: &str = r#"
cat >/tmp/listen.py <<'PY'
import socket, threading
def run(kind):
    s = socket.socket(socket.AF_INET, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", 9999))
    if kind == socket.SOCK_STREAM:
        s.listen()
    while True:
        if kind == socket.SOCK_STREAM:
            c, a = s.accept()
            data = c.recv(100)
        else:
            data, a = s.recvfrom(100)
        open("/tmp/heard", "ab").write(data + b"\n")
threading.Thread(target=run, args=(socket.SOCK_DGRAM,)).start()
run(socket.SOCK_STREAM)
PY
rm -f /tmp/heard; python3 /tmp/listen.py >/dev/null 2>&1 &
sleep 1; hostname -I
"#;
    const SEND: &str = r#"
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(3):
    u.sendto(WHO + b" udp", (HOST, 9999))
try:
    t = socket.create_connection((HOST, 9999), timeout=3)
    t.sendall(WHO + b" tcp")
except OSError:
    pass
"#;
    let arena = arena()?;
    let accomplice = Shell::Assigned(arena.home.session("accomplice").await?);
    let address = accomplice.ok(LISTEN).await?;
    let send = |who: &str| format!("HOST, WHO = {:?}, b{who:?}\n{SEND}", address.trim());
    arena.attacker().await?.python(&send("attacker")).await?;
    // The control: the same from the accomplice itself is heard.
    accomplice.python(&send("control")).await?;
    let heard = cluster::eventually("the control", async || {
        let heard = accomplice.ok("cat /tmp/heard").await?;
        ensure!(
            heard.contains("control udp") && heard.contains("control tcp"),
            "{heard}"
        );
        Ok(heard)
    })
    .await?;
    ensure!(!heard.contains("attacker"), "{heard}");
    if let Shell::Assigned(session) = accomplice {
        session.delete().await?;
    }
    Ok(())
}

/// Tried: speaking DNS to another server than the cluster's.
/// Stopped by: NetworkPolicy of the sandboxes, which names the cluster's DNS pods.
#[tokio::test(flavor = "multi_thread")]
async fn dns_to_a_server_of_ones_own() -> Result<()> {
    const PROGRAM: &str = r#"
import socket
query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01"
def asks(server, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    try:
        s.sendto(query, (server, port))
        return len(s.recv(512)) > 12
    except OSError:
        return False
print("cluster", asks(CLUSTER, 53))
print("host", asks(HOST, PORT))
"#;
    if !cluster::is_dev() {
        return not_proven("that sandboxes cannot ask a DNS server of their own: it needs one outside the cluster");
    }
    let host = cluster::setting("DEVCLUSTER_HOST_ADDRESS")?;
    let server = tokio::net::UdpSocket::bind((host.as_str(), 0)).await?;
    let port = server.local_addr()?.port();
    let answering = tokio::spawn(async move {
        let mut query = [0; 512];
        while let Ok((length, from)) = server.recv_from(&mut query).await {
            if server.send_to(&query[..length], from).await.is_err() {
                break;
            }
        }
    });
    let cluster_dns = network::service_address("kube-system", "kube-dns")?;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell
            .python(&format!(
                "CLUSTER, HOST, PORT = {cluster_dns:?}, {host:?}, {port}\n{PROGRAM}"
            ))
            .await?;
        ensure!(output == "cluster True\nhost False\n", "{}: {output}", shell.kind());
    }
    answering.abort();
    Ok(())
}

/// Tried: asking the cluster's DNS for everything: a transfer of the zone, wildcards of Services and pods, and the names of
/// the pods behind a Service without an address.
/// Stopped by: the cluster's DNS, which answers for single names only. What a name leads to is behind NetworkPolicy.
#[tokio::test(flavor = "multi_thread")]
async fn asking_dns_for_everything() -> Result<()> {
    const PROGRAM: &str = r#"
import socket, struct
def name(text):
    return b"".join(bytes([len(part)]) + part.encode() for part in text.split(".")) + b"\0"
def ask(text, kind):
    query = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + name(text) + struct.pack(">2H", kind, 1)
    s = socket.create_connection((CLUSTER, 53), timeout=20)
    s.sendall(struct.pack(">H", len(query)) + query)
    answer = b""
    try:
        while len(answer) < 2 or len(answer) < 2 + struct.unpack(">H", answer[:2])[0]:
            part = s.recv(65536)
            if not part:
                break
            answer += part
    except OSError:
        pass
    return struct.unpack(">H", answer[8:10])[0] if len(answer) > 10 else 0
A, PTR, TXT, SRV, AXFR, ANY = 1, 12, 16, 33, 252, 255
print("control", ask("kubernetes.default.svc.cluster.local", A))
print("found", *[(text, kind) for text, kind in [
    ("cluster.local", AXFR), ("svc.cluster.local", AXFR), ("cluster.local", ANY), ("*.svc.cluster.local", A), ("any.any.svc.cluster.local", SRV),
    ("*.*.svc.cluster.local", SRV), ("*.attack-home.svc.cluster.local", A), ("*.attack-home.pod.cluster.local", A),
    ("cli-mcp-home-hmac.attack-home.svc.cluster.local", TXT), ("cli-mcp-home.attack-home.svc.cluster.local", TXT),
] if ask(text, kind)])
"#;
    let cluster_dns = network::service_address("kube-system", "kube-dns")?;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.python(&format!("CLUSTER = {cluster_dns:?}\n{PROGRAM}")).await?;
        ensure!(output == "control 1\nfound\n", "{}: {output}", shell.kind());
    }
    Ok(())
}
