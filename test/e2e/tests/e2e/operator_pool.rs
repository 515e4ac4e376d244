//! Sandboxes that the operator keeps and ends: the warm pool, idle and old sessions, the rollout of a new spec.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::setup::patch;
use cli_mcp_e2e::{cluster, kubectl};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

const SESSION: &str = "cli-mcp.redhat.com/session-id";
const SPEC_HASH: &str = "cli-mcp.redhat.com/spec-hash";

struct Sandboxes(Api<Pod>);

impl Sandboxes {
    async fn of(namespace: &str) -> Result<Self> {
        Ok(Self(Api::namespaced(cluster::client().await?, namespace)))
    }

    async fn list(&self, selector: &str) -> Result<Vec<Pod>> {
        let selector = format!("cli-mcp.redhat.com/component=sandbox,{selector}");
        Ok(self.0.list(&ListParams::default().labels(&selector)).await?.items)
    }

    /// Unassigned sandboxes, also those that are going.
    async fn pool(&self) -> Result<Vec<Pod>> {
        self.list(&format!("!{SESSION}")).await
    }

    async fn session(&self, id: &str) -> Result<Option<Pod>> {
        Ok(self.list(&format!("{SESSION}={id}")).await?.into_iter().next())
    }

    /// Waits for a pool of this size, all of it ready.
    async fn filled(&self, size: usize) -> Result<BTreeSet<String>> {
        cluster::eventually("the pool", async || {
            let pool = self.pool().await?;
            ensure!(pool.len() == size && pool.iter().all(is_ready), "{:?}", states(&pool));
            Ok(pool.iter().map(ResourceExt::name_any).collect())
        })
        .await
    }
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn states(pods: &[Pod]) -> Vec<(String, bool, bool)> {
    let state = |pod: &Pod| (pod.name_any(), is_ready(pod), pod.metadata.deletion_timestamp.is_some());
    pods.iter().map(state).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_is_filled_refilled_and_rolled_and_never_too_large() -> Result<()> {
    let namespace = "e2e-pool";
    // Everything that goes into a sandbox: server and operator must build the same of it.
    let spec = "  sandbox:\n    warmPoolSize: 2\n    workspaceSizeLimit: 64Mi\n    env: [{name: A, value: '1'}, {name: HOME, value: /x}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: C, value: '$$'}, {name: D, value: $(KUBERNETES_SERVICE_HOST)}]\n\
         \x20   imagePullPolicy: IfNotPresent\n    imagePullSecrets: [{name: none}]\n    nodeSelector: {kubernetes.io/os: linux}\n    tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]\n\
         \x20   resources: {requests: {cpu: '0.01', memory: 33554432, ephemeral-storage: 1Mi}, limits: {memory: 0.25Gi}}\n\
         \x20 proxy: {targets: [{type: kubernetes}]}\n";
    let mut instance = Instance::create(namespace, "pool", spec)?;
    let sandboxes = Sandboxes::of(namespace).await?;
    let first = sandboxes.filled(2).await?;

    // Looks at every moment that a LIST shows: unassigned sandboxes, whether they come or go, are never more than asked for.
    let most = Arc::new(AtomicUsize::new(0));
    let (watched, seen) = (Sandboxes::of(namespace).await?, most.clone());
    let watch = tokio::spawn(async move {
        loop {
            if let Ok(pool) = watched.pool().await {
                seen.fetch_max(pool.len(), Ordering::Relaxed);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });

    instance.session("one").await?;
    instance.session("two").await?;
    let refilled = sandboxes.filled(2).await?;
    ensure!(first.is_disjoint(&refilled), "a claimed sandbox is still in the pool");
    for session in ["one", "two"] {
        let claimed = sandboxes.session(session).await?.context("no sandbox")?.name_any();
        ensure!(
            first.contains(&claimed),
            "{session} has {claimed}, which is not of the pool"
        );
    }

    // The server builds what the operator builds: with no pool left, a session gets one of its own.
    let pool_hash = |pods: &[Pod]| -> Option<String> { pods.first()?.annotations().get(SPEC_HASH).cloned() };
    let hash = pool_hash(&sandboxes.pool().await?).context("no spec-hash")?;
    patch(namespace, "pool", r#"{"spec":{"sandbox":{"warmPoolSize":0}}}"#)?;
    sandboxes.filled(0).await?;
    let three = instance.session("three").await?;
    let created = sandboxes.session("three").await?.context("no sandbox")?;
    ensure!(
        created.annotations().get(SPEC_HASH) == Some(&hash),
        "server and operator build different sandboxes: {:?}, {hash}",
        created.annotations()
    );
    patch(namespace, "pool", r#"{"spec":{"sandbox":{"warmPoolSize":2}}}"#)?;
    let before = sandboxes.filled(2).await?;
    ensure!(
        most.load(Ordering::Relaxed) <= 2,
        "the pool had {} sandboxes",
        most.load(Ordering::Relaxed)
    );

    // Another spec: the pool is rebuilt, sessions keep their sandboxes.
    ensure!(three.bash("echo $A; A=kept").await?.stdout == "1\n");
    let keeps = sandboxes.session("three").await?.context("no sandbox")?.name_any();
    patch(
        namespace,
        "pool",
        r#"{"spec":{"sandbox":{"env":[{"name":"A","value":"2"}]}}}"#,
    )?;
    cluster::eventually("a pool of the new spec", async || {
        let pool = sandboxes.pool().await?;
        let new = pool
            .iter()
            .filter(|pod| is_ready(pod) && pod.annotations().get(SPEC_HASH) != Some(&hash));
        ensure!(pool.len() == 2 && new.count() == 2, "{:?}", states(&pool));
        ensure!(pool.iter().all(|pod| !before.contains(&pod.name_any())));
        Ok(())
    })
    .await?;
    cli_mcp_e2e::instance::wait_ready(namespace, "pool")?;
    ensure!(
        most.load(Ordering::Relaxed) <= 2,
        "the pool had {} sandboxes",
        most.load(Ordering::Relaxed)
    );
    // The server has rolled, and with its pod the way to it is gone.
    instance.reconnect()?;
    let three = instance.session("three").await?;
    ensure!(three.bash("echo $A").await?.stdout == "kept\n");
    ensure!(sandboxes.session("three").await?.context("no sandbox")?.name_any() == keeps);
    cluster::eventually("the columns", async || {
        let path = "jsonpath={.status.sessions} {.status.warmPoolReady} {.status.warmPoolDesired}";
        let status = kubectl::ok(&["-n", namespace, "get", "climcpinstance", "pool", "-o", path])?;
        ensure!(status == "3 2 2", "{status}");
        Ok(())
    })
    .await?;
    watch.abort();
    let events = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "events",
        "-o",
        "custom-columns=R:.reason,M:.message",
    ])?;
    ensure!(
        events.contains("ReservedEnvIgnored") && events.contains("HOME"),
        "{events}"
    );
    for session in ["one", "two", "three"] {
        instance.session(session).await?.delete().await?;
    }
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

/// Runs a command that takes longer than the instance would let a quiet session be.
async fn run_long(session: &Session) -> Result<()> {
    let long = session
        .call(json!({"command": "sleep 45; echo done", "timeout": 120}))
        .await?;
    ensure!(long.stdout == "done\n" && long.session_reset.is_none(), "{long:?}");
    Ok(())
}

/// The session ends after its long command and not during it, and its next call says so.
async fn ends_after_a_long_command(namespace: &str, name: &str, limits: &str) -> Result<()> {
    let spec = format!("  sandbox: {limits}\n  proxy: {{targets: [{{type: kubernetes}}]}}\n");
    let instance = Instance::create(namespace, name, &spec)?;
    let sandboxes = Sandboxes::of(namespace).await?;
    let session = instance.session("busy").await?;
    let before = sandboxes.session("busy").await?.context("no sandbox")?.uid();
    run_long(&session).await?;
    let after = sandboxes
        .session("busy")
        .await?
        .context("it ended while its command ran")?;
    ensure!(before == after.uid(), "its sandbox was replaced while its command ran");
    cluster::eventually("the end of the session", async || {
        ensure!(sandboxes.session("busy").await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let next = session.bash("true").await?;
    ensure!(next.session_reset.is_some(), "{next:?}");
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_ends_and_never_while_a_command_runs() -> Result<()> {
    ends_after_a_long_command("e2e-idle", "idle", "{idleTimeout: 1s}").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_session_ends_and_never_while_a_command_runs() -> Result<()> {
    ends_after_a_long_command("e2e-old", "old", "{maxLifetime: 5s}").await
}
