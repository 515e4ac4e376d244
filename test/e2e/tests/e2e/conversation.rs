//! What a client of an instance gets: the points of the demo, as assertions.

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl};

fn shared() -> Result<&'static Instance> {
    instance::shared()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_with_a_credential_that_the_sandbox_does_not_have() -> Result<()> {
    let session = shared()?.session("kubectl").await?;
    ensure!(session.tools().await? == ["bash"]);
    let pods = session.bash("kubectl get pods -A").await?;
    ensure!(
        pods.exit_code == Some(0) && pods.stdout.contains("kube-system"),
        "{pods:?}"
    );
    let whoami = session
        .bash("kubectl auth whoami -o jsonpath='{.status.userInfo.username}'")
        .await?;
    ensure!(
        whoami.stdout == "system:serviceaccount:e2e-shared:cli-mcp-investigator",
        "{whoami:?}"
    );
    let token = session
        .bash("kubectl config view --raw -o jsonpath='{.users[*].user.token}'")
        .await?;
    ensure!(token.stdout == "proxy-managed-token", "{token:?}");
    ensure!(session.delete().await? == 204);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_one_shell_and_two_sessions_are_two() -> Result<()> {
    let (first, second) = (shared()?.session("shell-1").await?, shared()?.session("shell-2").await?);
    let set = first.bash("cd /tmp; kept=yes; f() { echo from f; }").await?;
    ensure!(set.exit_code == Some(0), "{set:?}");
    let kept = first.bash("pwd; echo $kept; f").await?;
    ensure!(kept.stdout == "/tmp\nyes\nfrom f\n", "{kept:?}");
    let other = second.bash("echo [$kept]; hostname").await?;
    ensure!(other.stdout.starts_with("[]\n"), "{other:?}");
    ensure!(
        other.stdout != first.bash("echo []; hostname").await?.stdout,
        "two sessions share a pod"
    );
    first.delete().await?;
    second.delete().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_is_the_only_way_out() -> Result<()> {
    let session = shared()?.session("way-out").await?;
    let service = kubectl::ok(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}:443"])?;
    let direct = session
        .bash(&format!(
            "curl --noproxy '*' -sk --max-time 3 https://{service}/version; echo $?"
        ))
        .await?;
    ensure!(direct.stdout == "28\n" || direct.stdout == "7\n", "{direct:?}");
    let stranger = session.bash("curl -sS https://example.com/ -o /dev/null").await?;
    ensure!(
        stranger.exit_code != Some(0) && stranger.stderr.contains("403"),
        "{stranger:?}"
    );
    session.delete().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn running_code_elsewhere_is_refused_with_a_reason() -> Result<()> {
    let shared = shared()?;
    let session = shared.session("exec").await?;
    let selector = format!(
        "cli-mcp.redhat.com/instance={},cli-mcp.redhat.com/component=proxy",
        shared.name
    );
    let pod = kubectl::ok(&[
        "-n",
        &shared.namespace,
        "get",
        "pods",
        "-l",
        &selector,
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ])?;
    let exec = session
        .bash(&format!("kubectl exec -n {} {pod} -- id", shared.namespace))
        .await?;
    ensure!(
        exec.is_error && exec.stderr.contains("denied by credential proxy"),
        "{exec:?}"
    );
    let token = session
        .bash(&format!(
            "kubectl create token -n {} cli-mcp-investigator",
            shared.namespace
        ))
        .await?;
    ensure!(
        token.is_error && token.stderr.contains("denied by credential proxy"),
        "{token:?}"
    );
    session.delete().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_results_that_a_model_can_act_on() -> Result<()> {
    let shared = shared()?;
    let session = shared.session("failures").await?;
    let failed = session.bash("echo out; echo err >&2; exit 3").await?;
    ensure!(failed.is_error && failed.exit_code == Some(3), "{failed:?}");
    ensure!(failed.stdout == "out\n" && failed.stderr == "err\n", "{failed:?}");
    let reset = session.bash("echo alive").await?;
    ensure!(reset.stdout == "alive\n" && reset.session_reset.is_some(), "{reset:?}");
    let slow = session
        .call(serde_json::json!({"command": "echo begun; sleep 60", "timeout": 1}))
        .await?;
    ensure!(
        slow.timed_out && slow.exit_code == Some(124) && slow.stdout == "begun\n",
        "{slow:?}"
    );
    let bad = session
        .call(serde_json::json!({"command": "true", "timeout": 301}))
        .await?;
    ensure!(
        bad.is_error && bad.exit_code.is_none() && bad.text.contains("300"),
        "{bad:?}"
    );
    session.delete().await?;
    let nameless = shared.endpoint.connect("Not-A-Session!").await?;
    let refused = nameless.bash("true").await?;
    ensure!(refused.is_error && refused.text.contains("X-Session-ID"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_removes_the_pod_and_says_204_again_when_nothing_is_left() -> Result<()> {
    let shared = shared()?;
    let session = shared.session("to-delete").await?;
    session.bash("true").await?;
    let pods = || kubectl::names(&shared.namespace, "pods", "cli-mcp.redhat.com/session-id=to-delete");
    ensure!(pods()?.len() == 1, "{:?}", pods()?);
    ensure!(session.delete().await? == 204);
    cluster::eventually("the sandbox's deletion", async || {
        ensure!(pods()?.is_empty(), "{:?}", pods()?);
        Ok(())
    })
    .await?;
    let http = shared.endpoint.http_client(None)?;
    let url = |id: &str| format!("{}/sessions/{id}", shared.endpoint.base_url);
    ensure!(http.delete(url("to-delete")).send().await?.status() == 204);
    ensure!(http.delete(url("-bad-")).send().await?.status() == 400);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_turned_away() -> Result<()> {
    let shared = shared()?;
    let mut endpoint = shared.endpoint.clone();
    endpoint.token = None;
    let url = format!("{}/sessions/strangers", endpoint.base_url);
    ensure!(endpoint.http_client(None)?.delete(&url).send().await?.status() == 401);
    // A valid identity of this cluster without the verb.
    let token = kubectl::ok(&["-n", &shared.namespace, "create", "token", "cli-mcp-investigator"])?;
    endpoint.token = Some(cli_mcp_demo::session::Token(token.trim().to_owned()));
    let reply = endpoint.http_client(None)?.delete(&url).send().await?;
    ensure!(reply.status() == 403);
    let body = reply.text().await?;
    ensure!(body.contains("climcpinstances/mcp"), "{body}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_knows_one_identity_only() -> Result<()> {
    if !cluster::is_dev() {
        // A foreign cluster's audit log cannot be read from here.
        return Ok(());
    }
    let session = shared()?.session("audit").await?;
    let marker = "e2e-audit-marker";
    let forged = session
        .bash(&format!(
            "kubectl --token=forged --as=system:admin get configmap {marker}"
        ))
        .await?;
    ensure!(forged.stderr.contains("NotFound"), "{forged:?}");
    let path = cluster::setting("DEVCLUSTER_AUDIT_LOG")?;
    let entries = cluster::eventually("the request in the audit log", async || {
        let log = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let entries: Vec<serde_json::Value> = log
            .lines()
            .filter(|line| line.contains(marker))
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        ensure!(!entries.is_empty(), "no request for {marker} in {path}");
        Ok(entries)
    })
    .await?;
    for entry in entries {
        ensure!(
            entry["user"]["username"] == "system:serviceaccount:e2e-shared:cli-mcp-investigator",
            "{entry}"
        );
        ensure!(entry["impersonatedUser"].is_null(), "{entry}");
    }
    session.delete().await?;
    Ok(())
}
