//! What alerts, their tests and the dashboard ask Prometheus for is exported: metrics, labels, and the values of labels.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use std::collections::BTreeSet;
use std::path::Path;

use cli_mcp_docs::queries::{self, Selector};
use cli_mcp_docs::reference::{self, Exported};
use cli_mcp_docs::{read, repository};
use serde_json::Value;

/// Labels that Prometheus gives to what it scrapes of a program: `instance_name` is a relabelling of
/// config/prometheus/instances, where servers and proxies are scraped.
fn target_labels(series: &str) -> &'static [&'static str] {
    if series.starts_with("cli_mcp_operator") {
        &["namespace", "pod"]
    } else {
        &["namespace", "pod", "instance_name"]
    }
}

/// Labels of a series, unless no program exports it.
fn labels_of(exported: &[Exported], series: &str) -> Option<BTreeSet<String>> {
    let program = exported.iter().find(|program| series.starts_with(program.prefix))?;
    let name = series.strip_prefix(program.prefix)?.strip_prefix('_')?;
    let (metric, bucket) = program.metrics.iter().find_map(|metric| match metric.kind {
        "histogram" => {
            let part = name.strip_prefix(metric.name.as_str())?;
            matches!(part, "_bucket" | "_sum" | "_count").then_some((metric, part == "_bucket"))
        }
        _ => (metric.name == name).then_some((metric, false)),
    })?;
    let mut labels: BTreeSet<String> = metric.labels.iter().map(|label| label.name.clone()).collect();
    labels.extend(target_labels(program.prefix).iter().map(|&label| label.to_owned()));
    if bucket {
        labels.insert("le".to_owned());
    }
    Some(labels)
}

/// Where the values of a program's labels stand: its sources, and the types of conditions.
fn code_of(exported: &[Exported], series: &str) -> String {
    fn add(path: &Path, code: &mut String) {
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                add(&entry.unwrap().path(), code);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&read(path).unwrap());
        }
    }
    let program = exported
        .iter()
        .find(|program| series.starts_with(program.prefix))
        .unwrap();
    let mut code = String::new();
    for source in program.sources.iter().chain(&["api/src/conditions.rs"]) {
        add(&repository().join(source), &mut code);
    }
    code
}

/// What is wrong with a query.
fn complaints(exported: &[Exported], query: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let groups = queries::grouping(query);
    for Selector { metric, labels } in queries::selectors(query) {
        let Some(known) = labels_of(exported, &metric) else {
            complaints.push(format!("no program exports {metric}"));
            continue;
        };
        for label in labels.iter().map(|(label, _)| label).chain(&groups) {
            if !known.contains(label) {
                complaints.push(format!("{metric} has no label {label}: {query}"));
            }
        }
        let own = |label: &str| !target_labels(&metric).contains(&label) && label != "le" && label != "name";
        for (label, values) in labels.iter().filter(|(label, _)| own(label)) {
            let code = code_of(exported, &metric);
            for value in values {
                // A text of the code, or the variant of an enumeration that stands for itself.
                if !code.contains(&format!("\"{value}\"")) && !code.contains(&format!("::{value}")) {
                    complaints.push(format!("{metric} never has {label}={value}: {query}"));
                }
            }
        }
    }
    complaints
}

/// A rule of the PrometheusRule.
struct Alert {
    name: String,
    query: String,
    /// What it shows to people.
    shown: String,
}

fn alerts() -> Vec<Alert> {
    let text = read(&repository().join("config/prometheus/alerts.yaml")).unwrap();
    let file: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let groups = file["spec"]["groups"].as_sequence().unwrap();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_sequence().unwrap())
        .map(|rule| Alert {
            name: rule["alert"].as_str().unwrap().to_owned(),
            query: rule["expr"].as_str().unwrap().to_owned(),
            shown: serde_yaml::to_string(&rule["annotations"]).unwrap(),
        })
        .collect()
}

/// The expressions of the dashboard's panels and variables.
fn dashboard() -> Vec<String> {
    let file: Value = serde_json::from_str(&read(&repository().join("config/grafana/cli-mcp.json")).unwrap()).unwrap();
    let panels = file["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let variables = file["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| variable["definition"].as_str().map(str::to_owned));
    targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .chain(variables)
        .collect()
}

#[test]
fn a_wrong_metric_label_or_value_is_found() {
    let exported = reference::exported(&repository()).unwrap();
    for (query, word) in [
        (
            "cli_mcp_server_call_total",
            "no program exports cli_mcp_server_call_total",
        ),
        ("cli_mcp_server_stage_seconds", "no program exports"),
        ("cli_mcp_server_calls_total{result=\"ok\"}", "no label result"),
        ("sum by (name) (cli_mcp_server_calls_total)", "no label name"),
        (
            "sum by (instance_name) (cli_mcp_operator_leader)",
            "no label instance_name",
        ),
        (
            "cli_mcp_server_calls_total{outcome=~\"at_capacity|at_capacitty\"}",
            "outcome=at_capacitty",
        ),
    ] {
        let found = complaints(&exported, query);
        assert!(found.len() == 1 && found[0].contains(word), "{query}: {found:?}");
    }
}

#[test]
fn alerts_and_dashboard_ask_for_what_is_exported() {
    let exported = reference::exported(&repository()).unwrap();
    let alerts = alerts();
    let queries: Vec<String> = alerts
        .iter()
        .map(|alert| alert.query.clone())
        .chain(dashboard())
        .collect();
    assert!(queries.len() > 30, "only {}", queries.len());
    let mut found: Vec<String> = queries.iter().flat_map(|query| complaints(&exported, query)).collect();
    for program in ["server", "proxy", "operator"] {
        let asked = queries
            .iter()
            .any(|query| query.contains(&format!("cli_mcp_{program}_")));
        assert!(asked, "nothing asks for a metric of the {program}");
    }
    // What an alert's text shows must have come through the expression.
    for Alert { query, shown, .. } in &alerts {
        let groups = queries::grouping(query);
        for label in shown.split("$labels.").skip(1) {
            let label: String = label
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            if !groups.contains(&label) {
                found.push(format!("the text shows {label}, which the expression drops: {query}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_alert_is_tested_with_series_that_are_exported() {
    let exported = reference::exported(&repository()).unwrap();
    let tests = read(&repository().join("config/prometheus/alerts_test.yaml")).unwrap();
    for Alert { name, .. } in alerts() {
        assert!(tests.contains(&format!("\"{name}\"")), "{name} has no test");
    }
    let series: Vec<&str> = tests
        .lines()
        .filter_map(|line| line.split("series: '").nth(1)?.split('\'').next())
        .collect();
    assert!(series.len() > 20, "only {}", series.len());
    let found: Vec<String> = series.iter().flat_map(|series| complaints(&exported, series)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_label_of_an_instances_pods_is_made_where_they_are_scraped() {
    let monitor = read(&repository().join("config/prometheus/instances/pod_monitor.yaml")).unwrap();
    assert!(monitor.contains("targetLabel: instance_name"), "{monitor}");
}
