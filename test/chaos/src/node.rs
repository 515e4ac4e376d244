//! Killing, stopping, cutting off and restarting what runs on the development cluster's node.

use std::process::Command;

use anyhow::{Result, ensure};
pub use cli_mcp_e2e::metrics::OPERATOR;
pub use cli_mcp_e2e::node::hold;
use cli_mcp_e2e::node::{self, Change};
use cli_mcp_e2e::{cluster, kubectl};

/// Ends processes of the node with `kill -9`. One that ended meanwhile is no error.
///
/// # Errors
///
/// When the node cannot be entered.
pub fn kill(pids: &[String]) -> Result<()> {
    let mut command = vec!["bash", "-c", "kill -KILL \"$@\" 2>/dev/null; true", "bash"];
    command.extend(pids.iter().map(String::as_str));
    node::enter(&command).map(drop)
}

/// What `/proc/PID/cgroup` of a process of the node says; nothing of one that ended.
///
/// # Errors
///
/// When the node cannot be entered.
pub fn cgroup(pid: &str) -> Result<String> {
    node::enter(&["bash", "-c", "cat \"/proc/$1/cgroup\" 2>/dev/null; true", "bash", pid])
}

/// Replaces the operator's pod where a fault made its container start again: for each time the kubelet waits twice as long, up to
/// five minutes, and several faults in a row would show how long the kubelet waits.
///
/// # Errors
///
/// When it is not replaced in time.
pub fn forget_restarts_of_the_operator() -> Result<()> {
    let path = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let restarts = kubectl::ok(&["-n", OPERATOR, "get", "pods", "-o", path])?;
    if restarts.split_whitespace().all(|count| count == "0") {
        return Ok(());
    }
    kubectl::ok(&["-n", OPERATOR, "rollout", "restart", "deployment"])?;
    kubectl::ok(&["-n", OPERATOR, "rollout", "status", "deployment", "--timeout=180s"]).map(drop)
}

/// Pid, as the node sees it, of one of the cluster's own components.
///
/// # Errors
///
/// When it does not run.
pub fn component(name: &str) -> Result<String> {
    let script = "for process in /proc/[0-9]*; do
        if read -r -d '' program <\"$process/cmdline\" && [ \"${program##*/}\" = \"$1\" ]; then echo \"${process##*/}\"; fi
    done 2>/dev/null";
    let pids = node::enter(&["bash", "-c", script, "bash", name])?;
    let pids: Vec<_> = pids.lines().collect();
    ensure!(pids.len() == 1, "one process of {name}, not {pids:?}");
    Ok(pids[0].to_owned())
}

/// Drops every packet from and to these addresses of pods until the change ends, those of open connections too. Packets that
/// the bridge forwards pass these chains as well.
///
/// # Errors
///
/// When the node does not take the rules.
pub fn cut_off(addresses: &[String]) -> Result<Change> {
    let rules = |change: &str| {
        format!(
            "for address; do
                iptables --wait --table mangle {change} PREROUTING --source \"$address\" --jump DROP
                iptables --wait --table mangle {change} POSTROUTING --destination \"$address\" --jump DROP
            done"
        )
    };
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    Change::begin(&rules("--insert"), &rules("--delete"), &addresses)
}

/// Lets connections past the enforcer's queue until the change ends, as with a network plugin that fails open.
///
/// # Errors
///
/// When the node does not take the rules.
pub fn pass_by_the_enforcer() -> Result<Change> {
    let rules = |change: &str| {
        format!(
            "for chain in POLICY-POSTROUTING POLICY-INPUT; do
                iptables --wait --table mangle {change} \"$chain\" --jump RETURN
            done"
        )
    };
    Change::begin(&rules("--insert"), &rules("--delete"), &[])
}

/// Kills one of the cluster's own components, waits `away`, and starts it again as it was started before.
///
/// # Errors
///
/// When it did not run, or does not start.
pub fn restart(component: &str, away: &str) -> Result<()> {
    let output = Command::new(cluster::repository().join("test/chaos/restart-component"))
        .args([component, away])
        .output()?;
    ensure!(
        output.status.success(),
        "restarting {component}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
