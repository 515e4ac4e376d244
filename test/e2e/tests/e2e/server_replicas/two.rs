//! An instance of two servers, each reached by itself.

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_demo::session::{BashResult, Endpoint, Session};
use cli_mcp_e2e::instance::{Forward, Instance};
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::Value;

pub(super) const SERVERS: &str = "cli-mcp.redhat.com/component=server";

/// An instance of two replicas, each reached by a forward of its own.
pub(super) struct Replicas {
    pub(super) instance: Instance,
    pub(super) ends: Vec<Replica>,
}

pub(super) struct Replica {
    pub(super) pod: String,
    pub(super) endpoint: Endpoint,
    _forward: Forward,
}

pub(super) fn rolled_out(namespace: &str) -> Result<()> {
    let deployment = "deployment/cli-mcp-two";
    kubectl::ok(&["-n", namespace, "rollout", "status", deployment, "--timeout=180s"])?;
    Ok(())
}

impl Replicas {
    pub(super) fn create(namespace: &str, pool: usize) -> Result<Self> {
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
    pub(super) fn forward(&mut self) -> Result<()> {
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

    pub(super) fn sandboxes(&self, session: &str) -> Result<Vec<String>> {
        let selector = format!("cli-mcp.redhat.com/session-id={session}");
        kubectl::names(&self.instance.namespace, "pods", &selector)
    }

    pub(super) fn kill(&self, pod: &str) -> Result<()> {
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

    /// Waits until a command of the session has written `started` into `/workspace/mark`.
    pub(super) async fn started(&self, session: &str) -> Result<()> {
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

    pub(super) fn end(self) -> Result<()> {
        kubectl::ok(&["delete", "namespace", &self.instance.namespace, "--wait=false"])?;
        Ok(())
    }
}

/// A call that waits out what says that it was not run: a busy machine starts pods slowly.
pub(super) async fn patient(session: &Session, command: &str) -> Result<BashResult> {
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
pub(super) async fn lines(session: &Session, file: &str) -> Result<Vec<String>> {
    let result = patient(session, &format!("cat {file} 2>/dev/null || true")).await?;
    Ok(result.stdout.lines().map(str::to_owned).collect())
}
