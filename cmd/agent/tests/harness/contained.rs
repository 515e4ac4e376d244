//! Programs in a pid namespace of their own, as an ordinary user.

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
