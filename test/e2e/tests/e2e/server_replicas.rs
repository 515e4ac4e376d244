//! Two replicas of the server and real pods: races for a session, deaths of sandboxes and servers at every stage of a call,
//! a rollout under load. What is asserted throughout: one sandbox a session, and no command that runs twice.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_demo::session::{BashResult, Endpoint, Session};
use cli_mcp_e2e::instance::{Forward, Instance};
use cli_mcp_e2e::{cluster, kubectl, node};
use futures::future::join_all;
use serde_json::Value;

const SERVERS: &str = "cli-mcp.redhat.com/component=server";

/// How many sessions begin at once, and over a pool of how many. In full (`make test-races`) it is 50 over 10; a
/// machine of two cores that runs every test at once gets fewer.
fn crowd() -> Result<(usize, usize)> {
    let number = |name: &str, default: usize| match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    };
    Ok((number("E2E_SESSIONS", 8)?, number("E2E_POOL", 3)?))
}

/// An instance of two replicas, each reached by a forward of its own.
struct Replicas {
    instance: Instance,
    ends: Vec<Replica>,
}

struct Replica {
    pod: String,
    endpoint: Endpoint,
    _forward: Forward,
}

fn rolled_out(namespace: &str) -> Result<()> {
    let deployment = "deployment/cli-mcp-two";
    kubectl::ok(&["-n", namespace, "rollout", "status", deployment, "--timeout=180s"])?;
    Ok(())
}

impl Replicas {
    fn create(namespace: &str, pool: usize) -> Result<Self> {
        let spec = format!(
            "  replicas: 2\n  sandbox: {{warmPoolSize: {pool}, resources: {{requests: {{cpu: 10m, memory: 32Mi}}}}}}\n  proxy:\n    targets: [{{type: kubernetes}}]\n"
        );
        let instance = Instance::create(namespace, "two", &spec)?;
        let mut replicas = Self {
            instance,
            ends: Vec::new(),
        };
        replicas.forward()?;
        Ok(replicas)
    }

    /// Connects to the pods that run now.
    fn forward(&mut self) -> Result<()> {
        let namespace = &self.instance.namespace;
        rolled_out(namespace)?;
        let pods = kubectl::ok(&["-n", namespace, "get", "pods", "-l", SERVERS, "-o", "json"])?;
        let pods: Value = serde_json::from_str(&pods)?;
        let staying = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        self.ends = staying
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .map(|pod| {
                let (forward, port) = Forward::start(namespace, &format!("pod/{pod}"))?;
                let endpoint = Endpoint {
                    base_url: format!("https://localhost:{port}"),
                    ..self.instance.endpoint.clone()
                };
                Ok(Replica {
                    pod: pod.to_owned(),
                    endpoint,
                    _forward: forward,
                })
            })
            .collect::<Result<_>>()?;
        ensure!(self.ends.len() == 2, "two servers should run, not {}", self.ends.len());
        Ok(())
    }

    fn sandboxes(&self, session: &str) -> Result<Vec<String>> {
        let selector = format!("cli-mcp.redhat.com/session-id={session}");
        kubectl::names(&self.instance.namespace, "pods", &selector)
    }

    fn kill(&self, pod: &str) -> Result<()> {
        kubectl::ok(&[
            "-n",
            &self.instance.namespace,
            "delete",
            pod,
            "--grace-period=0",
            "--force",
            "--wait=false",
        ])?;
        Ok(())
    }

    /// A call whose warm sandbox is claimed and dies before it was assigned goes on in another one: nothing was sent to its shell.
    async fn lose_between_claim_and_assignment(&self, through: &Replica) -> Result<()> {
        if !cluster::is_dev() {
            // The node's processes can be stopped on the repository's own cluster only.
            return Ok(());
        }
        let namespace = self.instance.namespace.as_str();
        let warm = "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id";
        cluster::eventually("a warm sandbox", async || {
            let pods = kubectl::names(namespace, "pods", warm)?;
            ensure!(!pods.is_empty(), "none yet");
            let ready = ["--for=condition=Ready", "--timeout=60s", &pods[0]];
            kubectl::ok(&[&["-n", namespace, "wait"], &ready[..]].concat())
        })
        .await?;
        let session = through.endpoint.connect("between").await?;
        // Who is stopped answers no request to assign it.
        let held = node::hold(&node::processes("agent", &[namespace])?)?;
        let death = async {
            let pod =
                cluster::eventually("the claim", async || self.sandboxes("between")?.pop().context("no pod")).await?;
            self.kill(&pod)?;
            held.end()
        };
        let call = patient(&session, "echo x >>/workspace/ran; cat /workspace/ran");
        let (result, killed) = tokio::join!(call, death);
        killed?;
        let result = result?;
        ensure!(result.stdout == "x\n" && result.session_reset.is_none(), "{result:?}");
        ensure!(
            self.sandboxes("between")?.len() == 1,
            "{:?}",
            self.sandboxes("between")?
        );
        ensure!(session.delete().await? == 204);
        Ok(())
    }

    /// Waits until a command of the session has written `started` into `/workspace/mark`.
    async fn started(&self, session: &str) -> Result<()> {
        cluster::eventually("the command's start", async || {
            let pod = self.sandboxes(session)?.pop().context("no sandbox")?;
            let mark = kubectl::run(&[
                "-n",
                &self.instance.namespace,
                "exec",
                &pod,
                "--",
                "cat",
                "/workspace/mark",
            ])?;
            ensure!(mark.stdout == "started\n", "{mark:?}");
            Ok(())
        })
        .await
    }

    fn end(self) -> Result<()> {
        kubectl::ok(&["delete", "namespace", &self.instance.namespace, "--wait=false"])?;
        Ok(())
    }
}

/// A call that waits out what says that it was not run: a busy machine starts pods slowly.
async fn patient(session: &Session, command: &str) -> Result<BashResult> {
    cluster::eventually(command, async || {
        let result = session.bash(command).await?;
        if result.exit_code.is_none() && result.text.contains("not run") {
            bail!("{}", result.text);
        }
        Ok(result)
    })
    .await
}

/// The lines of a file in a session's sandbox.
async fn lines(session: &Session, file: &str) -> Result<Vec<String>> {
    let result = patient(session, &format!("cat {file} 2>/dev/null || true")).await?;
    Ok(result.stdout.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn races_of_two_replicas_end_with_one_sandbox_a_session_and_each_command_once() -> Result<()> {
    let (sessions, pool) = crowd()?;
    let two = Replicas::create("e2e-races", pool)?;

    let mut first_calls = Vec::new();
    for n in 0..100 {
        let session = two.ends[n % 2].endpoint.connect("one").await?;
        first_calls.push(async move { (n, session.bash(&format!("echo {n} >>/workspace/ran")).await) });
    }
    let mut done = HashSet::new();
    for (n, result) in join_all(first_calls).await {
        let result = result?;
        match result.exit_code {
            Some(0) => ensure!(done.insert(n.to_string())),
            // The shell of a session takes 16 commands at a time.
            None => ensure!(
                result.text.contains("busy") && result.text.contains("not run"),
                "{result:?}"
            ),
            Some(_) => bail!("{result:?}"),
        }
    }
    ensure!(two.sandboxes("one")?.len() == 1, "{:?}", two.sandboxes("one")?);
    let one = two.ends[0].endpoint.connect("one").await?;
    let ran = lines(&one, "/workspace/ran").await?;
    ensure!(
        ran.len() == done.len() && ran.iter().cloned().collect::<HashSet<_>>() == done,
        "what ran is not what was answered: {ran:?} {done:?}"
    );
    one.delete().await?;

    let mut crowd = Vec::new();
    for n in 0..sessions {
        let session = two.ends[n % 2].endpoint.connect(&format!("crowd-{n}")).await?;
        crowd.push(async move {
            let result = patient(&session, "echo once >>/workspace/ran; cat /workspace/ran; hostname").await;
            (session, result)
        });
    }
    let mut hosts = HashMap::new();
    for (n, (session, result)) in join_all(crowd).await.into_iter().enumerate() {
        let result = result?;
        let host = result
            .stdout
            .strip_prefix("once\n")
            .with_context(|| format!("{result:?}"))?;
        if let Some(other) = hosts.insert(host.to_owned(), n) {
            bail!("sessions {n} and {other} share {host}");
        }
        ensure!(two.sandboxes(&format!("crowd-{n}"))?.len() == 1);
        session.delete().await?;
    }
    two.end()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_or_server_that_dies_at_any_stage_of_a_call_costs_no_session() -> Result<()> {
    let mut two = Replicas::create("e2e-deaths", 1)?;
    let [first, second] = &two.ends[..] else {
        bail!("two servers")
    };

    // Before a call: the next one gets another sandbox, and says so, whichever replica it comes through.
    let (here, there) = (first.endpoint.connect("s").await?, second.endpoint.connect("s").await?);
    patient(&here, "echo x >/workspace/mark").await?;
    two.kill(&two.sandboxes("s")?[0])?;
    let after = cluster::eventually("the replacement", async || {
        let result = patient(&there, "cat /workspace/mark").await?;
        ensure!(
            result.exit_code == Some(1),
            "the dead sandbox still answers: {result:?}"
        );
        Ok(result)
    })
    .await?;
    ensure!(after.session_reset.is_some(), "{after:?}");
    cluster::eventually("the note that the client was told", async || {
        let pod = kubectl::ok(&[
            "-n",
            &two.instance.namespace,
            "get",
            &two.sandboxes("s")?[0],
            "-o",
            "yaml",
        ])?;
        ensure!(!pod.contains("cli-mcp.redhat.com/replaces"), "{pod}");
        Ok(())
    })
    .await?;
    let told = patient(&here, "true").await?;
    ensure!(told.session_reset.is_none(), "told twice: {told:?}");

    two.lose_between_claim_and_assignment(second).await?;

    // While it starts: the call outlives the pod.
    let starting = second.endpoint.connect("starting").await?;
    let death = async {
        let pod = cluster::eventually("the pod of the session", async || {
            two.sandboxes("starting")?.pop().context("no pod")
        });
        two.kill(&pod.await?)
    };
    let call = patient(&starting, "echo x >>/workspace/ran; cat /workspace/ran");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    let result = result?;
    // It may have been in the middle of the command by then.
    ensure!(result.stdout == "x\n" || result.text.contains("died"), "{result:?}");
    ensure!(patient(&starting, "echo on").await?.stdout == "on\n");
    starting.delete().await?;

    // In the middle of a command.
    let death = async {
        two.started("s").await?;
        two.kill(&two.sandboxes("s")?[0])
    };
    let call = here.bash("echo started >/workspace/mark; sleep 60; echo twice >>/workspace/mark");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    let result = result?;
    // Its agent may still have the last word.
    let ended = result.exit_code == Some(130) && result.stderr.contains("shutting down");
    let died = result.exit_code.is_none() && result.text.contains("died") && result.text.contains("may have run");
    ensure!(result.is_error && (ended || died), "{result:?}");
    let next = patient(&here, "cat /workspace/mark").await?;
    ensure!(
        next.exit_code == Some(1) && next.session_reset.is_some(),
        "sent again, or not told: {next:?}"
    );

    // The server dies in the middle of a command: the client loses its connection, and the session goes on elsewhere.
    let death = async {
        two.started("s").await?;
        two.kill(&format!("pod/{}", first.pod))
    };
    let call = here.bash("echo started >>/workspace/mark; sleep 60; echo ended >>/workspace/mark");
    let (result, killed) = tokio::join!(call, death);
    killed?;
    ensure!(
        result.is_err(),
        "a call through a dead server has no result: {result:?}"
    );
    let mark = patient(&there, "cat /workspace/mark").await?;
    ensure!(mark.stdout == "started\n" && mark.session_reset.is_none(), "{mark:?}");
    there.delete().await?;
    two.forward()?;
    two.end()
}

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
