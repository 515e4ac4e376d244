//! The admission rules, evaluated without a cluster over the table that is also sent to a real API server.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use cli_mcp_api::crd;
use kube::core::cel::Validator;
use serde_json::{Value, json};

fn cases() -> Vec<Value> {
    serde_yaml::from_str(include_str!("admission.yaml")).unwrap()
}

/// The object of a case: its spec on top of the least one.
fn object(case: &Value) -> Value {
    let mut spec = case["spec"].clone();
    if spec["proxy"].is_null() {
        spec["proxy"] = json!({});
    }
    if spec["proxy"]["targets"].is_null() {
        spec["proxy"]["targets"] = json!([{"type": "kubernetes"}]);
    }
    json!({
        "apiVersion": "cli-mcp.redhat.com/v1alpha1",
        "kind": "CliMcpInstance",
        "metadata": {"name": case["name"].as_str().unwrap_or("demo"), "namespace": "default"},
        "spec": spec,
    })
}

/// What the CEL rules say; empty when they accept.
fn refusals(object: &Value) -> String {
    let crd = crd::custom_resource_definition();
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .unwrap()
        .open_api_v3_schema
        .as_ref()
        .unwrap();
    match Validator::new().validate(&serde_json::to_value(schema).unwrap(), object, None) {
        Ok(()) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn every_rule_accepts_and_refuses_as_the_table_says() {
    let mut wrong = Vec::new();
    for case in cases() {
        let said = refusals(&object(&case));
        match (case["refused"].as_str(), case["by"].as_str()) {
            (Some(message), Some("cel")) if !said.contains(message) => {
                wrong.push(format!("{}: expected {message:?}, got {said:?}", case["case"]));
            }
            (None, _) if !said.is_empty() => wrong.push(format!("{}: {said}", case["case"])),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_is_in_the_table() {
    fn messages(schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(map) => {
                for rule in map
                    .get("x-kubernetes-validations")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    found.push(rule["message"].as_str().unwrap().to_owned());
                }
                map.values().for_each(|inner| messages(inner, found));
            }
            Value::Array(list) => list.iter().for_each(|inner| messages(inner, found)),
            _ => {}
        }
    }
    let mut rules = Vec::new();
    messages(
        &serde_json::to_value(crd::custom_resource_definition()).unwrap(),
        &mut rules,
    );
    assert!(rules.len() > 10);
    let cases = cases();
    for rule in rules {
        let named = cases
            .iter()
            .filter_map(|case| case["refused"].as_str())
            .any(|message| rule.contains(message));
        assert!(named, "no case is refused by: {rule}");
    }
}

#[test]
fn every_accepted_object_is_read_by_the_type_and_keeps_its_meaning() {
    for case in cases().iter().filter(|case| case["refused"].is_null()) {
        let instance: cli_mcp_api::v1alpha1::CliMcpInstance = serde_json::from_value(object(case)).unwrap();
        let again = serde_json::from_value(serde_json::to_value(&instance).unwrap()).unwrap();
        assert_eq!(instance, again, "{}", case["case"]);
    }
}

/// The first field of an object that another lacks or has otherwise.
fn lost(object: &Value, other: &Value, path: &str) -> Option<String> {
    match (object, other) {
        (Value::Object(object), Value::Object(_)) => object
            .iter()
            .find_map(|(key, value)| lost(value, &other[key], &format!("{path}.{key}"))),
        (Value::Array(list), Value::Array(others)) if list.len() == others.len() => list
            .iter()
            .zip(others)
            .find_map(|(value, other)| lost(value, other, path)),
        _ => (object != other).then(|| path.to_owned()),
    }
}

#[test]
fn every_sample_is_admitted_and_loses_no_field() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/samples");
    let mut samples = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("kustomization.yaml") {
            continue;
        }
        let sample: Value = serde_yaml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let file = path.display();
        assert_eq!(refusals(&sample), "", "{file}");
        let instance: cli_mcp_api::v1alpha1::CliMcpInstance = serde_json::from_value(sample.clone()).unwrap();
        let read = serde_json::to_value(&instance).unwrap();
        assert_eq!(lost(&sample, &read, ""), None, "{file}");
        samples += 1;
    }
    // The uses of the operator: kubernetes, allowlist, both, warm pool, read-only, gVisor.
    assert_eq!(samples, 6);
}
