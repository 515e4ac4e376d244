//! Descriptors of the form that a console shows for an instance. Which fields it shows under which name stands in the base
//! ClusterServiceVersion; what a field means is taken from the CustomResourceDefinition, so that it is said once.

use serde_json::{Map, Value};

use crate::BundleError;

/// How deep the fields are that must have a descriptor; those below it may have one.
const DEPTH: usize = 2;

/// Gives each descriptor the description of its field.
///
/// # Errors
///
/// When a descriptor is of a field that does not exist, or a field has no descriptor.
pub fn describe(descriptors: &mut Value, schema: &Value, what: &str) -> Result<(), BundleError> {
    let error = |path: &str, problem: &str| BundleError::Object {
        object: format!("{what} {path}"),
        what: problem.to_owned(),
    };
    let mut known = Vec::new();
    for descriptor in descriptors.as_array_mut().into_iter().flatten() {
        let path = descriptor["path"].as_str().unwrap_or_default().to_owned();
        let field =
            field(schema, &path).ok_or_else(|| error(&path, "the CustomResourceDefinition has no such field"))?;
        if descriptor["displayName"].as_str().is_none_or(str::is_empty) {
            return Err(error(&path, "there is no displayName"));
        }
        if let Some(description) = field["description"].as_str() {
            descriptor["description"] = one_line(description).into();
        }
        known.push(path);
    }
    for path in fields(schema) {
        if !known.contains(&path) {
            return Err(error(
                &path,
                "the field has no descriptor in the base ClusterServiceVersion",
            ));
        }
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The schema of a field such as `proxy.targets[0].type`.
fn field<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(schema, |schema, part| {
        let (name, item) = match part.split_once('[') {
            Some((name, _)) => (name, true),
            None => (part, false),
        };
        let field = schema["properties"].get(name)?;
        if item { field.get("items") } else { Some(field) }
    })
}

/// Paths of the fields to [`DEPTH`]; of lists and maps only the field itself.
fn fields(schema: &Value) -> Vec<String> {
    fn properties(schema: &Value) -> Option<&Map<String, Value>> {
        schema["properties"].as_object()
    }
    fn walk(schema: &Value, prefix: &str, depth: usize, paths: &mut Vec<String>) {
        for (name, field) in properties(schema).into_iter().flatten() {
            let path = format!("{prefix}{name}");
            if depth < DEPTH {
                walk(field, &format!("{path}."), depth + 1, paths);
            }
            paths.push(path);
        }
    }
    let mut paths = Vec::new();
    walk(schema, "", 1, &mut paths);
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"properties": {
            "size": {"type": "integer", "description": "How many.\nOr how few."},
            "pod": {"properties": {"image": {"description": "Its image."}}},
            "targets": {"items": {"properties": {"host": {"description": "Its host."}}}},
        }})
    }

    fn named(paths: &[&str]) -> Value {
        paths
            .iter()
            .map(|path| json!({"path": path, "displayName": path}))
            .collect()
    }

    #[test]
    fn descriptions_come_from_the_schema() {
        let mut all = named(&["size", "pod", "pod.image", "targets", "targets[0].host"]);
        describe(&mut all, &schema(), "spec").unwrap();
        assert_eq!(all[0]["description"], "How many. Or how few.");
        assert_eq!(all[4]["description"], "Its host.");
    }

    #[test]
    fn a_field_without_descriptor_and_a_descriptor_without_field_are_named() {
        let missing = describe(&mut named(&["size", "pod", "targets"]), &schema(), "spec").unwrap_err();
        assert!(missing.to_string().contains("spec pod.image"), "{missing}");
        let stale = describe(&mut named(&["size", "gone"]), &schema(), "spec").unwrap_err();
        assert!(stale.to_string().contains("spec gone"), "{stale}");
    }
}
