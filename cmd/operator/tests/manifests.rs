//! The committed manifests: what the operator may do is what it does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot read what it tests has failed"
)]

use std::path::Path;

use serde_json::Value;

fn documents(path: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.split("\n---\n")
        .map(|document| serde_yaml::from_str(document).unwrap())
        .collect()
}

fn rules(path: &str) -> Vec<Value> {
    documents(path)[0]["rules"].as_array().unwrap().clone()
}

fn strings(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn no_rule_has_a_wildcard_or_lets_the_operator_escalate() {
    for file in [
        "rbac/role.yaml",
        "rbac/cluster_role.yaml",
        "rbac/leader_election_role.yaml",
        "all-namespaces/cluster_role.yaml",
    ] {
        for rule in rules(file) {
            for word in ["*", "escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!rule.to_string().contains(&format!("\"{word}\"")), "{file}: {word}");
            }
        }
    }
}

#[test]
fn secrets_are_never_changed_or_deleted() {
    let rules = rules("rbac/role.yaml");
    let verbs: Vec<&str> = rules
        .iter()
        .filter(|rule| strings(&rule["resources"]).contains(&"secrets"))
        .flat_map(|rule| strings(&rule["verbs"]))
        .collect();
    assert_eq!(verbs, ["get", "list", "watch", "create"]);
}

#[test]
fn the_roles_are_what_the_table_of_rights_says() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    for manifest in cli_mcp_controllers::rights::manifests() {
        let committed = std::fs::read_to_string(config.join(manifest.path)).unwrap();
        assert!(
            committed == manifest.text,
            "{} is outdated: run make manifests",
            manifest.path
        );
    }
    assert_eq!(rules("rbac/role.yaml"), rules("all-namespaces/cluster_role.yaml"));
}

#[test]
fn the_namespace_enforces_the_restricted_standard_and_the_manager_passes_it() {
    let manager = documents("manager/manager.yaml");
    let namespace = manager.iter().find(|document| document["kind"] == "Namespace").unwrap();
    assert_eq!(
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
    let pod = &manager
        .iter()
        .find(|document| document["kind"] == "Deployment")
        .unwrap()["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(
        container["securityContext"]["capabilities"]["drop"],
        serde_json::json!(["ALL"])
    );
    assert!(!pod.to_string().contains("runAsUser"));
}

#[test]
fn the_managers_flags_and_variables_exist() {
    use clap::{CommandFactory, Parser};
    let manager = documents("manager/manager.yaml");
    let container = manager
        .iter()
        .find(|document| document["kind"] == "Deployment")
        .unwrap()["spec"]["template"]["spec"]["containers"][0]
        .clone();
    let arguments = std::iter::once("operator").chain(strings(&container["args"]));
    cli_mcp_operator::cli::Cli::try_parse_from(arguments).unwrap();
    let command = cli_mcp_operator::cli::Cli::command();
    let known: Vec<String> = command
        .get_arguments()
        .filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned()))
        .collect();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        assert!(known.iter().any(|known| known == name), "{name}");
    }
}
