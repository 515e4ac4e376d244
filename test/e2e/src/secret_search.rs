//! Looks for secrets everywhere that a sandbox can read, with controls that must be found.

use anyhow::{Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, Client};

/// What a sandbox does hold: a search that does not find it proves nothing.
const CONTROL: &str = "control";

/// What the search puts into the memory of another process, and nowhere else.
const IN_MEMORY: &str = "control in memory";

/// Searches every readable file, and environment, command line, memory and descriptors of every process, for the
/// needles. They come masked, so that neither this program nor its source is a hit.
const SEARCH: &str = r#"
import glob, os, subprocess, sys
PLANT = "import sys, time; planted = bytes(b ^ 0x5a for b in bytes.fromhex(sys.stdin.readline())); print('planted', flush=True); time.sleep(600)"
plant = subprocess.Popen([sys.executable, "-c", PLANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
plant.stdin.write(NEEDLES.split()[-1].encode() + b"\n")
plant.stdin.flush()
plant.stdout.readline()
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
    if root in ("/proc", "/dev") or root.startswith(("/sys/kernel", "/sys/devices", "/sys/module")):
        folders[:] = []
        continue
    for name in files:
        path = os.path.join(root, name)
        # Large programs of the image are no place that anything of an instance could get to.
        if os.path.isfile(path) and (not root.startswith("/usr") or os.path.islink(path) or os.path.getsize(path) < 2 << 20):
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
plant.kill()
print("SEEN", seen)
"#;

/// What must not be found, and the control.
pub struct Needles {
    names: Vec<String>,
    masked: Vec<String>,
}

impl Needles {
    /// Everything secret of these namespaces.
    ///
    /// # Errors
    ///
    /// When Secrets cannot be listed.
    pub async fn of(client: &Client, namespaces: &[&str]) -> Result<Self> {
        let mut needles = Self {
            names: Vec::new(),
            masked: Vec::new(),
        };
        for namespace in namespaces {
            let secrets = Api::<Secret>::namespaced(client.clone(), namespace)
                .list(&ListParams::default())
                .await?;
            for secret in secrets {
                let name = secret.metadata.name.unwrap_or_default();
                for (key, ByteString(value)) in secret.data.into_iter().flatten() {
                    // Certificates and the namespace's name are public.
                    if !key.ends_with(".crt") && key != "namespace" {
                        needles.add(format!("{namespace}/{name}/{key}"), secret_part(&key, &value));
                    }
                    // A key of bytes, as programs like to write it down.
                    if name.ends_with("-hmac") {
                        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                        let base64 = serde_json::to_string(&ByteString(value))?;
                        needles.add(format!("{namespace}/{name}/{key} in hex"), hex.as_bytes());
                        needles.add(
                            format!("{namespace}/{name}/{key} in Base64"),
                            base64.trim_matches(['"', '=']).as_bytes(),
                        );
                    }
                }
            }
        }
        needles.add(CONTROL.to_owned(), b"proxy-managed-token");
        Ok(needles)
    }

    /// Looks for this as well.
    pub fn add(&mut self, name: String, value: &[u8]) {
        self.names.push(name);
        self.masked.push(masked(value));
    }

    /// What is looked for, by name, the control included.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The search, for python3 in the sandbox.
    #[must_use]
    pub fn program(&self) -> String {
        let in_memory = masked(b"what the search has planted itself");
        format!(
            "NEEDLES = \"\"\"{}\n{in_memory}\"\"\"\n{SEARCH}",
            self.masked.join("\n")
        )
    }

    /// Judges what the search printed.
    ///
    /// # Errors
    ///
    /// When something secret was found, or a control was not.
    pub fn judge(&self, output: &str) -> Result<()> {
        let (mut control_found, mut found_in_memory) = (false, false);
        for line in output.lines().filter_map(|line| line.strip_prefix("FOUND ")) {
            let number: usize = line.split(' ').next().unwrap_or_default().parse()?;
            let name = self.names.get(number).map_or(IN_MEMORY, String::as_str);
            ensure!(name == CONTROL || name == IN_MEMORY, "{name} is in the sandbox: {line}");
            control_found |= name == CONTROL;
            found_in_memory |= name == IN_MEMORY && line.ends_with("/mem");
        }
        ensure!(
            control_found && found_in_memory && output.contains("SEEN"),
            "the search did not end, or did not find the dummy token and what it put into another process: {output}"
        );
        Ok(())
    }
}

/// As the search gets it.
fn masked(value: &[u8]) -> String {
    value.iter().map(|byte| format!("{:02x}", byte ^ 0x5a)).collect()
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
