//! kubectl, curl and openssl in a real sandbox, through the real proxy, against the real API server: what works there as
//! anywhere, and what is refused with a reason that is read.

use anyhow::{Context, Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

const NAMESPACE: &str = "e2e-proxy";
const INSTANCE: &str = "kubectl";

/// A command and what must be in what it prints, on stdout and stderr together.
type Row = (&'static str, &'static [&'static str]);

/// Commands that end well.
const WORK: &[Row] = &[
    ("kubectl version", &["Server Version"]),
    ("kubectl api-resources --api-group=apps", &["deployments", "Deployment"]),
    ("kubectl explain deployment.spec.replicas", &["KIND:", "Deployment"]),
    (
        "kubectl auth whoami",
        &["system:serviceaccount:e2e-proxy:cli-mcp-investigator"],
    ),
    ("kubectl auth can-i create configmaps", &["yes"]),
    ("kubectl auth can-i --list", &["configmaps", "selfsubjectaccessreviews"]),
    (
        "kubectl get deployments,services",
        &["deployment.apps/cli-mcp-kubectl-proxy", "service/cli-mcp-kubectl"],
    ),
    ("kubectl get pods -o wide -A", &["kube-system", "e2e-proxy"]),
    ("kubectl get --raw /api/v1/namespaces/e2e-proxy/pods", &["PodList"]),
    (
        "kubectl get --raw '/apis/apps/v1/namespaces/e2e-proxy/deployments?limit=1'",
        &["DeploymentList"],
    ),
    (
        "kubectl describe deployment cli-mcp-kubectl",
        &["Replicas:", "StrategyType:"],
    ),
    ("kubectl events", &["REASON"]),
    ("kubectl get events --sort-by=.lastTimestamp", &["REASON"]),
    (
        "printf '{apiVersion: v1, kind: ConfigMap, metadata: {name: applied, finalizers: [e2e.example.com/held]}, data: {a: b}}' > applied.yaml && kubectl apply -f applied.yaml",
        &["configmap/applied created"],
    ),
    (
        "sed -i 's/a: b/a: c/' applied.yaml; kubectl diff -f applied.yaml; test $? = 1",
        &["-  a: b", "+  a: c"],
    ),
    (
        "kubectl apply --server-side --force-conflicts -f applied.yaml",
        &["serverside-applied"],
    ),
    ("kubectl diff -f applied.yaml", &[]),
    (
        "kubectl label configmap applied l=1 && kubectl annotate configmap applied n=2",
        &["labeled", "annotated"],
    ),
    ("kubectl delete configmap applied --wait=false", &["deleted"]),
    (
        "kubectl get configmap applied -o jsonpath='{.metadata.deletionTimestamp} {.metadata.finalizers}'",
        &["e2e.example.com/held"],
    ),
    (
        r#"kubectl patch configmap applied --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]' && kubectl wait --for=delete configmap/applied --timeout=60s"#,
        &["patched"],
    ),
    (
        "(until kubectl create configmap watched; do sleep 0.2; done) >/dev/null 2>&1 & grep -m1 configmap/watched < <(timeout 100 kubectl get configmaps --watch -o name); wait",
        &["configmap/watched"],
    ),
    (
        "grep -m1 . < <(timeout 100 kubectl logs -f deployment/cli-mcp-kubectl-proxy)",
        &["{"],
    ),
    (
        "kubectl logs deployment/cli-mcp-kubectl-proxy --tail=3 --timestamps",
        &["T"],
    ),
    (
        "kubectl rollout status deployment/cli-mcp-kubectl-proxy --timeout=60s",
        &["successfully rolled out"],
    ),
    // A client that names another identity is heard as the one there is.
    (
        "kubectl auth whoami --token=mine --as=system:admin --as-group=system:masters",
        &["cli-mcp-investigator"],
    ),
    (
        "curl -sS --http1.1 https://kubernetes.default.svc/version -w ' %{http_code} %{http_version}'",
        &["gitVersion", "200 1.1"],
    ),
    (
        "curl -sS --http2 https://kubernetes.default.svc/version -w ' %{http_code} %{http_version}'",
        &["200 1.1"],
    ),
];

/// Commands that fail, and what their user reads.
const REFUSED: &[Row] = &[
    (
        "kubectl exec deployment/cli-mcp-kubectl-proxy -- id",
        &["denied by credential proxy", "pods/exec"],
    ),
    (
        "kubectl cp applied.yaml $(kubectl get pods -o name | head -1 | cut -d/ -f2):/tmp/x",
        &["denied by credential proxy"],
    ),
    (
        "kubectl port-forward deployment/cli-mcp-kubectl-proxy 9999:8080",
        &["denied by credential proxy", "portforward"],
    ),
    // What asks for a human ends at once (shell case 85).
    (
        "kubectl exec -it deployment/cli-mcp-kubectl-proxy -- sh",
        &["not a terminal", "denied by credential proxy"],
    ),
    (
        "kubectl edit configmap watched",
        &["there was a problem with the editor"],
    ),
    (
        "kubectl attach deployment/cli-mcp-kubectl-proxy",
        &["denied by credential proxy", "pods/attach"],
    ),
    (
        "kubectl debug $(kubectl get pods -o name | head -1) --image=x --profile=restricted",
        &["denied by credential proxy", "ephemeralcontainers"],
    ),
    (
        "kubectl create token cli-mcp-investigator",
        &["denied by credential proxy", "serviceaccounts/token"],
    ),
    (
        "kubectl get --raw /api/v1/namespaces/e2e-proxy/services/cli-mcp-kubectl-proxy/proxy/",
        &["denied by credential proxy"],
    ),
    ("kubectl get --raw /logs/", &["outside the API"]),
    // What the sandbox lacks the rights for is the API server's own refusal, and passes as it is.
    (
        "kubectl get secrets -n kube-system",
        &["is forbidden", "cli-mcp-investigator"],
    ),
    // The cluster has no metrics server.
    ("kubectl top pods", &["Metrics API not available"]),
    ("curl -sSf https://kubernetes.default.svc:8443/", &["403"]),
    ("curl -sSf http://kubernetes.default.svc/", &["403"]),
    // Trusting another proxy's certificate does not help: the proxy has none.
    (
        "curl -sS --proxy-insecure -x https://$(echo $HTTPS_PROXY | cut -d/ -f3) https://kubernetes.default.svc/version",
        &["curl:"],
    ),
    // The name in the tunnel is the target's and no other.
    (
        "curl -sSk --connect-to ::kubernetes.default.svc:443 https://elsewhere.example/version",
        &["curl:"],
    ),
];

async fn run(session: &Session, (command, expected): &Row, well: bool) -> Result<()> {
    let result = session
        .call(serde_json::json!({"command": command, "timeout": 150}))
        .await?;
    ensure!(
        (result.exit_code == Some(0)) == well,
        "{command}: exit code {:?}\n{}\n{}",
        result.exit_code,
        result.stdout,
        result.stderr
    );
    let printed = format!("{}{}", result.stdout, result.stderr);
    for text in *expected {
        ensure!(printed.contains(text), "{command}: {text:?} is not in\n{printed}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_in_a_sandbox_works_and_hears_why_when_it_is_refused() -> Result<()> {
    let instance = Instance::create(
        NAMESPACE,
        INSTANCE,
        "  proxy:\n    targets:\n    - {type: kubernetes, access: ReadWrite}\n",
    )?;
    // May change objects here, and nowhere else.
    kubectl::apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: investigator-edits, namespace: {NAMESPACE}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}}\n\
         subjects: [{{kind: ServiceAccount, name: cli-mcp-investigator, namespace: {NAMESPACE}}}]\n"
    ))?;
    let session = instance.session("kubectl").await?;
    let setup = format!("kubectl config set-context --current --namespace={NAMESPACE}");
    // The kubeconfig is mounted read-only: a copy is the user's own.
    let copied = session
        .bash(&format!("cp $KUBECONFIG own && export KUBECONFIG=$PWD/own && {setup}"))
        .await?;
    ensure!(copied.exit_code == Some(0), "{copied:?}");
    for row in WORK {
        run(&session, row, true).await?;
    }
    for row in REFUSED {
        run(&session, row, false).await?;
    }
    openssl_verifies_strictly(&session).await?;
    a_large_list_arrives_whole(&session).await?;
    session.delete().await?;
    kubectl::ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

async fn openssl_verifies_strictly(session: &Session) -> Result<()> {
    let tool = session.bash("command -v openssl").await?;
    if tool.exit_code != Some(0) {
        return Ok(());
    }
    run(
        session,
        &(
            "openssl s_client -proxy $(echo $HTTPS_PROXY | cut -d/ -f3) -connect kubernetes.default.svc:443 \
             -servername kubernetes.default.svc -verify_hostname kubernetes.default.svc -x509_strict \
             -verify_return_error -CAfile $SSL_CERT_FILE </dev/null",
            &["Verify return code: 0 (ok)"],
        ),
        true,
    )
    .await
}

/// 50 MB of ConfigMaps: what comes through the proxy is byte for byte what the API server sends without it.
async fn a_large_list_arrives_whole(session: &Session) -> Result<()> {
    let files = tempfile::tempdir()?;
    let large = files.path().join("large");
    std::fs::create_dir(&large)?;
    for index in 0..56 {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("large-{index}")},
            "data": {"filler": "x".repeat(900_000)},
        });
        std::fs::write(large.join(format!("{index}.json")), object.to_string())?;
    }
    let large = large.to_str().context("the temporary folder's path is not UTF-8")?;
    kubectl::ok(&["-n", NAMESPACE, "create", "-f", large])?;
    // One page at one version, so that both readings are of the same bytes.
    let listed = kubectl::ok(&[
        "get",
        "--raw",
        &format!("/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1"),
    ])?;
    let version = serde_json::from_str::<serde_json::Value>(&listed)?["metadata"]["resourceVersion"]
        .as_str()
        .context("no resourceVersion")?
        .to_owned();
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/configmaps?resourceVersion={version}&resourceVersionMatch=Exact&pretty=false"
    );
    let direct = files.path().join("direct");
    std::fs::write(&direct, kubectl::ok(&["get", "--raw", &path])?)?;
    ensure!(std::fs::metadata(&direct)?.len() > 50_000_000, "the list is small");
    let sum = std::process::Command::new("sha256sum")
        .stdin(std::fs::File::open(&direct)?)
        .output()?;
    let expected = String::from_utf8(sum.stdout)?;
    let expected = expected.split(' ').next().context("no sum")?;
    for client in [
        format!("kubectl get --raw '{path}'"),
        format!("curl -sSf 'https://kubernetes.default.svc{path}'"),
        format!("curl -sSf --compressed 'https://kubernetes.default.svc{path}'"),
    ] {
        let result = session.bash(&format!("{client} | sha256sum")).await?;
        ensure!(result.stdout.starts_with(expected), "{client}: {result:?}");
    }
    Ok(())
}

/// Each request of a sandbox is in the proxy's audit, and no line has a token in it.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_answers_which_sandbox_sent_a_request() -> Result<()> {
    let shared = cli_mcp_e2e::instance::shared()?;
    let session = shared.session("audited").await?;
    let address = session.bash("hostname -i").await?.stdout;
    let address = address.split_whitespace().next().context("no address")?.to_owned();
    session
        .bash("kubectl get configmap audited-by-this-test -n default")
        .await?;
    let deployment = format!("deployment/cli-mcp-{}-proxy", shared.name);
    let line = cluster::eventually("the audit line", async || {
        let log = kubectl::ok(&["-n", &shared.namespace, "logs", &deployment])?;
        let line = log
            .lines()
            .find(|line| line.contains("audited-by-this-test"))
            .context("no line")?;
        Ok(serde_json::from_str::<serde_json::Value>(line)?)
    })
    .await?;
    ensure!(line["client"] == address.as_str(), "{line} is not of {address}");
    ensure!(
        line["verb"] == "get" && line["resource"] == "configmaps" && line["status"] == 404,
        "{line}"
    );
    let log = kubectl::ok(&["-n", &shared.namespace, "logs", &deployment])?;
    ensure!(!log.contains("eyJ"), "a token is in the log");
    session.delete().await?;
    Ok(())
}
