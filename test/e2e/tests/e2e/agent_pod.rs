//! The agent alone in a pod: little memory, full disks, a read-only root, any user.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::{Value, json};

const TOKEN: &str = "agent-pod-test";

/// A pod with nothing but the agent, and a way to it.
struct AgentPod {
    namespace: String,
    forward: Child,
    port: u16,
}

impl Drop for AgentPod {
    fn drop(&mut self) {
        // It may have ended by itself, and a namespace that stays is deleted by the next run.
        let _ = self.forward.kill();
        let _ = self.forward.wait();
        let _ = kubectl::run(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

impl AgentPod {
    /// Starts the agent as a user that no image knows, as OpenShift does, with this memory limit. Both writable folders
    /// are 4 MiB of memory, so that they can be full.
    fn start(name: &str, memory: &str) -> Result<Self> {
        let namespace = format!("e2e-agent-{name}");
        kubectl::ok(&[
            "delete",
            "namespace",
            &namespace,
            "--ignore-not-found",
            "--timeout=180s",
        ])?;
        let image = cluster::image("agent")?;
        kubectl::apply(&format!(
            r#"
apiVersion: v1
kind: Namespace
metadata:
  name: {namespace}
  labels: {{pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Pod
metadata: {{name: agent, namespace: {namespace}}}
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000650000
    runAsGroup: 0
    seccompProfile: {{type: RuntimeDefault}}
  containers:
  - name: agent
    image: {image}
    env:
    - {{name: SANDBOX_AUTH_TOKEN, value: {TOKEN}}}
    - {{name: HOME, value: /workspace}}
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {{drop: [ALL]}}
      readOnlyRootFilesystem: true
    resources:
      requests: {{cpu: 50m, memory: {memory}}}
      limits: {{memory: {memory}}}
    readinessProbe:
      exec: {{command: [agent, probe]}}
      periodSeconds: 1
    volumeMounts:
    - {{name: workspace, mountPath: /workspace}}
    - {{name: tmp, mountPath: /tmp}}
  volumes:
  - {{name: workspace, emptyDir: {{medium: Memory, sizeLimit: 4Mi}}}}
  - {{name: tmp, emptyDir: {{medium: Memory, sizeLimit: 4Mi}}}}
"#
        ))?;
        kubectl::ok(&[
            "-n",
            &namespace,
            "wait",
            "--for=condition=Ready",
            "pod/agent",
            "--timeout=180s",
        ])?;
        let mut forward = Command::new("kubectl")
            .args(["-n", &namespace, "port-forward", "pod/agent", ":8090"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start kubectl")?;
        let mut lines = BufReader::new(forward.stdout.take().context("no stdout")?).lines();
        let first = lines.next().context("kubectl port-forward ended without a word")??;
        let port = first
            .split(" -> ")
            .next()
            .and_then(|from| from.rsplit(':').next()?.parse().ok())
            .with_context(|| format!("kubectl port-forward printed {first:?}"))?;
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            namespace,
            forward,
            port,
        })
    }

    /// Runs a command and gives the agent's result.
    fn run(&self, command: &str) -> Result<Value> {
        let body = json!({"command": command, "timeout": 120}).to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(cluster::PATIENCE))?;
        write!(
            stream,
            "POST /exec HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .with_context(|| format!("no answer: {answer:?}"))?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{command}: {answer}");
        Ok(serde_json::from_str(body)?)
    }

    /// Runs a command that must print this and leave the shell as it is.
    fn expect(&self, command: &str, stdout: &str) -> Result<()> {
        let result = self.run(command)?;
        ensure!(
            result["stdout"] == stdout && result.get("session_reset").is_none(),
            "{command}: {result}"
        );
        Ok(())
    }

    fn restarts_or_end(&self) -> Result<String> {
        kubectl::ok(&[
            "-n",
            &self.namespace,
            "get",
            "pod",
            "agent",
            "-o",
            "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}",
        ])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_user_a_read_only_root_and_64_mib_are_enough() -> Result<()> {
    tokio::task::spawn_blocking(|| {
        let pod = AgentPod::start("small", "64Mi")?;
        pod.expect("id -u; id -g", "1000650000\n0\n")?;
        let result = pod.run("touch /usr/x")?;
        ensure!(
            result["stderr"].to_string().contains("Read-only file system"),
            "{result}"
        );
        pod.expect("export K=1; f() { echo F$K; }; cd /usr", "")?;
        for _ in 0..3 {
            let result = pod.run("yes 0123456789 | head -c 100000000; echo tail-mark")?;
            let stdout = result["stdout"].as_str().unwrap_or_default();
            ensure!(
                result["exit_code"] == 0 && stdout.ends_with("tail-mark\n") && result["truncated"] == true,
                "{}",
                stdout.len()
            );
        }
        pod.expect("wc -c <<< \"$(head -c 200000 /dev/zero | tr '\\0' a)\"", "200001\n")?;
        pod.expect("f; pwd", "F1\n/usr\n")?;
        // Neither its user nor root's group can look into the agent.
        let result = pod.run("cat /proc/1/environ; ls /proc/1/fd; : </proc/1/mem; env | grep -c SANDBOX")?;
        ensure!(
            result["stdout"] == "0\n" && !result.to_string().contains(TOKEN),
            "{result}"
        );
        Ok(())
    })
    .await?
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_ends_a_child_and_never_the_agent() -> Result<()> {
    tokio::task::spawn_blocking(|| {
        let pod = AgentPod::start("oom", "64Mi")?;
        let group = pod.run("cat /sys/fs/cgroup/memory.oom.group 2>/dev/null")?;
        pod.expect("K=1; f() { echo F$K; }; cd /usr", "")?;
        let grow = "x=$(head -c 90000000 /dev/zero | tr '\\0' a); x=$x$x$x; echo ${#x}";
        let child = pod.run(&format!("bash -c '{}'; echo rc=$?", grow.replace('\'', "'\\''")));
        if group["stdout"] == "1\n" {
            // The kubelet of this node ends all of a container at once: then nothing is left to survive, and the pod says
            // why it ended.
            ensure!(child.is_err(), "{child:?}");
            let reason = kubectl::ok(&[
                "-n",
                &pod.namespace,
                "wait",
                "--for=jsonpath={.status.containerStatuses[0].state.terminated.reason}=OOMKilled",
                "pod/agent",
                "--timeout=60s",
            ])?;
            ensure!(reason.contains("condition met"), "{reason}");
            return Ok(());
        }
        let child = child?;
        ensure!(
            child["stdout"] == "rc=137\n" && child.get("session_reset").is_none(),
            "{child}"
        );
        pod.expect("f; pwd", "F1\n/usr\n")?;
        // The same in the shell itself: the call says so, and the next has its state back.
        let shell = pod.run(grow)?;
        ensure!(shell["exit_code"] == 137, "{shell}");
        let next = pod.run("f; pwd")?;
        ensure!(
            next["stdout"] == "F1\n/usr\n" && next["session_reset"].is_string(),
            "{next}"
        );
        pod.expect("f", "F1\n")?;
        ensure!(pod.restarts_or_end()? == "Running 0");
        Ok(())
    })
    .await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_finds_room_beside_whatever_calls_have_left() -> Result<()> {
    tokio::task::spawn_blocking(|| {
        let pod = AgentPod::start("room", "2Gi")?;
        let limit = pod.run("cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null | head -n 1")?;
        let Ok(limit) = limit["stdout"].as_str().unwrap_or_default().trim().parse::<u32>() else {
            // This node's kubelet lets a pod have any number of processes.
            return Ok(());
        };
        pod.expect("K=1; f() { echo F$K; }; cd /usr", "")?;
        let fill = pod.run(&format!("for ((i = 0; i < {limit}; i++)); do sleep 1000 & done"))?;
        ensure!(
            fill["stderr"].to_string().contains("Resource temporarily unavailable"),
            "{fill}"
        );
        let end = pod.run("kill -9 $$")?;
        ensure!(end["exit_code"] == 137, "{end}");
        let next = pod.run("f; pwd; jobs; (true) && echo forked")?;
        ensure!(
            next["stdout"] == "F1\n/usr\nforked\n"
                && next["session_reset"]
                    .to_string()
                    .contains("What earlier calls had left running was ended"),
            "{next}"
        );
        pod.expect("f; cat /sys/fs/cgroup/pids.current /sys/fs/cgroup/pids/pids.current 2>/dev/null | { read n; ((n < 100)); echo $?; }", "F1\n0\n")?;
        ensure!(pod.restarts_or_end()? == "Running 0");
        Ok(())
    })
    .await?
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disks_are_told_and_cost_no_state() -> Result<()> {
    tokio::task::spawn_blocking(|| {
        let pod = AgentPod::start("full", "128Mi")?;
        pod.expect("K=1; declare -A M=([a]=b); f() { echo F$K${M[a]}; }; cd /usr", "")?;
        let result = pod.run("for d in /tmp /workspace; do head -c 9000000 /dev/zero >$d/fill; done")?;
        ensure!(
            result["stderr"].to_string().contains("No space left on device"),
            "{result}"
        );
        pod.expect("f; pwd; false; echo $?", "F1b\n/usr\n1\n")?;
        let result = pod.run("yes | head -c 600000; echo tail-mark; exit_with() { return 3; }; exit_with")?;
        let stdout = result["stdout"].as_str().unwrap_or_default();
        ensure!(
            result["exit_code"] == 3
                && stdout.ends_with("tail-mark\n")
                && stdout.contains("the full text could not be kept: No space left on device"),
            "{}",
            &stdout[stdout.len().saturating_sub(400)..]
        );
        // A reset needs no disk either.
        ensure!(pod.run("exit 3")?["exit_code"] == 3);
        let next = pod.run("f; pwd")?;
        ensure!(
            next["stdout"] == "F1b\n/usr\n" && next["session_reset"].is_string(),
            "{next}"
        );
        pod.expect("rm /tmp/fill /workspace/fill; echo x >/tmp/x; cat /tmp/x", "x\n")
    })
    .await?
}
