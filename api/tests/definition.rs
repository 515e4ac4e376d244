//! The committed CustomResourceDefinition is what the types derive to, and follows the conventions that API reviewers
//! look for.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use cli_mcp_api::crd;
use serde_json::Value;

const COMMITTED: &str = include_str!("../../config/crd/bases/cli-mcp.redhat.com_climcpinstances.yaml");

/// Every schema in the definition, with its path.
fn schemas(value: &Value, path: &str, visit: &mut impl FnMut(&str, &serde_json::Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            visit(path, map);
            for (key, inner) in map {
                schemas(inner, &format!("{path}/{key}"), visit);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| schemas(inner, path, visit)),
        _ => {}
    }
}

#[test]
fn the_committed_definition_is_current() {
    assert!(
        COMMITTED == crd::yaml().unwrap(),
        "config/crd/bases is behind the types: run make manifests"
    );
}

#[test]
fn no_format_is_unsigned() {
    let definition: Value = serde_yaml::from_str(COMMITTED).unwrap();
    schemas(&definition, "", &mut |path, schema| {
        if let Some(format) = schema.get("format").and_then(Value::as_str) {
            assert!(!format.starts_with('u'), "{path}: {format}");
        }
    });
}

#[test]
fn every_field_is_explained() {
    let definition: Value = serde_yaml::from_str(COMMITTED).unwrap();
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(root["description"].as_str().unwrap().starts_with("CliMcpInstance"));
    for part in ["spec", "status"] {
        let mut ours = Vec::new();
        schemas(&root["properties"][part], part, &mut |path, schema| {
            if let Some(Value::Object(properties)) = schema.get("properties") {
                ours.extend(
                    properties
                        .iter()
                        .map(|(name, field)| (format!("{path}.{name}"), field.clone())),
                );
            }
        });
        assert!(!ours.is_empty());
        // The divisor of a resourceFieldRef is Kubernetes' own type, which explains itself at length: see crd::quantities.
        for (path, field) in ours
            .into_iter()
            .filter(|(path, _)| !path.ends_with("resourceFieldRef.divisor"))
        {
            assert!(field["description"].is_string(), "{path} has no description");
        }
    }
}

#[test]
fn every_text_list_and_map_is_bounded() {
    let definition: Value = serde_yaml::from_str(COMMITTED).unwrap();
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let (mut open, mut bounded) = (Vec::new(), 0);
    for part in ["spec", "status"] {
        schemas(&root["properties"][part], part, &mut |path, schema| {
            let is = |type_: &str| schema.get("type").is_some_and(|found| found == type_);
            let may_be_text = is("string") && !path.ends_with("/anyOf")
                || schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
            let is_counted =
                schema.contains_key("enum") || schema.get("format").is_some_and(|format| format == "date-time");
            let bound = if may_be_text && !is_counted {
                "maxLength"
            } else if is("array") {
                "maxItems"
            } else if is("object") && !schema.contains_key("properties") {
                "maxProperties"
            } else {
                return;
            };
            if schema.get(bound).is_some_and(Value::is_number) {
                bounded += 1;
            } else {
                open.push(format!("{path} has no {bound}"));
            }
        });
    }
    assert!(open.is_empty(), "{}", open.join("\n"));
    assert!(bounded > 40, "{bounded} bounds were found");
}

#[test]
fn the_names_and_the_printer_columns_are_there() {
    let definition: Value = serde_yaml::from_str(COMMITTED).unwrap();
    let names = &definition["spec"]["names"];
    assert_eq!(names["shortNames"][0], "cmi");
    assert_eq!(names["categories"][0], "cli-mcp");
    let version = &definition["spec"]["versions"][0];
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(columns, ["Ready", "Reason", "Sessions", "Pool", "Age"]);
    assert!(version["subresources"]["status"].is_object());
}
