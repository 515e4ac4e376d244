//! Everything that can carry a credential or an identity (`proxy_cases.md`, section C), in both directions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Ca, Lab, TOKEN, Upstream, answer, ok};

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
    let address = upstream.address;
    let lab = Lab::allowlisting(upstream).await;
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
    for method in ["TRACE", "TRACK", "trace", "Connect"] {
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
async fn cases_37_76_no_cookie_and_no_token_come_back() {
    let lab = Lab::answering(answer(format!(
        "HTTP/1.1 200 Hello {TOKEN}\r\nSet-Cookie: R_SESS=1\r\nX-Echo: Bearer {TOKEN}\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"
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
        setup.edit(|text| text.replace(&format!("token: {TOKEN}"), &user));
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

    // The certificate goes with the connection, so that no request of this target is without an identity.
    let response = lab.method("OPTIONS", "/api/v1/pods").await;
    assert_eq!(response.status, 405, "case 38");
    assert_eq!(lab.upstream.received().len(), 1);
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
