//! The demo's conversation: each step says what it shows, what it sent, what came back, and fails the run when that is
//! not what it promised.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use cli_mcp_demo::session::{BashResult, Endpoint, Session, Token};

/// Talks to an instance as an AI agent would, and prints the conversation.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Base URL of the instance's server, without /mcp
    #[arg(long, env = "DEMO_URL", default_value = "https://localhost:8443")]
    url: String,
    /// PEM file with the CA of the server's certificate
    #[arg(long, env = "DEMO_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// File with the bearer token of a client
    #[arg(long, env = "DEMO_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Session id
    #[arg(long, env = "DEMO_SESSION", default_value = "demo")]
    session: String,
    /// `address:port` of the API server, which the sandbox must not reach directly
    #[arg(long, env = "DEMO_API_SERVER")]
    api_server: String,
    /// `namespace/pod` of a running pod that `kubectl exec` is tried on
    #[arg(long, env = "DEMO_EXEC_POD")]
    exec_pod: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do where stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(args: &Args) -> Result<()> {
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let token = args.token_file.as_ref().map(read).transpose()?;
    let endpoint = Endpoint {
        base_url: args.url.trim_end_matches('/').to_owned(),
        ca_pem: args.ca_file.as_ref().map(read).transpose()?,
        token: token.map(|token| Token(String::from_utf8_lossy(&token).trim().to_owned())),
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Connecting to {}/mcp as session {:?}",
        endpoint.base_url, args.session
    )?;
    let session = endpoint.connect(&args.session).await?;
    writeln!(
        out,
        "The server offers the tools: {}\n",
        session.tools().await?.join(", ")
    )?;
    let mut talk = Conversation {
        session: &session,
        out: &mut out,
    };
    converse(&mut talk, args).await?;

    writeln!(out, "# DELETE /sessions/{} ends the session and its pod", args.session)?;
    let status = session.delete().await?;
    ensure!(status == 204, "DELETE answered {status}, expected 204");
    writeln!(out, "  HTTP {status}")?;
    Ok(())
}

async fn converse(talk: &mut Conversation<'_>, args: &Args) -> Result<()> {
    let pods = talk
        .step(
            "kubectl works: the proxy puts the real credential in, and a real API server answers",
            "kubectl get pods -A",
        )
        .await?;
    ensure!(
        pods.exit_code == Some(0) && pods.stdout.contains("kube-system"),
        "kubectl did not list the pods"
    );

    talk.step(
        "A session is one shell: set a variable, change the directory",
        "cd /tmp && investigation=42",
    )
    .await?;
    let kept = talk
        .step("… and the next call finds both", "echo \"$PWD $investigation\"")
        .await?;
    ensure!(kept.stdout == "/tmp 42\n", "the shell's state was lost");

    let dummy = talk
        .step(
            "What the sandbox holds is no credential",
            "kubectl config view --raw -o jsonpath='{.users[*].user.token}{\"\\n\"}'; ls /var/run/secrets 2>&1",
        )
        .await?;
    ensure!(
        dummy.stdout.starts_with("proxy-managed-token\n"),
        "the kubeconfig holds another token"
    );

    let direct = format!(
        "curl --noproxy '*' -sk --max-time 3 https://{}/version; echo \"curl exit code: $?\"",
        args.api_server
    );
    let blocked = talk
        .step("The API server cannot be reached around the proxy", &direct)
        .await?;
    ensure!(
        blocked.stdout == "curl exit code: 28\n" || blocked.stdout == "curl exit code: 7\n",
        "it was reached"
    );

    let (namespace, pod) = args.exec_pod.split_once('/').context("--exec-pod is namespace/pod")?;
    let exec = format!("kubectl exec -n {namespace} {pod} -- id");
    let refused = talk
        .step("The proxy refuses to run code elsewhere, and says why", &exec)
        .await?;
    ensure!(
        refused.is_error && refused.stderr.contains("denied by credential proxy"),
        "exec was not refused"
    );

    let failed = talk
        .step(
            "A command that fails is a result, not a protocol error",
            "ls /no/such/folder",
        )
        .await?;
    ensure!(
        failed.is_error && failed.exit_code == Some(2),
        "the failure did not come back as a tool result"
    );
    Ok(())
}

/// The session, and where what is said in it is printed.
struct Conversation<'a> {
    session: &'a Session,
    out: &'a mut std::io::StdoutLock<'static>,
}

impl Conversation<'_> {
    async fn step(&mut self, what: &str, command: &str) -> Result<BashResult> {
        writeln!(self.out, "# {what}\n$ {command}")?;
        self.out.flush()?;
        let result = self.session.bash(command).await?;
        if result.exit_code.is_none() {
            anyhow::bail!("the command did not run: {}", result.text);
        }
        for line in result.stdout.lines().chain(result.stderr.lines()) {
            writeln!(self.out, "  {line}")?;
        }
        let error = if result.is_error { ", isError" } else { "" };
        writeln!(
            self.out,
            "  (exit code {}, {} ms{error})\n",
            result.exit_code.unwrap_or_default(),
            result.duration_ms
        )?;
        Ok(result)
    }
}
