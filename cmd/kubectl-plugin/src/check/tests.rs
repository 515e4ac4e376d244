//! What is said of instances that are well, and that are not.

use cli_mcp_api::v1alpha1::CliMcpInstance;
use serde_json::{Value, json};

use super::facts::{Facts, Platform};
use super::{Finding, Level, rules, text};

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn instance() -> CliMcpInstance {
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": format!("{type_} is {status}"),
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    of(
        json!({"apiVersion": "cli-mcp.redhat.com/v1alpha1", "kind": "CliMcpInstance",
        "metadata": {"name": "a", "namespace": "ns", "generation": 2},
        "spec": {"proxy": {"targets": [{"type": "allowlist", "domains": ["api.example.com"]}]}},
        "status": {"observedGeneration": 2, "sessions": 1, "warmPoolReady": 1, "warmPoolDesired": 1, "conditions": [
            condition("Ready", "True", "Available"), condition("EgressEnforced", "True", "Available")]}}),
    )
}

fn deployment(available: i32) -> Value {
    json!({"metadata": {"name": "d", "namespace": "ns"}, "spec": {"replicas": 1, "selector": {}, "template": {}},
        "status": {"availableReplicas": available}})
}

/// An instance that is well, but for a certificate that nobody here can read.
fn well() -> Facts {
    let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}});
    Facts {
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
        namespace: "ns".to_owned(),
        name: "a".to_owned(),
        platform: Platform {
            version: Ok("v1.34.1".to_owned()),
            crd: Err("forbidden".to_owned()),
            operators: Ok(vec![of(deployment(1))]),
        },
        instance: Ok(Some(instance())),
        kubeconfig_secret: None,
        kubeconfig: Ok(None),
        tls: Err("secrets is forbidden".to_owned()),
        sandbox_policy: Ok(Some(of(policy.clone()))),
        proxy_policy: Ok(Some(of(policy))),
        config_map: Ok(Some(Default::default())),
        proxy: Ok(Some(of(deployment(1)))),
        server: Ok(Some(of(deployment(1)))),
        proxy_slices: Ok(vec![of(
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": []}),
        )]),
        pods: Ok(Vec::new()),
        delegator: Ok(Some(of(json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
            "subjects": [{"kind": "ServiceAccount", "name": "cli-mcp-a", "namespace": "ns"}]})))),
    }
}

/// The parts that are not well.
fn parts(facts: &Facts, level: Level) -> Vec<&'static str> {
    rules::examine(facts)
        .iter()
        .filter(|finding| finding.level == level)
        .map(|finding| finding.part)
        .collect()
}

#[test]
fn what_is_well_has_no_remedies_and_what_is_hidden_is_no_problem() {
    assert_eq!(parts(&well(), Level::Problem), [] as [&str; 0]);
    assert_eq!(parts(&well(), Level::Unknown), ["Certificate"]);
    assert!(!text(&rules::examine(&well())).contains("What to do"));
}

#[test]
fn each_part_that_is_broken_is_named_with_its_remedy() {
    type Break = fn(&mut Facts);
    let cases: [(&str, Break); 12] = [
        ("API server", |facts| facts.platform.version = Err("refused".to_owned())),
        ("Definition", |facts| facts.platform.crd = Ok(None)),
        ("Operator", |facts| facts.platform.operators = Ok(Vec::new())),
        ("Operator", |facts| {
            facts.platform.operators = Ok(vec![of(deployment(0))])
        }),
        ("Instance", |facts| facts.instance = Ok(None)),
        ("Kubeconfig", |facts| facts.kubeconfig_secret = Some("s".to_owned())),
        ("Certificate", |facts| facts.tls = Ok(None)),
        ("Isolation", |facts| facts.sandbox_policy = Ok(Some(Default::default()))),
        ("Proxy", |facts| facts.proxy = Ok(Some(of(deployment(0))))),
        ("Proxy address", |facts| facts.proxy_slices = Ok(Vec::new())),
        ("Server", |facts| facts.server = Ok(None)),
        ("Token review", |facts| facts.delegator = Ok(None)),
    ];
    for (part, damage) in cases {
        let mut facts = well();
        damage(&mut facts);
        assert_eq!(parts(&facts, Level::Problem), [part]);
        assert!(text(&rules::examine(&facts)).contains("What to do"), "{part}");
    }
}

#[test]
fn the_conditions_are_told_with_their_reason() {
    let mut facts = well();
    let mut broken = instance();
    for condition in &mut broken.status.as_mut().unwrap().conditions {
        condition.status = "False".to_owned();
        condition.reason = "EgressNotEnforced".to_owned();
    }
    facts.instance = Ok(Some(broken));
    assert_eq!(parts(&facts, Level::Problem), ["Closed network", "Ready"]);
    assert!(text(&rules::examine(&facts)).contains("docs/troubleshoot.md, \"EgressNotEnforced\""));
}

#[test]
fn a_broken_pod_is_quoted() {
    let mut facts = well();
    facts.server = Ok(Some(of(deployment(0))));
    facts.pods = Ok(vec![of(
        json!({"metadata": {"name": "p", "labels": {"cli-mcp.redhat.com/component": "server"}},
        "status": {"phase": "Pending", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}]}}),
    )]);
    assert!(text(&rules::examine(&facts)).contains("pod p: ErrImagePull: no such host"));
}

#[test]
fn words_of_a_sandbox_do_not_steer_the_terminal() {
    let title = "\x1b]0;x\x07";
    let findings = [
        Finding::warning("Sandboxes", format!("pod p: {title}"), "a"),
        Finding::warning("Sandboxes", "b", format!("look at {title}")),
    ];
    let text = text(&findings);
    assert!(!text.replace('\n', "").contains(char::is_control), "{text:?}");
    assert_eq!(text.matches(r"\u{1b}]0;x\u{7}").count(), 2, "{text}");
}

#[test]
fn a_full_instance_is_a_warning() {
    let mut facts = well();
    let mut full = instance();
    full.spec.sandbox.max_sessions = 1;
    facts.instance = Ok(Some(full));
    assert_eq!(parts(&facts, Level::Warning), ["Capacity"]);
}
