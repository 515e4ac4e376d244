//! What a sandbox is and holds: a pod that passes the strictest standard, and nothing worth taking.

use anyhow::{Result, ensure};
use cli_mcp_e2e::{instance, kubectl};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::ListParams;

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_passes_the_restricted_standard() -> Result<()> {
    let shared = instance::shared()?;
    let session = shared.session("restricted").await?;
    session.bash("true").await?;
    // The namespace enforces the standard, so that the pod exists is one proof. That it is enforced is the other.
    let privileged = kubectl::run(&[
        "-n",
        &shared.namespace,
        "run",
        "privileged",
        "--image=localhost/none",
        "--privileged",
        "--dry-run=server",
    ])?;
    ensure!(
        privileged.stderr.contains("violates PodSecurity \"restricted"),
        "{privileged:?}"
    );

    let client = cli_mcp_e2e::cluster::client().await?;
    let pods = Api::<Pod>::namespaced(client, &shared.namespace);
    let sandbox = pods
        .list(&ListParams::default().labels("cli-mcp.redhat.com/session-id=restricted"))
        .await?
        .items;
    let spec = sandbox.first().and_then(|pod| pod.spec.as_ref());
    let spec = spec.ok_or_else(|| anyhow::anyhow!("the session has no pod"))?;
    ensure!(spec.automount_service_account_token == Some(false));
    ensure!(spec.enable_service_links == Some(false));
    let context = spec.containers[0].security_context.as_ref();
    ensure!(
        context.and_then(|context| context.read_only_root_filesystem) == Some(true),
        "{context:?}"
    );
    let id = session.bash("id -u; touch /usr/x 2>&1; cat /proc/1/environ").await?;
    ensure!(
        !id.stdout.starts_with("0\n") && id.stdout.contains("Read-only file system"),
        "{id:?}"
    );
    ensure!(id.exit_code != Some(0), "the agent's environment can be read: {id:?}");
    session.delete().await?;
    Ok(())
}

/// Searches every readable file, and environment, command line, memory and descriptors of every process, for the
/// needles. They come masked, so that neither this program nor its source is a hit.
const SEARCH: &str = r#"
import glob, os, sys
needles = [bytes(b ^ 0x5a for b in bytes.fromhex(line)) for line in NEEDLES.split()]
def look(path, data):
    for number, needle in enumerate(needles):
        if needle in data:
            print("FOUND", number, path)
me = str(os.getpid())
seen = 0
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
    if root.startswith(("/proc", "/sys/kernel/debug", "/dev")):
        folders[:] = []
        continue
    for name in files:
        path = os.path.join(root, name)
        if os.path.isfile(path) and (os.path.islink(path) or os.path.getsize(path) < 2 << 20):
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

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_the_namespace_is_in_the_sandbox() -> Result<()> {
    let shared = instance::shared()?;
    let session = shared.session("secrets").await?;
    session.bash("kubectl get pods >/dev/null").await?;

    let client = cli_mcp_e2e::cluster::client().await?;
    let secrets = Api::<Secret>::namespaced(client, &shared.namespace)
        .list(&ListParams::default())
        .await?;
    let mut names = Vec::new();
    let mut needles = Vec::new();
    for secret in secrets {
        for (key, ByteString(value)) in secret.data.into_iter().flatten() {
            // Certificates and the namespace's name are public; everything else must not be there, nor any long part.
            if key.ends_with(".crt") || key == "namespace" {
                continue;
            }
            for part in secret_parts(&key, &value) {
                names.push(format!("{}/{key}", secret.metadata.name.as_deref().unwrap_or_default()));
                needles.push(
                    part.iter()
                        .map(|byte| format!("{:02x}", byte ^ 0x5a))
                        .collect::<String>(),
                );
            }
        }
    }
    ensure!(
        needles.len() >= 5,
        "expected the CA key, the HMAC key, the TLS key and two tokens: {names:?}"
    );
    // The control: a value that the sandbox does hold must be found, or the search proves nothing.
    names.push("control".to_owned());
    needles.push(
        "proxy-managed-token"
            .bytes()
            .map(|byte| format!("{:02x}", byte ^ 0x5a))
            .collect(),
    );

    let program = format!("NEEDLES = \"\"\"{}\"\"\"\n{SEARCH}", needles.join("\n"));
    let search = format!("python3 - <<'PYTHON'\n{program}\nPYTHON\n");
    let result = session
        .call(serde_json::json!({"command": search, "timeout": 240}))
        .await?;
    ensure!(
        result.exit_code == Some(0) && result.stdout.contains("SEEN"),
        "{result:?}"
    );
    let control = names.len() - 1;
    let mut control_found = false;
    for line in result.stdout.lines().filter_map(|line| line.strip_prefix("FOUND ")) {
        let number: usize = line.split(' ').next().unwrap_or_default().parse()?;
        ensure!(number == control, "{} is in the sandbox: {line}", names[number]);
        control_found = true;
    }
    ensure!(control_found, "the search did not find the dummy token: {result:?}");
    session.delete().await?;
    Ok(())
}

/// The parts of a Secret's value that are secret, and so long that no chance puts them elsewhere.
fn secret_parts(key: &str, value: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(value);
    if text.starts_with("-----BEGIN") {
        // Of a P-256 key the frame is the same in every key, and the public half is in the certificate. The private
        // scalar begins at byte 7 of SEC 1 (RFC 5915) and at byte 36 of PKCS #8 (RFC 5958), each in the first line.
        let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        let scalar = if text.starts_with("-----BEGIN EC ") {
            12..48
        } else {
            48..64
        };
        return vec![body.as_bytes()[scalar].to_vec()];
    }
    let whole = if key == "kubeconfig" {
        let token = text.lines().find_map(|line| line.trim().strip_prefix("token: "));
        token.unwrap_or_default().as_bytes().to_vec()
    } else {
        value.to_vec()
    };
    // Tokens are three parts of which the last is the signature; the HMAC key is 32 bytes.
    vec![whole[whole.len().saturating_sub(24)..].to_vec()]
}
