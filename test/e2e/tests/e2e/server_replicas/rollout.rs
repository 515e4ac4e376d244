//! A rollout of both servers while calls go on.

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, kubectl};

use super::two::{Replicas, SERVERS, lines, patient, rolled_out};

/// Calls through the Service without end, from within the cluster, until `/tmp/stop` is there: of sessions that live, each call on
/// a connection of its own; of one on a connection that is kept for five calls; and of sessions that begin. What is not a
/// result is a failure, and printed. The Service's address is given: what the cluster's DNS does under load is not meant.
const LOAD: &str = r#"
server=https://cli-mcp-two.$NAMESPACE.svc:8443
token=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)
request() { # SESSION CURL-ARGUMENT...
    curl -sS --noproxy '*' --cacert /ca/tls.crt --resolve "cli-mcp-two.$NAMESPACE.svc:8443:$ADDRESS" -H "Authorization: Bearer $token" -H "X-Session-ID: $1" "${@:2}" 2>&1
}
call() { # SESSION URL...
    request "$1" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' "${@:2}" \
        -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo x >>/workspace/ran; sleep 0.2"}}}'
}
load() { # SESSION URL...
    calls=0
    until [ -e /tmp/stop ]; do
        answers=$(call "$@")
        calls=$((calls + $# - 1))
        [ $(grep -o '"exit_code":0' <<<"$answers" | wc -l) = $(($# - 1)) ] || echo "FAILED $1 call $calls: $answers"
        echo $calls >/tmp/calls-$1
    done
    echo "CALLS $1 $calls"
}
begin() {
    calls=0
    until [ -e /tmp/stop ]; do
        calls=$((calls + 1))
        answer=$(call new-$calls "$server/mcp")
        case $answer in
            *'"exit_code":0'*) ;;
            *) echo "FAILED new-$calls: $answer" ;;
        esac
        request new-$calls -X DELETE "$server/sessions/new-$calls"
        echo $calls >/tmp/calls-new
    done
}
for n in 1 2; do load load-$n "$server/mcp" & done
load load-kept "$server/mcp"{,,,,} &
begin &
wait
echo END
"#;

/// The sessions that live throughout.
const LOADED: [&str; 3] = ["load-1", "load-2", "load-kept"];
/// What counts its calls.
const LOADING: [&str; 4] = ["load-1", "load-2", "load-kept", "new"];

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_under_load_fails_no_call() -> Result<()> {
    let namespace = "e2e-rollout";
    let two = Replicas::create(namespace, 3)?;
    for (n, id) in LOADED.iter().enumerate() {
        let session = two.ends[n % 2].endpoint.connect(id).await?;
        patient(&session, "true").await?;
    }
    let script = serde_json::to_string(LOAD)?;
    let service = ["-n", namespace, "get", "service", "cli-mcp-two"];
    let address = kubectl::ok(&[&service[..], &["-o", "jsonpath={.spec.clusterIP}"]].concat())?;
    kubectl::apply(&format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "load", "namespace": "{namespace}"}}, "spec": {{
            "serviceAccountName": "cli-mcp-two-client", "automountServiceAccountToken": true, "restartPolicy": "Never",
            "securityContext": {{"runAsNonRoot": true, "runAsUser": 1001, "seccompProfile": {{"type": "RuntimeDefault"}}}},
            "containers": [{{"name": "load", "image": "{image}", "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c", {script}],
                "env": [{{"name": "NAMESPACE", "value": "{namespace}"}}, {{"name": "ADDRESS", "value": "{address}"}}],
                "securityContext": {{"allowPrivilegeEscalation": false, "capabilities": {{"drop": ["ALL"]}}}},
                "volumeMounts": [{{"name": "ca", "mountPath": "/ca"}}]}}],
            "volumes": [{{"name": "ca", "secret": {{"secretName": "cli-mcp-two-tls", "items": [{{"key": "tls.crt", "path": "tls.crt"}}]}}}}]}}}}"#,
        image = cluster::image("agent")?
    ))?;
    let calls = |session: &str| -> Result<u64> {
        let count = kubectl::run(&[
            "-n",
            namespace,
            "exec",
            "load",
            "--",
            "cat",
            &format!("/tmp/calls-{session}"),
        ])?;
        Ok(count.stdout.trim().parse().unwrap_or_default())
    };
    let more = async |than: &[u64]| {
        cluster::eventually("the load", async || {
            for (session, than) in LOADING.iter().zip(than) {
                ensure!(
                    calls(session)? > than + 1,
                    "{session}: {}",
                    kubectl::run(&["-n", namespace, "logs", "load"])?.stdout
                );
            }
            Ok(())
        })
        .await
    };
    more(&[0; 4]).await?;
    kubectl::ok(&["-n", namespace, "rollout", "restart", "deployment/cli-mcp-two"])?;
    rolled_out(namespace)?;
    // The old pods have gone only after their last words.
    let gone = kubectl::names(namespace, "pods", SERVERS)?;
    let old: Vec<String> = two.ends.iter().map(|end| format!("pod/{}", end.pod)).collect();
    for pod in gone.iter().filter(|pod| old.contains(pod)) {
        kubectl::ok(&["-n", namespace, "wait", "--for=delete", pod, "--timeout=120s"])?;
    }
    let so_far: Vec<u64> = LOADING.iter().map(|session| calls(session)).collect::<Result<_>>()?;
    more(&so_far).await?;
    kubectl::ok(&["-n", namespace, "exec", "load", "--", "touch", "/tmp/stop"])?;
    let log = cluster::eventually("the load's end", async || {
        let log = kubectl::ok(&["-n", namespace, "logs", "load"])?;
        ensure!(log.contains("END"), "{log}");
        Ok(log)
    })
    .await?;
    ensure!(!log.contains("FAILED"), "{log}");

    let mut replicas = two;
    replicas.forward()?;
    for id in LOADED {
        let line = log.lines().find_map(|line| line.strip_prefix(&format!("CALLS {id} ")));
        let sent: usize = line.context("no count")?.parse()?;
        let session = replicas.ends[0].endpoint.connect(id).await?;
        let ran = lines(&session, "/workspace/ran").await?;
        ensure!(ran.len() == sent, "{sent} calls ran {} times", ran.len());
    }
    replicas.end()
}
