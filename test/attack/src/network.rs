//! Which addresses answer, asked from inside a sandbox and, as the control, from the node and from another pod.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::kubectl;
use cli_mcp_e2e::node::{self, Change};
use serde_json::Value;

use crate::shell::Shell;

/// A TCP address: host and port.
pub type Address = (String, u16);

const PROBE: &str = r#"
import socket
from concurrent.futures import ThreadPoolExecutor
def probe(target):
    try:
        socket.create_connection(target, timeout=3).close()
        return target
    except OSError:
        return None
with ThreadPoolExecutor(24) as pool:
    for target in filter(None, pool.map(probe, TARGETS)):
        print(target[0], target[1])
"#;

fn program(targets: &[Address]) -> String {
    format!("TARGETS = {targets:?}\n{PROBE}")
}

fn parse(output: &str) -> BTreeSet<Address> {
    output
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(host, port)| Some((host.to_owned(), port.parse().ok()?)))
        .collect()
}

/// Those that accept a connection from the shell.
///
/// # Errors
///
/// When the probe could not run.
pub async fn reached(shell: &Shell, targets: &[Address]) -> Result<BTreeSet<Address>> {
    Ok(parse(&shell.python(&program(targets)).await?))
}

/// Those that accept a connection from the node, whose own traffic no policy judges: what does not answer there proves
/// nothing when it does not answer in a sandbox either.
///
/// # Errors
///
/// When the probe could not run.
pub fn reached_from_node(targets: &[Address]) -> Result<BTreeSet<Address>> {
    Ok(parse(&node::enter(&["python3", "-c", &program(targets)])?))
}

/// Those that accept a connection from the network of the instance's proxy: a pod like any other, whose egress no policy
/// restricts. What answers there and not in a sandbox is stopped by the sandboxes' policy.
///
/// # Errors
///
/// When the probe could not run.
pub fn reached_from_proxy(instance: &Instance, targets: &[Address]) -> Result<BTreeSet<Address>> {
    Ok(parse(&python_in_proxy(instance, &program(targets))?))
}

/// Runs a program in the network of the instance's proxy, and returns what it printed.
///
/// # Errors
///
/// When no proxy runs, or the program fails.
pub fn python_in_proxy(instance: &Instance, program: &str) -> Result<String> {
    let pids = node::processes("proxy", &[&instance.namespace])?;
    let pid = pids.first().context("no proxy runs")?;
    // What of the kernel's is in /proc/net is the reader's own network.
    node::enter(&["nsenter", "--target", pid, "--net", "python3", "-c", program])
}

/// Has the node listen at these IPv4 addresses and ports until the change ends. Packets of pods to an address that nobody has
/// go by the node, and end there when it is the node's.
///
/// # Errors
///
/// When the node does not take the addresses, or cannot listen.
pub fn listen_on_node(addresses: &[Address]) -> Result<Change> {
    const LISTEN: &str = r#"
import socket, sys
listeners = [socket.create_server((address, int(port))) for address, port in (target.split(":") for target in sys.argv[1:])]
print("listening", flush=True)
sys.stdin.read()
"#;
    // Python ends with its standard input, the pipe from this shell, which stays open until the change is taken back.
    let apply = format!(
        "for address in $(printf '%s\\n' \"${{@%:*}}\" | sort -u); do ip address add \"$address/32\" dev lo; done
        coproc LISTENER {{ exec python3 -c '{LISTEN}' \"$@\"; }}
        listener=$LISTENER_PID
        read -r <&\"${{LISTENER[0]}}\""
    );
    let undo = "if [ -n \"${listener:-}\" ]; then kill \"$listener\" || true; fi
        for address in $(printf '%s\\n' \"${@%:*}\" | sort -u); do ip address delete \"$address/32\" dev lo; done";
    let targets: Vec<String> = addresses.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    Change::begin(&apply, undo, &targets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Every TCP port of every running pod, except those that a sandbox of the instance may reach: its proxy's 8080, and DNS.
///
/// # Errors
///
/// When pods cannot be listed.
pub fn pod_ports(instance: &str) -> Result<Vec<Address>> {
    let pods: Value = serde_json::from_str(&kubectl::ok(&["get", "pods", "-A", "-o", "json"])?)?;
    let mut found = Vec::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let Some(address) = pod["status"]["podIP"].as_str() else {
            continue;
        };
        let labels = &pod["metadata"]["labels"];
        let own_proxy =
            labels["cli-mcp.redhat.com/instance"] == instance && labels["cli-mcp.redhat.com/component"] == "proxy";
        let dns = labels["k8s-app"] == "kube-dns";
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            for port in container["ports"].as_array().into_iter().flatten() {
                let number = u16::try_from(port["containerPort"].as_u64().unwrap_or_default())?;
                let allowed = (own_proxy && number == 8080) || (dns && matches!(number, 53 | 5353));
                if !allowed && port["protocol"] == "TCP" {
                    found.push((address.to_owned(), number));
                }
            }
        }
        // Ports that are served whether or not the pod's specification names them.
        for number in [8081, 8090, 8443, 9090, 9153] {
            found.push((address.to_owned(), number));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Every TCP port of every Service, except the instance's proxy and DNS.
///
/// # Errors
///
/// When Services cannot be listed.
pub fn service_ports(instance: &str) -> Result<Vec<Address>> {
    let services: Value = serde_json::from_str(&kubectl::ok(&["get", "services", "-A", "-o", "json"])?)?;
    let mut found = Vec::new();
    for service in services["items"].as_array().into_iter().flatten() {
        let Some(address) = service["spec"]["clusterIP"].as_str().filter(|ip| *ip != "None") else {
            continue;
        };
        let own_proxy = service["metadata"]["name"] == format!("cli-mcp-{instance}-proxy");
        for port in service["spec"]["ports"].as_array().into_iter().flatten() {
            let number = u16::try_from(port["port"].as_u64().unwrap_or_default())?;
            if !(own_proxy && number == 8080) && number != 53 && port["protocol"] == "TCP" {
                found.push((address.to_owned(), number));
            }
        }
    }
    Ok(found)
}

/// The address of a Service.
///
/// # Errors
///
/// When there is no such Service.
pub fn service_address(namespace: &str, name: &str) -> Result<String> {
    kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "service",
        name,
        "-o",
        "jsonpath={.spec.clusterIP}",
    ])
}

/// The node's own address.
///
/// # Errors
///
/// When there is no node.
pub fn node_address() -> Result<String> {
    let addresses = kubectl::ok(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}",
    ])?;
    addresses
        .split(' ')
        .next()
        .filter(|address| !address.is_empty())
        .map(str::to_owned)
        .context("the node has no address")
}
