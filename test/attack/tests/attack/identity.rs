//! Making the proxy act as somebody else, for somebody else, or hand out something that lasts.

use std::process::Command;

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::{API, SECOND_PREFIX, arena};
use cli_mcp_attack::journal;
use cli_mcp_attack::proxy::{Case, ask};
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// Who the credential of an instance is.
fn investigator(instance: &Instance) -> String {
    format!("system:serviceaccount:{}:cli-mcp-investigator", instance.namespace)
}

/// A `SelfSubjectReview` with further header lines and query.
fn whoami(query: &str, headers: &str) -> Case {
    Case::new(
        API,
        format!(
            "POST {WHOAMI}{query} HTTP/1.1\r\nHost: kubernetes.default.svc\r\n{headers}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{REVIEW}",
            REVIEW.len()
        ),
    )
}

/// Tried: tokens, Basic and double credentials, impersonation, front-proxy and cookie headers, aliases with underscores,
/// query tokens, headers named by `Connection` (the injected one too), trailers, and kubectl's own flags.
/// Stopped by: the proxy strips every credential and identity of the client before it injects the one.
#[tokio::test(flavor = "multi_thread")]
async fn as_another_user() -> Result<()> {
    let arena = arena()?;
    let headers = [
        "Authorization: Bearer forged\r\n",
        "authorization: Basic YWRtaW46YWRtaW4=\r\n",
        "Authorization: Bearer one\r\nAuthorization: Bearer two\r\n",
        "Authorization:\tBearer tab\r\n",
        "Proxy-Authorization: Bearer forged\r\n",
        "Impersonate-User: system:admin\r\n",
        "Impersonate-User: system:admin\r\nImpersonate-Group: system:masters\r\nImpersonate-Uid: 0\r\nImpersonate-Extra-scopes: all\r\n",
        "impersonate_user: system:admin\r\n",
        "X-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\nX-Remote-Extra-Scopes: all\r\n",
        "X_Remote_User: system:admin\r\n",
        "X-Forwarded-User: system:admin\r\nX-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
        "Cookie: token=forged; openshift-session-token=forged\r\n",
        "X-Api-Key: forged\r\nX-Auth-Token: forged\r\n",
        "Connection: Authorization\r\n",
        "Connection: close, authorization, host\r\n",
        "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n",
        "TE: trailers\r\n",
    ];
    let mut cases = vec![whoami("", "")];
    cases.extend(headers.map(|lines| whoami("", lines)));
    for query in [
        "?access_token=forged",
        "?token=forged",
        "?as=system:admin",
        "?impersonate-user=system:admin",
    ] {
        cases.push(whoami(query, ""));
    }
    // The same in a trailer.
    cases.push(Case::new(
        API,
        format!(
            "POST {WHOAMI} HTTP/1.1\r\nHost: kubernetes.default.svc\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
             Trailer: Impersonate-User\r\n\r\n{:x}\r\n{REVIEW}\r\n0\r\nImpersonate-User: system:admin\r\nAuthorization: Bearer forged\r\n\r\n",
            REVIEW.len()
        ),
    ));
    let (shells, _guard) = arena.shells().await?;
    for (shell, instance) in shells.iter().zip([&arena.home, &arena.neighbour]) {
        stays_itself(shell, &investigator(instance), &cases).await?;
    }
    Ok(())
}

/// The first request is served, and each other is refused or served as the same user.
async fn stays_itself(shell: &Shell, user: &str, cases: &[Case]) -> Result<()> {
    let answers = ask(shell, cases).await?;
    ensure!(
        answers[0].status == 201 && answers[0].text.contains(user),
        "{}: the control: {:?}",
        shell.kind(),
        answers[0]
    );
    let mut served = 0;
    for (case, answer) in cases.iter().zip(&answers) {
        let refused = (400..500).contains(&answer.status) && !answer.text.contains("Unauthorized");
        let same = answer.status == 201 && answer.text.contains(user) && !answer.text.contains("system:masters");
        ensure!(refused || same, "{}: {:?}\n{answer:?}", shell.kind(), case.raw);
        served += usize::from(same);
    }
    ensure!(served >= 10, "hardly anything was served: {answers:?}");
    for flags in [
        "--token=forged",
        "--as=system:admin",
        "--as=x --as-group=system:masters",
        "--username=admin --password=admin",
        "--user=nobody",
    ] {
        let name = shell
            .run(&format!(
                "kubectl {flags} auth whoami -o jsonpath='{{.status.userInfo.username}}'"
            ))
            .await?;
        ensure!(name.stdout == user || name.code != Some(0), "{flags}: {name:?}");
        ensure!(name.stdout == user || name.stdout.is_empty(), "{flags}: {name:?}");
    }
    Ok(())
}

/// Tried: getting one cluster's credential sent to another path of the same host: paths that only begin like the prefix,
/// that climb out of it, or that are written with escapes, empty segments or another case.
/// Stopped by: the proxy compares whole decoded segments, refuses what two readers could read differently, and injects
/// only under a cluster's prefix and the API's own roots.
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_on_the_same_host() -> Result<()> {
    let arena = arena()?;
    let session = Shell::Assigned(arena.neighbours_session("prefix").await?);
    let get = |path: &str| Case::request(API, "GET", path, "");
    // The second identity has no rights, so that the API server's refusal names it.
    let second = "system:serviceaccount:attack-neighbour:second";
    let first = "system:serviceaccount:attack-neighbour:cli-mcp-investigator";
    let control = get(&format!("{SECOND_PREFIX}/api/v1/namespaces"));
    cluster::eventually("the second cluster's route", async || {
        let answers = ask(&session, std::slice::from_ref(&control)).await?;
        ensure!(
            answers[0].status == 403 && answers[0].text.contains(second),
            "the control: {answers:?}"
        );
        Ok(())
    })
    .await?;
    let escapes = [
        "/second/cluster2/api/v1/namespaces",
        "/second/clusterapi/v1/namespaces",
        "/second/clus%74er2/api/v1/namespaces",
        "/second/cluster/../../api/v1/namespaces",
        "/second/cluster/%2e%2e/%2e%2e/api/v1/namespaces",
        "/second/cluster/..%2f..%2fapi/v1/namespaces",
        "/second//cluster/api/v1/namespaces",
        "//second/cluster/api/v1/namespaces",
        "/second/cluster/",
        "/second/cluster",
        "/second/cluster/v3/clusters",
        "/second/api/v1/namespaces",
        "/SECOND/cluster/api/v1/namespaces",
        "/second/cluster;x/api/v1/namespaces",
        "/second/cluster\\..\\..\\api",
        "/v3/tokens",
        "/logs/",
        "/debug/pprof/",
    ];
    let cases: Vec<_> = escapes.iter().map(|path| get(path)).collect();
    let (unassigned, _guard) = arena.unassigned().await?;
    for shell in [&session, &unassigned] {
        for (path, answer) in escapes.iter().zip(ask(shell, &cases).await?) {
            ensure!(
                matches!(answer.status, 400 | 403 | 404) && !answer.text.contains(first),
                "{path} was sent with the first cluster's identity: {answer:?}"
            );
            ensure!(
                !answer.text.contains(second) || path.starts_with("/second/cluster") && path.len() <= 16,
                "{path} was sent with the second cluster's identity: {answer:?}"
            );
        }
        // And the first cluster's own paths are not the second's.
        let own = ask(shell, &[get("/api/v1/namespaces?limit=1")]).await?;
        ensure!(own[0].status == 200, "{own:?}");
    }
    if let Shell::Assigned(session) = session {
        session.delete().await?;
    }
    Ok(())
}

/// Tried: a new token by `TokenRequest`, a client certificate by a request of one's own and by approving another's, OAuth and
/// Rancher tokens; by kubectl and by hand.
/// Stopped by: the proxy refuses what mints credentials.
#[tokio::test(flavor = "multi_thread")]
async fn minting_a_token_or_certificate() -> Result<()> {
    let (shells, _guard) = arena()?.shells().await?;
    let [attacker, _] = &shells;
    // One that an administrator made, so that there is something to approve.
    let request = |name: &str| {
        format!(
            "set -e; folder=$(mktemp -d); openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout $folder/key \
             -subj /CN=attacker -out $folder/request 2>/dev/null; kubectl create -f - <<Y\n\
             apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
             spec: {{signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], request: $(base64 -w0 $folder/request)}}\nY\nrm -r $folder"
        )
    };
    kubectl::ok(&["delete", "csr", "attack-mint", "--ignore-not-found"])?;
    let made = Command::new("bash").args(["-c", &request("attack-mint")]).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let own = format!("({}\n)", request("attack-mint-own"));
    for command in [
        "kubectl create token -n attack-home cli-mcp-investigator",
        own.as_str(),
        "kubectl certificate approve attack-mint",
    ] {
        let ran = attacker.run(command).await?;
        ensure!(
            ran.code != Some(0) && ran.stderr.contains("credential proxy"),
            "{command}: {ran:?}"
        );
    }
    let paths = [
        "/api/v1/namespaces/attack-home/serviceaccounts/default/token",
        "/api/v1/namespaces/attack-home/serviceaccounts/default/token?dryRun=All",
        "/api/v1/namespaces/attack-home/serviceaccounts/default/%74oken",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests/attack-mint/approval",
        "/apis/oauth.openshift.io/v1/oauthaccesstokens",
        "/apis/ext.cattle.io/v1/tokens",
    ];
    let mut cases = Vec::new();
    for path in paths {
        for method in ["POST", "PUT", "PATCH"] {
            cases.push(Case::request(API, method, path, "Content-Length: 0\r\n"));
        }
    }
    for shell in &shells {
        for (case, answer) in cases.iter().zip(ask(shell, &cases).await?) {
            ensure!(
                answer.status == 403 && answer.text.contains("credential proxy"),
                "{}: {:?}: {answer:?}",
                shell.kind(),
                case.raw
            );
        }
    }
    // The control: the same objects without what mints, read and written, are served.
    let control = attacker
        .ok(
            "kubectl get serviceaccount -n attack-home default -o name && kubectl get csr attack-mint -o name && \
             kubectl create serviceaccount -n attack-home attack-mint --dry-run=server -o name",
        )
        .await?;
    ensure!(
        control
            == "serviceaccount/default\ncertificatesigningrequest.certificates.k8s.io/attack-mint\nserviceaccount/attack-mint\n",
        "the control: {control}"
    );
    let approved = kubectl::ok(&["get", "csr", "attack-mint", "-o", "jsonpath={.status}"])?;
    ensure!(matches!(approved.as_str(), "" | "{}"), "{approved}");
    kubectl::ok(&["delete", "csr", "attack-mint"])?;
    Ok(())
}

/// Tried: getting one request sent twice, or another behind it: both framings, doubled and odd lengths, odd encodings,
/// bare line feeds, a second request in a body, and connections cut at the moment of sending.
/// Stopped by: the proxy's one strict parser refuses ambiguous framing and writes each request anew; nothing that may
/// have been sent is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn one_request_as_two() -> Result<()> {
    let (shells, _guard) = arena()?.shells().await?;
    let [attacker, _] = &shells;
    let smuggled = journal::unique("attack-smuggled");
    let honest = journal::unique("attack-honest");
    let cut = journal::unique("attack-cut");
    let hidden = format!(
        "GET /api/v1/namespaces/{smuggled} HTTP/1.1\r\nHost: kubernetes.default.svc\r\nImpersonate-User: system:admin\r\n\r\n"
    );
    let post = |framing: &str, body: &str| {
        Case::new(
            API,
            format!(
                "POST {WHOAMI} HTTP/1.1\r\nHost: kubernetes.default.svc\r\nContent-Type: application/json\r\n{framing}\r\n{body}"
            ),
        )
    };
    let length = REVIEW.len();
    let both = format!("{length:x}\r\n{REVIEW}\r\n0\r\n\r\n{hidden}");
    let cases = [
        post(
            &format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", both.len()),
            &both,
        ),
        post(
            &format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
            &both,
        ),
        post(
            &format!(
                "Content-Length: {length}\r\nContent-Length: {}\r\n",
                length + hidden.len()
            ),
            &format!("{REVIEW}{hidden}"),
        ),
        post(
            &format!("Content-Length: {length}, {}\r\n", length + hidden.len()),
            &format!("{REVIEW}{hidden}"),
        ),
        post(&format!("Content-Length: +{length}\r\n"), &format!("{REVIEW}{hidden}")),
        post(
            &format!("Content-Length: 0x{length:x}\r\n"),
            &format!("{REVIEW}{hidden}"),
        ),
        post("Transfer-Encoding: xchunked\r\n", &both),
        post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", &both),
        post("Transfer-Encoding: chunked, identity\r\n", &both),
        post("Transfer-Encoding : chunked\r\n", &both),
        post("Transfer-Encoding:\x0bchunked\r\n", &both),
        post("X: y\nTransfer-Encoding: chunked\r\n", &both),
        post(
            "Transfer-Encoding: chunked\r\n",
            &format!("{length:x};\nx\r\n{REVIEW}\r\n0\r\n\r\n{hidden}"),
        ),
        post(
            "Transfer-Encoding: chunked\r\n",
            &format!("0{length:016x}\r\n{REVIEW}\r\n-0\r\n\r\n{hidden}"),
        ),
        // A body where the API server could expect none.
        Case::new(
            API,
            format!(
                "GET /api/v1/namespaces/attack-front HTTP/1.1\r\nHost: kubernetes.default.svc\r\nContent-Length: {}\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n{hidden}",
                hidden.len()
            ),
        ),
        Case::new(API, format!("GET /api/v1/namespaces/attack-front\r\n{hidden}")),
        Case::new(
            API,
            format!(
                "GET /api/v1/namespaces/attack-front HTTP/1.1\r\nHost: kubernetes.default.svc\r\nX: a\r\n \r\n{hidden}"
            ),
        ),
    ];
    for shell in &shells {
        let answers = ask(shell, &cases).await?;
        for (case, answer) in cases.iter().zip(&answers) {
            ensure!(
                answer.text.matches("HTTP/1.1 2").count() <= 1 && !answer.text.contains(&smuggled),
                "{}: {:?}: {answer:?}",
                shell.kind(),
                case.raw
            );
        }
    }
    cut_connections(attacker, &cut).await?;
    // The control, behind all that must not arrive: two honest requests on one connection are two, and the log shows the marker.
    let twice = format!("GET /api/v1/namespaces/{honest} HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n").repeat(2);
    let answer = ask(attacker, &[Case::new(API, twice)]).await?;
    ensure!(
        answer[0].text.matches("HTTP/1.1 404").count() == 2,
        "the control: {answer:?}"
    );
    if journal::api_entries(&honest)?.is_some() {
        cluster::eventually("the controls in the audit log", async || {
            let count = journal::api_entries(&honest)?.unwrap_or_default().len();
            ensure!(count == 2, "{count}");
            let cut = journal::api_entries(&cut)?.unwrap_or_default();
            ensure!(!cut.is_empty(), "none of the requests that were cut arrived");
            Ok(())
        })
        .await?;
        let sent = journal::api_entries(&smuggled)?.unwrap_or_default();
        ensure!(sent.is_empty(), "the API server got it: {sent:?}");
        for number in 0..20 {
            let marker = format!("{cut}-{number}-");
            let sent = journal::api_entries(&marker)?.unwrap_or_default();
            ensure!(sent.len() <= 1, "sent twice: {sent:?}");
        }
    }
    Ok(())
}

/// Requests whose client leaves at once, or a little later: each must reach the API server once or never.
async fn cut_connections(attacker: &Shell, name: &str) -> Result<()> {
    const PROGRAM: &str = r#"
import os, socket, ssl, time
from urllib.parse import urlparse
proxy = urlparse(os.environ["HTTPS_PROXY"])
context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
for number in range(20):
    s = socket.create_connection((proxy.hostname, proxy.port), timeout=10)
    s.sendall(b"CONNECT kubernetes.default.svc:443 HTTP/1.1\r\nHost: kubernetes.default.svc:443\r\n\r\n")
    s.recv(4096)
    s = context.wrap_socket(s, server_hostname="kubernetes.default.svc")
    s.sendall(f"DELETE /api/v1/namespaces/default/configmaps/{NAME}-{number}- HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\r\n".encode())
    time.sleep(number / 400)
    s.close()
"#;
    attacker.python(&format!("NAME = {name:?}\n{PROGRAM}")).await?;
    Ok(())
}
