//! Getting more rights than the container has.

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::arena;

/// Tried: new user, mount, network and process namespaces, mounts, `bpf`, `perf_event_open`, keyrings, kernel modules,
/// `userfaultfd`, `setns`, device nodes, raw and packet sockets, `chroot`, the clock, `setuid`.
/// Stopped by: no capabilities, `no_new_privs`, the runtime's seccomp profile, a user other than root.
#[tokio::test(flavor = "multi_thread")]
async fn system_calls_of_the_privileged() -> Result<()> {
    const PROGRAM: &str = r#"
import ctypes, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    return libc.syscall(NUMBERS[name], *args) >= 0
NUMBERS = {"getpid": 39, "unshare": 272, "mount": 165, "bpf": 321, "perf_event_open": 298, "keyctl": 250, "add_key": 248, "init_module": 175,
           "finit_module": 313, "setns": 308, "pivot_root": 155, "chroot": 161, "settimeofday": 164, "setuid": 105, "setgid": 106,
           "reboot": 169, "swapon": 167, "iopl": 172, "kexec_load": 246, "open_by_handle_at": 304, "fsopen": 430, "open_tree": 428, "quotactl": 179,
           "sethostname": 170, "syslog": 103, "acct": 163}
worked = []
def attempt(what, function):
    pid = os.fork()
    if pid == 0:
        try:
            ok = function()
        except (OSError, ValueError):
            ok = False
        os._exit(0 if ok else 1)
    if os.waitpid(pid, 0)[1] == 0:
        worked.append(what)
attempt("getpid", lambda: call("getpid"))
for name, flag in {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000}.items():
    attempt("unshare " + name, lambda: call("unshare", flag))
attempt("mount proc", lambda: call("mount", b"proc", b"/tmp", b"proc", 0, 0))
attempt("mount bind", lambda: call("mount", b"/etc", b"/tmp", 0, 4096, 0))
attempt("remount /", lambda: call("mount", 0, b"/", 0, 32 | 4096, 0))
attempt("bpf", lambda: call("bpf", 0, ctypes.create_string_buffer(128), 128))
attempt("perf_event_open", lambda: call("perf_event_open", ctypes.create_string_buffer(128), 0, -1, -1, 0))
attempt("keyctl", lambda: call("keyctl", 0, -3, 1))
attempt("add_key", lambda: call("add_key", b"user", b"x", b"y", 1, -3))
attempt("init_module", lambda: call("init_module", b"", 0, b""))
attempt("setns", lambda: call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0))
attempt("pivot_root", lambda: call("pivot_root", b"/tmp", b"/tmp"))
attempt("chroot", lambda: call("chroot", b"/tmp"))
attempt("settimeofday", lambda: call("settimeofday", ctypes.create_string_buffer(16), 0))
attempt("setuid 0", lambda: call("setuid", 0))
attempt("setgid 0 by seteuid", lambda: os.seteuid(0) is None)
attempt("sethostname", lambda: call("sethostname", b"x", 1))
attempt("syslog", lambda: call("syslog", 3, ctypes.create_string_buffer(64), 64))
attempt("swapon", lambda: call("swapon", b"/tmp", 0))
attempt("iopl", lambda: call("iopl", 3))
attempt("acct", lambda: call("acct", b"/tmp/a"))
attempt("fsopen", lambda: call("fsopen", b"tmpfs", 0))
attempt("open_by_handle_at", lambda: call("open_by_handle_at", os.open("/", os.O_RDONLY), ctypes.create_string_buffer(b"\x08\0\0\0\x01\0\0\0" + b"\x02" + b"\0" * 15), 0))
attempt("mknod", lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)) is None)
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) is not None)
attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3) is not None)
print("WORKED", worked)
print(*[line.strip() for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Seccomp:", "Uid"))], sep="\n")
"#;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.python(PROGRAM).await?;
        ensure!(output.starts_with("WORKED ['getpid']\n"), "{}: {output}", shell.kind());
        for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(
                output.contains(&format!("{capabilities}:\t0000000000000000")),
                "{}: {output}",
                shell.kind()
            );
        }
        ensure!(
            output.contains("NoNewPrivs:\t1") && output.contains("Seccomp:\t2") && !output.contains("Uid:\t0"),
            "{}: {output}",
            shell.kind()
        );
    }
    Ok(())
}

/// Tried: raising the limits of the cgroup, of descriptors and priorities; writing to `/proc/sys`, `/sys`, devices, the
/// root file system, the mounted files; set-uid programs.
/// Stopped by: read-only mounts, a read-only root file system, no capabilities, `no_new_privs`.
#[tokio::test(flavor = "multi_thread")]
async fn limits_and_kernel_settings() -> Result<()> {
    const COMMAND: &str = r#"
worked() { echo "WORKED $*"; }
: 2>/dev/null >/workspace/control && worked control
for f in $(find /sys/fs/cgroup -type f \( -name '*limit_in_bytes' -o -name '*.max' -o -name '*quota_us' -o -name 'release_agent' -o -name 'tasks' -o -name 'cgroup.procs' \) 2>/dev/null | head -200); do
  (echo -1 >"$f") 2>/dev/null && worked "$f"
done
mkdir /sys/fs/cgroup/x /sys/fs/cgroup/*/x 2>/dev/null && worked mkdir cgroup
for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/pid_max /proc/sys/vm/overcommit_memory /proc/sys/net/ipv4/ip_forward /proc/sysrq-trigger /sys/kernel/uevent_helper /proc/1/oom_score_adj /proc/1/attr/current; do
  (echo 1 >"$f") 2>/dev/null && worked "write $f"
done
for f in /proc/kcore /proc/kmsg /dev/mem /dev/kmsg /dev/sda /dev/vda /proc/keys /proc/timer_list /sys/firmware; do
  (head -c 1 "$f" >/dev/null) 2>/dev/null && [ -n "$(head -c 1 "$f" 2>/dev/null | od -An -tx1)" ] && worked "read $f"
done
for f in /etc/passwd /usr/local/bin/agent /bin/bash /config/kubeconfig /config/ca.crt /etc/ld.so.preload /licenses/x; do
  (echo x >>"$f") 2>/dev/null && worked "write $f"
done
(ulimit -Hn $(($(ulimit -Hn) + 1))) 2>/dev/null && worked ulimit -Hn
(ulimit -Hl $(($(ulimit -Hl) + 1))) 2>/dev/null && worked ulimit -Hl
python3 -c 'import os; os.nice(-5)' 2>/dev/null && worked nice
(su root -c id </dev/null || mount -t tmpfs x /tmp || chroot / true || newgrp root </dev/null) >/dev/null 2>&1 && worked set-uid
find / -xdev -perm /6000 -type f 2>/dev/null | while read -r f; do "$f" --version >/dev/null 2>&1; done; id -u | grep -qx 0 && worked root
for score in -1000 -500; do (echo $score >/proc/self/oom_score_adj) 2>/dev/null && worked oom $score; done
echo done
"#;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.ok(COMMAND).await?;
        let worked: Vec<_> = output.lines().filter(|line| line.starts_with("WORKED")).collect();
        ensure!(worked == ["WORKED control"], "{}: {worked:#?}", shell.kind());
        output
            .lines()
            .last()
            .filter(|line| *line == "done")
            .context("it did not come to its end")?;
    }
    Ok(())
}
