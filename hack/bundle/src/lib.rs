//! From the manifests of `config/manifests` to the files of a `registry+v1` bundle, without reading or writing anything:
//! the same manifests give the same bytes.
//!
//! What a bundle holds: <https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/>.

pub mod csv;
pub mod descriptors;
pub mod images;
pub mod install;
pub mod olm;
pub mod package;
pub mod stream;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::olm::Group;
use crate::package::Package;
use crate::stream::Stream;

/// Why no bundle can be made of the manifests.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The input is no YAML.
    #[error("document {number} of the manifests is no YAML: {source}")]
    Yaml {
        /// Which document, from 1.
        number: usize,
        /// Why.
        #[source]
        source: serde_yaml::Error,
    },
    /// Something cannot be written as YAML or JSON.
    #[error("cannot be written: {0}")]
    Write(String),
    /// There must be one of a kind.
    #[error("the manifests have {found} of kind {kind}, expected {expected}")]
    Count {
        /// The kind.
        kind: &'static str,
        /// How many there are.
        found: usize,
        /// How many there must be.
        expected: &'static str,
    },
    /// An object lacks what the bundle is made of.
    #[error("{object}: {what}")]
    Object {
        /// Kind and name.
        object: String,
        /// What is wrong.
        what: String,
    },
}

/// The files of the bundle, by path from the root of the repository.
///
/// # Errors
///
/// When the manifests do not make a bundle.
pub fn generate(manifests: &str, package: &Package) -> Result<BTreeMap<String, String>, BundleError> {
    let mut stream = Stream::parse(manifests)?;
    for deployment in stream.0.iter_mut().filter(|object| object["kind"] == "Deployment") {
        images::replace(deployment, &package.images);
    }
    let mut files = BTreeMap::new();
    let csv = csv::build(&stream, package)?;
    let name = csv["metadata"]["name"].as_str().unwrap_or_default();
    let operator = name.split_once(".v").map_or(name, |(operator, _)| operator).to_owned();
    files.insert(
        format!("bundle/manifests/{operator}.clusterserviceversion.yaml"),
        yaml(&csv)?,
    );
    for object in stream.beside_the_csv() {
        let mut object = object.clone();
        // OLM puts it into the namespace of the operator, whatever that is.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        files.insert(
            format!("bundle/manifests/{}", stream::file_name(&object)),
            yaml(&object)?,
        );
    }
    let scorecard = stream.only("Configuration")?;
    files.insert("bundle/tests/scorecard/config.yaml".to_owned(), yaml(scorecard)?);
    files.insert(
        "bundle/metadata/annotations.yaml".to_owned(),
        package.annotations(&operator),
    );
    files.insert("bundle.Dockerfile".to_owned(), package.dockerfile(&operator));
    files.insert("catalog/template.yaml".to_owned(), package.catalog_template(&operator));
    Ok(files)
}

/// The objects that OLM would install of a bundle, given as the text of all its manifests.
///
/// # Errors
///
/// When the bundle is none, or does not support the group.
pub fn install(bundle: &str, group: &Group, images: &[(String, String)]) -> Result<Vec<Value>, BundleError> {
    let mut stream = Stream::parse(bundle)?;
    let mut csv = stream.only("ClusterServiceVersion")?.clone();
    stream.0.retain(|object| object["kind"] != "ClusterServiceVersion");
    for deployment in csv["spec"]["install"]["spec"]["deployments"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        images::replace(deployment, images);
    }
    olm::objects(&csv, &stream.0, group)
}

fn yaml(value: &Value) -> Result<String, BundleError> {
    serde_yaml::to_string(value).map_err(|error| BundleError::Write(error.to_string()))
}
