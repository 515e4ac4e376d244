//! Lying to the kubelet.

use std::time::Duration;

use anyhow::{Result, ensure};
use cli_mcp_attack::arena::{self, arena};
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::{cluster, kubectl};

/// Writes to the output of every readiness probe in this pod that the network is open, and ends it as a failure. A probe lives
/// for milliseconds: several liars leave it less of the pod's processor, and so more time in which it is seen.
const LIAR: &str = r#"
cat >/tmp/liar.py <<'PY'
import os, signal, time
end = time.time() + 170
done = set()
while time.time() < end:
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid in done or int(pid) in (1, os.getpid()):
            continue
        try:
            if b"probe" not in open(f"/proc/{pid}/cmdline", "rb").read():
                continue
            done.add(pid)
        except OSError:
            continue
        for fd in (1, 2):
            try:
                with open(f"/proc/{pid}/fd/{fd}", "wb", buffering=0) as out:
                    out.write(b"EgressNotEnforced: a lie\n")
            except OSError:
                pass
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
PY
for liar in 1 2 3 4; do setsid python3 /tmp/liar.py >/dev/null 2>&1 & done
"#;

/// Tried: forging the readiness probe of one's own sandbox, so that its instance seems to have an open network and no
/// session starts any more.
/// Stopped by: the operator believes the kubelet's word about unassigned sandboxes only; of a session's sandbox the server
/// asks the agent itself.
#[tokio::test(flavor = "multi_thread")]
async fn forging_the_readiness_probe() -> Result<()> {
    let arena = arena()?;
    let session = arena.home.session("liar").await?;
    session.bash(LIAR).await?;
    let pod = |path: &str| {
        kubectl::ok(&[
            "-n",
            &arena.home.namespace,
            "get",
            "pods",
            "-l",
            "cli-mcp.redhat.com/session-id=liar",
            "-o",
            &format!("jsonpath={path}"),
        ])
    };
    // The control: the lie has an effect on the pod itself.
    cluster::eventually("the pod's loss of readiness", async || {
        let ready = pod("{.items[0].status.containerStatuses[0].ready}")?;
        ensure!(ready == "false", "{ready}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    for condition in ["EgressEnforced", "Ready"] {
        let status = arena::condition(&arena.home, condition)?;
        ensure!(status.starts_with("True"), "{condition}: {status}");
    }
    // Another session still starts.
    let other = Shell::Assigned(arena.home.session("after-the-lie").await?);
    other.ok("true").await?;
    session.delete().await?;
    if let Shell::Assigned(other) = other {
        other.delete().await?;
    }
    Ok(())
}
