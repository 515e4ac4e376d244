//! What passes on a kubernetes target and what does not, path by path.

use super::*;

fn status_of(rules: &Rules, method: &str, raw: &str) -> u16 {
    match Target::parse(raw) {
        Err(_) => 400,
        Ok(target) => rules
            .decide(method, &target, None)
            .verdict
            .map_or_else(|denied| denied.status(), |()| 200),
    }
}

/// Section H of `proxy_cases.md`: what is expected on a kubernetes target with an empty prefix.
#[test]
fn section_h_vectors() {
    let rules = Rules::default();
    for (method, raw) in [
        ("GET", "/api/v1/namespaces/ns/pods/p/log?follow=true"),
        ("GET", "/api/v1/namespaces/proxy/pods"),
        ("GET", "/api/v1/namespaces/ns/services/proxy"),
        ("GET", "/api/v1/namespaces/ns/configmaps/exec"),
        ("GET", "/apis/config.openshift.io/v1/proxies/cluster"),
        ("GET", "/api/v1/namespaces/ns/pods/exec/log"),
        ("GET", "/api/v1/namespaces/exec/pods/attach/status"),
        ("GET", "/api/v1/namespaces/proxy"),
        ("GET", "/api/v1/namespaces/proxy/status"),
        ("PUT", "/api/v1/namespaces/x/finalize"),
        ("PATCH", "/apis/apps/v1/namespaces/ns/deployments/exec/scale"),
        ("GET", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("POST", "/api/v1/namespaces/ns/serviceaccounts"),
        ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
        ("GET", "/apis/"),
        ("GET", "/version/"),
        ("GET", "/"),
    ] {
        assert_eq!(status_of(&rules, method, raw), 200, "{method} {raw}");
    }
    for method in ["GET", "POST", "OPTIONS", "DELETE"] {
        for raw in [
            "/api/v1/namespaces/ns/pods/p/exec",
            "/api/v1/namespaces/ns/pods/p/exec/",
            "/api/v1/namespaces/ns/pods/p/%65xec",
            "/api/v1/nodes/n/proxy",
            "/api/v1/nodes/n/proxy/",
            "/api/v1/nodes/n:10250/proxy/run/a/b/c",
            "/api/v1/namespaces/ns/services/https:web:8443/proxy/admin/x",
            "/api/v1/proxy/namespaces/ns/services/s",
            "/api/v1/proxy/nodes/n",
            "/api/v1/watch/namespaces/ns/pods/p/exec",
            "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/pods",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vnc",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/console",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/portforward",
            "/api/v1/namespaces/ns/serviceaccounts/sa/token",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
            "/v3/tokens",
            "/logs/kubelet.log",
            "/oauth/authorize",
            "/debug/pprof",
        ] {
            assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
        }
    }
    for method in ["PATCH", "PUT", "POST"] {
        assert_eq!(
            status_of(&rules, method, "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
            403
        );
        assert_eq!(
            status_of(&rules, method, "/apis/oauth.openshift.io/v1/oauthaccesstokens"),
            403
        );
        assert_eq!(status_of(&rules, method, "/apis/ext.cattle.io/v1/tokens"), 403);
    }
    for method in ["TRACE", "TRACK", "CONNECT", "PROPFIND", "get"] {
        assert_eq!(status_of(&rules, method, "/api/v1/pods"), 405, "{method}");
    }
    assert_eq!(status_of(&rules, "GET", "/api/v1/proxy"), 400);
}

#[test]
fn case_14_only_under_the_prefix_and_on_segment_boundaries() {
    let rules = Rules {
        prefix: "/k8s/clusters/c-1".into(),
        ..Rules::default()
    };
    assert_eq!(status_of(&rules, "GET", "/k8s/clusters/c-1/api/v1/pods"), 200);
    assert_eq!(status_of(&rules, "GET", "/k8s/clusters/c-1/version"), 200);
    for raw in [
        "/k8s/clusters/c-10/api/v1/pods",
        "/v3/tokens",
        "/api/v1/pods",
        "/k8s/clusters/c-1/v3/tokens",
        "/k8s/clusters",
    ] {
        assert_eq!(status_of(&rules, "POST", raw), 403, "{raw}");
    }
    assert_eq!(
        status_of(&rules, "GET", "/k8s/clusters/c-1/api/v1/namespaces/n/pods/p/exec"),
        403
    );
}

#[test]
fn read_only_lets_reads_and_self_reviews_pass() {
    let rules = Rules {
        access: Access::ReadOnly,
        ..Rules::default()
    };
    for (method, raw) in [
        ("GET", "/api/v1/pods"),
        ("HEAD", "/api/v1/pods"),
        ("GET", "/api/v1/pods?watch=1"),
        ("GET", "/api/v1/watch/pods"),
        ("GET", "/api/v1/namespaces/n/pods/p/log"),
        ("GET", "/apis"),
        ("GET", "/openapi/v3"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
    ] {
        assert_eq!(status_of(&rules, method, raw), 200, "{method} {raw}");
    }
    for (method, raw) in [
        ("POST", "/api/v1/namespaces/n/pods"),
        ("DELETE", "/api/v1/watch/namespaces/n/pods/p"),
        ("POST", "/api/v1/watch/pods"),
        ("PATCH", "/api/v1/namespaces/n/pods/p"),
        ("DELETE", "/api/v1/namespaces/n/pods"),
        ("OPTIONS", "/api/v1/pods"),
        ("POST", "/api/v1/namespaces/n/pods/p/eviction"),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x"),
        ("POST", "/apis/evil.example/v1/selfsubjectaccessreviews"),
        ("POST", "/version"),
    ] {
        assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
    }
}

#[test]
fn denied_resources_are_refused_for_all_verbs_with_their_subresources() {
    let denied = |group: &str, resource: &str| DeniedResource {
        group: group.into(),
        resource: resource.into(),
    };
    let rules = Rules {
        denied_resources: vec![
            denied("", "secrets"),
            denied("apps", "deployments"),
            denied("", "namespaces"),
        ],
        ..Rules::default()
    };
    for (method, raw) in [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/watch/namespaces/n/secrets/s"),
        ("GET", "/api/v1/namespaces/n/secrets/s"),
        ("DELETE", "/api/v1/namespaces/n/secrets"),
        ("OPTIONS", "/api/v1/secrets"),
        ("GET", "/apis/apps/v1beta1/namespaces/n/deployments/d/scale"),
        ("GET", "/api/v1/namespaces/n"),
        ("PUT", "/api/v1/namespaces/n/finalize"),
        ("GET", "/api/v1/namespaces/n/Secrets/s"),
        ("GET", "/apis/image.openshift.io/v1/namespaces/n/imagestreams/i/secrets"),
        (
            "GET",
            "/apis/clusterpedia.io/v1beta1/collectionresources/any?resources=core/v1/secrets",
        ),
    ] {
        assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
    }
    assert_eq!(status_of(&rules, "GET", "/api/v1/namespaces/n/pods"), 200);
    assert_eq!(status_of(&rules, "GET", "/api/v1/namespaces/secrets/pods/secrets"), 200);
    assert_eq!(
        status_of(&rules, "GET", "/apis/extensions/v1/namespaces/n/deployments"),
        200
    );
}

#[test]
fn case_12_an_api_within_an_aggregated_api_is_judged_like_the_first() {
    let secrets = DeniedResource {
        group: String::new(),
        resource: "secrets".into(),
    };
    let all = Rules {
        denied_resources: vec![secrets],
        access: Access::ReadOnly,
        ..Rules::default()
    };
    let pedia = "/apis/clusterpedia.io/v1beta1/resources";
    for (rules, method, tail, status) in [
        (&all, "GET", "/api/v1/namespaces/ns/secrets", 403),
        (&all, "GET", "/api/v1/secrets", 403),
        (&all, "GET", "/API/v1/secrets", 403),
        (&all, "GET", "/clusters/c1/api/v1/namespaces/ns/secrets/s", 403),
        (&all, "GET", "/clusters/c1/api/v1/watch/secrets", 403),
        (&all, "GET", "/clusters/api/api/v1/secrets", 403),
        (
            &all,
            "GET",
            "/clusters/c1/apis/image.openshift.io/v1/namespaces/n/imagestreams/i/secrets",
            403,
        ),
        (&all, "GET", "/clusters/c1/api/v1/namespaces/secrets/pods", 200),
        (&all, "GET", "/api/v1/namespaces/secrets/configmaps/secrets", 200),
        (&all, "GET", "/apis/apps/v1/deployments", 200),
        (&all, "GET", "/api/v1", 200),
        (&all, "POST", "/clusters/c1/api/v1/namespaces/ns/pods", 403),
        (
            &Rules::default(),
            "GET",
            "/clusters/c1/api/v1/namespaces/ns/secrets",
            200,
        ),
        (
            &Rules::default(),
            "POST",
            "/clusters/c1/api/v1/nodes/n/proxy/run/ns/p/c",
            403,
        ),
        (
            &Rules::default(),
            "POST",
            "/clusters/c1/api/v1/namespaces/ns/serviceaccounts/sa/token",
            403,
        ),
        (
            &Rules::default(),
            "POST",
            "/clusters/c1/apis/certificates.k8s.io/v1/certificatesigningrequests",
            403,
        ),
        (
            &Rules::default(),
            "PATCH",
            "/clusters/c1/api/v1/namespaces/ns/pods/p/ephemeralcontainers",
            403,
        ),
        (&Rules::default(), "GET", "/clusters/c1/api/v1/proxy/nodes/n", 403),
        (
            &Rules::default(),
            "GET",
            "/clusters/c1/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/vnc",
            403,
        ),
    ] {
        assert_eq!(
            status_of(rules, method, &format!("{pedia}{tail}")),
            status,
            "{method} {tail}"
        );
    }
    let search = "/apis/search.karmada.io/v1alpha1/search/cache/api/v1/namespaces/ns/secrets/s";
    assert_eq!(status_of(&all, "GET", search), 403);
    // An object, a namespace or a resource that is called so is no root of another API.
    for raw in [
        "/api/v1/namespaces/api/pods/secrets/log",
        "/api/v1/namespaces/ns/services/api/status",
        "/apis/hub.example/v1/namespaces/ns/apis/secrets/status",
        "/api/v1/watch/namespaces/apis/configmaps/secrets",
    ] {
        assert_eq!(status_of(&all, "GET", raw), 200, "{raw}");
    }
}

#[test]
fn case_47_only_websocket_on_watch_may_upgrade() {
    let rules = Rules::default();
    let verdict = |method: &str, raw: &str, upgrade: &str| {
        rules
            .decide(method, &Target::parse(raw).unwrap(), Some(upgrade))
            .verdict
    };
    assert_eq!(verdict("GET", "/api/v1/pods?watch=1", "websocket"), Ok(()));
    assert_eq!(verdict("GET", "/api/v1/watch/pods", "websocket"), Ok(()));
    assert_eq!(verdict("GET", "/api/v1/pods?watch=1", "SPDY/3.1"), Err(Denied::Upgrade));
    assert_eq!(verdict("GET", "/api/v1/pods", "websocket"), Err(Denied::Upgrade));
    assert_eq!(
        verdict("GET", "/api/v1/namespaces/n/pods/p/log?follow=1", "websocket"),
        Err(Denied::Upgrade)
    );
    assert!(matches!(
        verdict("GET", "/api/v1/namespaces/n/pods/p/exec", "websocket"),
        Err(Denied::Dangerous { .. })
    ));
}

#[test]
fn options_passes_without_the_credential_or_not_at_all() {
    let target = Target::parse("/api/v1/pods").unwrap();
    let decision = Rules::default().decide("OPTIONS", &target, None);
    assert_eq!((decision.verdict, decision.inject), (Ok(()), false));
    assert!(Rules::default().decide("GET", &target, None).inject);
    let rules = Rules {
        identity_by_connection: true,
        ..Rules::default()
    };
    assert_eq!(status_of(&rules, "OPTIONS", "/api/v1/pods"), 405);
    assert_eq!(status_of(&rules, "GET", "/api/v1/pods"), 200);
}
