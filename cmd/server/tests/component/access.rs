//! Who may come in.

use http::StatusCode;

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
