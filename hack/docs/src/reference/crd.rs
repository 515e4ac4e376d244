//! The fields of the resource, from its schema.

use anyhow::{Context, Result};
use serde_json::Value;

use super::cell;

/// Types of Kubernetes' own, whose fields its own reference explains.
const KUBERNETES: [(&str, &str); 5] = [
    ("spec.sandbox.env[]", "EnvVar"),
    ("spec.sandbox.tolerations[]", "Toleration"),
    ("spec.sandbox.resources", "ResourceRequirements"),
    ("spec.serverContainer.resources", "ResourceRequirements"),
    ("status.conditions[]", "Condition"),
];

/// The page.
pub(super) fn page() -> Result<String> {
    let crd = serde_json::to_value(cli_mcp_api::crd::custom_resource_definition())?;
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut page = format!(
        "# CliMcpInstance\n\n`{}/{}`, {}. Short name `{}`.\n\n{}\n\nExamples of every field: [../configure.md](../configure.md).\n",
        text(&crd["spec"]["group"]),
        text(&version["name"]),
        text(&crd["spec"]["scope"]).to_lowercase(),
        text(&crd["spec"]["names"]["shortNames"][0]),
        text(&schema["description"]),
    );
    let mut rules = Vec::new();
    collect_rules(schema, "", &mut rules);
    for part in ["spec", "status"] {
        let root = schema["properties"].get(part).with_context(|| format!("no {part}"))?;
        page.push_str(&format!(
            "\n## {part}\n\n| field | type | default | bounds | meaning |\n|---|---|---|---|---|\n"
        ));
        fields(root, part, &mut page);
        collect_rules(root, part, &mut rules);
    }
    page.push_str("\n## Rules\n\nWhat `kubectl apply` refuses beyond types and bounds, with the text that it prints.\n\n| field | text | rule |\n|---|---|---|\n");
    for (path, message, rule) in rules {
        page.push_str(&format!("| `{path}` | {} | `{}` |\n", cell(&message), cell(&rule)));
    }
    Ok(page)
}

fn fields(schema: &Value, path: &str, page: &mut String) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        page.push_str(&format!(
            "| `{path}` | {} | {} | {} | {} |\n",
            cell(&type_of(field)),
            default(field, required.contains(&name.as_str())),
            cell(&bounds(field)),
            cell(field["description"].as_str().unwrap_or_default()),
        ));
        below(field, &path, page);
    }
}

fn below(field: &Value, path: &str, page: &mut String) {
    let inner = match field["type"].as_str() {
        Some("array") => (format!("{path}[]"), &field["items"]),
        _ => (path.to_owned(), field),
    };
    let own = !KUBERNETES.iter().any(|(known, _)| *known == inner.0);
    if own && inner.1.get("properties").is_some() {
        fields(inner.1, &inner.0, page);
    }
}

fn type_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    let name = field["type"].as_str().unwrap_or("any");
    match name {
        "array" => format!("list of {}", type_of(&field["items"])),
        "object" if field.get("additionalProperties").is_some() => {
            format!("map of {}", type_of(&field["additionalProperties"]))
        }
        other => other.to_owned(),
    }
}

fn default(field: &Value, required: bool) -> String {
    match field.get("default") {
        Some(value) if !value.is_null() => format!("`{value}`"),
        _ if required => "required".to_owned(),
        _ => String::new(),
    }
}

fn bounds(field: &Value) -> String {
    let mut bounds = Vec::new();
    for (key, word) in [
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("minLength", "length at least"),
        ("maxLength", "length at most"),
        ("minItems", "entries at least"),
        ("maxItems", "entries at most"),
        ("maxProperties", "entries at most"),
    ] {
        if let Some(number) = field.get(key).and_then(Value::as_f64) {
            bounds.push(format!("{word} {number}"));
        }
    }
    if let Some(values) = field.get("enum").and_then(Value::as_array) {
        let values: Vec<String> = values
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| format!("`{value}`"))
            .collect();
        bounds.push(values.join(", "));
    }
    bounds.join("; ")
}

/// The rules of a schema, those of its own level first.
fn collect_rules(schema: &Value, path: &str, rules: &mut Vec<(String, String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        let path = if path.is_empty() { "metadata.name" } else { path };
        rules.push((path.to_owned(), text("message"), text("rule")));
    }
    // The root's properties are walked by their own.
    if path.is_empty() {
        return;
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect_rules(field, &format!("{path}.{name}"), rules);
    }
    if schema["items"].is_object() {
        collect_rules(&schema["items"], &format!("{path}[]"), rules);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_our_own_has_a_row() {
        let page = page().unwrap();
        for field in [
            "| `spec.replicas` | integer | `1` | at least 1; at most 100 |",
            "| `spec.sandbox.idleTimeout` | string | `\"30m\"` |",
            "`spec.proxy.targets[].deniedResources[].resource`",
            "`status.url`",
            "no wildcards, list each host",
        ] {
            assert!(page.contains(field), "{field} in\n{page}");
        }
        assert!(!page.contains("valueFrom"), "Kubernetes explains its own types");
    }
}
