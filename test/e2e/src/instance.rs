//! Instances made the way a user makes them: an admin's Secrets, `kubectl apply`, `kubectl wait`, a port-forward.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use cli_mcp_demo::session::{Endpoint, Session, Token};

use crate::{cluster, kubectl, setup};

/// A Ready instance and a way to talk to it.
pub struct Instance {
    /// Its namespace, which enforces the `restricted` Pod Security Standard.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its server, with the token of the instance's client ServiceAccount.
    pub endpoint: Endpoint,
    // Kept for as long as the instance is used: dropping them ends the forward and removes the CA file.
    _forward: Forward,
    _files: tempfile::TempDir,
}

/// A running `kubectl port-forward`; dropping it ends it.
pub struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        // It may have ended by itself; nothing else can be done about it here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The instance that most tests share, each with sessions of its own. It is made by the first that asks.
///
/// # Errors
///
/// When it could not be made: every test then fails with the same reason.
pub fn shared() -> Result<&'static Instance> {
    static SHARED: OnceLock<Result<Instance>> = OnceLock::new();
    let made = SHARED.get_or_init(|| {
        Instance::create(
            "e2e-shared",
            "shared",
            "  sandbox: {warmPoolSize: 1}\n  proxy:\n    targets:\n    - {type: kubernetes, access: ReadWrite}\n",
        )
    });
    made.as_ref()
        .map_err(|error| anyhow::anyhow!("the shared instance: {error:#}"))
}

impl Instance {
    /// Makes an instance in a namespace of its own and waits until it is Ready. The spec is YAML.
    ///
    /// # Errors
    ///
    /// When a step fails or the instance does not become Ready.
    pub fn create(namespace: &str, name: &str, spec: &str) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let ca_file = files.path().join("ca.crt");
        setup::namespace(namespace)?;
        setup::secrets(namespace, name, Some(&ca_file))?;
        setup::apply(namespace, name, spec)?;
        wait_ready(namespace, name)?;
        let token = client_token(namespace, name)?;
        let (forward, port) = Forward::start(namespace, &format!("service/cli-mcp-{name}"))?;
        let endpoint = Endpoint {
            base_url: format!("https://localhost:{port}"),
            ca_pem: Some(std::fs::read(&ca_file)?),
            token: Some(token),
        };
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            endpoint,
            _forward: forward,
            _files: files,
        })
    }

    /// Finds the way to the server anew: a port-forward ends with the pod that it leads to.
    ///
    /// # Errors
    ///
    /// When kubectl does not forward.
    pub fn reconnect(&mut self) -> Result<()> {
        let (forward, port) = Forward::start(&self.namespace, &format!("service/cli-mcp-{}", self.name))?;
        self.endpoint.base_url = format!("https://localhost:{port}");
        self._forward = forward;
        Ok(())
    }

    /// Gets another token: with its ServiceAccount the one of before has ended.
    ///
    /// # Errors
    ///
    /// When the API server gives none.
    pub fn renew_token(&mut self) -> Result<()> {
        self.endpoint.token = Some(client_token(&self.namespace, &self.name)?);
        Ok(())
    }

    /// Connects a session of this instance, and waits until its sandbox runs commands: a busy machine may take longer to
    /// start a pod than the server waits for one.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or the sandbox does not start.
    pub async fn session(&self, id: &str) -> Result<Session> {
        let session = self.endpoint.connect(id).await?;
        cluster::eventually("the sandbox's start", async || {
            let started = session.bash("true").await?;
            if started.exit_code != Some(0) {
                bail!("{}", started.text);
            }
            Ok(())
        })
        .await?;
        Ok(session)
    }
}

/// A token of the instance's client ServiceAccount, for longer than any suite takes.
fn client_token(namespace: &str, name: &str) -> Result<Token> {
    let account = format!("cli-mcp-{name}-client");
    let token = kubectl::ok(&["-n", namespace, "create", "token", &account, "--duration=12h"])?;
    Ok(Token(token.trim().to_owned()))
}

/// Waits for the condition as `kubectl wait` does; a failure shows the instance and its pods.
///
/// # Errors
///
/// When the instance does not become Ready.
pub fn wait_ready(namespace: &str, name: &str) -> Result<()> {
    let instance = format!("climcpinstance/{name}");
    let waited = kubectl::run(&[
        "-n",
        namespace,
        "wait",
        "--for=condition=Ready",
        &instance,
        "--timeout=180s",
    ])?;
    if waited.code != 0 {
        let status = kubectl::run(&["-n", namespace, "get", &instance, "-o", "jsonpath={.status}"])?;
        let pods = kubectl::run(&["-n", namespace, "get", "pods", "-o", "wide"])?;
        bail!("{}\n{}\n{}", waited.stderr, status.stdout, pods.stdout);
    }
    Ok(())
}

impl Forward {
    /// Forwards a free local port to port 8443 of `kind/name`.
    ///
    /// # Errors
    ///
    /// When kubectl cannot be started or does not forward.
    pub fn start(namespace: &str, target: &str) -> Result<(Self, u16)> {
        let mut child = Command::new("kubectl")
            .args(["-n", namespace, "port-forward", target, ":8443"])
            .stdout(Stdio::piped())
            // It prints an error for each connection that a client closes.
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start kubectl")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let forward = Self(child);
        let mut lines = BufReader::new(stdout).lines();
        let first = lines.next().context("kubectl port-forward ended without a word")??;
        // Forwarding from 127.0.0.1:PORT -> 8443
        let port = first
            .split(" -> ")
            .next()
            .and_then(|from| from.rsplit(':').next())
            .and_then(|port| port.parse().ok());
        // It goes on to print a line a connection: someone must read them.
        std::thread::spawn(move || lines.for_each(drop));
        Ok((
            forward,
            port.with_context(|| format!("kubectl port-forward printed {first:?}"))?,
        ))
    }
}
