//! The node of the development cluster: its processes, and changes to it that are taken back whatever becomes of the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{cluster, kubectl};

/// A command inside the node.
fn inside() -> Command {
    Command::new(cluster::repository().join("hack/devcluster/enter"))
}

/// Runs a command inside the node and returns its output.
///
/// # Errors
///
/// When it does not end with exit code 0.
pub fn enter(command: &[&str]) -> Result<String> {
    let output = inside().args(command).output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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

/// A change to the node that lasts as long as this value. A shell takes it back as soon as its standard input ends, which it
/// does also when the test panics or is killed.
pub struct Change(Child);

impl Change {
    /// Runs the script `apply` in the node. `undo` gets the same arguments (`"$@"`) and takes the steps back in their order, so
    /// that after half of `apply` it fails at the first that was not taken.
    ///
    /// # Errors
    ///
    /// When `apply` fails; what it did is taken back.
    pub fn begin(apply: &str, undo: &str, arguments: &[&str]) -> Result<Self> {
        Self::begin_in(inside(), apply, undo, arguments)
    }

    fn begin_in(mut place: Command, apply: &str, undo: &str, arguments: &[&str]) -> Result<Self> {
        let script = format!(
            "set -euo pipefail
            undo() {{
            {undo}
            }}
            trap 'undo \"$@\"' EXIT
            {{
            {apply}
            }} >&2
            echo applied
            read -r _ || true
            trap - EXIT
            undo \"$@\" >&2"
        );
        let mut shell = place
            .args(["bash", "-c", &script, "bash"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = shell.stdout.take().context("no stdout")?;
        let change = Self(shell);
        let mut answer = String::new();
        BufReader::new(stdout).read_line(&mut answer)?;
        ensure!(answer == "applied\n", "the node does not take this: {apply}");
        Ok(change)
    }

    /// Takes it back.
    ///
    /// # Errors
    ///
    /// When that fails.
    pub fn end(mut self) -> Result<()> {
        let status = self.take_back()?;
        ensure!(
            status.success(),
            "a change to the node could not be taken back: {status}"
        );
        Ok(())
    }

    fn take_back(&mut self) -> std::io::Result<ExitStatus> {
        drop(self.0.stdin.take());
        self.0.wait()
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        // Who wants to know how it ended calls end.
        let _ = self.take_back();
    }
}

/// Stops processes of the node until the change ends. One that ended meanwhile is no error.
///
/// # Errors
///
/// When there is none, or the node cannot be entered.
pub fn hold(pids: &[String]) -> Result<Change> {
    ensure!(!pids.is_empty(), "no process to stop");
    let pids: Vec<_> = pids.iter().map(String::as_str).collect();
    Change::begin(
        "kill -STOP \"$@\" 2>/dev/null || true",
        "kill -CONT \"$@\" 2>/dev/null || true",
        &pids,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same on this machine, where the first argument is a folder.
    fn begin(apply: &str, folder: &std::path::Path) -> Result<Change> {
        let place = Command::new("env");
        Change::begin_in(
            place,
            apply,
            "rm \"$1/first\"; rm \"$1/second\"",
            &[folder.to_str().unwrap()],
        )
    }

    #[test]
    fn a_change_is_taken_back_when_it_is_over_dropped_or_half_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let files = || std::fs::read_dir(path).unwrap().count();
        let both = ": >\"$1/first\"; : >\"$1/second\"";

        let change = begin(both, path).unwrap();
        assert_eq!(files(), 2);
        change.end().unwrap();
        assert_eq!(files(), 0);

        let dropped = begin(both, path).unwrap();
        assert_eq!(files(), 2);
        drop(dropped);
        assert_eq!(files(), 0);

        assert!(begin(": >\"$1/first\"; false; : >\"$1/second\"", path).is_err());
        assert_eq!(files(), 0);

        let meddled = begin(both, path).unwrap();
        std::fs::remove_file(path.join("second")).unwrap();
        assert!(meddled.end().is_err());
    }
}
