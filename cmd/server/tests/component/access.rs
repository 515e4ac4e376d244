//! Who may come in.

use http::{Method, StatusCode};
use serde_json::json;

use crate::support::api::Cluster;
use crate::support::server::{LOCAL, Server, bash, http, structured};

#[tokio::test]
async fn tokens_are_reviewed_by_verb_and_never_logged() {
    let cluster = Cluster::start().await;
    cluster.grant("tok-admin", "alice", &["create", "delete", "get"]);
    cluster.grant("tok-guest", "bob", &["get"]);
    let mut server = Server::start(&cluster, &[LOCAL, "--authorization=kubernetes"]).await;

    let client = server.client_with("s1", &[("authorization", "Bearer tok-admin")]).await;
    structured(&bash(&client, "echo").await);
    let line = server.audit().await;
    assert_eq!(line["caller"]["user"], "alice");
    assert!(!line.to_string().contains("tok-admin"));

    let get = |path: &str, token: Option<&str>| {
        let request = http().get(format!("{}{path}", server.base));
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
        .send()
    };
    assert_eq!(get("/metrics", None).await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(
        get("/metrics", Some("stranger")).await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
    let metrics = get("/metrics", Some("tok-guest")).await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains("cli_mcp_server_calls_total{outcome=\"ok\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("cli_mcp_server_auth_decisions_total{result=\"bad_token\"} 1"),
        "{metrics}"
    );
    for open in ["/live", "/health"] {
        assert_eq!(get(open, None).await.unwrap().status(), StatusCode::OK, "{open}");
    }
    let forbidden = http()
        .delete(format!("{}/sessions/s1", server.base))
        .bearer_auth("tok-guest")
        .send()
        .await
        .unwrap();
    assert_eq!(forbidden.status(), StatusCode::FORBIDDEN);
    assert!(forbidden.text().await.unwrap().contains("delete"));
    assert_eq!(cluster.pods_of("s1").len(), 1);
    let deleted = http()
        .delete(format!("{}/sessions/s1", server.base))
        .bearer_auth("tok-admin")
        .send()
        .await
        .unwrap();
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn strange_hosts_and_origins_are_refused_on_every_path() {
    let cluster = Cluster::start().await;
    let server = Server::start(&cluster, &[LOCAL, "--allowed-hosts=mcp.example.com"]).await;
    for path in ["/mcp", "/live", "/sessions/s1", "/nowhere"] {
        let request = |name: &str, value: &str| http().get(format!("{}{path}", server.base)).header(name, value).send();
        assert_eq!(
            request("host", "evil.example").await.unwrap().status(),
            StatusCode::FORBIDDEN,
            "{path}"
        );
        assert_eq!(
            request("origin", "http://evil.example").await.unwrap().status(),
            StatusCode::FORBIDDEN,
            "{path}"
        );
        assert_ne!(
            request("host", "mcp.example.com").await.unwrap().status(),
            StatusCode::FORBIDDEN,
            "{path}"
        );
        assert_ne!(
            request("origin", "http://localhost:3000").await.unwrap().status(),
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_allowed_web_page_is_let_in_by_its_browser_and_no_other_is() {
    const PAGE: &str = "https://app.example.com";
    let cluster = Cluster::start().await;
    cluster.grant("tok-alice", "alice", &["create"]);
    let flags = [
        LOCAL,
        "--authorization=kubernetes",
        "--allowed-origins=https://app.example.com",
    ];
    let server = Server::start(&cluster, &flags).await;
    // What a browser asks first; it sends no token with that.
    let ask = |origin: &'static str| {
        http()
            .request(Method::OPTIONS, &server.url)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,x-session-id")
            .send()
    };
    let asked = ask(PAGE).await.unwrap();
    let said = |answer: &reqwest::Response, name: &str| {
        answer
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    assert!(asked.status().is_success());
    assert_eq!(said(&asked, "access-control-allow-origin").as_deref(), Some(PAGE));
    assert!(said(&asked, "access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(
        said(&asked, "access-control-allow-headers").as_deref(),
        Some("authorization,x-session-id")
    );
    assert_eq!(said(&asked, "access-control-allow-credentials"), None);
    let stranger = ask("https://evil.example").await.unwrap();
    assert_eq!(stranger.status(), StatusCode::FORBIDDEN);
    assert_eq!(said(&stranger, "access-control-allow-origin"), None);
    // Then it lets the page read the answers, also that it has no token.
    let list = || {
        http()
            .post(&server.url)
            .header("origin", PAGE)
            .header("accept", "application/json, text/event-stream")
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
    };
    for (request, expected) in [
        (list(), StatusCode::UNAUTHORIZED),
        (list().bearer_auth("tok-alice"), StatusCode::OK),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), expected);
        assert_eq!(said(&answer, "access-control-allow-origin").as_deref(), Some(PAGE));
    }
}
