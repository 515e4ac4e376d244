//! What the children promise: hardening, tokens, selectors, and what rolls a Deployment.

use std::collections::BTreeSet;

use cli_mcp_api::v1alpha1::CliMcpInstance;
use serde_json::{Value, json};

use super::*;
use crate::settings::Settings;
use crate::validate::fixtures::{self, instance};
use crate::validate::{Validated, validate};

fn children(instance: &CliMcpInstance) -> Children {
    build(&fixtures::validated(instance, &fixtures::observed())).unwrap()
}

fn child(children: &Children, kind: ChildKind, name: &str) -> Value {
    let found = children
        .apply
        .iter()
        .find(|child| child.reference.kind == kind && child.reference.name == name);
    serde_json::to_value(&found.unwrap_or_else(|| panic!("no {kind:?} {name}")).object).unwrap()
}

#[test]
fn an_instance_has_every_child_of_the_contract() {
    let names: BTreeSet<String> = children(&instance())
        .apply
        .iter()
        .map(|child| child.reference.to_string())
        .collect();
    let expected = [
        "NetworkPolicy cli-mcp-demo-sandbox",
        "NetworkPolicy cli-mcp-demo-proxy",
        "ServiceAccount cli-mcp-demo",
        "ServiceAccount cli-mcp-demo-proxy",
        "ServiceAccount cli-mcp-demo-sandbox",
        "ServiceAccount cli-mcp-demo-client",
        "Role cli-mcp-demo",
        "Role cli-mcp-demo-client",
        "RoleBinding cli-mcp-demo",
        "RoleBinding cli-mcp-demo-client",
        "Service cli-mcp-demo",
        "Service cli-mcp-demo-proxy",
        "ConfigMap cli-mcp-demo-proxy",
        "Deployment cli-mcp-demo",
        "Deployment cli-mcp-demo-proxy",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}

#[test]
fn every_child_is_owned_labelled_and_typed() {
    for child in children(&instance()).apply {
        let object = child.object;
        let owner = &object.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
        assert_eq!(object.metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(object.labels()[cli_mcp_api::labels::INSTANCE], "demo");
        assert_eq!(object.labels()["app.kubernetes.io/managed-by"], "cli-mcp-operator");
        assert!(object.types.is_some());
    }
}

#[test]
fn pods_pass_the_restricted_standard_and_have_what_reviewers_ask_for() {
    let children = children(&instance());
    for name in ["cli-mcp-demo", "cli-mcp-demo-proxy"] {
        let spec = child(&children, ChildKind::Deployment, name)["spec"]["template"]["spec"].clone();
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert!(!spec.to_string().contains("runAsUser"));
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert!(container["livenessProbe"].is_object() && container["readinessProbe"].is_object());
        assert!(container["resources"]["requests"]["memory"].is_string());
    }
}

#[test]
fn only_the_server_has_a_token() {
    let children = children(&instance());
    let token = |kind, name: &str, path: &str| child(&children, kind, name).pointer(path).cloned().unwrap();
    let in_pod = "/spec/template/spec/automountServiceAccountToken";
    assert_eq!(token(ChildKind::Deployment, "cli-mcp-demo", in_pod), true);
    assert_eq!(token(ChildKind::Deployment, "cli-mcp-demo-proxy", in_pod), false);
    for name in ["cli-mcp-demo-proxy", "cli-mcp-demo-sandbox", "cli-mcp-demo-client"] {
        assert_eq!(
            token(ChildKind::ServiceAccount, name, "/automountServiceAccountToken"),
            false
        );
    }
}

#[test]
fn the_servers_role_names_no_secret_and_no_custom_resource() {
    let role = child(&children(&instance()), ChildKind::Role, "cli-mcp-demo").to_string();
    for word in ["secrets", "climcpinstances", "\"*\"", "exec"] {
        assert!(!role.contains(word), "{word}");
    }
}

#[test]
fn no_child_holds_a_secret() {
    let text = serde_json::to_string(
        &children(&instance())
            .apply
            .iter()
            .map(|child| &child.object)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    assert!(!text.contains(fixtures::TOKEN));
}

#[test]
fn sandboxes_reach_the_proxy_and_dns_only() {
    let policy = child(&children(&instance()), ChildKind::NetworkPolicy, "cli-mcp-demo-sandbox");
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    let egress = policy["spec"]["egress"].as_array().unwrap();
    assert_eq!(egress.len(), 2);
    assert_eq!(egress[0]["ports"], json!([{"port": 8080, "protocol": "TCP"}]));
    assert!(egress.iter().all(|rule| !rule["to"].as_array().unwrap().is_empty()));
    assert!(egress[1]["to"].to_string().contains("169.254.20.10/32"));
    assert_eq!(
        policy["spec"]["ingress"][0]["ports"],
        json!([{"port": 8090, "protocol": "TCP"}])
    );
}

fn changed(change: impl FnOnce(&mut CliMcpInstance)) -> CliMcpInstance {
    let mut instance = instance();
    change(&mut instance);
    instance
}

#[test]
fn pool_size_and_timeouts_roll_nothing_and_the_image_rolls_the_server() {
    let before = children(&instance());
    let same = children(&changed(|instance| {
        instance.spec.sandbox.warm_pool_size = 5;
        instance.spec.sandbox.idle_timeout = "1h".into();
        instance.spec.sandbox.max_lifetime = "8h".into();
    }));
    assert_eq!(before, same);
    let other = children(&changed(|instance| instance.spec.sandbox.image = "other".into()));
    let server = |children: &Children| child(children, ChildKind::Deployment, "cli-mcp-demo");
    assert_ne!(server(&before), server(&other));
    let proxy = |children: &Children| child(children, ChildKind::Deployment, "cli-mcp-demo-proxy");
    assert_eq!(proxy(&before), proxy(&other));
}

#[test]
fn several_pods_are_spread_and_the_proxys_are_budgeted() {
    let one = children(&instance());
    assert_eq!(one.remove.len(), 1);
    let two = children(&changed(|instance| {
        instance.spec.replicas = 2;
        instance.spec.proxy.replicas = 2;
    }));
    assert!(two.remove.is_empty());
    let budget = child(&two, ChildKind::PodDisruptionBudget, "cli-mcp-demo-proxy");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    for name in ["cli-mcp-demo", "cli-mcp-demo-proxy"] {
        let spec = child(&two, ChildKind::Deployment, name)["spec"]["template"]["spec"].clone();
        assert!(spec["affinity"]["podAntiAffinity"].is_object() && spec["topologySpreadConstraints"].is_array());
    }
}

#[test]
fn a_deployment_waits_for_what_it_mounts_and_the_policies_do_not() {
    let observed = crate::dereference::Observed {
        tls: None,
        kubeconfig: None,
        proxy_address: None,
        ..fixtures::observed()
    };
    let children = build(&fixtures::validated(&instance(), &observed)).unwrap();
    let kinds: BTreeSet<ChildKind> = children.apply.iter().map(|child| child.reference.kind).collect();
    assert!(!kinds.contains(&ChildKind::Deployment) && !kinds.contains(&ChildKind::ConfigMap));
    assert!(kinds.contains(&ChildKind::NetworkPolicy) && kinds.contains(&ChildKind::Service));
}

#[test]
fn the_server_gets_everything_that_its_sandboxes_are_built_from() {
    let full = changed(|instance| {
        let sandbox = &mut instance.spec.sandbox;
        sandbox.runtime_class_name = "gvisor".into();
        sandbox.workspace_size_limit = "1Gi".into();
        sandbox.max_sessions = 4;
        sandbox.node_selector = [("a".to_owned(), "b".to_owned())].into();
        sandbox.image_pull_secrets = vec![k8s_openapi::api::core::v1::LocalObjectReference { name: "pull".into() }];
    });
    let server = child(&children(&full), ChildKind::Deployment, "cli-mcp-demo");
    let args: Vec<&str> = server["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for expected in [
        "--authorization=kubernetes",
        "--sandbox-runtime-class=gvisor",
        "--sandbox-workspace-size-limit=1Gi",
        "--max-sessions=4",
        r#"--sandbox-node-selector={"a":"b"}"#,
        "--sandbox-image-pull-secrets=pull",
        "--egress-target=10.96.0.1:443",
        "--egress-control=10.96.0.7:8080",
        "--proxy-service=cli-mcp-demo-proxy",
        "--proxy-ca-secret=cli-mcp-demo-proxy-ca",
        "--dummy-kubeconfig-configmap=cli-mcp-demo-proxy",
    ] {
        assert!(args.contains(&expected), "{expected} is not in {args:#?}");
    }
    let owner = args
        .iter()
        .find_map(|arg| arg.strip_prefix("--sandbox-owner="))
        .unwrap();
    let owner: Value = serde_json::from_str(owner).unwrap();
    assert_eq!(owner["kind"], "CliMcpInstance");
    assert!(owner.get("controller").is_none() && owner.get("blockOwnerDeletion").is_none());
}

/// The same instance on a cluster whose API server has this address.
fn on(api_server: &str, proxy_address: &str) -> Validated {
    let settings = Settings {
        api_server: api_server.parse().unwrap(),
        ..fixtures::settings()
    };
    let observed = crate::dereference::Observed {
        proxy_address: Some(proxy_address.to_owned()),
        ..fixtures::observed()
    };
    validate(&instance(), &observed, &settings).unwrap()
}

fn args(children: &Children, name: &str) -> Value {
    child(children, ChildKind::Deployment, name)["spec"]["template"]["spec"]["containers"][0]["args"].clone()
}

#[test]
fn an_ipv4_cluster_gets_what_it_got_before_there_was_another() {
    let children = build(&on("10.96.0.1:443", "10.96.0.7:8080")).unwrap();
    assert_eq!(
        args(&children, "cli-mcp-demo"),
        json!([
            "--transport=http",
            "--stateless",
            "--address=0.0.0.0:8443",
            "--health-address=0.0.0.0:8081",
            "--tls-cert-file=/etc/cli-mcp/tls/tls.crt",
            "--tls-private-key-file=/etc/cli-mcp/tls/tls.key",
            "--authorization=kubernetes",
            "--namespace=ns",
            "--instance-name=demo",
            "--hmac-key-file=/etc/cli-mcp/hmac/key",
            "--sandbox-connection=direct",
            "--sandbox-image=localhost/agent:dev",
            "--sandbox-service-account=cli-mcp-demo-sandbox",
            r#"--sandbox-resources={"limits":{"cpu":"500m","memory":"512Mi"},"requests":{"cpu":"100m","memory":"128Mi"}}"#,
            "--egress-check=Required",
            r#"--sandbox-owner={"apiVersion":"cli-mcp.redhat.com/v1alpha1","kind":"CliMcpInstance","name":"demo","uid":"uid-demo"}"#,
            "--egress-target=10.96.0.1:443",
            "--egress-control=10.96.0.7:8080",
            "--proxy-service=cli-mcp-demo-proxy",
            "--proxy-ca-secret=cli-mcp-demo-proxy-ca",
            "--dummy-kubeconfig-configmap=cli-mcp-demo-proxy",
        ])
    );
    assert_eq!(args(&children, "cli-mcp-demo-proxy"), Value::Null);
}

#[test]
fn where_pods_have_ipv6_first_other_listeners_are_all_that_is_other() {
    let (ipv4, ipv6) = (
        on("10.96.0.1:443", "10.96.0.7:8080"),
        on("[fd00::1]:443", "[fd00::7]:8080"),
    );
    let (before, after) = (build(&ipv4).unwrap(), build(&ipv6).unwrap());
    let other = |name: &str| -> Vec<String> {
        let known = args(&before, name);
        let given = args(&after, name);
        let texts = given.as_array().unwrap().iter();
        texts
            .filter(|arg| !known.as_array().is_some_and(|known| known.contains(arg)))
            .map(|arg| arg.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        other("cli-mcp-demo"),
        [
            "--address=[::]:8443",
            "--health-address=[::]:8081",
            "--egress-target=[fd00::1]:443",
            "--egress-control=[fd00::7]:8080",
            "--sandbox-listen=[::]:8090",
        ]
    );
    assert_eq!(
        other("cli-mcp-demo-proxy"),
        ["--listen=[::]:8080", "--health-listen=[::]:8081"]
    );
    let without_args = |children: &Children| -> Vec<Value> {
        let mut objects: Vec<Value> = children
            .apply
            .iter()
            .map(|child| serde_json::to_value(&child.object).unwrap())
            .collect();
        for object in &mut objects {
            if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0") {
                container.as_object_mut().unwrap().remove("args");
                // It is the hash of all the rest.
                object.pointer_mut("/metadata/annotations").unwrap().take();
            }
        }
        objects
    };
    assert_eq!(without_args(&before), without_args(&after));
}

#[test]
fn the_server_is_told_where_the_operators_sandboxes_listen() {
    for (api_server, proxy_address) in [("10.96.0.1:443", "10.96.0.7:8080"), ("[fd00::1]:443", "[fd00::7]:8080")] {
        let validated = on(api_server, proxy_address);
        let server = args(&build(&validated).unwrap(), "cli-mcp-demo");
        let told = server
            .as_array()
            .unwrap()
            .iter()
            .find_map(|arg| arg.as_str().unwrap().strip_prefix("--sandbox-listen="));
        let listen = validated.template.unwrap().listen.map(|listen| listen.to_string());
        assert_eq!(told, listen.as_deref());
    }
}

/// What a program gets of an argument that stands in a pod, as the kubelet expands it
/// (<https://github.com/kubernetes/kubernetes/blob/master/third_party/forked/golang/expansion/expand.go>).
fn expanded(argument: &str) -> String {
    let mut rest = argument;
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        rest = match (after.strip_prefix('$'), reference) {
            (Some(rest), _) => {
                text.push('$');
                rest
            }
            (None, Some((name, rest))) => {
                text.push_str(&format!("the value of {name}"));
                rest
            }
            (None, None) => {
                text.push('$');
                after
            }
        };
    }
    text + rest
}

#[test]
fn the_kubelet_expands_as_this_test_has_it() {
    assert_eq!(
        expanded("a$$b $(HOST) $x $$(HOST) $("),
        "a$b the value of HOST $x $(HOST) $("
    );
}

#[test]
fn the_server_gets_the_environment_as_it_is_written_whatever_the_kubelet_expands() {
    let written = ["$$", "$(KUBERNETES_SERVICE_HOST)", "$$(A)", "a$b", "$"];
    let env: Vec<k8s_openapi::api::core::v1::EnvVar> = written
        .iter()
        .enumerate()
        .map(|(number, value)| k8s_openapi::api::core::v1::EnvVar {
            name: format!("A{number}"),
            value: Some((*value).to_owned()),
            value_from: None,
        })
        .collect();
    let server = children(&changed(|instance| instance.spec.sandbox.env = env.clone()));
    let server = child(&server, ChildKind::Deployment, "cli-mcp-demo");
    let given = server["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|arg| {
            expanded(arg.as_str().unwrap())
                .strip_prefix("--sandbox-env=")
                .map(str::to_owned)
        })
        .unwrap();
    let given: Vec<k8s_openapi::api::core::v1::EnvVar> = serde_json::from_str(&given).unwrap();
    assert_eq!(given, env);
}
