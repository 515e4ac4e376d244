//! `kubectl cli-mcp` against a real instance, as a person uses it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, instance, kubectl};
use serde_json::Value;

/// What the plugin printed and how it ended.
struct Output {
    stdout: String,
    stderr: String,
    code: i32,
}

fn command(namespace: &str, arguments: &[&str]) -> Result<Command> {
    let program = std::path::Path::new(&cluster::setting("E2E_BIN_DIR")?).join("kubectl-cli_mcp");
    let mut command = Command::new(program);
    // Before `--` of `run`, after which everything is the command's.
    let (first, rest) = arguments.split_first().context("no command")?;
    command
        .arg(first)
        .args(["--namespace", namespace])
        .args(rest)
        .stdin(Stdio::null());
    Ok(command)
}

fn plugin(namespace: &str, arguments: &[&str]) -> Result<Output> {
    let output = command(namespace, arguments)?
        .output()
        .context("cannot start the plugin")?;
    Ok(Output {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
    })
}

/// Runs a command in a session; the first one may find a node that is too busy to start a pod in time.
async fn run(namespace: &str, session: &str, words: &[&str]) -> Result<Output> {
    let arguments: Vec<&str> = ["run", session, "--"].iter().chain(words).copied().collect();
    cluster::eventually("a sandbox", async || {
        let output = plugin(namespace, &arguments)?;
        ensure!(output.code != 125, "{}", output.stderr);
        Ok(output)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_runs_lists_and_ends_sessions() -> Result<()> {
    let shared = instance::shared()?;
    let namespace = shared.namespace.as_str();
    let session = "plugin-1";

    let first = run(
        namespace,
        session,
        &["cd /tmp && x='a  b'; echo out; echo err >&2; exit_code() { return 3; }; exit_code"],
    )
    .await?;
    ensure!(
        (first.code, first.stdout.as_str(), first.stderr.as_str()) == (3, "out\n", "err\n"),
        "{} {:?} {:?}",
        first.code,
        first.stdout,
        first.stderr
    );
    let kept = run(namespace, session, &["echo \"$PWD $x\""]).await?;
    ensure!(kept.stdout == "/tmp a  b\n", "{}", kept.stdout);
    let words = run(namespace, session, &["printf", "%s|", "a  b", "it's", "$HOME"]).await?;
    ensure!(words.stdout == "a  b|it's|$HOME|", "{}", words.stdout);

    // An agent answers before the kubelet has probed it.
    cluster::eventually("the session among those that are ready", async || {
        let list = plugin(namespace, &["sessions", "--output", "json"])?;
        let list: Value = serde_json::from_str(&list.stdout).with_context(|| list.stderr.clone())?;
        let found = list["sessions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|listed| listed["session"] == session)
            .with_context(|| list.to_string())?;
        ensure!(
            found["instance"] == shared.name.as_str() && found["status"] == "Ready",
            "{found}"
        );
        ensure!(found["lastCommand"]["outcome"] == "ok", "{found}");
        Ok(())
    })
    .await?;
    let table = plugin(namespace, &["sessions"])?.stdout;
    ensure!(table.starts_with("SESSION") && table.contains(session), "{table}");

    let absent = plugin(namespace, &["sessions", "--instance", "absent"])?;
    ensure!(
        absent.code == 1 && absent.stderr.contains("has no CliMcpInstance absent"),
        "{}{}",
        absent.stdout,
        absent.stderr
    );

    let ended = plugin(namespace, &["delete", session])?;
    ensure!(
        ended.code == 0 && ended.stdout == "session plugin-1 ended\n",
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    cluster::eventually("the session's end", async || {
        let list = plugin(namespace, &["sessions", "-o", "json"])?.stdout;
        ensure!(!list.contains("\"plugin-1\""), "{list}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_shows_output_while_the_command_runs() -> Result<()> {
    let shared = instance::shared()?;
    let namespace = shared.namespace.as_str();
    run(namespace, "plugin-2", &["true"]).await?;
    // The command ends only after its first line was seen here: without streaming it would never be.
    let script = "echo first; while [ ! -e /tmp/seen ]; do sleep 0.1; done; echo second; echo third >&2";
    let mut child = command(namespace, &["run", "plugin-2", "--timeout=2m", "--", script])?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdout = BufReader::new(child.stdout.take().context("no stdout")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    ensure!(line == "first\n", "{line:?}");
    let pod = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/session-id=plugin-2",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ])?;
    kubectl::ok(&["-n", namespace, "exec", &pod, "--", "touch", "/tmp/seen"])?;
    let mut rest = String::new();
    stdout.read_to_string(&mut rest)?;
    let mut errors = String::new();
    child.stderr.take().context("no stderr")?.read_to_string(&mut errors)?;
    ensure!(
        child.wait()?.code() == Some(0) && rest == "second\n" && errors == "third\n",
        "{rest:?} {errors:?}"
    );
    plugin(namespace, &["delete", "plugin-2"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_says_why_there_is_no_result() -> Result<()> {
    let shared = instance::shared()?;
    let namespace = shared.namespace.as_str();
    let bad_session = plugin(namespace, &["run", "Not_Valid", "--", "true"])?;
    ensure!(
        bad_session.code == 125 && bad_session.stderr.contains("session id must be"),
        "{} {}",
        bad_session.code,
        bad_session.stderr
    );
    let other_ca = tempfile::NamedTempFile::new()?;
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ed25519",
            "-nodes",
            "-subj",
            "/CN=other",
            "-keyout",
            "/dev/null",
            "-out",
        ])
        .arg(other_ca.path())
        .output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let ca = other_ca.path().to_str().context("path")?;
    let distrusted = plugin(namespace, &["run", "plugin-3", "--ca-file", ca, "--", "true"])?;
    ensure!(distrusted.code == 125, "a server with another CA was trusted");
    let missing = plugin(namespace, &["run", "plugin-3", "--instance", "not-there", "--", "true"])?;
    ensure!(
        missing.code == 125 && missing.stderr.contains("cli-mcp-not-there-client"),
        "{} {}",
        missing.code,
        missing.stderr
    );
    Ok(())
}
