//! Looking for something worth taking in the pod itself.

use std::fmt::Write;

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::arena;
use cli_mcp_attack::shell::Shell;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;

/// Searches every readable file, and environment, command line, memory and descriptors of every process, for the
/// needles. They come masked, so that neither this program nor its source is a hit.
const SEARCH: &str = r#"
import glob, os
needles = [bytes(b ^ 0x5a for b in bytes.fromhex(line)) for line in NEEDLES.split()]
me = str(os.getpid())
seen = 0
def look(path, data):
    for number, needle in enumerate(needles):
        if needle in data:
            print("FOUND", number, path)
def read(path):
    global seen
    try:
        with open(path, "rb") as f:
            data = f.read(64 << 20)
    except OSError:
        return
    seen += 1
    look(path, data)
for root, folders, files in os.walk("/"):
    if root in ("/proc", "/dev", "/usr") or root.startswith(("/sys/kernel", "/sys/devices", "/sys/module")):
        folders[:] = []
        continue
    for name in files:
        path = os.path.join(root, name)
        if os.path.isfile(path):
            read(path)
for process in glob.glob("/proc/[0-9]*"):
    if process.endswith("/" + me):
        continue
    for name in ("environ", "cmdline", "mountinfo"):
        read(f"{process}/{name}")
    for fd in glob.glob(f"{process}/fd/*"):
        if os.path.isfile(fd):
            read(fd)
    try:
        maps = open(f"{process}/maps").read().splitlines()
        memory = open(f"{process}/mem", "rb")
    except OSError:
        continue
    for line in maps:
        span, rights = line.split()[:2]
        if "r" not in rights or "[v" in line:
            continue
        start, end = (int(x, 16) for x in span.split("-"))
        try:
            memory.seek(start)
            look(f"{process}/mem", memory.read(end - start))
        except (OSError, ValueError, OverflowError):
            pass
    seen += 1
print("SEEN", seen)
"#;

/// Tried: searching files, mounts, environments, command lines, descriptors and memory of every process for any Secret
/// of the two instances' and the operator's namespaces.
/// Stopped by: the pod holds none: a dummy kubeconfig built from scratch, no ServiceAccount token, digests in place of
/// tokens, and an agent whose memory and environment cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn searching_everything_that_can_be_read() -> Result<()> {
    let arena = arena()?;
    let (names, needles) = needles().await?;
    let (shells, _guard) = arena.shells().await?;
    for shell in &shells {
        let output = shell
            .python(&format!("NEEDLES = \"\"\"{needles}\"\"\"\n{SEARCH}"))
            .await?;
        let control = names.len() - 1;
        let mut control_found = false;
        for line in output.lines().filter_map(|line| line.strip_prefix("FOUND ")) {
            let number: usize = line.split(' ').next().unwrap_or_default().parse()?;
            ensure!(
                number == control,
                "{} is in the {} sandbox: {line}",
                names[number],
                shell.kind()
            );
            control_found = true;
        }
        ensure!(
            control_found,
            "{}: the search did not find the dummy token: {output}",
            shell.kind()
        );
    }
    Ok(())
}

/// Names and masked values of everything secret, and last the control: what a sandbox does hold.
async fn needles() -> Result<(Vec<String>, String)> {
    let client = cli_mcp_e2e::cluster::client().await?;
    let (mut names, mut needles) = (Vec::new(), String::new());
    let mut mask = |name: String, value: &[u8]| -> Result<()> {
        names.push(name);
        for byte in value {
            write!(needles, "{:02x}", byte ^ 0x5a)?;
        }
        needles.push('\n');
        Ok(())
    };
    for namespace in ["attack-home", "attack-neighbour", "cli-mcp-operator-system"] {
        let secrets = Api::<Secret>::namespaced(client.clone(), namespace)
            .list(&ListParams::default())
            .await?;
        for secret in secrets {
            let name = secret.metadata.name.unwrap_or_default();
            for (key, ByteString(value)) in secret.data.into_iter().flatten() {
                // Certificates and the namespace's name are public.
                if !key.ends_with(".crt") && key != "namespace" {
                    mask(format!("{namespace}/{name}/{key}"), secret_part(&key, &value))?;
                }
            }
        }
    }
    mask("control".to_owned(), b"proxy-managed-token")?;
    ensure!(
        names.len() > 10,
        "expected a CA key, an HMAC key, a TLS key and two tokens of each instance: {names:?}"
    );
    Ok((names, needles))
}

/// The part of a value that is secret, and so long that no chance puts it elsewhere.
fn secret_part<'a>(key: &str, value: &'a [u8]) -> &'a [u8] {
    let at = |needle: &[u8]| value.windows(needle.len()).position(|window| window == needle);
    if let Some(line) = value.starts_with(b"-----BEGIN").then(|| at(b"\n")).flatten() {
        // Of a P-256 key the frame is the same in every key, and the public half is in the certificate. The private
        // scalar begins at byte 7 of SEC 1 (RFC 5915) and at byte 36 of PKCS #8 (RFC 5958), each in the first line.
        let scalar = if value.starts_with(b"-----BEGIN EC ") {
            12..48
        } else {
            48..64
        };
        return &value[line + 1 + scalar.start..line + 1 + scalar.end];
    }
    // Tokens are three parts of which the last is the signature; the HMAC key is 32 bytes.
    let end = if key == "kubeconfig" {
        let token = at(b"token: ").map_or(0, |start| start + b"token: ".len());
        value[token..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(value.len(), |length| token + length)
    } else {
        value.len()
    };
    &value[end.saturating_sub(24)..end]
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
