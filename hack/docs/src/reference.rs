//! `docs/reference/`: the resource, flags, metrics, conditions, events and audit lines, as the code has them.

mod crd;
mod flags;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use cli_mcp_api::names;

use crate::Page;
use crate::source::{self, Field, Label, Metric};

const NOTE: &str = "<!-- Generated from the code by `make docs`. Do not edit. -->\n";

/// Every page of the reference.
///
/// # Errors
///
/// When a source file cannot be read or is not as expected.
pub fn pages(repository: &Path) -> Result<Vec<Page>> {
    let page = |name: &str, content: String| Page {
        path: format!("docs/reference/{name}"),
        content: format!("{NOTE}\n{}\n", content.trim_end()),
    };
    Ok(vec![
        page("README.md", index()),
        page("climcpinstance.md", crd::page()?),
        page("flags.md", flags::page()),
        page("metrics.md", metrics(repository)?),
        page("conditions.md", conditions(repository)?),
        page("audit.md", audit(repository)?),
    ])
}

fn index() -> String {
    "# Reference\n\n\
     Written from the code by `make docs`; a test fails when it is behind.\n\n\
     | page | holds |\n|---|---|\n\
     | [climcpinstance.md](climcpinstance.md) | every field of the resource, with defaults, bounds and rules |\n\
     | [flags.md](flags.md) | flags and environment variables of the programs and of the kubectl plugin |\n\
     | [metrics.md](metrics.md) | every metric |\n\
     | [conditions.md](conditions.md) | conditions, their reasons, events |\n\
     | [audit.md](audit.md) | the audit lines of the server and of the proxy |\n\n\
     What an error text means and what to do: [../troubleshoot.md](../troubleshoot.md).\n"
        .to_owned()
}

/// A program's metrics: its title, where it serves them, its prefix, and the folders that register them.
const METRICS: [(&str, &str, &str, &[&str]); 4] = [
    (
        "server",
        "over HTTPS on port 8443 for callers with the right `get` on `climcpinstances/mcp`, and where `--health-address` says",
        "cli_mcp_server",
        &[
            "cmd/server/src",
            "pkg/serving/src/auth.rs",
            "pkg/serving/src/metrics.rs",
        ],
    ),
    (
        "proxy",
        "on port 8081",
        "cli_mcp_proxy",
        &["cmd/proxy/src", "pkg/serving/src/metrics.rs"],
    ),
    (
        "operator",
        "where `--metrics-bind-address` says, to callers that may get the non-resource URL `/metrics`",
        "cli_mcp_operator",
        &["controllers/src", "pkg/serving/src/metrics.rs"],
    ),
    (
        "agent",
        "on port 8090 of a sandbox",
        "cli_mcp_agent",
        &["cmd/agent/src"],
    ),
];

/// The metrics of a program, as the code registers them.
pub struct Exported {
    /// What the name of each begins with.
    pub prefix: &'static str,
    /// The files and folders that register them.
    pub sources: &'static [&'static str],
    /// The metrics, under their names without the prefix.
    pub metrics: Vec<Metric>,
}

/// What each program exports.
///
/// # Errors
///
/// When a source file cannot be read or parsed.
pub fn exported(repository: &Path) -> Result<Vec<Exported>> {
    METRICS
        .iter()
        .map(|(_, _, prefix, sources)| {
            let mut metrics = Vec::new();
            for folder in *sources {
                metrics.extend(source::metrics(repository, folder)?);
            }
            Ok(Exported {
                prefix,
                sources,
                metrics,
            })
        })
        .collect()
}

fn metrics(repository: &Path) -> Result<String> {
    let mut text =
        "# Metrics\n\nEvery program serves `/metrics` in the OpenMetrics format. No label holds what a client sent.\n"
            .to_owned();
    for ((program, place, ..), exported) in METRICS.iter().zip(exported(repository)?) {
        text.push_str(&format!(
            "\n## {program}\n\nServed {place}.\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        ));
        for metric in &exported.metrics {
            text.push_str(&metric_row(exported.prefix, metric));
        }
        let mut labels: BTreeMap<&Label, Vec<String>> = BTreeMap::new();
        for metric in &exported.metrics {
            for label in &metric.labels {
                labels.entry(label).or_default().push(format!("`…_{}`", metric.name));
            }
        }
        text.push_str("\n| label | of | values |\n|---|---|---|\n");
        for (label, metrics) in labels {
            let (name, metrics, values) = (&label.name, metrics.join(", "), cell(&label.values));
            text.push_str(&format!("| `{name}` | {metrics} | {values} |\n"));
        }
    }
    Ok(text)
}

fn metric_row(prefix: &str, metric: &Metric) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{}`", label.name)).collect();
    format!(
        "| `{prefix}_{}` | {} | {} | {} |\n",
        metric.name,
        metric.kind,
        labels.join(", "),
        cell(&metric.help)
    )
}

fn conditions(repository: &Path) -> Result<String> {
    let (types, reasons) = source::constants(&repository.join("api/src/conditions.rs"), "reasons")?;
    let mut text = "# Conditions and events\n\n\
        ## Conditions\n\n\
        `kubectl get climcpinstance NAME -o yaml` shows them under `status.conditions`; True is well. Wait for one with\n\
        `kubectl wait --for=condition=Ready climcpinstance/NAME`.\n\n\
        | condition | True means |\n|---|---|\n"
        .to_owned();
    for type_ in types {
        text.push_str(&format!("| `{}` | {} |\n", type_.value, cell(&type_.doc)));
    }
    text.push_str(
        "\n## Reasons\n\nThe message of the condition says what to do; [troubleshoot.md](../troubleshoot.md#conditions) says more.\n\n\
         | reason | meaning |\n|---|---|\n",
    );
    for reason in reasons {
        text.push_str(&format!("| `{}` | {} |\n", reason.value, cell(&reason.doc)));
    }
    text.push_str(
        "\n## Events\n\n\
         The operator publishes an event on the instance when `Ready` or `EgressEnforced` changes its status or reason: a Normal\n\
         one with the name of the condition when it becomes True, else a Warning with the reason of the condition. Beside them:\n\n",
    );
    for reason in source::event_reasons(&repository.join("controllers/src"))? {
        text.push_str(&format!("- `{reason}`\n"));
    }
    text.push_str(&format!(
        "\n## Objects\n\nAn instance `NAME` owns `{}` and what follows from that name: `{}`, `{}`, `{}`. The Secrets `{}` and `{}`\n\
         are the administrator's; `{}` and `{}` the operator makes, once. The server listens on port {} and, for probes, on 8081, the\n\
         proxy on {} and {}, the agent of a sandbox on 8090. Every server may review tokens by the ClusterRoleBinding `{}`. The operator elects its leader\n\
         over the Lease `{}`, and its finalizer is `{}`.\n",
        names::server("NAME"),
        names::sandbox("NAME"),
        names::proxy("NAME"),
        names::client("NAME"),
        names::kubeconfig("NAME"),
        names::tls("NAME"),
        names::hmac("NAME"),
        names::proxy_ca("NAME"),
        names::SERVER_PORT,
        names::PROXY_PORT,
        names::PROXY_HEALTH_PORT,
        names::AUTH_DELEGATOR_BINDING,
        names::LEADER_LEASE,
        names::FINALIZER,
    ));
    Ok(text)
}

fn audit(repository: &Path) -> Result<String> {
    let server = repository.join("cmd/server/src/audit.rs");
    let proxy = repository.join("cmd/proxy/src/audit.rs");
    let mut text = "# Audit lines\n\n\
        One JSON object a line, on standard output beside the log (the server's on standard error over stdio). An address of a\n\
        sandbox and a time join the two: which command sent this API request?\n\n\
        ## Server: one line a call, and one a session that a client ends\n\n\
        Recognised by `\"audit\":\"call\"` and `\"audit\":\"end\"`. `--audit-commands` decides whether a command appears as its length and SHA-256, in\n\
        full, or not at all.\n\n\
        | field | always | meaning |\n|---|---|---|\n"
        .to_owned();
    let mut fields = source::fields(&server, "Record")?;
    fields.extend(source::fields(&server, "Shown")?);
    for field in fields.iter().filter(|field| !field.hidden) {
        text.push_str(&row(&field.name, field, server_meaning(&field.name)));
        if field.name == "caller" {
            for part in source::fields(&server, "Identity")? {
                text.push_str(&row(&format!("caller.{}", part.name), &part, ""));
            }
        }
    }
    text.push_str(
        "\n## Proxy: one line a request, or a CONNECT that was refused\n\n\
         Recognised by `\"log\":\"audit\"`. No field holds a header, a query, a body or a token.\n\n\
         | field | always | meaning |\n|---|---|---|\n",
    );
    let record = source::fields(&proxy, "Record")?;
    let info = source::fields(&repository.join("cmd/proxy/src/request_info.rs"), "RequestInfo")?;
    for field in source::fields(&proxy, "Line")? {
        let known = record.iter().chain(&info).find(|known| {
            known.name == field.name || field.name.strip_suffix("_ms").is_some_and(|stem| stem == known.name)
        });
        let name = camel(&field.name);
        let meaning = known.map_or("`audit`", |known| known.doc.as_str());
        text.push_str(&row(&name, &field, meaning));
    }
    Ok(text)
}

/// The server's fields have names that say what they hold; these words say the rest.
fn server_meaning(field: &str) -> &'static str {
    match field {
        "audit" => "`call`, or `end` for `DELETE /sessions/ID`",
        "time" => "when the call came, RFC 3339",
        "caller" => "who called",
        "session" => "the session, when the request named a valid one",
        "pod" => "the sandbox",
        "pod_ip" => "its address: `client` in the proxy's lines",
        "outcome" => "`ok`, `nonzero_exit`, `timed_out`, or why there is no result; of an `end` `ended`, or why not",
        "exit_code" => "of the command",
        "stdout_bytes" | "stderr_bytes" => "of the result, after cutting",
        "command_ms" => "how long the command ran",
        "duration_ms" => "how long the call took",
        "trace_id" => "of the request's `traceparent`",
        "command" => "the command, with `full`",
        "command_bytes" | "command_sha256" => "of the command, with `digest`",
        _ => "",
    }
}

fn row(name: &str, field: &Field, meaning: &str) -> String {
    let always = if field.optional { "" } else { "yes" };
    let meaning = if meaning.is_empty() { &field.doc } else { meaning };
    format!("| `{name}` | {always} | {} |\n", cell(meaning))
}

/// `bytes_in` as `bytesIn`.
fn camel(name: &str) -> String {
    let mut camel = String::new();
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            camel.extend(c.to_uppercase());
        } else {
            camel.push(c);
        }
    }
    camel
}

/// Text that stays in its cell of a table.
pub(crate) fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_lines() {
        assert_eq!(camel("bytes_in"), "bytesIn");
        assert_eq!(camel("log"), "log");
    }

    #[test]
    fn a_cell_is_one_line() {
        assert_eq!(cell("a\n  b | c"), "a b \\| c");
    }
}
