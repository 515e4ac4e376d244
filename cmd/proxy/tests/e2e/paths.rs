//! Which paths pass (`proxy_cases.md`, sections A and H), by case number, on the real proxy in front of a real TLS upstream.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Lab, TOKEN, Upstream, ok};

/// Requests that a kubernetes target refuses, with the number of the case, method, path and status.
const REFUSED: &[(u8, &str, &str, &[u16])] = &[
    (1, "GET", "/api/v1/nodes/n1/proxy/../runningpods/", &[400]),
    (1, "GET", "/api/v1/nodes/n1/proxy/..", &[400]),
    (1, "GET", "/api/v1/namespaces/ns/pods/p/proxy/../x", &[400]),
    (1, "GET", "/api/v1/namespaces/ns/services/s/proxy/../x", &[400]),
    (1, "GET", "/api/v1/nodes/n/./proxy/x", &[400]),
    (2, "POST", "/api/v1/namespaces/x/pods/p%2Fexec?command=id", &[400]),
    (2, "GET", "/api/v1/nodes/n1/proxy%2fpods", &[400]),
    (2, "GET", "/api/v1/nodes/n1/proxy/%2e%2e/x", &[400]),
    (2, "GET", "/api/v1/nodes/n1/proxy/.%2e/x", &[400]),
    (2, "GET", "/api/v1/nodes/n1/proxy/..;a/x", &[400]),
    (2, "GET", "/api/v1/%5c..%5c", &[400]),
    (2, "GET", "/api/v1/pods%00", &[400]),
    (2, "GET", "/api/v1\\pods", &[400]),
    (3, "POST", "/api/v1/namespaces/ns/pods/p/%65xec", &[403]),
    (3, "POST", "/api/v1/namespaces/ns/pods/p/%2565xec", &[400]),
    (3, "GET", "/api/v1/%zz", &[400]),
    (3, "GET", "/api/v1/%", &[400]),
    (
        5,
        "GET",
        "/api/v1/namespaces/ns/services/https:web:8443/proxy/admin/x",
        &[403],
    ),
    (5, "GET", "/api/v1/namespaces/ns/pods/p:8080/proxy/", &[403]),
    (5, "POST", "/api/v1/nodes/n:10250/proxy/run/ns/p/c", &[403]),
    (8, "GET", "/api/v1/nodes/N/proxy/exec/ns/pod/ctr?command=id", &[403]),
    (8, "POST", "/api/v1/nodes/N/proxy/run/ns/pod/ctr", &[403]),
    (9, "GET", "/api/v1/namespaces/ns/pods/p/exec?command=id", &[403]),
    (9, "POST", "/api/v1/namespaces/ns/pods/p/exec?command=id", &[403]),
    (9, "GET", "/api/v1/namespaces/ns/pods/p/attach", &[403]),
    (9, "POST", "/api/v1/namespaces/ns/pods/p/portforward", &[403]),
    (10, "PATCH", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers", &[403]),
    (10, "PUT", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers", &[403]),
    (10, "POST", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers", &[403]),
    (11, "POST", "/api/v1/namespaces/ns/serviceaccounts/sa/token", &[403]),
    (11, "GET", "/api/v1/namespaces/ns/serviceaccounts/sa/token", &[403]),
    (
        11,
        "PUT",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
        &[403],
    ),
    (11, "POST", "/apis/oauth.openshift.io/v1/oauthaccesstokens", &[403]),
    (11, "POST", "/apis/oauth.openshift.io/v1/useroauthaccesstokens", &[403]),
    (11, "POST", "/apis/ext.cattle.io/v1/kubeconfigs", &[403]),
    (11, "POST", "/apis/ext.cattle.io/v1/tokens", &[403]),
    (
        12,
        "GET",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vnc",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/console",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/usbredir",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/ssh",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/cluster.karmada.io/v1alpha1/clusters/m2/proxy/api/v1/namespaces/x/pods/p/exec",
        &[403],
    ),
    (14, "POST", "/v3/tokens", &[403]),
    (14, "GET", "/logs/", &[403]),
    (14, "GET", "/debug/pprof/", &[403]),
    (15, "GET", "/api/v1/pods#x", &[400]),
    (15, "GET", "/api/v1/pods?a=\"", &[400]),
    (15, "GET", "/api/v1/pods?a;b", &[400]),
    (15, "GET", "/\u{e9}", &[400]),
    (15, "GET", "/a\\b", &[400]),
    (18, "GET", "https://other.test:6443/api", &[400]),
    (18, "GET", "http://api.test/api", &[400]),
    (18, "GET", "https://me:hunter2hunter2@api.test/api", &[400]),
    (38, "TRACE", "/api/v1/pods", &[405]),
    (38, "TRACK", "/api/v1/pods", &[405]),
    (38, "CONNECT", "h:443", &[400, 405]),
    (38, "OPTIONS", "*", &[400]),
    (2, "POST", "/api/v1/namespaces/x/pods/p%252Fexec", &[400]),
    (2, "GET", "/api/v1/namespaces/x/pods/p%u002fexec", &[400]),
    (2, "GET", "/api/v1/%c0%ae%c0%ae/x", &[400]),
    (2, "GET", "/api/v1/p%ef%bc%8fexec", &[400]),
    (2, "GET", "/api/v1/namespaces/ns/pods/p/%2e/exec", &[400]),
    (3, "POST", "/api/v1/namespaces/ns/pods/p/%45XEC", &[403]),
    (3, "POST", "/%61pi/v1/namespaces/ns/%70ods/p/exe%63", &[403]),
    (5, "GET", "/api/v1/watch/namespaces/ns/services/s/proxy/x", &[403]),
    (8, "GET", "/api/v1/proxy/nodes/n:10250/run/ns/p/c", &[403]),
    (8, "OPTIONS", "/api/v1/nodes/n/proxy/", &[403]),
    (
        11,
        "GET",
        "/api/v1/watch/namespaces/ns/serviceaccounts/sa/token",
        &[403],
    ),
    (
        11,
        "POST",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        &[403],
    ),
    (
        11,
        "PATCH",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/c?fieldManager=x",
        &[403],
    ),
    (
        11,
        "POST",
        "/apis/core.gardener.cloud/v1beta1/namespaces/g/shoots/s/adminkubeconfig",
        &[403],
    ),
    (
        11,
        "POST",
        "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/secrets",
        &[403],
    ),
    (
        12,
        "POST",
        "/apis/clusterpedia.io/v1beta1/resources/clusters/c1/api/v1/nodes/n/proxy/run/ns/p/c",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/clusterpedia.io/v1beta1/resources/clusters/c1/proxy/metrics",
        &[403],
    ),
    (
        12,
        "GET",
        "/apis/proxy.open-cluster-management.io/v1beta1/namespaces/c/clusterstatuses/c/aggregator/svc/x",
        &[403],
    ),
    (
        11,
        "POST",
        "/apis/clusterpedia.io/v1beta1/resources/clusters/c1/api/v1/namespaces/ns/serviceaccounts/sa/token",
        &[403],
    ),
    (
        14,
        "GET",
        "/oauth/authorize?response_type=token&client_id=openshift-challenging-client",
        &[403],
    ),
    (14, "GET", "/API/v1/pods", &[403]),
    (14, "GET", "/apisx/v1/pods", &[403]),
    (14, "GET", "/k8s/clusters/local/api/v1/pods", &[403]),
    (15, "GET", "/api/v1/pods?x=%zz", &[400]),
    (15, "GET", "/api/v1/pods?x={y}", &[400]),
    (38, "get", "/api/v1/pods", &[405]),
    (38, "PROPFIND", "/api/v1/pods", &[405]),
    (44, "GET", "//api/v1/nodes/n/proxy/x", &[400]),
    (44, "GET", "/api//v1/pods", &[400]),
    (44, "GET", "/api/v1/proxy/namespaces/ns/services/s", &[403]),
    (44, "GET", "/api/v1/watch/namespaces/ns/pods/p/exec", &[403]),
    (44, "POST", "/api/v1/namespaces/ns/pods/p/exec/", &[403]),
    (44, "POST", "/api/v1/namespaces/ns/pods/p/exec;x", &[400]),
];

/// Requests that pass, with what the upstream must receive.
const PASSED: &[(u8, &str, &str, &str)] = &[
    (
        7,
        "GET",
        "/api/v1/namespaces/proxy/pods",
        "/api/v1/namespaces/proxy/pods",
    ),
    (
        7,
        "GET",
        "/api/v1/namespaces/istio-system/services/proxy",
        "/api/v1/namespaces/istio-system/services/proxy",
    ),
    (
        7,
        "GET",
        "/api/v1/namespaces/ns/configmaps/exec",
        "/api/v1/namespaces/ns/configmaps/exec",
    ),
    (
        7,
        "GET",
        "/apis/apps/v1/namespaces/ns/deployments/proxy",
        "/apis/apps/v1/namespaces/ns/deployments/proxy",
    ),
    (
        7,
        "GET",
        "/apis/config.openshift.io/v1/proxies/cluster",
        "/apis/config.openshift.io/v1/proxies/cluster",
    ),
    (
        7,
        "GET",
        "/api/v1/namespaces/ns/pods/exec/log",
        "/api/v1/namespaces/ns/pods/exec/log",
    ),
    (
        7,
        "PATCH",
        "/apis/apps/v1/namespaces/ns/deployments/exec/scale",
        "/apis/apps/v1/namespaces/ns/deployments/exec/scale",
    ),
    (
        3,
        "GET",
        "/api/v1/namespaces/ns/pods/%70",
        "/api/v1/namespaces/ns/pods/p",
    ),
    (
        10,
        "GET",
        "/api/v1/namespaces/ns/pods/p/ephemeralcontainers",
        "/api/v1/namespaces/ns/pods/p/ephemeralcontainers",
    ),
    (
        11,
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "/apis/authentication.k8s.io/v1/tokenreviews",
    ),
    (
        11,
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    ),
    (14, "GET", "/version", "/version"),
    (14, "GET", "/openapi/v2", "/openapi/v2"),
    (
        14,
        "GET",
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration",
    ),
    (14, "GET", "/healthz", "/healthz"),
    (
        36,
        "GET",
        "/api/v1/pods?access_token=x&limit=5&token=y",
        "/api/v1/pods?limit=5",
    ),
];

#[tokio::test]
async fn refusals_reach_nobody() {
    let lab = Lab::new().await;
    for (case, method, path, statuses) in REFUSED {
        let response = lab.method(method, path).await;
        assert!(
            statuses.contains(&response.status),
            "case {case}: {method} {path}: {}",
            response.head
        );
        response.kubernetes_status();
        assert!(!response.text().contains(TOKEN));
    }
    assert!(lab.upstream.received().is_empty(), "{:?}", lab.upstream.received());
    assert!(lab.audit().iter().all(|line| line["decision"] == "deny"));
    assert!(lab.audit().iter().all(|line| !line.to_string().contains("hunter2")));
    assert_eq!(lab.audit().len(), REFUSED.len());
}

#[tokio::test]
async fn what_is_sent_is_what_was_judged_with_one_identity() {
    let lab = Lab::new().await;
    for (case, method, path, expected) in PASSED {
        let response = lab.method(method, path).await;
        assert_eq!(response.status, 200, "case {case}: {method} {path}");
        let received = lab.upstream.received().pop().unwrap();
        assert_eq!(received.line(), format!("{method} {expected} HTTP/1.1"), "case {case}");
        assert_eq!(received.values("authorization"), [format!("Bearer {TOKEN}")]);
        assert_eq!(received.values("host"), [lab.authority()]);
    }
    assert_eq!(lab.upstream.received().len(), PASSED.len());
    assert_eq!(lab.upstream.connections(), 1, "tunnels share a kept connection");
}

#[tokio::test]
async fn case_14_only_under_a_servers_prefix() {
    let upstream = Upstream::start(ok()).await;
    let server = format!("https://api.test:{}", upstream.address.port());
    let lab = Lab::with(upstream, |setup| {
        setup.edit(|text| text.replace(&server, &format!("{server}/k8s/clusters/c-1/")));
    })
    .await;
    assert_eq!(lab.get("/k8s/clusters/c-1/api/v1/pods").await.status, 200);
    assert_eq!(lab.get("/k8s/clusters/c-1/version").await.status, 200);
    for path in [
        "/v3/tokens",
        "/v3/clusters/c-1?action=generateKubeconfig",
        "/api/v1/pods",
        "/k8s/clusters/c-10/api/v1/pods",
        "/k8s/clusters/c-1/v3/tokens",
        "/k8s/clusters",
        "/",
    ] {
        assert_eq!(lab.method("POST", path).await.status, 403, "{path}");
    }
    assert_eq!(
        lab.get("/k8s/clusters/c-1/api/v1/namespaces/x/pods/p/exec")
            .await
            .status,
        403
    );
    assert_eq!(lab.upstream.received().len(), 2);
}

#[tokio::test]
async fn case_14_two_users_on_one_host_are_told_apart_by_prefix() {
    let upstream = Upstream::start(ok()).await;
    let (port, ca) = (upstream.address.port(), STANDARD.encode(upstream.ca.pem()));
    let lab = Lab::with(upstream, |setup| {
        let cluster = |name: &str, prefix: &str| {
            format!("{{name: {name}, cluster: {{server: \"https://api.test:{port}{prefix}\", certificate-authority-data: {ca}}}}}")
        };
        setup.kubeconfig = Some(format!(
            "{{clusters: [{}, {}, {}], users: [{{name: a, user: {{token: token-of-a-11}}}}, {{name: b, user: {{token: \
             token-of-b-22}}}}], contexts: [{{name: a, context: {{cluster: one, user: a}}}}, {{name: b, context: \
             {{cluster: two, user: b}}}}, {{name: c, context: {{cluster: root, user: a}}}}]}}",
            cluster("one", "/k8s/clusters/c-1"),
            cluster("two", "/k8s/clusters/c-10"),
            cluster("root", ""),
        ));
    })
    .await;
    for (path, token) in [
        ("/k8s/clusters/c-1/api/v1/pods", "token-of-a-11"),
        ("/k8s/clusters/c-10/api/v1/pods", "token-of-b-22"),
        ("/api/v1/pods", "token-of-a-11"),
    ] {
        assert_eq!(lab.get(path).await.status, 200, "{path}");
        let received = lab.upstream.received().pop().unwrap();
        assert_eq!(received.values("authorization"), [format!("Bearer {token}")], "{path}");
    }
    assert_eq!(
        lab.get("/k8s/clusters/c-10/api/v1/namespaces/x/pods/p/exec")
            .await
            .status,
        403
    );
    assert_eq!(lab.get("/k8s/clusters/c-11/api/v1/pods").await.status, 403);
}

#[tokio::test]
async fn read_only_and_denied_resources_hold_on_the_wire() {
    let lab = Lab::with(Upstream::start(ok()).await, |setup| {
        setup.targets =
            "[{type: kubernetes, access: ReadOnly, deniedResources: [{group: \"\", resource: secrets}]}]".into();
    })
    .await;
    assert_eq!(lab.get("/api/v1/pods").await.status, 200);
    for (method, path) in [
        ("POST", "/api/v1/namespaces/n/pods"),
        ("DELETE", "/api/v1/watch/pods"),
        ("OPTIONS", "/api/v1/pods"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/watch/secrets"),
        ("GET", "/api/v1/namespaces/n/secrets/s"),
    ] {
        let response = lab.method(method, path).await;
        assert_eq!(response.status, 403, "{method} {path}");
        assert_eq!(response.kubernetes_status()["reason"], "Forbidden");
    }
    assert_eq!(lab.upstream.received().len(), 1);
}
