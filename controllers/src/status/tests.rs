//! Conditions, by example.

use serde_json::json;

use super::*;
use crate::apply::Failure;
use crate::validate::fixtures::{self, instance};

fn deployment(name: &str, status: Value) -> (ChildRef, Arc<DynamicObject>) {
    let object = json!({"metadata": {"name": name, "generation": 2}, "spec": {"replicas": 1}, "status": status});
    (
        ChildRef {
            kind: ChildKind::Deployment,
            name: name.to_owned(),
        },
        Arc::new(serde_json::from_value(object).unwrap()),
    )
}

fn done() -> Value {
    json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1})
}

fn applied(server: Value, proxy: Value) -> Applied {
    Applied {
        children: [
            deployment("cli-mcp-demo", server),
            deployment("cli-mcp-demo-proxy", proxy),
        ]
        .into(),
        ..Applied::default()
    }
}

fn status(
    applied: &Applied,
    observed: &Observed,
    pool: &PoolState,
    before: Option<&CliMcpInstanceStatus>,
) -> CliMcpInstanceStatus {
    let validated = fixtures::validated(&instance(), observed);
    compute(
        before,
        &validated,
        applied,
        observed,
        pool,
        &Egress::Unknown,
        Timestamp::UNIX_EPOCH,
    )
}

fn condition<'a>(status: &'a CliMcpInstanceStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
        .unwrap();
    (&found.status, &found.reason, &found.message)
}

#[test]
fn all_well_is_ready() {
    let status = status(
        &applied(done(), done()),
        &fixtures::observed(),
        &PoolState::default(),
        None,
    );
    assert_eq!(condition(&status, "Ready").0, "True");
    assert_eq!(condition(&status, "ProxyReady").0, "True");
    assert_eq!(condition(&status, "WarmPoolReady").0, "True");
    assert_eq!(
        condition(&status, "EgressEnforced"),
        ("Unknown", "NoSandboxYet", condition(&status, "EgressEnforced").2)
    );
    assert_eq!(status.url.as_deref(), Some("https://cli-mcp-demo.ns.svc:8443/mcp"));
    assert!(
        status
            .conditions
            .iter()
            .all(|condition| condition.observed_generation == Some(7) && !condition.message.is_empty())
    );
}

#[test]
fn a_proxy_that_no_service_leads_to_is_not_ready() {
    let unreached = Observed {
        proxy_ready: false,
        ..fixtures::observed()
    };
    let of = |applied: &Applied| status(applied, &unreached, &PoolState::default(), None);
    let serving = of(&applied(done(), done()));
    for type_ in ["ProxyReady", "Ready"] {
        let (state, reason, message) = condition(&serving, type_);
        assert_eq!((state, reason), ("False", "NoReadyEndpoint"), "{type_}");
        assert!(
            message.contains("kubectl -n ns annotate service cli-mcp-demo-proxy --overwrite"),
            "{message}"
        );
    }
    // Without a pod there is nothing that a Service could lead to.
    let starting = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1});
    let starting = of(&applied(done(), starting));
    assert_eq!(condition(&starting, "ProxyReady").1, "DeploymentUnavailable");
    let absent = of(&Applied::default());
    assert_eq!(condition(&absent, "ProxyReady").1, "Reconciling");
}

#[test]
fn missing_secrets_come_first_and_say_what_to_run() {
    let observed = Observed {
        tls: None,
        kubeconfig: None,
        ..fixtures::observed()
    };
    let status = status(&Applied::default(), &observed, &PoolState::default(), None);
    let (state, reason, message) = condition(&status, "Ready");
    assert_eq!((state, reason), ("False", "SecretsNotFound"));
    for command in [
        "kubectl -n ns create secret generic cli-mcp-demo-kubeconfig --from-file=kubeconfig=FILE",
        "kubectl -n ns create secret tls cli-mcp-demo-tls --cert=FILE --key=FILE",
    ] {
        assert!(message.contains(command), "{message}");
    }
}

#[test]
fn an_unavailable_deployment_names_the_pods_own_reason() {
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "cli-mcp-demo-x"}, "status": {"phase": "Pending",
        "containerStatuses": [{"name": "server", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}}),
    )
    .unwrap();
    let observed = Observed {
        server_pods: vec![Arc::new(pod)],
        ..fixtures::observed()
    };
    let starting = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1});
    let status = status(&applied(starting, done()), &observed, &PoolState::default(), None);
    let (state, reason, message) = condition(&status, "Ready");
    assert_eq!((state, reason), ("False", "DeploymentUnavailable"));
    assert!(
        message.contains("0 of 1") && message.contains("ImagePullBackOff: no such image"),
        "{message}"
    );
}

#[test]
fn a_pod_that_only_starts_is_named_with_where_to_look() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "cli-mcp-demo-x"}})).unwrap();
    let observed = Observed {
        server_pods: vec![Arc::new(pod)],
        ..fixtures::observed()
    };
    let starting = json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1});
    let status = status(&applied(starting, done()), &observed, &PoolState::default(), None);
    let message = condition(&status, "Ready").2;
    assert!(
        message.ends_with("kubectl -n ns describe pod cli-mcp-demo-x"),
        "{message}"
    );
}

#[test]
fn what_is_not_made_yet_says_what_it_waits_for() {
    let message = |observed: &Observed| {
        let status = status(&Applied::default(), observed, &PoolState::default(), None);
        let (_, reason, message) = condition(&status, "Ready");
        assert_eq!(reason, "Reconciling");
        message.to_owned()
    };
    assert_eq!(
        message(&Observed {
            hmac: None,
            ..fixtures::observed()
        }),
        "Deployment cli-mcp-demo-proxy is not made yet: its Secrets are being generated"
    );
    assert_eq!(
        message(&Observed {
            proxy_address: None,
            ..fixtures::observed()
        }),
        "Deployment cli-mcp-demo-proxy is not made yet: Service cli-mcp-demo-proxy has no cluster IP yet"
    );
}

#[test]
fn a_rollout_that_serves_is_reconciling() {
    let rolling = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 1});
    let status = status(
        &applied(rolling, done()),
        &fixtures::observed(),
        &PoolState::default(),
        None,
    );
    assert_eq!(condition(&status, "Ready").1, "Reconciling");
}

#[test]
fn a_child_that_is_not_ours_is_told() {
    let mut applied = applied(done(), done());
    applied.failures.push(Failure {
        message: "Role cli-mcp-demo exists".into(),
        transient: true,
        foreign: false,
    });
    let status = status(&applied, &fixtures::observed(), &PoolState::default(), None);
    assert_eq!(
        condition(&status, "Ready"),
        ("False", "ChildrenNotReady", "Role cli-mcp-demo exists")
    );
}

#[test]
fn a_claim_never_clears_ready_and_a_failing_pool_does() {
    let applied = applied(done(), done());
    let observed = fixtures::observed();
    let pool = |ready, trouble: Option<&str>| PoolState {
        ready,
        desired: 2,
        trouble: trouble.map(str::to_owned),
        ..PoolState::default()
    };
    let filling = status(&applied, &observed, &pool(1, None), None);
    assert_eq!(condition(&filling, "Ready").1, "WarmPoolNotReady");
    let full = status(&applied, &observed, &pool(2, None), Some(&filling));
    assert_eq!(condition(&full, "Ready").0, "True");
    let claimed = status(&applied, &observed, &pool(1, None), Some(&full));
    assert_eq!(condition(&claimed, "Ready").0, "True");
    let failing = status(&applied, &observed, &pool(1, Some("quota")), Some(&claimed));
    assert_eq!(condition(&failing, "Ready").1, "WarmPoolUnhealthy");
    assert!(condition(&failing, "Ready").2.contains("quota"));
}

#[test]
fn transition_times_move_only_when_the_status_flips() {
    let later = Timestamp::from_second(100).unwrap();
    let observed = fixtures::observed();
    let validated = fixtures::validated(&instance(), &observed);
    let compute = |before: Option<&CliMcpInstanceStatus>, server: Value, now| {
        compute(
            before,
            &validated,
            &applied(server, done()),
            &observed,
            &PoolState::default(),
            &Egress::Unknown,
            now,
        )
    };
    let first = compute(None, done(), Timestamp::UNIX_EPOCH);
    assert_eq!(compute(Some(&first), done(), later), first);
    let broken = compute(Some(&first), json!({"observedGeneration": 2}), later);
    let time = |status: &CliMcpInstanceStatus, type_: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap()
            .last_transition_time
            .0
    };
    assert_eq!(time(&broken, "Ready"), later);
    assert_eq!(time(&broken, "ProxyReady"), Timestamp::UNIX_EPOCH);
}
