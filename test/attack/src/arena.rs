//! Two instances whose credential may do everything, so that what is refused is refused by this product and not by RBAC.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl};
use tokio::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::shell::Shell;

/// Where the investigated API is, as the sandboxes name it.
pub const API: &str = "kubernetes.default.svc:443";

/// The path under which the second cluster of the neighbour's kubeconfig is served, with an identity of its own.
pub const SECOND_PREFIX: &str = "/second/cluster";

/// Namespace of the operator.
const OPERATOR: &str = "cli-mcp-operator-system";

/// The attacker's and the victim's instance: ReadWrite, Secrets denied, sandboxes with every limit.
const HOME: &str = "  sandbox:
    workspaceSizeLimit: 64Mi
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {cpu: 500m, memory: 256Mi, ephemeral-storage: 256Mi}
  proxy:
    targets:
    - {type: kubernetes, access: ReadWrite, deniedResources: [{group: '', resource: secrets}]}
";

/// The neighbour: ReadOnly, with a pool.
const NEIGHBOUR: &str = "  sandbox:
    warmPoolSize: 1
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {cpu: 500m, memory: 256Mi}
  proxy:
    targets:
    - {type: kubernetes, access: ReadOnly, deniedResources: [{group: '', resource: secrets}]}
";

/// An instance apart from the others, for what would keep all their sessions from starting.
const APART: &str = "  proxy:
    targets:
    - {type: kubernetes, access: ReadWrite}
";

/// What the attacks are run against.
pub struct Arena {
    /// Where the attacker and the victim have sessions.
    pub home: Instance,
    /// An instance of somebody else, in another namespace. Its pool is where unassigned sandboxes are attacked from.
    pub neighbour: Instance,
    /// Unassigned sandboxes are used by many, and claimed by one.
    pool: RwLock<()>,
}

/// The arena, made by the first that asks.
///
/// # Errors
///
/// When it could not be made: every attack then fails with the same reason.
pub fn arena() -> Result<&'static Arena> {
    static ARENA: OnceLock<Result<Arena>> = OnceLock::new();
    ARENA
        .get_or_init(Arena::create)
        .as_ref()
        .map_err(|error| anyhow::anyhow!("the arena: {error:#}"))
}

impl Arena {
    fn create() -> Result<Self> {
        let (home, neighbour) = std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| Instance::create("attack-neighbour", "neighbour", NEIGHBOUR));
            let home = Instance::create("attack-home", "home", HOME);
            (home, neighbour.join())
        });
        let (home, neighbour) = (
            home?,
            neighbour.map_err(|_| anyhow::anyhow!("making the neighbour panicked"))??,
        );
        for instance in [&home, &neighbour] {
            allow_everything(instance)?;
        }
        let before = kubectl::ok(&pool_pods(&neighbour.namespace))?;
        add_second_cluster(&neighbour)?;
        await_new_pool(&neighbour, before.trim())?;
        Ok(Self {
            home,
            neighbour,
            pool: RwLock::new(()),
        })
    }

    /// The attacker's sandbox, shared by every attack that leaves it whole.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    pub async fn attacker(&self) -> Result<Shell> {
        Ok(Shell::Assigned(self.home.session("attacker").await?))
    }

    /// The victim's session: what it does must go on as if there were no attacker.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    pub async fn victim(&self) -> Result<Session> {
        self.home.session("victim").await
    }

    /// An unassigned sandbox, which nobody claims while the guard lives.
    ///
    /// # Errors
    ///
    /// When the pool has none.
    pub async fn unassigned(&self) -> Result<(Shell, RwLockReadGuard<'_, ()>)> {
        let guard = self.pool.read().await;
        Ok((self.pool_shell().await?, guard))
    }

    /// The same for the one who is going to claim it.
    ///
    /// # Errors
    ///
    /// When the pool has none.
    pub async fn claimable(&self) -> Result<(Shell, RwLockWriteGuard<'_, ()>)> {
        let guard = self.pool.write().await;
        Ok((self.pool_shell().await?, guard))
    }

    /// A session of the neighbour. It may claim the pool's sandbox, and waits until nobody is in there.
    ///
    /// # Errors
    ///
    /// When it cannot be had.
    pub async fn neighbours_session(&self, id: &str) -> Result<Session> {
        let _guard = self.pool.write().await;
        self.neighbour.session(id).await
    }

    async fn pool_shell(&self) -> Result<Shell> {
        let namespace = &self.neighbour.namespace;
        let pod = cluster::eventually("a ready pod in the pool", async || {
            let pods = kubectl::ok(&[
                "-n",
                namespace,
                "get",
                "pods",
                "-l",
                "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id",
                "-o",
                "jsonpath={range .items[?(@.status.containerStatuses[0].ready==true)]}{.metadata.name} {.metadata.deletionTimestamp}{\"\\n\"}{end}",
            ])?;
            let pod = pods
                .lines()
                .find_map(|line| line.strip_suffix(' '))
                .context("no ready pod in the pool")?;
            Ok(pod.to_owned())
        })
        .await?;
        Ok(Shell::Unassigned {
            namespace: namespace.clone(),
            pod,
        })
    }

    /// Both kinds of hostile shell, for what is tried from each.
    ///
    /// # Errors
    ///
    /// When one cannot be had.
    pub async fn shells(&self) -> Result<([Shell; 2], RwLockReadGuard<'_, ()>)> {
        let (unassigned, guard) = self.unassigned().await?;
        Ok(([self.attacker().await?, unassigned], guard))
    }
}

/// An instance whose sessions one attack may keep from starting, until the guard is dropped.
///
/// # Errors
///
/// When it could not be made.
pub async fn apart() -> Result<(&'static Instance, MutexGuard<'static, ()>)> {
    static APART_INSTANCE: OnceLock<Result<Instance>> = OnceLock::new();
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let guard = ONE_AT_A_TIME.lock().await;
    let made = APART_INSTANCE.get_or_init(|| {
        let instance = Instance::create("attack-apart", "apart", APART)?;
        allow_everything(&instance)?;
        Ok(instance)
    });
    let instance = made
        .as_ref()
        .map_err(|error| anyhow::anyhow!("the instance apart: {error:#}"))?;
    Ok((instance, guard))
}

/// Gives the instance's credential every right there is.
fn allow_everything(instance: &Instance) -> Result<()> {
    kubectl::apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {namespace}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}\n\
         subjects: [{{kind: ServiceAccount, name: cli-mcp-investigator, namespace: {namespace}}}]\n",
        namespace = instance.namespace
    ))?;
    Ok(())
}

/// Names of the pods of a component of an instance.
///
/// # Errors
///
/// When they cannot be listed.
pub fn pods(instance: &Instance, component: &str) -> Result<Vec<String>> {
    let selector = format!(
        "cli-mcp.redhat.com/instance={},cli-mcp.redhat.com/component={component}",
        instance.name
    );
    kubectl::names(&instance.namespace, "pods", &selector)
}

/// How often the containers of the operator, and of servers and proxies of an instance, were restarted, by namespace and pod.
///
/// # Errors
///
/// When pods cannot be listed.
pub fn restarts(instance: &Instance) -> Result<BTreeMap<(String, String), String>> {
    let mut found = BTreeMap::new();
    for (namespace, selector) in [
        (OPERATOR, String::new()),
        (
            &instance.namespace,
            "cli-mcp.redhat.com/component in (server,proxy)".to_owned(),
        ),
    ] {
        let list = kubectl::ok(&[
            "-n",
            namespace,
            "get",
            "pods",
            "-l",
            &selector,
            "-o",
            "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}",
        ])?;
        for (pod, count) in list.lines().filter_map(|line| line.split_once(' ')) {
            found.insert((namespace.to_owned(), pod.to_owned()), count.to_owned());
        }
    }
    Ok(found)
}

/// Nothing was restarted since. An operator that lost its Lease, as it may on a busy machine, ends with a word about it: that
/// is no restart that anybody else brought about.
///
/// # Errors
///
/// What was restarted, and its last words.
pub fn not_restarted(instance: &Instance, since: &BTreeMap<(String, String), String>) -> Result<()> {
    for ((namespace, pod), count) in restarts(instance)? {
        if since
            .get(&(namespace.clone(), pod.clone()))
            .is_none_or(|before| *before == count)
        {
            continue;
        }
        let last = kubectl::ok(&["-n", &namespace, "logs", "--previous", "--tail=1", &pod])?;
        ensure!(
            namespace == OPERATOR && last.starts_with("error: the Lease "),
            "{pod} was restarted; its last words: {last}"
        );
    }
    Ok(())
}

/// A condition of an instance: its status and message.
///
/// # Errors
///
/// When it cannot be read.
pub fn condition(instance: &Instance, kind: &str) -> Result<String> {
    kubectl::ok(&[
        "-n",
        &instance.namespace,
        "get",
        "climcpinstance",
        &instance.name,
        "-o",
        &format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")]['status','message']}}"),
    ])
}

/// Arguments of kubectl that name the unassigned sandboxes.
fn pool_pods(namespace: &str) -> [&str; 7] {
    [
        "-n",
        namespace,
        "get",
        "pods",
        "-o",
        "name",
        "-lcli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id",
    ]
}

/// Another dummy kubeconfig means other sandboxes: waits until those of before are gone.
fn await_new_pool(instance: &Instance, before: &str) -> Result<()> {
    let end = Instant::now() + cluster::PATIENCE;
    loop {
        let now = kubectl::ok(&pool_pods(&instance.namespace))?;
        if !now.trim().is_empty() && !now.lines().any(|pod| before.contains(pod)) {
            return instance::wait_ready(&instance.namespace, &instance.name);
        }
        ensure!(
            Instant::now() < end,
            "the pool was not rebuilt: before {before}, now {now}"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Gives the neighbour's kubeconfig a second cluster on the same host, under a path, with an identity without any right:
/// the API server's refusal then names who asked.
fn add_second_cluster(instance: &Instance) -> Result<()> {
    let namespace = &instance.namespace;
    kubectl::ok(&["-n", namespace, "create", "serviceaccount", "second"])?;
    let token = kubectl::ok(&["-n", namespace, "create", "token", "second", "--duration=2h"])?;
    let secret = format!("cli-mcp-{}-kubeconfig", instance.name);
    let script = format!(
        "set -euo pipefail; kubectl -n {namespace} get secret {secret} -o jsonpath='{{.data.kubeconfig}}' | base64 -d >\"$1\"
         export KUBECONFIG=\"$1\"
         kubectl config set-cluster second --server=https://kubernetes.default.svc{SECOND_PREFIX}
         kubectl config set clusters.second.certificate-authority-data \"$(kubectl config view --raw -o jsonpath='{{.clusters[0].cluster.certificate-authority-data}}')\"
         kubectl config set-credentials second --token=\"$2\"
         kubectl config set-context second --cluster=second --user=second"
    );
    let file = std::env::temp_dir().join(format!("attack-kubeconfig-{}", std::process::id()));
    let path = file.to_str().context("the temporary folder's path is not UTF-8")?;
    let made = std::process::Command::new("bash")
        .args(["-c", &script, "bash", path, token.trim()])
        .output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = kubectl::ok(&[
        "-n",
        namespace,
        "create",
        "secret",
        "generic",
        &secret,
        &format!("--from-file=kubeconfig={path}"),
        "--dry-run=client",
        "-o",
        "yaml",
    ]);
    std::fs::remove_file(&file)?;
    kubectl::apply(&text?)
}
