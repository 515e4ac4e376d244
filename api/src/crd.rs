//! The CustomResourceDefinition as it is installed: what the types derive to, in the form that controller-gen gives
//! its own, so that `kubectl explain` and the schema of quantities read like those of any other operator.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::v1alpha1::CliMcpInstance;

/// What `kubectl explain climcpinstance.spec` says.
const SPEC_DESCRIPTION: &str = "What an instance is to be: its sandboxes, its MCP server and its credential proxy.";

const API_VERSION_DESCRIPTION: &str = "APIVersion defines the versioned schema of this representation of an object. \
    Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. \
    More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";

const KIND_DESCRIPTION: &str = "Kind is a string value representing the REST resource this object represents. Servers \
    may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. \
    More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// The pattern that controller-gen gives every quantity, without the minus: there is less than nothing of no resource.
const QUANTITY_PATTERN: &str =
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Characters of a quantity.
const QUANTITY_LENGTH: i64 = 64;

/// A DNS subdomain, as names of objects and keys of their data are.
const NAME: i64 = 253;

/// A label's key: a prefix, a slash and a name.
const LABEL_KEY: i64 = 317;

/// A label's value.
const LABEL_VALUE: i64 = 63;

/// What Kubernetes' own types leave open: the most characters of a text, items of a list or entries of a map. The fields
/// are given by the end of their path.
const BOUNDS: [(&str, i64); 28] = [
    ("env[].name", NAME),
    // A quarter of what Linux lets the server's argument have that holds all of them (MAX_ARG_STRLEN, execve(2)).
    ("env[].value", 32_768),
    ("configMapKeyRef.name", NAME),
    ("configMapKeyRef.key", NAME),
    ("secretKeyRef.name", NAME),
    ("secretKeyRef.key", NAME),
    ("fieldRef.apiVersion", NAME),
    // metadata.annotations['KEY'] is the longest.
    ("fieldRef.fieldPath", 512),
    ("fileKeyRef.key", NAME),
    ("fileKeyRef.path", 4096),
    ("fileKeyRef.volumeName", LABEL_VALUE),
    ("resourceFieldRef.containerName", LABEL_VALUE),
    ("resourceFieldRef.resource", LABEL_KEY),
    ("imagePullSecrets[].name", NAME),
    ("nodeSelector{}", LABEL_VALUE),
    ("tolerations[].key", LABEL_KEY),
    ("tolerations[].operator", LABEL_VALUE),
    ("tolerations[].value", LABEL_VALUE),
    ("tolerations[].effect", LABEL_VALUE),
    ("resources.limits", 32),
    ("resources.requests", 32),
    // Refused by a rule that says why.
    ("resources.claims", 16),
    ("claims[].name", NAME),
    ("claims[].request", NAME),
    // As the type's documentation has them.
    ("conditions[].type", 316),
    ("conditions[].status", 16),
    ("conditions[].reason", 1024),
    ("conditions[].message", 32_768),
];

/// The CustomResourceDefinition of [`CliMcpInstance`].
#[must_use]
pub fn custom_resource_definition() -> CustomResourceDefinition {
    let mut crd = CliMcpInstance::crd();
    for schema in crd
        .spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
    {
        let properties = schema.properties.get_or_insert_default();
        properties.insert(
            "apiVersion".to_owned(),
            described("string", Some(API_VERSION_DESCRIPTION)),
        );
        properties.insert("kind".to_owned(), described("string", Some(KIND_DESCRIPTION)));
        properties.insert("metadata".to_owned(), described("object", None));
        if let Some(spec) = properties.get_mut("spec") {
            spec.description = Some(SPEC_DESCRIPTION.to_owned());
        }
        quantities(schema);
        bound(schema, "");
        unwrap_lines(schema);
    }
    crd
}

fn described(type_: &str, description: Option<&str>) -> JSONSchemaProps {
    JSONSchemaProps {
        type_: Some(type_.to_owned()),
        description: description.map(str::to_owned),
        ..JSONSchemaProps::default()
    }
}

/// Doc comments are wrapped at the width of the source: `kubectl explain` wraps them itself.
fn unwrap_lines(schema: &mut JSONSchemaProps) {
    if let Some(description) = &mut schema.description {
        *description = unwrapped(description);
    }
    schema
        .properties
        .iter_mut()
        .flatten()
        .for_each(|(_, property)| unwrap_lines(property));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        unwrap_lines(items);
    }
}

/// Joins the lines of a paragraph; those of lists and empty ones stay.
fn unwrapped(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let continues = line.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '/' | '(' | '<' | '`'));
        if !joined.is_empty() {
            joined.push(if continues && !joined.ends_with('\n') {
                ' '
            } else {
                '\n'
            });
        }
        joined.push_str(line);
    }
    joined
}

/// Gives every quantity in the schema its two types and its pattern, and drops the page-long description of the type
/// that would stand at each that has none of its own.
fn quantities(schema: &mut JSONSchemaProps) {
    if schema.x_kubernetes_int_or_string == Some(true) {
        *schema = JSONSchemaProps {
            any_of: Some(vec![described("integer", None), described("string", None)]),
            pattern: Some(QUANTITY_PATTERN.to_owned()),
            max_length: Some(QUANTITY_LENGTH),
            minimum: Some(0.0),
            x_kubernetes_int_or_string: Some(true),
            nullable: schema.nullable,
            description: schema
                .description
                .take()
                .filter(|text| !text.starts_with("Quantity is a fixed-point")),
            ..JSONSchemaProps::default()
        };
        return;
    }
    schema
        .properties
        .iter_mut()
        .flatten()
        .for_each(|(_, property)| quantities(property));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        quantities(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(additional)) = &mut schema.additional_properties {
        quantities(additional);
    }
}

/// Sets the [`BOUNDS`] of the fields in the schema, which is that of `path`.
fn bound(schema: &mut JSONSchemaProps, path: &str) {
    let is_at = |field: &str| {
        path.strip_suffix(field)
            .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    if let Some((_, most)) = BOUNDS.iter().find(|(field, _)| is_at(field)) {
        match schema.type_.as_deref() {
            Some("array") => schema.max_items = Some(*most),
            Some("object") => schema.max_properties = Some(*most),
            _ => schema.max_length = Some(*most),
        }
    }
    for (name, property) in schema.properties.iter_mut().flatten() {
        bound(property, &format!("{path}.{name}"));
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        bound(items, &format!("{path}[]"));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(additional)) = &mut schema.additional_properties {
        bound(additional, &format!("{path}{{}}"));
    }
}

/// The YAML file that is committed as `config/crd/bases/cli-mcp.redhat.com_climcpinstances.yaml`.
///
/// # Errors
///
/// When the definition cannot be written as YAML, which does not happen for a derived type.
pub fn yaml() -> Result<String, serde_yaml::Error> {
    let mut value = serde_yaml::to_value(custom_resource_definition())?;
    drop_nulls(&mut value);
    Ok(format!(
        "# Generated by `make manifests` from api/src/v1alpha1.rs. Do not edit.\n---\n{}",
        serde_yaml::to_string(&value)?
    ))
}

/// `nullable: true` beside an absent default is noise that controller-gen does not write: an unset field is left out.
fn drop_nulls(value: &mut serde_yaml::Value) {
    match value {
        serde_yaml::Value::Mapping(mapping) => {
            mapping.retain(|key, value| !value.is_null() && key.as_str() != Some("nullable"));
            mapping.iter_mut().for_each(|(_, value)| drop_nulls(value));
        }
        serde_yaml::Value::Sequence(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_lists_are_not() {
        assert_eq!(
            unwrapped("one\ntwo (a\nb)\n\nthree\n- x\n- y"),
            "one two (a b)\n\nthree\n- x\n- y"
        );
    }
}
