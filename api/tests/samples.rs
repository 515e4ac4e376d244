//! The samples are instances, each different from the others, and none is left out of the kustomization.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use std::collections::BTreeSet;
use std::path::Path;

use cli_mcp_api::v1alpha1::CliMcpInstance;

#[test]
fn every_sample_is_an_instance_and_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/samples");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let kustomization: serde_json::Value = serde_yaml::from_str(&read("kustomization.yaml")).unwrap();
    let listed: BTreeSet<String> = kustomization["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    let found: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(listed, found);
    let mut names = BTreeSet::new();
    for sample in &found {
        let instance: CliMcpInstance = serde_yaml::from_str(&read(sample)).unwrap();
        assert!(
            names.insert(instance.metadata.name.unwrap()),
            "{sample} has the name of another sample"
        );
    }
}
