//! What kustomize printed, as objects that can be asked for by kind.

use serde::Deserialize;
use serde_json::Value;

use crate::BundleError;

/// The objects of `config/manifests`.
#[derive(Debug)]
pub struct Stream(pub Vec<Value>);

impl Stream {
    /// Reads the documents.
    ///
    /// # Errors
    ///
    /// When one is no YAML.
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        let mut objects = Vec::new();
        for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
            let object = Value::deserialize(document).map_err(|source| BundleError::Yaml {
                number: index + 1,
                source,
            })?;
            if !object.is_null() {
                objects.push(object);
            }
        }
        Ok(Self(objects))
    }

    /// The objects of a kind, in their order.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The one object of a kind.
    ///
    /// # Errors
    ///
    /// When there is none or more than one.
    pub fn only(&self, kind: &'static str) -> Result<&Value, BundleError> {
        let found: Vec<&Value> = self.of(kind).collect();
        match found[..] {
            [one] => Ok(one),
            _ => Err(BundleError::Count {
                kind,
                found: found.len(),
                expected: "one",
            }),
        }
    }

    /// What stands in files of its own next to the ClusterServiceVersion: definitions, Services, and the ClusterRoles that
    /// an administrator binds. The rest OLM makes itself out of the ClusterServiceVersion.
    pub fn beside_the_csv(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().filter_map(|object| {
            let goes = match object["kind"].as_str()? {
                "CustomResourceDefinition" | "Service" => true,
                "ClusterRole" => self
                    .of("ClusterRoleBinding")
                    .all(|binding| binding["roleRef"]["name"] != object["metadata"]["name"]),
                _ => false,
            };
            goes.then_some(object)
        })
    }
}

/// Name of an object as an error names it.
#[must_use]
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The file that operator-sdk writes an object to: `<group>_<plural>.yaml` for definitions, else
/// `<name>_<group>_<version>_<kind>.yaml`.
#[must_use]
pub fn file_name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&object["metadata"]["name"]);
    let kind = text(&object["kind"]).to_lowercase();
    if kind == "customresourcedefinition" {
        let group = text(&object["spec"]["group"]);
        return format!("{group}_{}.yaml", text(&object["spec"]["names"]["plural"]));
    }
    format!("{name}_{}_{kind}.yaml", text(&object["apiVersion"]).replace('/', "_"))
}
