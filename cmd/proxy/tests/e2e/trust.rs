//! Which upstreams are trusted, and what is said of the others (`proxy_cases.md`, section F).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Ca, Lab, Upstream, ok};

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
            setup.trust(&pem);
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
        setup.trust(&pem);
    })
    .await;
    let response = lab.get("/api").await;
    assert_eq!(response.status, 200, "{}", response.text());
}
