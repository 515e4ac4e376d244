//! Measures the server on the development cluster against floors of the same run: the agent asked directly, a write to
//! the API server, the start of a bare pod. Prints a table and one JSON line. To be run as root in the node, from where
//! pods can be reached: `make bench-server`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cli_mcp_figures::{Figure, percentile};
use cli_mcp_sandbox::token::HmacKey;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::audit_log::AuditLog;
use crate::cluster::{address, answers, first, gone, kubectl, run, unassigned};

mod audit_log;
mod cluster;
mod growth;

const NAMESPACE: &str = "bench-server";
const INSTANCE: &str = "bench";
const OPERATOR: &str = "cli-mcp-operator-system";
const POOL: usize = 52;
/// Pods of the pool that are left: a search that meets the last one in another's hand makes a pod of its own.
const SPARE: usize = 4;
/// From one beginning of a session to the next.
const CLAIM_PERIOD: Duration = Duration::from_millis(50);
/// How many of them begin one after the other.
const ALONE: usize = 8;
const COLD_STARTS: usize = 5;

fn main() -> Result<()> {
    let root = std::env::args()
        .nth(1)
        .map(PathBuf::from)
        .context("give the folder of the repository; make bench-server does")?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bench = Bench::set_up(&root).await?;
        let mut figures = Vec::new();
        bench.warm(&mut figures).await?;
        bench.operator(0).await?;
        let measured = async {
            bench.claims(&mut figures).await?;
            bench.cold(&mut figures).await?;
            bench.growth(&mut figures).await?;
            bench.idle_sessions(&mut figures).await
        }
        .await;
        bench.operator(1).await?;
        kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
        measured?;
        Ok(cli_mcp_figures::print(&figures)?)
    })
}

/// An instance, its server and its sandboxes, each reached at its pod's address.
struct Bench {
    pods: Api<Pod>,
    deployments: Api<Deployment>,
    key: HmacKey,
    direct: reqwest::Client,
    tls: reqwest::Client,
    token: String,
}

impl Bench {
    async fn set_up(root: &Path) -> Result<Self> {
        kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s"])?;
        kubectl(&["create", "namespace", NAMESPACE])?;
        let ca = std::env::temp_dir().join("cli-mcp-bench-ca.crt");
        let ca_path = ca.to_str().context("the temporary folder's path")?;
        let plugin = std::env::var_os("KUBECTL_PLUGIN").context("KUBECTL_PLUGIN is not set; run make bench-server")?;
        let instance = ["--namespace", NAMESPACE, "--instance", INSTANCE];
        run(Command::new(plugin).arg("investigation-kubeconfig").args(instance))?;
        run(Command::new(root.join("hack/tls-secret.sh"))
            .args(instance)
            .args(["--ca-out", ca_path]))?;
        let instance = std::env::temp_dir().join("cli-mcp-bench.json");
        std::fs::write(
            &instance,
            json!({
                "apiVersion": "cli-mcp.redhat.com/v1alpha1", "kind": "CliMcpInstance",
                "metadata": {"name": INSTANCE, "namespace": NAMESPACE},
                "spec": {
                    "sandbox": {"warmPoolSize": POOL, "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}}},
                    "proxy": {"targets": [{"type": "kubernetes"}]},
                },
            })
            .to_string(),
        )?;
        kubectl(&["apply", "-f", instance.to_str().context("the temporary folder's path")?])?;
        let named = format!("climcpinstance/{INSTANCE}");
        kubectl(&[
            "-n",
            NAMESPACE,
            "wait",
            "--for=condition=Ready",
            &named,
            "--timeout=240s",
        ])?;
        kubectl(&[
            "-n",
            NAMESPACE,
            "wait",
            "--for=condition=WarmPoolReady",
            &named,
            "--timeout=240s",
        ])?;
        let client_account = format!("cli-mcp-{INSTANCE}-client");
        let token = kubectl(&["-n", NAMESPACE, "create", "token", &client_account])?
            .trim()
            .to_owned();

        let client = Client::try_default().await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let secret = secrets.get(&format!("cli-mcp-{INSTANCE}-hmac")).await?;
        let key = secret.data.and_then(|mut data| data.remove("key")).context("no key")?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let server = address(&first(&pods, "cli-mcp.redhat.com/component=server").await?)?;
        let builder = || reqwest::Client::builder().no_proxy().tcp_nodelay(true);
        Ok(Self {
            pods,
            deployments: Api::namespaced(client, OPERATOR),
            key: HmacKey::new(&key.0).map_err(|error| anyhow::anyhow!("{error}"))?,
            direct: builder().build()?,
            tls: builder()
                .tls_certs_only(reqwest::Certificate::from_pem_bundle(&std::fs::read(&ca)?)?)
                .resolve("localhost", format!("{server}:8443").parse()?)
                .build()?,
            token,
        })
    }

    /// With no operator nothing refills the pool, nor ends what is measured.
    async fn operator(&self, replicas: u32) -> Result<()> {
        let patch = json!({"spec": {"replicas": replicas}});
        let name = "cli-mcp-operator-controller-manager";
        self.deployments
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        if replicas == 0 {
            kubectl(&[
                "-n",
                OPERATOR,
                "wait",
                "--for=delete",
                "pod",
                "-l",
                "control-plane=controller-manager",
                "--timeout=120s",
            ])?;
        }
        Ok(())
    }

    /// A whole MCP call, as a client makes it; fails unless the command ran.
    async fn call(&self, session: &str) -> Result<Duration> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash", "arguments": {"command": "true"}}});
        let began = Instant::now();
        let answer = self
            .tls
            .post("https://localhost:8443/mcp")
            .bearer_auth(&self.token)
            .header("x-session-id", session)
            .header("accept", "application/json, text/event-stream")
            .json(&body)
            .send()
            .await?
            .text()
            .await?;
        let took = began.elapsed();
        ensure!(answer.contains(r#""exit_code":0"#), "{session}: {answer}");
        Ok(took)
    }

    async fn ask_agent(&self, session: &str, ip: &str) -> Result<Duration> {
        let began = Instant::now();
        let answer = self
            .direct
            .post(format!("http://{ip}:8090/exec"))
            .bearer_auth(self.key.session_token(session).reveal())
            .json(&json!({"command": "true"}))
            .send()
            .await?
            .text()
            .await?;
        let took = began.elapsed();
        ensure!(answer.contains(r#""exit_code":0"#), "{answer}");
        Ok(took)
    }

    async fn live(&self) -> Result<Duration> {
        let began = Instant::now();
        self.tls.get("https://localhost:8443/live").send().await?.text().await?;
        Ok(began.elapsed())
    }

    async fn metrics(&self) -> Result<String> {
        let request = self.tls.get("https://localhost:8443/metrics").bearer_auth(&self.token);
        Ok(request.send().await?.text().await?)
    }

    /// How many sessions of the server found no pod in the pool that they could claim.
    async fn made_a_pod(&self) -> Result<f64> {
        let metrics = self.metrics().await?;
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix("cli_mcp_server_sandbox_claims_total{result=\"Created\"} "));
        Ok(count.unwrap_or("0").parse()?)
    }

    async fn warm(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let log = AuditLog::open()?;
        let begin = log.end()?;
        self.call("warm").await?;
        let control = log.control(begin).await?;
        let pod = first(&self.pods, "cli-mcp.redhat.com/session-id=warm").await?;
        let ip = address(&pod)?;
        let begin = log.end()?;
        let began = Instant::now();
        let (mut calls, mut agent, mut live) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..22 {
            for _ in 0..50 {
                let (call, direct, floor) = (
                    self.call("warm").await?,
                    self.ask_agent("warm", &ip).await?,
                    self.live().await?,
                );
                if round > 1 {
                    calls.push(call);
                    agent.push(direct);
                    live.push(floor);
                }
            }
        }
        let took = began.elapsed();
        let requests = log.since(begin)?;
        let (calls_p50, agent_p50) = (percentile(&calls, 50), percentile(&agent, 50));
        figures.extend([
            Figure::new("floor: the agent asked directly, p50", agent_p50, "ms"),
            Figure::new(
                "floor: GET /live of the server over the same TLS, p50",
                percentile(&live, 50),
                "ms",
            ),
            Figure::new("a call of a warm session, p50", calls_p50, "ms"),
            Figure::new("a call of a warm session, p99", percentile(&calls, 99), "ms"),
            Figure::new(
                "overhead of the server on a warm session, p50",
                calls_p50 - agent_p50,
                "ms",
            )
            .at_most(1.0),
            Figure::new("calls measured", (22 * 50) as f64, ""),
            Figure::new(
                "control: requests to the API server of the call that claimed its sandbox",
                control.all as f64,
                "",
            ),
            Figure::new(
                "requests to the API server in that time, but for reviews of the token",
                requests.all as f64,
                "",
            ),
            // One at the start and one each 15 s.
            Figure::new(
                "of them other than the write of last-activity",
                requests.others as f64,
                "",
            )
            .at_most(0.0),
            Figure::new(
                "writes of last-activity for each 15 s",
                requests.all as f64 / (took.as_secs_f64() / 15.0).ceil(),
                "",
            )
            .at_most(2.0),
        ]);
        Ok(())
    }

    async fn claims(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let name = first(&self.pods, "cli-mcp.redhat.com/session-id=warm").await?;
        let name = name.metadata.name.context("a pod without name")?;
        let mut writes = Vec::new();
        for n in 0..20 {
            let patch = json!({"metadata": {"annotations": {"bench": n.to_string()}}});
            let began = Instant::now();
            self.pods
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            writes.push(began.elapsed());
        }
        let warm = unassigned(&self.pods).await?.saturating_sub(SPARE);
        let sessions: Vec<String> = (0..warm).map(|n| format!("claim-{n}")).collect();
        let (alone, in_a_row) = sessions.split_at(ALONE.min(sessions.len()));
        let mut undisturbed = Vec::new();
        for session in alone {
            undisturbed.push(self.call(session).await?);
        }
        let made_before = self.made_a_pod().await?;
        let log = AuditLog::open()?;
        let begin = log.end()?;
        let mut beats = Duration::ZERO;
        let samples = try_join_all(in_a_row.iter().map(|session| {
            let beat = beats;
            beats += CLAIM_PERIOD;
            async move {
                tokio::time::sleep(beat).await;
                self.call(session).await
            }
        }))
        .await?;
        let requests = log.control(begin).await?;
        let made = self.made_a_pod().await? - made_before;
        figures.extend([
            Figure::new("floor: one write to the API server, p50", percentile(&writes, 50), "ms"),
            Figure::new(
                "first call of a session over a warm pod, one at a time, p50",
                percentile(&undisturbed, 50),
                "ms",
            ),
            Figure::new(
                "sessions that began, 20 a second, over warm pods",
                samples.len() as f64,
                "",
            ),
            Figure::new("of them that made a pod of their own", made, "").at_most(0.0),
            Figure::new(
                "requests to the API server for each of them, but for reviews of the token",
                requests.all as f64 / samples.len() as f64,
                "",
            ),
            Figure::new(
                "first call of a session over a warm pod, p50",
                percentile(&samples, 50),
                "ms",
            )
            .at_most(60.0),
            Figure::new(
                "first call of a session over a warm pod, p99",
                percentile(&samples, 99),
                "ms",
            )
            .at_most(250.0),
        ]);
        self.end_sessions().await
    }

    /// Deletes every sandbox but that of the session `warm`.
    async fn end_sessions(&self) -> Result<()> {
        let all =
            ListParams::default().labels("cli-mcp.redhat.com/component=sandbox,cli-mcp.redhat.com/session-id!=warm");
        self.pods
            .delete_collection(&DeleteParams::default().grace_period(0), &all)
            .await?;
        gone(&self.pods).await
    }

    async fn cold(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let (mut calls, mut pods) = (Vec::new(), Vec::new());
        for n in 0..COLD_STARTS {
            let session = format!("cold-{n}");
            calls.push(self.call(&session).await?);
            let mut pod = first(&self.pods, &format!("cli-mcp.redhat.com/session-id={session}")).await?;
            self.delete(&pod).await?;

            // The same pod, of no session that anyone calls.
            pod.metadata = kube::core::ObjectMeta {
                name: Some(format!("bare-{n}")),
                labels: pod.metadata.labels.map(|mut labels| {
                    labels.insert("cli-mcp.redhat.com/session-id".to_owned(), format!("bare-{n}"));
                    labels
                }),
                ..kube::core::ObjectMeta::default()
            };
            pod.status = None;
            if let Some(spec) = &mut pod.spec {
                spec.node_name = None;
            }
            let began = Instant::now();
            self.pods.create(&PostParams::default(), &pod).await?;
            answers(&self.pods, &format!("bare-{n}")).await?;
            pods.push(began.elapsed());
            self.delete(&pod).await?;
        }
        let (call, bare) = (percentile(&calls, 50), percentile(&pods, 50));
        figures.extend([
            Figure::new("floor: a bare pod from create until its port answers, p50", bare, "ms"),
            Figure::new("first call of a session without a pool, p50", call, "ms"),
            Figure::new(
                "first call of a session without a pool over the pod's start, p50",
                call - bare,
                "ms",
            )
            .at_most(150.0),
        ]);
        Ok(())
    }

    async fn delete(&self, pod: &Pod) -> Result<()> {
        let name = pod.metadata.name.as_deref().context("a pod without name")?;
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        gone(&self.pods).await
    }
}
