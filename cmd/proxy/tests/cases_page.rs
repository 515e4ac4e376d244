//! `docs/proxy-cases.md` names the tests of each case. The page is made from the tests' names and tables; this fails when
//! it is not up to date. `UPDATE_DOCS=1 cargo test -p cli-mcp-proxy --test cases_page` writes it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The kinds of failure, with their numbers; those that no test can have say why.
const CASES: &[(u8, &str, &str)] = &[
    (1, "Dot segments: one path is checked, another is sent", ""),
    (2, "Encoded slashes, dots and backslashes", ""),
    (3, "Percent-encoded and double-encoded subresources", ""),
    (5, "Proxy subresources with a path behind them, `scheme:name:port`", ""),
    (7, "Objects that are named like a denied subresource pass", ""),
    (8, "`nodes/proxy` runs code even with GET", ""),
    (9, "exec by GET and WebSocket, by POST and SPDY", ""),
    (10, "Ephemeral containers", ""),
    (11, "Requests that are answered with a credential", ""),
    (12, "exec and its kind in aggregated APIs", ""),
    (14, "Servers with a path prefix; everything else on the host", ""),
    (15, "Bytes that no target has", ""),
    (
        16,
        "What no path rule can stop",
        "RBAC decides: [security.md](security.md) has what to ask with `kubectl auth can-i`",
    ),
    (17, "`Host` is not the tunnel's", ""),
    (18, "Absolute-form inside a tunnel", ""),
    (20, "The grammar of CONNECT", ""),
    (21, "SNI that is absent or another name", ""),
    (23, "What is no TLS in a tunnel", ""),
    (24, "Plaintext requests to the proxy's port", ""),
    (25, "Names that resolve to inside addresses, or move there", ""),
    (27, "Loopback servers and NO_PROXY", ""),
    (28, "Bearer tokens in WebSocket subprotocols", ""),
    (29, "Upgrades take the same way as all requests", ""),
    (30, "Headers that `Connection` names", ""),
    (31, "Impersonation headers, known and unknown", ""),
    (32, "Headers of authenticating front proxies", ""),
    (34, "Repeated `Authorization`", ""),
    (35, "API keys on allowlist targets", ""),
    (36, "Tokens in the query", ""),
    (37, "Cookies, both ways", ""),
    (38, "TRACE, OPTIONS and other methods", ""),
    (40, "Tokens that no header can hold", ""),
    (42, "Client certificates are the proxy's own", ""),
    (43, "Two lengths of one body", ""),
    (44, "Lenient parsing of heads", ""),
    (45, "Switching protocols too early", ""),
    (47, "Which upgrades there are", ""),
    (50, "Exhaustion: limits and time-outs", ""),
    (51, "A quiet watch has its head at once", ""),
    (52, "Long answers; a cut answer never looks whole", ""),
    (53, "Large lists and encodings, byte for byte", ""),
    (54, "ALPN", ""),
    (55, "Refusals are `metav1.Status`", ""),
    (56, "The answer to CONNECT, and bytes behind it", ""),
    (
        57,
        "An `https://` proxy URL",
        "not offered, as [proxy.md](proxy.md) says; the kubeconfig of a sandbox has `http://`",
    ),
    (60, "The placeholder token; 401 passes", ""),
    (61, "Certificates that strict verifiers accept", ""),
    (62, "IP addresses in certificates", ""),
    (63, "Validity, serial numbers and names of leaves", ""),
    (64, "The keys of CA and leaves", ""),
    (65, "CA rotation and expiry", ""),
    (
        67,
        "CA data that is a server's own certificate, a bundle, a common name",
        "",
    ),
    (68, "Only the kubeconfig's CA is trusted", ""),
    (
        69,
        "Advisories of the verifier",
        "`make deny-advisories`; no revocation list is read",
    ),
    (71, "Credentials that are no inline token or certificate", ""),
    (72, "`as` and its kind in the kubeconfig", ""),
    (74, "No secret in the dummy file, routes, errors or logs", ""),
    (75, "YAML, encodings, URLs", ""),
    (76, "The injected token coming back", ""),
    (77, "Rotation of files under open streams", ""),
    (78, "Never a request without its identity", ""),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("cases_page.rs") {
            found.push(path);
        }
    }
}

/// The numbers in a test's name: `case_25_…`, `cases_28_29_30_…`, `cases_3_to_14_…`.
fn numbers(name: &str) -> Vec<u8> {
    let Some(rest) = name.strip_prefix("cases_").or_else(|| name.strip_prefix("case_")) else {
        return Vec::new();
    };
    let mut found: Vec<u8> = Vec::new();
    let mut range = false;
    for word in rest.split('_') {
        match (word.parse::<u8>(), word) {
            (Ok(number), _) if range => {
                let from = found.last().copied().unwrap();
                found.extend(from + 1..=number);
                range = false;
            }
            (Ok(number), _) => found.push(number),
            (Err(_), "to") => range = true,
            (Err(_), "and") => {}
            (Err(_), _) => break,
        }
    }
    found
}

fn page(repository: &Path) -> String {
    let mut files = Vec::new();
    for folder in [
        "cmd/proxy/src",
        "cmd/proxy/tests",
        "pkg/kubeconfig/src",
        "pkg/kubeconfig/tests",
    ] {
        sources(&repository.join(folder), &mut files);
    }
    files.sort();
    let mut tests: BTreeMap<u8, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut rows: BTreeMap<u8, usize> = BTreeMap::new();
    for file in &files {
        let place = file.strip_prefix(repository).unwrap().display().to_string();
        let text = std::fs::read_to_string(file).unwrap();
        let mut is_test = false;
        let mut above = "";
        for line in text.lines().map(str::trim) {
            let function = line
                .trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.split('(').next());
            is_test |= line.contains("::test") || line == "#[test]" || line.starts_with("#![proptest_config");
            if let Some(name) = function.filter(|_| is_test) {
                for number in numbers(name) {
                    tests
                        .entry(number)
                        .or_default()
                        .insert((place.clone(), name.to_owned()));
                }
                is_test = false;
            }
            // Rows of the tables REFUSED and PASSED begin with the number, on this line or the next.
            let row = line.strip_prefix('(').or_else(|| (above == "(").then_some(line));
            let number = row
                .and_then(|row| row.split_once(','))
                .and_then(|(number, _)| number.parse::<u8>().ok());
            if let Some(number) = number.filter(|_| place.ends_with("tests/e2e/paths.rs")) {
                *rows.entry(number).or_default() += 1;
            }
            above = line;
        }
    }
    let mut page = String::from(
        "# The proxy's cases\n\n\
         Kinds of failure of TLS-intercepting proxies, and of Kubernetes clients behind them, each with the tests that keep it\n\
         from happening here. Made from the tests' names by `cargo test -p cli-mcp-proxy --test cases_page`; do not edit.\n\n\
         | case | kind | tests |\n|---|---|---|\n",
    );
    let mut missing = Vec::new();
    for (number, title, note) in CASES {
        let mut cell: Vec<String> = tests
            .remove(number)
            .unwrap_or_default()
            .into_iter()
            .map(|(place, name)| format!("[`{name}`](../{place})"))
            .collect();
        if let Some(count) = rows.remove(number) {
            cell.push(format!("[`paths.rs`](../cmd/proxy/tests/e2e/paths.rs), rows: {count}"));
        }
        if !note.is_empty() {
            cell.push((*note).to_owned());
        }
        if cell.is_empty() {
            missing.push(*number);
        }
        writeln!(page, "| {number} | {title} | {} |", cell.join("<br>")).unwrap();
    }
    assert!(missing.is_empty(), "no test has the number of these cases: {missing:?}");
    page
}

#[test]
fn the_page_of_cases_is_up_to_date() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let file = repository.join("docs/proxy-cases.md");
    let page = page(&repository);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == page,
        "docs/proxy-cases.md is stale: run UPDATE_DOCS=1 cargo test -p cli-mcp-proxy --test cases_page"
    );
}
