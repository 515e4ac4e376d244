//! The committed bundle: made from `config/`, of this version, with this icon, with every sample, and installable in each mode that
//! it claims.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot read what it tests has failed"
)]

mod drift;

use std::io::Write;

use cli_mcp_bundle::images;
use cli_mcp_bundle::olm::Group;
use drift::repository;
use serde_json::Value;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn csv() -> Value {
    serde_yaml::from_str(&read("bundle/manifests/cli-mcp-operator.clusterserviceversion.yaml")).unwrap()
}

/// The workspace's version is the one place; whatever repeats it must follow.
#[test]
fn the_version_is_the_workspaces_everywhere() {
    let csv = csv();
    assert_eq!(csv["metadata"]["name"], format!("cli-mcp-operator.v{VERSION}"));
    assert_eq!(csv["spec"]["version"], VERSION);
    let kustomization: Value = serde_yaml::from_str(&read("config/manager/kustomization.yaml")).unwrap();
    let images = kustomization["images"].as_array().unwrap();
    assert_eq!(images.len(), 4);
    for image in images {
        assert_eq!(image["newTag"], format!("v{VERSION}"), "config/manager: {image}");
    }
    for program in ["operator", "server", "proxy", "agent"] {
        let file = format!("Containerfile.{program}");
        assert!(read(&file).contains(&format!("\nARG VERSION={VERSION}\n")), "{file}");
    }
    assert!(read("catalog/template.yaml").contains(&format!("bundle:v{VERSION}\n")));
}

/// Docker reads a file of another name than podman and buildah do.
#[test]
fn docker_leaves_out_what_podman_leaves_out() {
    assert_eq!(
        read(".dockerignore"),
        read(".containerignore"),
        "copy one over the other"
    );
}

/// `on_cluster.rs` has it once more, for machines that get kubectl with the development cluster.
#[test]
fn the_bundle_is_the_one_that_config_makes() {
    if !drift::kubectl_is_installed() {
        // Past the harness, which keeps to itself what a test prints that passes.
        let note = "SKIPPED: kubectl is not installed, the bundle was not compared with config/\n";
        std::io::stderr().write_all(note.as_bytes()).unwrap();
        return;
    }
    assert_eq!(drift::stale(), Vec::<String>::new(), "behind config/: run make bundle");
}

#[test]
fn the_icon_is_the_drawing() {
    use std::fmt::Write;
    let csv = csv();
    let encoded = csv["spec"]["icon"][0]["base64data"].as_str().unwrap();
    // RFC 4648, section 4: the other way round is shorter than a decoder.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut expected = String::new();
    for chunk in read("config/manifests/bases/icon.svg").as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let digit = alphabet[(bits >> (18 - 6 * position) & 63) as usize] as char;
            write!(expected, "{}", if position <= chunk.len() { digit } else { '=' }).unwrap();
        }
    }
    assert_eq!(
        encoded, expected,
        "config/manifests/bases/icon.svg is not the icon of the base ClusterServiceVersion"
    );
}

#[test]
fn every_sample_is_an_example() {
    let examples: Vec<Value> =
        serde_json::from_str(csv()["metadata"]["annotations"]["alm-examples"].as_str().unwrap()).unwrap();
    let samples: Value = serde_yaml::from_str(&read("config/samples/kustomization.yaml")).unwrap();
    assert_eq!(examples.len(), samples["resources"].as_array().unwrap().len());
    assert!(examples.iter().all(|example| example["kind"] == "CliMcpInstance"));
}

#[test]
fn it_is_fit_for_disconnected_clusters_when_it_says_so() {
    let csv = csv();
    let related = csv["spec"]["relatedImages"].as_array().unwrap();
    let pinned = related.iter().all(images::is_pinned);
    assert_eq!(related.len(), 4);
    assert_eq!(
        csv["metadata"]["annotations"]["features.operators.openshift.io/disconnected"],
        pinned.to_string()
    );
}

#[test]
fn each_mode_installs_an_operator_that_is_told_its_namespaces() {
    let folder = repository().join("bundle/manifests");
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        text.push_str("---\n");
        text.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    for (targets, mode) in [
        (&["own"][..], "OwnNamespace"),
        (&["other"], "SingleNamespace"),
        (&["one", "two"], "MultiNamespace"),
        (&[], "AllNamespaces"),
    ] {
        let group = Group {
            namespace: "own".to_owned(),
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        };
        assert_eq!(group.mode(), mode);
        let objects = cli_mcp_bundle::install(&text, &group, &[]).unwrap();
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let template = &deployment["spec"]["template"];
        assert_eq!(
            template["metadata"]["annotations"]["olm.targetNamespaces"],
            targets.join(",")
        );
        let variables = template["spec"]["containers"][0]["env"].as_array().unwrap();
        let source = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
        assert_eq!(
            source("WATCH_NAMESPACE")["valueFrom"]["fieldRef"]["fieldPath"],
            "metadata.annotations['olm.targetNamespaces']"
        );
        // OLM's annotation is empty for all namespaces, and the operator's own meaning of empty is another.
        assert_eq!(source("DEFAULT_WATCH_NAMESPACE")["value"], "*");
    }
}
