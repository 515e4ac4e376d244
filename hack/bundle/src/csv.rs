//! The ClusterServiceVersion: the base of `config/manifests/bases`, filled with what the other manifests say.

use serde_json::{Value, json};

use crate::package::Package;
use crate::stream::{Stream, title};
use crate::{BundleError, descriptors, images, install};

/// Annotation that says whether the operator runs in a cluster without a way out
/// (<https://docs.openshift.com/container-platform/latest/operators/operator_sdk/osdk-generating-csvs.html>).
const DISCONNECTED: &str = "features.operators.openshift.io/disconnected";

/// Builds it.
///
/// # Errors
///
/// When the manifests lack something, or contradict the version.
pub fn build(stream: &Stream, package: &Package) -> Result<Value, BundleError> {
    let mut csv = stream.only("ClusterServiceVersion")?.clone();
    let (related, own_image) = images::related(stream.only("Deployment")?);
    check_tags(&related, package)?;
    let operator = csv["metadata"]["name"].as_str().unwrap_or_default();
    let operator = operator.split_once(".v").map_or(operator, |(operator, _)| operator);
    csv["metadata"]["name"] = format!("{operator}.v{}", package.version).into();
    csv["metadata"]["namespace"] = "placeholder".into();
    let annotations = &mut csv["metadata"]["annotations"];
    annotations["alm-examples"] = examples(stream)?.into();
    annotations["containerImage"] = own_image.into();
    annotations[DISCONNECTED] = related.iter().all(images::is_pinned).to_string().into();
    csv["spec"]["version"] = package.version.clone().into();
    csv["spec"]["relatedImages"] = related.into();
    csv["spec"]["install"] = install::strategy(stream)?;
    own(&mut csv["spec"]["customresourcedefinitions"]["owned"], stream)?;
    Ok(csv)
}

/// An image that is named by tag must have that of this version: a bundle installs what it was released with.
fn check_tags(related: &[Value], package: &Package) -> Result<(), BundleError> {
    let tag = format!(":v{}", package.version);
    for image in related.iter().filter(|image| !images::is_pinned(image)) {
        let name = image["image"].as_str().unwrap_or_default();
        if !name.ends_with(&tag) {
            return Err(BundleError::Object {
                object: format!("image {name}"),
                what: format!(
                    "the tag is not {tag}, that of the workspace's version; see config/manager/kustomization.yaml"
                ),
            });
        }
    }
    Ok(())
}

/// `alm-examples`: the samples, as the console offers them.
fn examples(stream: &Stream) -> Result<String, BundleError> {
    let kinds: Vec<&Value> = stream
        .of("CustomResourceDefinition")
        .map(|definition| &definition["spec"]["names"]["kind"])
        .collect();
    let mut examples: Vec<Value> = stream
        .0
        .iter()
        .filter(|object| kinds.contains(&&object["kind"]))
        .cloned()
        .collect();
    for example in &mut examples {
        // The scorecard asks for it; the API server drops it when an instance is made of the example.
        example["status"] = json!({"conditions": []});
    }
    serde_json::to_string_pretty(&examples).map_err(|error| BundleError::Write(error.to_string()))
}

/// Completes `owned` from the definitions, one by one.
fn own(owned: &mut Value, stream: &Stream) -> Result<(), BundleError> {
    let definitions: Vec<&Value> = stream.of("CustomResourceDefinition").collect();
    let owned = owned.as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    if owned.len() != definitions.len() {
        return Err(BundleError::Count {
            kind: "CustomResourceDefinition",
            found: definitions.len(),
            expected: "as many as the base ClusterServiceVersion owns",
        });
    }
    for (entry, definition) in owned.iter_mut().zip(definitions) {
        let missing = |what: &str| BundleError::Object {
            object: title(definition),
            what: what.to_owned(),
        };
        let versions = definition["spec"]["versions"].as_array();
        let served = versions
            .into_iter()
            .flatten()
            .find(|version| version["storage"] == true)
            .ok_or_else(|| missing("no version is stored"))?;
        let schema = &served["schema"]["openAPIV3Schema"];
        entry["name"] = definition["metadata"]["name"].clone();
        entry["kind"] = definition["spec"]["names"]["kind"].clone();
        entry["version"] = served["name"].clone();
        entry["description"] = schema["description"].clone();
        if entry["resources"].as_array().is_none_or(Vec::is_empty) {
            return Err(missing("the base ClusterServiceVersion lists no resources"));
        }
        for (field, part) in [("specDescriptors", "spec"), ("statusDescriptors", "status")] {
            if entry[field].is_null() {
                entry[field] = json!([]);
            }
            descriptors::describe(&mut entry[field], &schema["properties"][part], part)?;
        }
    }
    Ok(())
}
