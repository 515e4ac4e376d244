//! Looking for something worth taking in the pod itself.

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::arena;
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::secret_search::Needles;

/// Tried: searching files, mounts, environments, command lines, descriptors and memory of every process for any Secret
/// of the two instances' and the operator's namespaces.
/// Stopped by: the pod holds none: a dummy kubeconfig built from scratch, no ServiceAccount token, digests in place of
/// tokens, and an agent whose memory and environment cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn searching_everything_that_can_be_read() -> Result<()> {
    let arena = arena()?;
    let client = cli_mcp_e2e::cluster::client().await?;
    let needles = Needles::of(&client, &["attack-home", "attack-neighbour", "cli-mcp-operator-system"]).await?;
    ensure!(
        needles.names().len() > 10,
        "expected a CA key, an HMAC key, a TLS key and two tokens of each instance: {:?}",
        needles.names()
    );
    let (shells, _guard) = arena.shells().await?;
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
        let token = shell
            .run("ls /var/run/secrets /run/secrets 2>/dev/null; find / -xdev -name token -type f 2>/dev/null; true")
            .await?;
        ensure!(token.stdout.is_empty(), "{}: {token:?}", shell.kind());
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
import ctypes, glob, os
libc = ctypes.CDLL(None, use_errno=True)
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
print("control", read("/proc/self/status"), lists("/sys/class"))
opened = [path for path in ("/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/sched_debug", "/proc/timer_list", "/dev/mem", "/dev/kmsg",
    "/dev/sda", "/dev/vda", "/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_serial") if read(path)]
opened += [path for path in ("/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/proc/scsi", "/proc/acpi",
    "/sys/fs/bpf", "/var/lib/kubelet", "/var/log/pods", "/etc/kubernetes", "/host", "/run/containerd") if lists(path)]
if any(int(line.split()[0], 16) for line in open("/proc/kallsyms")) if os.access("/proc/kallsyms", os.R_OK) else False:
    opened.append("kallsyms")
buffer = ctypes.create_string_buffer(4096)
if libc.syscall(103, 3, buffer, 4096) > 0:
    opened.append("syslog")
if libc.syscall(250, 0, -3, 1) >= 0 or libc.syscall(249, b"user", b"x", None, -3) >= 0:
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
    for shell in &shells {
        let output = shell.python(PROGRAM).await?;
        ensure!(
            output == "control True True\nopened\n",
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
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let digest = digest(shell)?;
        let paths = if shell.kind() == "assigned" {
            ["exec", "cancel"].as_slice()
        } else {
            &["assign"]
        };
        for path in paths {
            let status = shell
                .ok(&format!(
                    "curl -s --noproxy '*' -o /dev/null -w '%{{http_code}}' -H 'Authorization: Bearer {digest}' \
                     -H 'Content-Type: application/json' -d '{{\"command\":\"true\",\"token\":\"{digest}\"}}' http://127.0.0.1:8090/{path}"
                ))
                .await?;
            ensure!(status == "401", "{}: {path}: {status}", shell.kind());
        }
    }
    Ok(())
}

/// The token's digest in the pod's specification.
fn digest(shell: &Shell) -> Result<String> {
    let (namespace, selector) = match shell {
        Shell::Assigned(_) => (
            "attack-home",
            ["-l".to_owned(), "cli-mcp.redhat.com/session-id=attacker".to_owned()],
        ),
        Shell::Unassigned { pod, .. } => (
            "attack-neighbour",
            ["--field-selector".to_owned(), format!("metadata.name={pod}")],
        ),
    };
    let digests = cli_mcp_e2e::kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "pods",
        &selector[0],
        &selector[1],
        "-o",
        "jsonpath={.items[0].spec.containers[0].env[?(@.name==\"SANDBOX_AUTH_TOKEN_SHA256\")].value}{.items[0].spec.containers[0].env[?(@.name==\"SANDBOX_ASSIGN_TOKEN_SHA256\")].value}",
    ])?;
    ensure!(digests.len() == 64, "expected one digest: {digests:?}");
    Ok(digests)
}
