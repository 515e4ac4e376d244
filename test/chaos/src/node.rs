//! Killing, stopping and restarting what runs on the development cluster's node.

use std::process::Command;

use anyhow::{Result, ensure};
use cli_mcp_e2e::{cluster, kubectl};

/// Namespace of the operator.
pub const OPERATOR: &str = "cli-mcp-operator-system";

/// Runs a command inside the node and returns its output.
///
/// # Errors
///
/// When it does not end with exit code 0.
pub fn enter(command: &[&str]) -> Result<String> {
    output(Command::new(cluster::repository().join("hack/devcluster/enter")).args(command))
}

/// Pids, as the node sees them, of the processes of one of the programs in pods of these namespaces: those that are the first
/// in a container. Other instances, which other suites left, are not meant.
///
/// # Errors
///
/// When pods cannot be listed or the node cannot be entered.
pub fn processes(program: &str, namespaces: &[&str]) -> Result<Vec<String>> {
    let mut pods = Vec::new();
    for namespace in namespaces {
        let uids = "jsonpath={range .items[*]}{.metadata.uid}{\"\\n\"}{end}";
        pods.extend(
            kubectl::ok(&["-n", namespace, "get", "pods", "-o", uids])?
                .lines()
                .map(str::to_owned),
        );
    }
    ensure!(!pods.is_empty(), "no pods in {namespaces:?}");
    // The last field is the pid inside the innermost namespace: 1 for a container's first process. A pod's cgroup is named
    // after its UID, and each line of a pattern is one for grep.
    let script = "for status in /proc/[0-9]*/status; do
        awk -v program=\"$1\" '/^Name:/ { name = $2 } /^NSpid:/ { inner = $NF; depth = NF } /^Pid:/ { pid = $2 }
            END { if (name == program && inner == 1 && depth > 2) print pid }' \"$status\" 2>/dev/null
    done | while read -r pid; do if grep -qF \"$2\" /proc/$pid/cgroup 2>/dev/null; then echo $pid; fi; done; true";
    Ok(enter(&["bash", "-c", script, "bash", program, &pods.join("\n")])?
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Sends a signal to processes of the node. One that ended meanwhile is no error.
///
/// # Errors
///
/// When the node cannot be entered.
pub fn signal(signal: &str, pids: &[String]) -> Result<()> {
    let mut command = vec!["bash", "-c", "kill \"$@\" 2>/dev/null; true", "bash", signal];
    command.extend(pids.iter().map(String::as_str));
    enter(&command).map(drop)
}

/// Kills one of the cluster's own components, waits `away`, and starts it again as it was started before.
///
/// # Errors
///
/// When it did not run, or does not start.
pub fn restart(component: &str, away: &str) -> Result<()> {
    output(Command::new(cluster::repository().join("test/chaos/restart-component")).args([component, away])).map(drop)
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
