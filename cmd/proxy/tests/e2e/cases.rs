//! The rows of `proxy_cases.md`, by number, on the real proxy in front of a real TLS upstream.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_kubeconfig::{Kubeconfig, dummy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Ca, Client, Lab, TOKEN, Upstream, answer, kubeconfig, local_address, ok, patiently};

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
async fn cases_1_to_18_and_38_refusals_reach_nobody() {
    let lab = Lab::new().await;
    for (case, method, path, statuses) in REFUSED {
        let response = lab.method(method, path).await;
        assert!(
            statuses.contains(&response.status),
            "case {case}: {method} {path}: {}",
            response.head
        );
        if *method != "HEAD" {
            response.kubernetes_status();
        }
        assert!(!response.text().contains(TOKEN));
    }
    assert!(lab.upstream.received().is_empty(), "{:?}", lab.upstream.received());
    assert!(lab.audit().iter().all(|line| line["decision"] == "deny"));
    assert!(lab.audit().iter().all(|line| !line.to_string().contains("hunter2")));
    assert_eq!(lab.audit().len(), REFUSED.len());
}

#[tokio::test]
async fn cases_3_to_14_what_is_sent_is_what_was_judged_with_one_identity() {
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
    let lab = Lab::with(upstream, |setup| {
        setup.kubeconfig = setup.kubeconfig.take().map(|text| {
            let port = text
                .split("api.test:")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned();
            text.replace(
                &format!("api.test:{port}"),
                &format!("api.test:{port}/k8s/clusters/c-1/"),
            )
        });
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
async fn case_17_the_host_is_the_tunnels() {
    let lab = Lab::new().await;
    for (headers, status) in [
        ("Host: mytenant.apps.cluster", 421),
        ("Host: api.test", 421),
        ("Host: api.test.:443", 400),
        ("Host: evil@HOST", 400),
        ("Host: HOST\r\nHost: HOST", 400),
        ("Host: HOST\r\nHost: other.test", 400),
        ("Host: HOST, other.test", 400),
        ("X-Host: HOST", 400),
        ("Host:", 400),
    ] {
        let mut client = lab.tunnel().await;
        client
            .send(&format!("GET /api HTTP/1.1\r\n{headers}\r\n\r\n").replace("HOST", &lab.authority()))
            .await;
        assert_eq!(client.response().await.status, status, "{headers}");
        assert!(client.is_closed().await, "{headers}");
    }
    assert!(lab.upstream.received().is_empty());
    assert_eq!(
        lab.request("GET /api HTTP/1.1\r\nhOsT:  HOST  \r\n\r\n").await.status,
        200
    );
    let upper = format!("API.Test:{}", lab.upstream.address.port());
    assert_eq!(
        lab.request(&format!("GET /api HTTP/1.1\r\nHost: {upper}\r\n\r\n"))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn case_20_connect_takes_exact_targets_only() {
    let lab = Lab::new().await;
    let port = lab.upstream.address.port();
    let address = local_address();
    for target in [
        "api.test".to_owned(),
        format!("api.test:+{port}"),
        format!("api.test:0{port}"),
        "api.test:65536".into(),
        "api.test:".into(),
        format!("user@api.test:{port}"),
        format!("api.test.:{port}"),
        format!("api%2etest:{port}"),
        format!("x.api.test:{port}"),
        "api.test:1".into(),
        format!("{address}:{port}"),
        "0x7f000001:443".into(),
        "127.1:443".into(),
        format!("*.test:{port}"),
        format!("api.test:{port}/"),
        "[::1]:443".into(),
        format!("other.test:{port}"),
        "169.254.169.254:80".into(),
        format!("api.test\u{e9}:{port}"),
    ] {
        let answer = lab
            .raw(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(body.len() > 20, "the body says why: {body}");
    }
    lab.tunnel_to(&format!("API.TEST:{port}"), "api.test").await;
    assert!(
        lab.audit()
            .iter()
            .all(|line| line["method"] == "CONNECT" && line["decision"] == "deny" && line["status"] == 403)
    );
}

#[tokio::test]
async fn case_21_sni_is_the_host_or_absent() {
    let lab = Lab::new().await;
    let error = lab
        .try_tunnel(&lab.authority(), "other.test")
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("UnrecognizedName") || error.contains("UnrecognisedName"),
        "{error}"
    );
    let line = lab.audited(|line| line["method"] == "CONNECT").await;
    assert_eq!(line["decision"], "deny");

    // A client that dials an address sends no SNI, and gets a certificate for the address.
    let upstream = Upstream::start(ok()).await;
    let server = format!("https://{}", upstream.address);
    let lab = Lab::with(upstream, |setup| {
        let text = setup.kubeconfig.take().unwrap();
        let start = text.find("https://api.test:").unwrap();
        let end = text[start..].find('"').unwrap() + start;
        setup.kubeconfig = Some(format!("{}{server}{}", &text[..start], &text[end..]));
    })
    .await;
    let authority = lab.upstream.address.to_string();
    let mut client = lab.tunnel_to(&authority, &local_address().to_string()).await;
    client
        .send(&format!("GET /api HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
        .await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn case_21_the_tls_server_name_of_the_cluster_may_stand_in_sni() {
    let ca = Ca::new("cluster CA");
    let (certificate, key) = ca.issue(&["inner.name"]);
    let upstream = Upstream::start_with(ok(), ca, certificate, key, None).await;
    let lab = Lab::with(upstream, |setup| {
        setup.kubeconfig = setup.kubeconfig.take().map(|text| {
            text.replace(
                "certificate-authority-data:",
                "tls-server-name: inner.name, certificate-authority-data:",
            )
        });
    })
    .await;
    assert_eq!(lab.get("/api").await.status, 200);
    // The leaf is for the host of the CONNECT, so that a client which checks the other name fails by itself.
    let error = lab
        .try_tunnel(&lab.authority(), "inner.name")
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn case_23_in_the_tunnel_only_tls() {
    let lab = Lab::new().await;
    for bytes in [
        &b"POST /api/v1/namespaces/ns/pods/p/exec HTTP/1.1\r\nHost: h\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"\x15\x03\x01\x00\x02\x01\x00",
    ] {
        let mut tcp = TcpStream::connect(lab.proxy).await.unwrap();
        let authority = lab.authority();
        tcp.write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes())
            .await
            .unwrap();
        tcp.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = patiently(tcp.read_to_end(&mut answer)).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(
            text.starts_with("HTTP/1.1 200 Connection established\r\n\r\n") && !text.contains("HTTP/1.1 4"),
            "{text}"
        );
    }
    assert!(lab.upstream.received().is_empty());
    assert_eq!(lab.upstream.connections(), 0);
}

#[tokio::test]
async fn case_24_plaintext_and_other_requests_to_the_port() {
    let lab = Lab::new().await;
    for (request, status) in [
        ("GET http://api.test:6443/api HTTP/1.1\r\nHost: api.test\r\n\r\n", 403),
        (
            "GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: x\r\n\r\n",
            403,
        ),
        (
            "GET http://user:hunter2hunter2@api.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
            403,
        ),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ] {
        let answer = lab.raw(request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
    }
    assert!(lab.audit().iter().all(|line| !line.to_string().contains("hunter2")));
    assert_eq!(lab.health("/healthz").await.0, 200);
    assert_eq!(lab.health("/readyz").await.0, 200);
}

#[tokio::test]
async fn case_25_a_name_on_the_allowlist_that_leads_inside_is_refused_at_connect() {
    let upstream = Upstream::start(ok()).await;
    let port = upstream.address.port();
    let lab = Lab::with(upstream, |setup| {
        setup.names = vec![
            ("metadata.test", "169.254.169.254"),
            ("mapped.test", "::ffff:169.254.169.254"),
            ("private.test", "10.1.2.3"),
            ("loop.test", "127.0.0.1"),
            ("nat64.test", "64:ff9b::a9fe:a9fe"),
            ("mixed.test", "1.1.1.1"),
            ("mixed.test", "192.168.1.1"),
        ];
        setup.targets = format!(
            "[{{type: kubernetes}}, {{type: allowlist, domains: [metadata.test, mapped.test, private.test, loop.test, nat64.test, \
             mixed.test, \"other.test:{port}\", gone.test]}}]"
        );
    })
    .await;
    for name in [
        "metadata.test",
        "mapped.test",
        "private.test",
        "loop.test",
        "nat64.test",
        "mixed.test",
    ] {
        let answer = lab.raw(&format!("CONNECT {name}:443 HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{name}: {answer}");
        assert!(answer.contains(name), "{answer}");
    }
    let answer = lab.raw("CONNECT gone.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(lab.upstream.connections(), 0);
}

#[tokio::test]
async fn cases_25_27_a_kubernetes_name_that_leads_to_loopback_is_a_502() {
    let upstream = Upstream::start(ok()).await;
    let port = upstream.address.port();
    for address in ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"] {
        let upstream = Upstream::start(ok()).await;
        let lab = Lab::with(upstream, |setup| {
            setup.names = vec![("moved.test", address)];
            let text = setup.kubeconfig.take().unwrap();
            setup.kubeconfig = Some(text.replace("https://api.test", "https://moved.test"));
        })
        .await;
        let authority = format!("moved.test:{}", lab.upstream.address.port());
        let mut client = lab.tunnel_to(&authority, "moved.test").await;
        client
            .send(&format!("GET /api HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
            .await;
        let response = client.response().await;
        assert_eq!(response.status, 502);
        assert!(
            response.kubernetes_status()["message"]
                .as_str()
                .unwrap()
                .contains(address),
            "{}",
            response.text()
        );
    }
    // Loopback servers are refused when the kubeconfig is read, and the dummy file names the proxy for each cluster.
    let loopback = kubeconfig(&format!("https://127.0.0.1:{port}"), &upstream.ca, "", "token: abc");
    assert!(
        Kubeconfig::parse(loopback.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("loopback")
    );
    let good = kubeconfig("https://api.test:6443", &upstream.ca, "", "token: abc");
    let parsed = Kubeconfig::parse(good.as_bytes()).unwrap();
    let rendered = dummy::render(Some(&parsed), "CA", &dummy::proxy_url("demo", "ns"));
    assert!(
        rendered.contains("proxy-url: http://cli-mcp-demo-proxy.ns.svc:8080"),
        "{rendered}"
    );
}

const CARRIERS: &str = "Authorization: Bearer mine\r\nAuthorization: Basic bWluZQ==\r\nProxy-Authorization: mine\r\n\
    Cookie: R_SESS=token-mine\r\nImpersonate-User: mine\r\nImpersonate-Group: mine\r\nImpersonate-Uid: mine\r\n\
    Impersonate-Extra-foo%2fbar: mine\r\nImpersonate-Future: mine\r\nX-Remote-User: mine\r\nX-Remote-Group: mine\r\n\
    X-Remote-Extra-a: mine\r\nX-Remote-Uid: mine\r\nX-Forwarded-For: mine\r\nX-Forwarded-Access-Token: mine\r\n\
    Forwarded: mine\r\nVia: mine\r\nX-Real-IP: mine\r\nX-Original-URL: /mine\r\nX-Rewrite-URL: /mine\r\n\
    X-HTTP-Method-Override: mine\r\nX-Auth-Request-User: mine\r\nX-Api-Key: mine\r\nApi-Key: mine\r\n\
    X-Goog-Api-Key: mine\r\nX-Auth-Token: mine\r\nX-Amz-Security-Token: mine\r\nPrivate-Token: mine\r\n\
    X_Remote_User: mine\r\nMax-Forwards: 1\r\nTE: trailers\r\nKeep-Alive: mine\r\n\
    Sec-WebSocket-Protocol: v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.mine\r\n\
    X-Hop: mine\r\nConnection: X-Hop, Authorization\r\nAccept: application/json\r\n";

#[tokio::test]
async fn cases_28_to_38_one_identity_whatever_the_client_claims() {
    let lab = Lab::new().await;
    lab.request(&format!("GET /api/v1/pods HTTP/1.1\r\nHost: HOST\r\n{CARRIERS}\r\n"))
        .await;
    let received = lab.upstream.received().pop().unwrap();
    assert!(
        !received.head.to_ascii_lowercase().contains("mine"),
        "{}",
        received.head
    );
    assert_eq!(received.values("authorization"), [format!("Bearer {TOKEN}")]);
    assert_eq!(received.values("sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    assert_eq!(received.values("accept"), ["application/json"]);
    assert!(received.values("connection").is_empty());
}

#[tokio::test]
async fn case_35_an_allowlist_target_gets_nothing_at_all() {
    let upstream = Upstream::start(answer(
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
    ))
    .await;
    let (address, ca) = (upstream.address, upstream.ca.pem());
    let lab = Lab::with(upstream, |setup| {
        setup.targets = format!("[{{type: allowlist, domains: [\"{address}\"]}}]");
        setup.kubeconfig = None;
        setup.public_ca = Some(ca);
    })
    .await;
    let mut client = lab.tunnel_to(&address.to_string(), &address.ip().to_string()).await;
    client
        .send(&format!(
            "GET /@scope%2Fname;v=1/x?token=a&q=1 HTTP/1.1\r\nHost: {address}\r\n{CARRIERS}\r\n"
        ))
        .await;
    let response = client.response().await;
    assert_eq!(response.status, 200);
    assert!(!response.has("set-cookie"));
    let received = lab.upstream.received().pop().unwrap();
    assert!(
        !received.head.to_ascii_lowercase().contains("mine") && !received.head.contains(TOKEN),
        "{}",
        received.head
    );
    assert!(received.values("authorization").is_empty());
    assert_eq!(received.line(), "GET /@scope%2Fname;v=1/x?q=1 HTTP/1.1");
    for method in ["TRACE", "TRACK"] {
        client
            .send(&format!("{method} / HTTP/1.1\r\nHost: {address}\r\n\r\n"))
            .await;
        assert_eq!(client.response().await.status, 405);
    }
    client
        .send(&format!("GET https://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n"))
        .await;
    assert_eq!(client.response().await.status, 400);
    assert_eq!(lab.upstream.received().len(), 1);
}

#[tokio::test]
async fn case_37_no_cookie_and_no_token_come_back() {
    let lab = Lab::answering(answer(format!(
        "HTTP/1.1 200 OK\r\nSet-Cookie: R_SESS=1\r\nX-Echo: Bearer {TOKEN}\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"
    )))
    .await;
    let response = lab.get("/api").await;
    assert!(
        !response.has("set-cookie") && !response.head.contains(TOKEN),
        "{}",
        response.head
    );
    assert!(response.has("etag"));
}

#[tokio::test]
async fn case_38_options_passes_without_a_credential() {
    let lab = Lab::new().await;
    assert_eq!(lab.method("OPTIONS", "/api/v1/pods").await.status, 200);
    assert!(
        lab.upstream
            .received()
            .pop()
            .unwrap()
            .values("authorization")
            .is_empty()
    );
}

#[tokio::test]
async fn case_42_a_client_certificate_is_the_proxys_own() {
    let ca = Ca::new("cluster CA");
    let client_ca = Ca::new("client CA");
    let (certificate, key) = ca.issue(&["api.test"]);
    let upstream = Upstream::start_with(ok(), ca, certificate, key, Some(&client_ca)).await;
    let (mine, mine_key) = client_ca.issue(&["me"]);
    let pem = |label: &str, der: &[u8]| {
        STANDARD.encode(format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            STANDARD.encode(der)
        ))
    };
    let user = format!(
        "client-certificate-data: {}, client-key-data: {}, as: reader, as-groups: [g1, g2], as-uid: u1, as-user-extra: {{\"a/b\": [x]}}",
        pem("CERTIFICATE", &mine),
        pem("PRIVATE KEY", mine_key.secret_der())
    );
    let lab = Lab::with(upstream, |setup| {
        setup.kubeconfig = setup
            .kubeconfig
            .take()
            .map(|text| text.replace(&format!("token: {TOKEN}"), &user));
    })
    .await;
    let response = lab
        .request("GET /api HTTP/1.1\r\nHost: HOST\r\nImpersonate-User: admin\r\nAuthorization: x\r\n\r\n")
        .await;
    assert_eq!(response.status, 200);
    let received = lab.upstream.received().pop().unwrap();
    assert!(received.values("authorization").is_empty());
    assert_eq!(received.values("impersonate-user"), ["reader"], "case 72");
    assert_eq!(received.values("impersonate-group"), ["g1", "g2"]);
    assert_eq!(received.values("impersonate-uid"), ["u1"]);
    assert_eq!(received.values("impersonate-extra-a%2fb"), ["x"]);
}

#[tokio::test]
async fn case_50_limits_and_timeouts() {
    let lab = Lab::with(Upstream::start(ok()).await, |setup| {
        setup.max_connections_per_client = 2;
        setup.timeouts.handshake = Duration::from_millis(200);
        setup.timeouts.head = Duration::from_millis(200);
    })
    .await;
    let first = lab.tunnel().await;
    let mut slow = TcpStream::connect(lab.proxy).await.unwrap();
    slow.write_all(b"CONNECT ap").await.unwrap();
    let answer = lab.raw("CONNECT x:1 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // Neither a slow CONNECT nor a silent tunnel holds its place.
    assert_eq!(patiently(slow.read(&mut [0])).await.unwrap(), 0);
    let Client { mut stream, .. } = first;
    assert!(matches!(patiently(stream.read(&mut [0])).await, Ok(0) | Err(_)));
    patiently(async {
        while lab
            .raw("CONNECT x:1 HTTP/1.1\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 503 ")
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (_, metrics) = lab.health("/metrics").await;
    assert!(
        metrics.contains("cli_mcp_proxy_connections_over_limit_total{limit=\"client\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn case_54_http_1_1_is_selected() {
    let lab = Lab::new().await;
    let client = lab.tunnel().await;
    assert_eq!(client.stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[tokio::test]
async fn case_56_bytes_behind_the_connect_are_not_lost() {
    let lab = Lab::new().await;
    let authority = lab.authority();
    let mut tls = rustls::ClientConnection::new(
        std::sync::Arc::new(crate::harness::client_config(&lab.ca)),
        "api.test".try_into().unwrap(),
    )
    .unwrap();
    let mut first = format!("CONNECT {authority} HTTP/1.1\r\n\r\n").into_bytes();
    tls.write_tls(&mut first).unwrap();
    let mut tcp = TcpStream::connect(lab.proxy).await.unwrap();
    tcp.write_all(&first).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut filled = 0;
    patiently(async {
        // 39 bytes of CONNECT response, and then the server's handshake.
        while filled < 60 {
            filled += tcp.read(&mut answer[filled..]).await.unwrap();
        }
    })
    .await;
    assert_eq!(&answer[..39], b"HTTP/1.1 200 Connection established\r\n\r\n");
    assert_eq!(answer[39], 0x16, "a handshake record follows");
}

#[tokio::test]
async fn case_60_unauthorized_passes_with_its_challenge() {
    let lab = Lab::answering(answer(
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"k\"\r\nContent-Length: 2\r\n\r\n{}",
    ))
    .await;
    let response = lab.get("/api").await;
    assert_eq!(response.status, 401);
    assert!(response.has("www-authenticate"));
}

#[tokio::test]
async fn cases_67_68_trust_in_the_upstream_and_what_is_said_without() {
    let other = Ca::new("other CA");
    let ca = Ca::new("cluster CA");
    let wrong_name = ca.issue(&["elsewhere.test"]);
    let only_common_name = ca.issue(&[]);
    let unknown = other.issue(&["api.test"]);
    for ((certificate, key), word) in [
        (unknown, "certificate-authority-data"),
        (wrong_name, "tls-server-name"),
        (only_common_name, "common name"),
    ] {
        let upstream = Upstream::start_with(ok(), Ca::new("not named"), certificate, key, None).await;
        let pem = ca.pem();
        let lab = Lab::with(upstream, |setup| {
            let text = setup.kubeconfig.take().unwrap();
            let (before, rest) = text.split_once("certificate-authority-data: ").unwrap();
            let (_, after) = rest.split_once('}').unwrap();
            setup.kubeconfig = Some(format!(
                "{before}certificate-authority-data: {}}}{after}",
                STANDARD.encode(&pem)
            ));
        })
        .await;
        let response = lab.get("/api/v1/secrets").await;
        assert_eq!(response.status, 502, "{word}");
        let message = response.kubernetes_status()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(word) && message.contains("api.test"), "{message}");
        assert!(lab.upstream.received().is_empty());
    }
}

#[tokio::test]
async fn case_67_the_servers_own_certificate_is_pinned() {
    let ca = Ca::new("unknown CA");
    let (certificate, key) = ca.issue(&["api.test"]);
    let pem = format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        STANDARD.encode(&certificate)
    );
    let upstream = Upstream::start_with(ok(), ca, certificate, key, None).await;
    let lab = Lab::with(upstream, |setup| {
        let text = setup.kubeconfig.take().unwrap();
        let (before, rest) = text.split_once("certificate-authority-data: ").unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        setup.kubeconfig = Some(format!(
            "{before}certificate-authority-data: {}}}{after}",
            STANDARD.encode(&pem)
        ));
    })
    .await;
    let response = lab.get("/api").await;
    assert_eq!(response.status, 200, "{}", response.text());
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

#[tokio::test]
async fn the_audit_line_says_what_happened_and_no_secret() {
    let lab = Lab::new().await;
    lab.request("POST /api/v1/namespaces/ns/pods?token=q-secret HTTP/1.1\r\nHost: HOST\r\nX: h-secret\r\nContent-Length: 8\r\n\r\nb-secret").await;
    let line = lab.audited(|line| line["method"] == "POST").await;
    for (key, value) in [
        ("log", "audit"),
        ("client", "127.0.0.1"),
        ("path", "/api/v1/namespaces/ns/pods"),
        ("verb", "create"),
        ("group", ""),
        ("resource", "pods"),
        ("subresource", ""),
        ("namespace", "ns"),
        ("name", ""),
        ("decision", "allow"),
        ("reason", ""),
    ] {
        assert_eq!(line[key], value, "{key}");
    }
    assert_eq!(line["target"], lab.authority());
    assert_eq!(
        (
            line["status"].as_u64(),
            line["bytesIn"].as_u64(),
            line["bytesOut"].as_u64()
        ),
        (Some(200), Some(8), Some(11))
    );
    let text = line.to_string();
    assert!(!text.contains("secret") && !text.contains(TOKEN), "{text}");
    let (_, metrics) = lab.health("/metrics").await;
    let counted = format!(
        "cli_mcp_proxy_requests_total{{target=\"{}\",verb=\"write\",decision=\"allow\",code=\"2xx\"}} 1",
        lab.authority()
    );
    assert!(metrics.contains(&counted), "{metrics}");
}
