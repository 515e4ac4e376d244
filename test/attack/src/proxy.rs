//! Raw requests through the credential proxy, as a hostile client would write them.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::shell::Shell;

/// What came back for one request.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// Status code; 0 when the connection ended without an answer.
    pub status: u16,
    /// Everything that came, head and body, up to 64 KiB.
    pub text: String,
}

/// Sends each request on a connection of its own: `CONNECT`, TLS with the sandbox's CA, then the bytes, as they are.
/// `{host}` in a request stands for the target's host.
const CLIENT: &str = r#"
import json, os, re, socket, ssl
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse
proxy = urlparse(os.environ["HTTPS_PROXY"])
def read(s):
    data = b""
    try:
        while len(data) < 65536:
            part = s.recv(16384)
            if not part:
                break
            data += part
            s.settimeout(1.5)
    except OSError:
        pass
    return data
def status(data):
    found = re.match(rb"HTTP/1\.[01] (\d+)", data)
    return int(found.group(1)) if found else 0
def connect(target):
    s = socket.create_connection((proxy.hostname, proxy.port), timeout=20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        part = s.recv(4096)
        if not part:
            break
        data += part
    return s, data
def ask(case):
    try:
        if case["plain"]:
            s = socket.create_connection((proxy.hostname, proxy.port), timeout=20)
            s.sendall(case["raw"].encode("latin-1"))
            data = read(s)
            return {"status": status(data), "text": data.decode("latin-1")}
        s, data = connect(case["target"])
        if status(data) != 200:
            return {"status": status(data), "text": data.decode("latin-1")}
        context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
        if case["sni"]:
            context.check_hostname = False
        s = context.wrap_socket(s, server_hostname=case["sni"] or case["target"].rsplit(":", 1)[0])
        s.sendall(case["raw"].encode("latin-1"))
        data = read(s)
        return {"status": status(data), "text": data.decode("latin-1")}
    except OSError as error:
        return {"status": 0, "text": str(error)}
with ThreadPoolExecutor(8) as pool:
    print(json.dumps(list(pool.map(ask, json.loads(CASES)))))
"#;

/// One request.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Case {
    /// `host:port` of the CONNECT.
    pub target: String,
    /// Bytes to send in the tunnel, each a character.
    pub raw: String,
    /// Another name than the target's in the TLS handshake; empty for the target's.
    pub sni: String,
    /// Sent to the proxy's port without CONNECT and TLS.
    pub plain: bool,
}

impl Case {
    /// A request in a tunnel.
    #[must_use]
    pub fn new(target: &str, raw: impl Into<String>) -> Self {
        Self {
            target: target.to_owned(),
            raw: raw.into(),
            sni: String::new(),
            plain: false,
        }
    }

    /// A request with this method, path and further header lines (each ended by CRLF) to the API.
    #[must_use]
    pub fn request(target: &str, method: &str, path: &str, headers: &str) -> Self {
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        Self::new(
            target,
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"),
        )
    }

    /// Bytes to the proxy's port, outside any tunnel.
    #[must_use]
    pub fn plain(raw: impl Into<String>) -> Self {
        Self {
            plain: true,
            ..Self::new("", raw)
        }
    }
}

/// Sends the requests, and returns an answer for each.
///
/// # Errors
///
/// When the client could not run.
pub async fn ask(shell: &Shell, cases: &[Case]) -> Result<Vec<Answer>> {
    // JSON of JSON is a Python string literal: only ASCII and escapes that both know.
    let list = ascii(&serde_json::to_string(&ascii(&serde_json::to_string(cases)?))?);
    let output = shell.python(&format!("CASES = {list}\n{CLIENT}")).await?;
    let answers: Vec<Answer> = serde_json::from_str(output.trim())?;
    ensure!(answers.len() == cases.len(), "{output}");
    Ok(answers)
}

/// JSON text with every character beyond ASCII escaped.
fn ascii(json: &str) -> String {
    json.chars()
        .map(|c| {
            if c.is_ascii() {
                c.to_string()
            } else {
                format!("\\u{:04x}", u32::from(c))
            }
        })
        .collect()
}
