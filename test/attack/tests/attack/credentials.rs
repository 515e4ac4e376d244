//! Looking for something worth taking in the pod itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::arena;
use cli_mcp_attack::shell::Shell;
use cli_mcp_attack::syscalls::PRELUDE;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::kubectl;
use cli_mcp_e2e::secret_search::Needles;

/// Tried: searching files, mounts, environments, command lines, descriptors and memory of every process for any Secret
/// of the two instances' and the operator's namespaces (the key of the tokens also in hex and Base64), and for the tokens of
/// sessions and sandboxes.
/// Stopped by: the pod holds none: a dummy kubeconfig built from scratch, no ServiceAccount token, digests in place of
/// tokens, and an agent whose memory and environment cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn searching_everything_that_can_be_read() -> Result<()> {
    let arena = arena()?;
    let client = cli_mcp_e2e::cluster::client().await?;
    let mut needles = Needles::of(&client, &["attack-home", "attack-neighbour", "cli-mcp-operator-system"]).await?;
    ensure!(
        needles.names().len() > 10,
        "expected a CA key, an HMAC key, a TLS key and two tokens of each instance: {:?}",
        needles.names()
    );
    let (shells, _guard) = arena.shells().await?;
    let Shell::Unassigned { pod, .. } = &shells[1] else {
        anyhow::bail!("not a sandbox of the pool");
    };
    for (instance, message) in [
        (&arena.home, "attacker"),
        (&arena.home, "victim"),
        (&arena.neighbour, &format!("assign/{pod}")),
    ] {
        needles.add(format!("the token of {message}"), token(instance, message)?.as_bytes());
    }
    for shell in &shells {
        let output = shell.python(&needles.program()).await?;
        needles
            .judge(&output)
            .with_context(|| format!("the {} sandbox", shell.kind()))?;
    }
    Ok(())
}

/// Tried: reading the agent's environment, memory, descriptors and working folder in `/proc`, tracing it, and taking its
/// descriptors with `pidfd_getfd`.
/// Stopped by: the agent is not dumpable, so that the kernel refuses all of it also to the same user.
#[tokio::test(flavor = "multi_thread")]
async fn looking_into_the_agent() -> Result<()> {
    const PROGRAM: &str = r#"
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PIDFD_OPEN, PIDFD_GETFD = 0x4206, 434, 438
def tries(pid):
    opened = []
    for name in ("environ", "mem", "maps", "fd", "cwd", "root", "exe", "map_files", "stack", "syscall", "auxv", "fdinfo"):
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("fd", "map_files", "fdinfo"):
                os.listdir(path)
            elif name in ("cwd", "root", "exe"):
                os.readlink(path)
            else:
                os.close(os.open(path, os.O_RDONLY))
            opened.append(name)
        except OSError:
            pass
    if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0:
        opened.append("ptrace")
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    if pidfd >= 0 and any(libc.syscall(PIDFD_GETFD, pidfd, fd, 0) >= 0 for fd in range(16)):
        opened.append("pidfd_getfd")
    return opened
child = subprocess.Popen(["sleep", "60"])
print("control", *tries(child.pid))
child.kill()
print("agent", *tries(1))
"#;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.python(PROGRAM).await?;
        let mut lines = output.lines();
        let control = lines.next().unwrap_or_default();
        for what in ["environ", "mem", "fd", "cwd"] {
            ensure!(
                control.contains(what),
                "{}: the control cannot {what}: {output}",
                shell.kind()
            );
        }
        ensure!(
            lines.next() == Some("agent"),
            "{}: the agent can be looked into: {output}",
            shell.kind()
        );
    }
    Ok(())
}

/// Tried: finding a ServiceAccount token, or addresses of Services besides the API server's, where Kubernetes usually
/// puts them.
/// Stopped by: the pod's specification: `automountServiceAccountToken` and `enableServiceLinks` are false.
#[tokio::test(flavor = "multi_thread")]
async fn what_kubernetes_puts_into_pods() -> Result<()> {
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let found = shell
            .run(
                "ls /var/run/secrets /run/secrets 2>/dev/null; : >/workspace/token; \
                 find / \\( -path /proc -o -path /sys \\) -prune -o -name token -type f -print 2>/dev/null; rm /workspace/token",
            )
            .await?;
        // The control is the file that was just made; a token of Kubernetes is in a mount of its own, as that is.
        ensure!(found.stdout == "/workspace/token\n", "{}: {found:?}", shell.kind());
        let environment = shell.ok("env").await?;
        ensure!(environment.contains("HTTPS_PROXY="), "{environment}");
        for line in environment.lines() {
            // The API server's own address is in every pod, whatever its specification says.
            ensure!(
                line.starts_with("KUBERNETES_")
                    || !(line.contains("_SERVICE_HOST")
                        || line.contains("_PORT_")
                        || line.starts_with("SANDBOX_AUTH_TOKEN=")),
                "{}: {line}",
                shell.kind()
            );
        }
        ensure!(
            shell.kind() == "unassigned" || !environment.contains("SANDBOX_"),
            "the agent's settings are in the session's environment: {environment}"
        );
    }
    Ok(())
}

/// Tried: what the kernel knows of others: its log and keyrings, its memory, sysfs (firmware, hardware's keys, debugfs,
/// tracing), other pods' cgroups and mounts, and the node's processes.
/// Stopped by: masked and read-only paths of the runtime, seccomp, no capabilities, and a namespace of its own for
/// processes, mounts and cgroups.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_kernel_knows() -> Result<()> {
    const PROGRAM: &str = r#"
import glob
def allowed(name, *args):
    try:
        return call(name, *args) >= 0
    except OSError:
        return False
def read(path):
    try:
        with open(path, "rb") as f:
            return len(f.read(4096)) > 0
    except OSError:
        return False
def lists(path):
    try:
        return len(os.listdir(path)) > 0
    except OSError:
        return False
print("control", read("/proc/self/status"), lists("/sys/class"), allowed("getpid"))
opened = [path for path in ("/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/sched_debug", "/proc/timer_list", "/dev/mem", "/dev/kmsg",
    "/dev/sda", "/dev/vda", "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_serial") if read(path)]
opened += [path for path in ("/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/proc/scsi", "/proc/acpi",
    "/sys/fs/bpf", "/var/lib/kubelet", "/var/log/pods", "/etc/kubernetes", "/host", "/run/containerd") if lists(path)]
if any(int(line.split()[0], 16) for line in open("/proc/kallsyms")) if os.access("/proc/kallsyms", os.R_OK) else False:
    opened.append("kallsyms")
buffer = ctypes.create_string_buffer(4096)
if allowed("syslog", 3, buffer, 4096):
    opened.append("syslog")
if allowed("keyctl", 0, -3, 1) or allowed("request_key", b"user", b"x", 0, -3):
    opened.append("keyrings")
for pid in glob.glob("/proc/[0-9]*"):
    try:
        name = open(pid + "/comm").read().strip()
    except OSError:
        continue
    if name in ("kubelet", "containerd", "etcd", "kube-apiserver", "server", "proxy", "operator"):
        opened.append(name)
opened += [path for path in glob.glob("/sys/fs/cgroup/**/*kubepods*", recursive=True)]
print("opened", *opened)
"#;
    let (shells, _guard) = arena()?.shells().await?;
    let program = format!("{PRELUDE}{PROGRAM}");
    for shell in &shells {
        let output = shell.python(&program).await?;
        ensure!(
            output == "control True True True\nopened\n",
            "{}: the kernel tells: {output}",
            shell.kind()
        );
    }
    Ok(())
}

/// Tried: using the digest of a token, which the pod's specification shows, in place of the token.
/// Stopped by: the agent compares SHA-256 of what it is given: a digest is no token.
#[tokio::test(flavor = "multi_thread")]
async fn passing_the_digest() -> Result<()> {
    const JSON: &str = "-H 'Content-Type: application/json' -d '{\"command\":\"true\",\"token\":\"x\"}'";
    // What the agent refuses only of a caller whose token it takes: nothing runs, and nothing is assigned.
    const TEXT: &str = "-H 'Content-Type: text/plain' -d x";
    let arena = arena()?;
    // The control brings the tokens into these sandboxes, where nobody else may look for them.
    let (unassigned, _guard) = arena.claimable().await?;
    let shells = [Shell::Assigned(arena.home.session("digest").await?), unassigned];
    for (shell, instance) in shells.iter().zip([&arena.home, &arena.neighbour]) {
        let (pod, digest) = pod_and_digest(shell)?;
        let (paths, message) = match shell {
            Shell::Assigned(_) => (["exec", "cancel"].as_slice(), "digest".to_owned()),
            Shell::Unassigned { .. } => (["assign"].as_slice(), format!("assign/{pod}")),
        };
        let status = async |token: &str, path: &str, body: &str| {
            shell
                .ok(&format!(
                    "curl -s --noproxy '*' -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {token}' {body} http://127.0.0.1:8090/{path}"
                ))
                .await
        };
        for path in paths {
            let refused = status(&digest, path, JSON).await?;
            ensure!(refused == "401", "{}: {path}: {refused}", shell.kind());
        }
        let token = token(instance, &message)?;
        let control = status(&token, paths[0], TEXT).await?;
        ensure!(control == "415", "{}: the control: {control}", shell.kind());
    }
    let [Shell::Assigned(session), _] = shells else {
        anyhow::bail!("not a session");
    };
    session.delete().await?;
    Ok(())
}

/// The pod that the shell is in, and the token's digest in its specification.
fn pod_and_digest(shell: &Shell) -> Result<(String, String)> {
    let (namespace, selector) = match shell {
        Shell::Assigned(_) => (
            "attack-home",
            ["-l".to_owned(), "cli-mcp.redhat.com/session-id=digest".to_owned()],
        ),
        Shell::Unassigned { pod, .. } => (
            "attack-neighbour",
            ["--field-selector".to_owned(), format!("metadata.name={pod}")],
        ),
    };
    let found = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "pods",
        &selector[0],
        &selector[1],
        "-o",
        "jsonpath={.items[0].metadata.name} {.items[0].spec.containers[0].env[?(@.name==\"SANDBOX_AUTH_TOKEN_SHA256\")].value}{.items[0].spec.containers[0].env[?(@.name==\"SANDBOX_ASSIGN_TOKEN_SHA256\")].value}",
    ])?;
    let (pod, digest) = found.split_once(' ').context(found.clone())?;
    ensure!(digest.len() == 64, "expected one digest: {found:?}");
    Ok((pod.to_owned(), digest.to_owned()))
}

/// A token as the contract's section 5 derives it from the instance's key, by other code than the product's.
fn token(instance: &Instance, message: &str) -> Result<String> {
    const HMAC: &str = "import base64, hmac, sys; print(hmac.new(base64.b64decode(sys.stdin.read()), sys.argv[1].encode(), 'sha256').hexdigest())";
    let secret = format!("cli-mcp-{}-hmac", instance.name);
    let script =
        "set -o pipefail; kubectl -n \"$1\" get secret \"$2\" -o 'jsonpath={.data.key}' | python3 -c \"$3\" \"$4\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash", &instance.namespace, &secret, HMAC, message])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
