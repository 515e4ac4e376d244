//! Which upstreams are trusted, and what is said of the others (`proxy_cases.md`, section F).

use rustls::version::{TLS12, TLS13};

use crate::harness::{Ca, Lab, TOKEN, Upstream, local_address, ok};
use crate::upstream::{pem, self_signed};

/// The message of the 502 that a request gets. Nothing of the request has left, and the audit line says the same.
async fn refused(lab: &Lab) -> String {
    let response = lab.get("/api/v1/secrets").await;
    assert_eq!(response.status, 502);
    let message = response.kubernetes_status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("api.test") && !message.contains(TOKEN), "{message}");
    assert!(lab.upstream.received().is_empty());
    let line = lab.audited(|line| line["path"] == "/api/v1/secrets").await;
    assert_eq!((&line["status"], &line["decision"]), (&502.into(), &"allow".into()));
    assert_eq!(line["reason"], message);
    message
}

#[tokio::test]
async fn cases_67_68_trust_in_the_upstream_and_what_is_said_without() {
    let day = time::Duration::days(1);
    let other = Ca::new("other CA");
    let ca = Ca::new("cluster CA");
    let wrong_name = ca.issue(&["elsewhere.test"]);
    let only_common_name = ca.issue(&[]);
    let unknown = other.issue(&["api.test"]);
    let expired = ca.issue_valid(&["api.test"], -10 * day, -day);
    let early = ca.issue_valid(&["api.test"], day, 10 * day);
    let own = self_signed(&["api.test"]);
    for ((certificate, key), word) in [
        (unknown, "certificate-authority-data"),
        (wrong_name, "tls-server-name"),
        (only_common_name, "common name"),
        (expired, "has expired: renew it"),
        (early, "not valid yet: check the clocks"),
        (own, "certificate-authority-data"),
    ] {
        let upstream = Upstream::start_with(ok(), Ca::new("not named"), certificate, key, None).await;
        let pem = ca.pem();
        let lab = Lab::with(upstream, |setup| {
            setup.trust(&pem);
        })
        .await;
        let message = refused(&lab).await;
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn case_67_the_servers_own_certificate_is_pinned() {
    let ca = Ca::new("unknown CA");
    for version in [&TLS12, &TLS13] {
        for pair in [ca.issue(&["api.test"]), self_signed(&["api.test"])] {
            let pem = pem(&pair.0);
            let upstream = Upstream::speaking(version, ok(), Ca::new("not named"), pair).await;
            let lab = Lab::with(upstream, |setup| setup.trust(&pem)).await;
            let response = lab.get("/api").await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
}

#[tokio::test]
async fn case_68_a_pinned_certificate_ends_too() {
    let day = time::Duration::days(1);
    let ca = Ca::new("unknown CA");
    for (from, to, word) in [(-10 * day, -day, "has expired"), (day, 10 * day, "not valid yet")] {
        let (certificate, key) = ca.issue_valid(&["api.test"], from, to);
        let pem = pem(&certificate);
        let upstream = Upstream::start_with(ok(), Ca::new("not named"), certificate, key, None).await;
        let lab = Lab::with(upstream, |setup| setup.trust(&pem)).await;
        let message = refused(&lab).await;
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn a_cluster_may_speak_tls_1_2() {
    let ca = Ca::new("cluster CA");
    let pair = ca.issue(&["api.test"]);
    let lab = Lab::with(Upstream::speaking(&TLS12, ok(), ca, pair).await, |_| {}).await;
    let response = lab.get("/api").await;
    assert_eq!(response.status, 200, "{}", response.text());
    let received = lab.upstream.received().pop().unwrap();
    assert_eq!(received.values("authorization"), [format!("Bearer {TOKEN}")]);
}

#[tokio::test]
async fn case_67_a_cluster_without_a_ca_is_trusted_by_the_public_roots_and_no_other() {
    let without_ca = |text: String| {
        let (before, rest) = text.split_once(", certificate-authority-data: ").unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        format!("{before}}}{after}")
    };
    let upstream = Upstream::start(ok()).await;
    let roots = upstream.ca.pem();
    let lab = Lab::with(upstream, |setup| {
        setup.edit(without_ca);
        setup.public_ca = Some(roots);
    })
    .await;
    assert_eq!(lab.get("/api").await.status, 200);

    let lab = Lab::with(Upstream::start(ok()).await, |setup| {
        setup.edit(without_ca);
        setup.public_ca = Some(Ca::new("another root").pem());
    })
    .await;
    let message = refused(&lab).await;
    assert!(message.contains("certificate-authority-data"), "{message}");

    // And a cluster with a CA by that one only.
    let upstream = Upstream::start(ok()).await;
    let roots = upstream.ca.pem();
    let lab = Lab::with(upstream, |setup| {
        setup.trust(&Ca::new("another CA").pem());
        setup.public_ca = Some(roots);
    })
    .await;
    refused(&lab).await;
}

#[tokio::test]
async fn case_68_an_untrusted_public_server_is_told_apart_from_a_cluster() {
    let ca = Ca::new("public CA");
    let here = local_address().to_string();
    let unknown = Ca::new("other CA").issue(&[&here]);
    let wrong_name = ca.issue(&["elsewhere.test"]);
    for ((certificate, key), word) in [(unknown, "a public CA"), (wrong_name, "on the allowlist")] {
        let upstream = Upstream::start_with(ok(), Ca::new("not named"), certificate, key, None).await;
        let (address, pem) = (upstream.address, ca.pem());
        let lab = Lab::with(upstream, |setup| {
            setup.targets = format!("[{{type: allowlist, domains: [\"{address}\"]}}]");
            setup.kubeconfig = None;
            setup.public_ca = Some(pem);
        })
        .await;
        let mut client = lab.tunnel_to(&address.to_string(), &here).await;
        client.send(&format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n")).await;
        let response = client.response().await;
        assert_eq!(response.status, 502);
        let text = response.text();
        assert!(text.contains(word) && !text.contains("kubeconfig"), "{text}");
        assert!(lab.upstream.received().is_empty());
    }
}
