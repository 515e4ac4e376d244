//! What the proxy must not pass on, and where it must not go.

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::{API, arena};
use cli_mcp_attack::journal;
use cli_mcp_attack::network;
use cli_mcp_attack::proxy::{Case, ask};
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::cluster;

/// Each is refused by the proxy, and nothing with the marker reaches the API server, where an honest request does.
async fn refused(shell: &Shell, marker: &str, cases: &[Case]) -> Result<()> {
    let answers = ask(shell, cases).await?;
    for (case, answer) in cases.iter().zip(&answers) {
        // What the API server refuses has headers that only it sets.
        let by_proxy = !answer.text.to_ascii_lowercase().contains("\r\naudit-id:");
        ensure!(
            by_proxy && matches!(answer.status, 0 | 400 | 403 | 405 | 417 | 421 | 431 | 505),
            "{:?}: {answer:?}",
            case.raw
        );
    }
    let honest = journal::unique(&format!("{marker}-honest"));
    let path = format!("/api/v1/namespaces/default/configmaps/{honest}");
    let control = ask(shell, &[Case::request(API, "GET", &path, "")]).await?;
    ensure!(
        control[0].status == 404 && control[0].text.to_ascii_lowercase().contains("\r\naudit-id:"),
        "the control: {control:?}"
    );
    if journal::api_entries(marker)?.is_none() {
        return Ok(());
    }
    cluster::eventually("the control in the audit log", async || {
        let entries = journal::api_entries(&honest)?.unwrap_or_default();
        ensure!(!entries.is_empty(), "nothing");
        Ok(())
    })
    .await?;
    let before = format!("/{marker}-honest");
    for entry in journal::api_entries(marker)?.unwrap_or_default() {
        ensure!(
            entry["requestURI"].as_str().is_some_and(|uri| uri.contains(&before)),
            "the API server got {entry}"
        );
    }
    Ok(())
}

/// Tried: `exec`, `attach`, `port-forward`, `proxy`, ephemeral containers and node proxies, with every method, upgrade,
/// legacy path, escape, case and separator.
/// Stopped by: the proxy resolves a request as the API server does, refuses the subresource, and sends what it judged.
#[tokio::test(flavor = "multi_thread")]
async fn denied_subresources() -> Result<()> {
    let pod = "/api/v1/namespaces/default/pods/attack-sub";
    let mut cases = Vec::new();
    for method in [
        "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "get", "TRACE", "CONNECT", "QUERY",
    ] {
        for subresource in [
            "exec?command=id",
            "attach",
            "portforward?ports=1",
            "proxy",
            "proxy/",
            "proxy/a/b",
        ] {
            cases.push(Case::request(API, method, &format!("{pod}/{subresource}"), ""));
        }
    }
    for upgrade in ["SPDY/3.1", "websocket", "h2c", "spdy/3.1, websocket"] {
        cases.push(Case::request(
            API,
            "GET",
            &format!("{pod}/exec?command=id"),
            &format!("Upgrade: {upgrade}\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"),
        ));
    }
    for path in [
        "/api/v1/namespaces/default/pods/attack-sub/%65xec",
        "/api/v1/namespaces/default/pods/attack-sub/exec%2f",
        "/api/v1/namespaces/default/pods/attack-sub%2fexec",
        "/api/v1/namespaces/default/pods/attack-sub/./exec",
        "/api/v1/namespaces/default/pods/attack-sub/x/../exec",
        "/api/v1/namespaces/default/pods//attack-sub/exec",
        "/api/v1//namespaces/default/pods/attack-sub/exec",
        "//api/v1/namespaces/default/pods/attack-sub/exec",
        "/api/v1/namespaces/default/pods/attack-sub/exec/",
        "/api/v1/namespaces/default/pods/attack-sub/exec;x",
        "/api/v1/namespaces/default/pods/attack-sub/exec?a;b",
        "/api/v1/namespaces/default/pods/attack-sub/exec%00",
        "/api/v1/namespaces/default/pods/attack-sub\\exec",
        "/api/v1/proxy/namespaces/default/pods/attack-sub",
        "/api/v1/proxy/nodes/attack-sub",
        "/api/v1/nodes/attack-sub/proxy/run",
        "/api/v1/nodes/attack-sub:10250/proxy/pods",
        "/api/v1/namespaces/default/services/https:attack-sub:443/proxy/",
        "/api/v1/watch/namespaces/default/pods/attack-sub/exec",
        "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/attack-sub/vnc",
        "https://kubernetes.default.svc/api/v1/namespaces/default/pods/attack-sub/exec",
        "/../api/v1/namespaces/default/pods/attack-sub/exec",
    ] {
        cases.push(Case::request(API, "GET", path, ""));
        cases.push(Case::request(API, "POST", path, "Content-Length: 0\r\n"));
    }
    for method in ["PUT", "PATCH", "POST"] {
        cases.push(Case::request(
            API,
            method,
            &format!("{pod}/ephemeralcontainers"),
            "Content-Length: 0\r\n",
        ));
    }
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        refused(shell, "attack-sub", &cases).await?;
    }
    Ok(())
}

/// Tried: reading Secrets, which the instance denies, in every form: list, get, watch, legacy watch, all namespaces,
/// protobuf, tables, metadata only, escapes, deletion of a collection.
/// Stopped by: `deniedResources`, judged on the resolved request.
#[tokio::test(flavor = "multi_thread")]
async fn denied_resources() -> Result<()> {
    let (shells, _guard) = arena()?.shells().await?;
    let mut cases = Vec::new();
    for path in [
        "/api/v1/secrets?labelSelector=attack-deny",
        "/api/v1/secrets?watch=1&labelSelector=attack-deny",
        "/api/v1/namespaces/default/secrets/attack-deny",
        "/api/v1/namespaces/default/secrets/attack-deny/",
        "/api/v1/namespaces/default/secrets/attack-deny/status",
        "/api/v1/namespaces/default/secret%73/attack-deny",
        "/api/v1/namespaces/default/secrets%2fattack-deny",
        "/api/v1/watch/secrets?fieldSelector=metadata.name%3Dattack-deny",
        "/api/v1/watch/namespaces/default/secrets/attack-deny",
        "/api/v1/namespaces/default/./secrets/attack-deny",
        "/api/v1/namespaces/default/configmaps/../secrets/attack-deny",
    ] {
        for accept in [
            "application/json",
            "application/vnd.kubernetes.protobuf",
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        ] {
            cases.push(Case::request(API, "GET", path, &format!("Accept: {accept}\r\n")));
        }
        for method in ["POST", "PUT", "PATCH", "DELETE", "HEAD"] {
            cases.push(Case::request(API, method, path, "Content-Length: 0\r\n"));
        }
    }
    for shell in &shells {
        refused(shell, "attack-deny", &cases).await?;
        let kubectl = shell
            .run("kubectl get secrets -A; kubectl get secret -n kube-system any")
            .await?;
        ensure!(
            kubectl.stdout.is_empty() && kubectl.stderr.contains("deniedResources"),
            "{kubectl:?}"
        );
    }
    Ok(())
}

/// Tried: writing through a target that is ReadOnly: every verb, dry runs, method overrides, reviews about others.
/// Stopped by: `access: ReadOnly`, judged by method and resolved verb.
#[tokio::test(flavor = "multi_thread")]
async fn writing_where_only_reading_is_allowed() -> Result<()> {
    let arena = arena()?;
    let session = Shell::Assigned(arena.neighbours_session("reader").await?);
    let (unassigned, _guard) = arena.unassigned().await?;
    let mut cases = Vec::new();
    for path in [
        "/api/v1/namespaces/default/configmaps/attack-write",
        "/api/v1/namespaces/default/configmaps?fieldManager=attack-write",
        "/api/v1/namespaces/default/configmaps?dryRun=All&fieldManager=attack-write",
        "/api/v1/watch/namespaces/default/configmaps/attack-write",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews?x=attack-write",
        "/apis/authentication.k8s.io/v1/tokenreviews?x=attack-write",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews/attack-write",
        "/version/attack-write",
    ] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            cases.push(Case::request(
                API,
                method,
                path,
                "X-HTTP-Method-Override: GET\r\nContent-Type: application/json\r\nContent-Length: 2\r\n",
            ));
        }
    }
    for case in &mut cases {
        case.raw.push_str("{}");
    }
    for shell in [&session, &unassigned] {
        refused(shell, "attack-write", &cases).await?;
    }
    if let Shell::Assigned(session) = session {
        session.delete().await?;
    }
    Ok(())
}

/// Tried: other hosts, ports, spellings and addresses in CONNECT; plaintext requests; another `Host` or TLS name inside
/// the tunnel; the proxy's own and the cluster's internal addresses.
/// Stopped by: the proxy matches `host:port` exactly, and `Host` and SNI must be the tunnel's.
#[tokio::test(flavor = "multi_thread")]
async fn another_place() -> Result<()> {
    let (shells, _guard) = arena()?.shells().await?;
    let listener = std::net::TcpListener::bind("0.0.0.0:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let host = cluster::setting("DEVCLUSTER_HOST_ADDRESS").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let api = network::service_address("default", "kubernetes")?;
    let mine = format!("{host}:{port}");
    let targets = [
        mine.clone(),
        format!("{api}:443"),
        format!("[::ffff:{api}]:443"),
        "kubernetes.default.svc:6443".into(),
        "kubernetes.default.svc:10250".into(),
        "kubernetes.default.svc".into(),
        "kubernetes.default.svc.:443".into(),
        "kubernetes.default:443".into(),
        "kubernetes:443".into(),
        "xkubernetes.default.svc:443".into(),
        "kubernetes.default.svc.evil.example:443".into(),
        format!("user@kubernetes.default.svc:443@{mine}"),
        format!("kubernetes.default.svc:443@{mine}"),
        format!("{mine}#kubernetes.default.svc:443"),
        format!("{mine}/kubernetes.default.svc:443"),
        "kubernetes.default.svc:0443".into(),
        "kubernetes.default.svc:+443".into(),
        "kubernetes.default.svc:65979".into(),
        "kubernetes.default.svc:443 ".into(),
        "kubernetes.default.svc\t:443".into(),
        "127.0.0.1:8081".into(),
        "localhost:8081".into(),
        "[::1]:8081".into(),
        "2130706433:8081".into(),
        "0x7f.1:8081".into(),
        "169.254.169.254:80".into(),
        "metadata.google.internal:80".into(),
        "kube-dns.kube-system.svc:53".into(),
    ];
    let mut cases: Vec<_> = targets
        .iter()
        .map(|target| Case::request(target, "GET", "/api", ""))
        .collect();
    let inside = |raw: String| Case::new(API, raw);
    cases.extend([
        Case::plain(format!("GET http://{mine}/ HTTP/1.1\r\nHost: {mine}\r\n\r\n")),
        Case::plain("GET http://kubernetes.default.svc/api HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"),
        Case::plain("GET https://kubernetes.default.svc/api HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"),
        Case::plain("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Case::plain("GET /api HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"),
        Case::plain("CONNECT kubernetes.default.svc:443 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        Case::plain(format!(
            "CONNECT kubernetes.default.svc:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{mine}"
        )),
        Case::plain(format!(
            "CONNECT {mine} HTTP/1.1\r\nHost: kubernetes.default.svc:443\r\n\r\n"
        )),
        Case::plain("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        inside(format!("GET /api HTTP/1.1\r\nHost: {mine}\r\n\r\n")),
        inside("GET /api HTTP/1.1\r\nHost: evil.example\r\n\r\n".into()),
        inside(format!(
            "GET /api HTTP/1.1\r\nHost: kubernetes.default.svc\r\nHost: {mine}\r\n\r\n"
        )),
        inside("GET /api HTTP/1.1\r\n\r\n".into()),
        inside(format!(
            "GET http://{mine}/api HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"
        )),
        inside(format!(
            "GET @{mine}/api HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"
        )),
        inside(format!(
            "CONNECT {mine} HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n"
        )),
    ]);
    let mut foreign_name = Case::request(API, "GET", "/api", "");
    foreign_name.sni = "evil.example".into();
    cases.push(foreign_name);
    for shell in &shells {
        let answers = ask(shell, &cases).await?;
        for (case, answer) in cases.iter().zip(&answers) {
            ensure!(
                matches!(answer.status, 0 | 400 | 403 | 421 | 405 | 505),
                "{}: {case:?}: {answer:?}",
                shell.kind()
            );
        }
        let control = ask(shell, &[Case::request(API, "GET", "/api", "")]).await?;
        ensure!(control[0].status == 200, "{}: the control: {control:?}", shell.kind());
    }
    ensure!(listener.accept().is_err(), "something came to the attacker's listener");
    std::net::TcpStream::connect((host.as_str(), port))?;
    ensure!(listener.accept().is_ok(), "the control: the listener hears nothing");
    Ok(())
}
