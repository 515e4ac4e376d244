//! Programs in namespaces of their own: as an ordinary user among no other processes, or with a disk that is soon full.

use std::process::Command;

/// The user: one that no file of the machine knows, as OpenShift gives a pod. The static builds of bash that
/// `AGENT_TEST_BASH` may name die when they look such a user up with another C library than theirs: they get one that
/// `/etc/passwd` has.
pub(super) fn user() -> u32 {
    if std::env::var_os("AGENT_TEST_BASH").is_some() {
        65534
    } else {
        1001
    }
}

/// The program as the first process of its namespace, as that user, with no way to gain privileges.
pub(super) fn command(program: &str) -> Command {
    let user = user();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "setpriv"])
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args(["--clear-groups", "--no-new-privs", "--", program]);
    command
}

/// The program with a disk of 1 MiB for its home, which nobody else sees.
pub(super) fn on_small_disk(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.args(["mount -t tmpfs -o size=1m none \"$HOME\" && exec \"$@\"", "sh", program]);
    command
}
