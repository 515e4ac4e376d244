//! Whom a tunnel leads to (`proxy_cases.md`, section B): CONNECT, SNI, Host, and what a name resolves to.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cli_mcp_kubeconfig::{Kubeconfig, dummy};
use cli_mcp_proxy::dial::Resolve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Ca, Lab, Upstream, kubeconfig, local_address, ok, patiently};

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
        "2130706433:443".into(),
        "017700000001:443".into(),
        "127.0.0.1.:443".into(),
        "127.0.0.01:443".into(),
        format!("api.test:{port}:443"),
        format!("api.test:{port}@other.test:443"),
        format!("api.test:{port}#x"),
        format!("api.test:{port}?x"),
        format!("https://api.test:{port}"),
        format!("//api.test:{port}"),
        "api.test:0".into(),
        "api.test:-1".into(),
        "api.test:443443".into(),
        format!("api\u{3002}test:{port}"),
        format!("\u{ff41}pi.test:{port}"),
        format!("api-test:{port}"),
        format!(" api.test:{port}"),
        format!("[api.test]:{port}"),
        "[::ffff:127.0.0.1]:443".into(),
        "[::1%25lo]:443".into(),
        "[0:0:0:0:0:0:0:1]:443".into(),
        ":443".into(),
        "*".into(),
        "/".into(),
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
    let named = format!("https://api.test:{}", upstream.address.port());
    let lab = Lab::with(upstream, |setup| {
        setup.edit(|text| text.replace(&named, &server));
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
        setup.edit(|text| {
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
            // With its last dot: no search domain of the pod may make another name of it.
            ("metadata.test.", "169.254.169.254"),
            ("mapped.test.", "::ffff:169.254.169.254"),
            ("private.test.", "10.1.2.3"),
            ("loop.test.", "127.0.0.1"),
            ("nat64.test.", "64:ff9b::a9fe:a9fe"),
            ("mixed.test.", "1.1.1.1"),
            ("mixed.test.", "192.168.1.1"),
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

/// Public when the tunnel is asked for, and inside when it is dialled.
struct Rebinding(AtomicUsize);

impl Resolve for Rebinding {
    fn lookup<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async {
            let first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
            Ok(vec![if first {
                "93.184.216.34".parse().unwrap()
            } else {
                local_address()
            }])
        })
    }
}

#[tokio::test]
async fn case_25_a_name_that_moves_inside_between_check_and_dial_is_not_dialled() {
    let upstream = Upstream::start(ok()).await;
    let port = upstream.address.port();
    let lab = Lab::with(upstream, |setup| {
        setup.targets = format!("[{{type: kubernetes}}, {{type: allowlist, domains: [\"rebind.test:{port}\"]}}]");
        setup.resolver = Some(Arc::new(Rebinding(AtomicUsize::new(0))));
    })
    .await;
    let authority = format!("rebind.test:{port}");
    let mut client = lab.tunnel_to(&authority, "rebind.test").await;
    client
        .send(&format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
        .await;
    let response = client.response().await;
    assert_eq!(response.status, 502);
    assert!(response.text().contains("does not dial"), "{}", response.text());
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
            setup.edit(|text| text.replace("https://api.test", "https://moved.test"));
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
