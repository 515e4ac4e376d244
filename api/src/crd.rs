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

/// The pattern that controller-gen gives every quantity.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

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
