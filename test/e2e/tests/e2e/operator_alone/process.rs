//! The stage of tests that run the operator themselves: a cluster without the installed one, what an instance needs, and
//! the operator as a process to be stopped, killed and started again.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, kubectl, setup};

const SYSTEM: &str = "cli-mcp-operator-system";
const DEPLOYED: &str = "deployment/cli-mcp-operator-controller-manager";

/// The installed operator is away for as long as this lives.
pub(crate) struct Alone;

impl Alone {
    /// Makes these namespaces anew, while the installed operator can still take down what an earlier run left there; then
    /// scales it to nothing and waits until it is gone.
    ///
    /// # Errors
    ///
    /// When kubectl fails.
    pub(crate) fn take(namespaces: &[&str]) -> Result<Self> {
        for name in namespaces {
            setup::namespace(name)?;
        }
        kubectl::ok(&["-n", SYSTEM, "scale", DEPLOYED, "--replicas=0"])?;
        let alone = Self;
        kubectl::ok(&[
            "-n",
            SYSTEM,
            "wait",
            "--for=delete",
            "pod",
            "-l",
            "control-plane=controller-manager",
            "--timeout=120s",
        ])?;
        Ok(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // A failure shows in the next test, which needs the operator.
        let _ = kubectl::run(&["-n", SYSTEM, "scale", DEPLOYED, "--replicas=1"]);
        let _ = kubectl::run(&["-n", SYSTEM, "rollout", "status", DEPLOYED, "--timeout=120s"]);
    }
}

/// Address of the API server within the cluster.
fn api_server() -> Result<String> {
    let path = "jsonpath={.spec.clusterIP}";
    kubectl::ok(&["-n", "default", "get", "service", "kubernetes", "-o", path])
}

/// Tells a figure.
///
/// # Errors
///
/// When standard error is closed.
pub(crate) fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stderr().lock(), "{text}")?)
}

/// A running operator; dropping it kills it.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
    health: u16,
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How an operator is run.
pub(crate) struct Run<'a> {
    /// `WATCH_NAMESPACE`.
    pub(crate) watch: &'a str,
    /// The operator's own namespace.
    pub(crate) namespace: &'a str,
    /// Its name in the Lease; without one it takes no part in leader election.
    pub(crate) leader: Option<&'a str>,
    /// Another kubeconfig than the current one.
    pub(crate) kubeconfig: Option<&'a Path>,
}

impl<'a> Run<'a> {
    /// For the instances of the operator's own namespace, against the current cluster, without leader election.
    pub(crate) const fn of_one(namespace: &'a str) -> Self {
        Self {
            watch: namespace,
            namespace,
            leader: None,
            kubeconfig: None,
        }
    }
}

impl Operator {
    /// Starts an operator that writes its log to a file of this name in `folder`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start(folder: &Path, name: &str, run: &Run<'_>) -> Result<Self> {
        let program = PathBuf::from(cluster::setting("E2E_BIN_DIR")?).join("operator");
        let health = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = folder.join(name);
        let output = std::fs::File::create(&log)?;
        let mut command = Command::new(&program);
        command
            .arg(format!("--health-probe-bind-address=127.0.0.1:{health}"))
            .env("WATCH_NAMESPACE", run.watch)
            .env("POD_NAMESPACE", run.namespace)
            // As in a pod: its own rights do not reach to the Service.
            .env("KUBERNETES_SERVICE_HOST", api_server()?)
            .env("RELATED_IMAGE_SERVER", cluster::image("server")?)
            .env("RELATED_IMAGE_PROXY", cluster::image("proxy")?)
            .env("RELATED_IMAGE_SANDBOX", cluster::image("agent")?)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        if let Some(identity) = run.leader {
            command.arg("--leader-elect").env("POD_NAME", identity);
        }
        if let Some(kubeconfig) = run.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, log, health })
    }

    /// What it has logged.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub(crate) fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// Waits until `/readyz` is content.
    ///
    /// # Errors
    ///
    /// When it is not in time; with the log.
    pub(crate) async fn ready(&self) -> Result<()> {
        let url = format!("http://127.0.0.1:{}/readyz", self.health);
        cluster::eventually("the operator's readiness", async || {
            let answer = Command::new("curl").args(["-sf", "--max-time", "2", &url]).output()?;
            ensure!(answer.status.success(), "{}", self.log()?);
            Ok(())
        })
        .await
    }

    /// Sends a signal, by its name.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()?;
        ensure!(status.success(), "kill -{name} failed");
        Ok(())
    }

    /// Kills it, as the kernel does when memory is short.
    ///
    /// # Errors
    ///
    /// When it cannot be waited for.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    ///
    /// When it does not end.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus> {
        let end = std::time::Instant::now() + cluster::PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(
                std::time::Instant::now() < end,
                "the operator does not end:\n{}",
                self.log()?
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}
