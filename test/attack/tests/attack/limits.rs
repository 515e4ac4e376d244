//! Getting more rights than the container has.

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::arena;
use cli_mcp_attack::not_proven;
use cli_mcp_attack::shell::Shell;
use cli_mcp_attack::syscalls::{self, ATTEMPTS, CONTROL_ATTEMPTS, PRELUDE};
use cli_mcp_e2e::cluster;

/// Tried: new user, mount, network and process namespaces, mounts by the old and the new calls, `bpf`, `perf_event_open`,
/// keyrings, kernel modules, `kexec_load`, `reboot`, `userfaultfd`, `setns`, device nodes, raw and packet sockets, `chroot`,
/// swap, quotas and accounting, the clock, `setuid` and `setgroups`; each so that who has the right gets further than to a refusal.
/// Stopped by: no capabilities, `no_new_privs`, the runtime's seccomp profile, a user other than root.
#[tokio::test(flavor = "multi_thread")]
async fn system_calls_of_the_privileged() -> Result<()> {
    // What would do harm if it were allowed has an argument that the kernel looks at after the right: it ends as another error.
    const PROGRAM: &str = r#"
import socket, stat, struct
def opened(path):
    return os.open(path, os.O_RDONLY)
MAP_CREATE, ARRAY = 0, 2
array = struct.pack("<4I", ARRAY, 4, 4, 1).ljust(72, b"\0")
# The processor clock of this process, in user space only: type, size, config, and disabled, exclude_kernel, exclude_hv.
clock = struct.pack("<IIQQQQQ", 1, 64, 0, 0, 0, 0, 0x61).ljust(64, b"\0")
for name, flag in {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000}.items():
    attempt("unshare " + name, lambda: call("unshare", flag))
attempt("mount proc", lambda: call("mount", b"proc", b"/tmp", b"proc", 0, 0))
attempt("mount bind", lambda: call("mount", b"/etc", b"/tmp", 0, 4096, 0))
attempt("remount /", lambda: call("mount", 0, b"/", 0, 32 | 4096, 0))
attempt("fsopen", lambda: call("fsopen", b"tmpfs", 0))
attempt("open_tree", lambda: call("open_tree", -100, b"/tmp", 1))
attempt("pivot_root", lambda: call("pivot_root", b"/tmp", b"/tmp"))
attempt("chroot", lambda: call("chroot", b"/tmp"))
attempt("setns", lambda: call("setns", opened("/proc/self/ns/net"), 0))
attempt("bpf", lambda: call("bpf", MAP_CREATE, array, len(array)))
attempt("perf_event_open", lambda: call("perf_event_open", clock, 0, -1, -1, 0))
attempt("keyctl", lambda: call("keyctl", 0, -3, 1))
attempt("add_key", lambda: call("add_key", b"user", b"x", b"y", 1, -3))
attempt("init_module", lambda: call("init_module", b"", 0, b""))
attempt("finit_module", lambda: call("finit_module", opened("/dev/null"), b"", 0))
attempt("delete_module", lambda: call("delete_module", b"attack-none", 0))
# More segments than there may be.
attempt("kexec_load", lambda: call("kexec_load", 0, 17, 0, 0))
# The kernel's own two magic numbers, and a command that is none.
attempt("reboot", lambda: call("reboot", 0xfee1dead, 672274793, 0x1234, 0))
attempt("userfaultfd", lambda: call("userfaultfd", os.O_CLOEXEC))
# The kind that handles faults of user space only, which the kernel gives to everybody.
attempt("userfaultfd of user space", lambda: call("userfaultfd", os.O_CLOEXEC | 1))
# No time, and a time zone that is none.
attempt("settimeofday", lambda: call("settimeofday", 0, struct.pack("<2i", 100000, 0)))
attempt("setuid 0", lambda: call("setuid", 0))
attempt("seteuid 0", lambda: os.seteuid(0))
attempt("setgroups", lambda: call("setgroups", 0, 0))
# One character more than a name may have.
attempt("sethostname", lambda: call("sethostname", b"x" * 65, 65))
attempt("syslog", lambda: call("syslog", 3, ctypes.create_string_buffer(64), 64))
attempt("swapon", lambda: call("swapon", b"/tmp/attack-none", 0))
attempt("acct", lambda: call("acct", b"/tmp/attack-none"))
# Of all file systems: writes out what they know.
attempt("quotactl", lambda: call("quotactl", 0x80000100, 0, 0, 0))
attempt("open_by_handle_at", lambda: call("open_by_handle_at", opened("/"), ctypes.create_string_buffer(b"\x08\0\0\0\x01\0\0\0" + b"\x02" + b"\0" * 15), 0))
attempt("mknod", lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
if MACHINE == "x86_64":
    attempt("iopl", lambda: call("iopl", 3))
tell()
print(*[line.strip() for line in open("/proc/self/status") if line.startswith(("Cap", "NoNewPrivs", "Seccomp:", "Uid"))], sep="\n")
"#;
    let program = format!("{PRELUDE}{ATTEMPTS}{CONTROL_ATTEMPTS}{PROGRAM}");
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.python(&program).await?;
        let (told, status) = output.split_once('\n').context(output.clone())?;
        syscalls::judge(told).with_context(|| format!("the {} sandbox", shell.kind()))?;
        for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(
                status.contains(&format!("{capabilities}:\t0000000000000000")),
                "{}: {status}",
                shell.kind()
            );
        }
        ensure!(
            status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2") && !status.contains("Uid:\t0"),
            "{}: {status}",
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

/// Tried: what a user may do to the user's own processes, done to the agent: its limits by `prlimit`, its processor by
/// `setpriority`, `sched_setaffinity`, `sched_setscheduler` and `ioprio_set`, signals by each call, and all of it by 32-bit and x32
/// system calls; then `kill -STOP -1` and `kill -KILL -1`, which name nobody.
/// And one's own place behind the agent (`SCHED_IDLE`) left for another scheduling policy.
/// Stopped by: the filter that commands run under, for each calling convention; the agent goes on without the processes that
/// signals to all reach. The kernel lets nobody leave `SCHED_IDLE` without `CAP_SYS_NICE` or a limit that allows it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_may_do_to_own_processes() -> Result<()> {
    const PROGRAM: &str = r#"
import mmap, resource, signal
attempt("prlimit", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)))
attempt("prlimit for reading", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE))
attempt("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
attempt("setpriority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("setpriority of the group", lambda: os.setpriority(os.PRIO_PGRP, 1, 19))
attempt("sched_setaffinity", lambda: os.sched_setaffinity(1, os.sched_getaffinity(0)))
attempt("sched_setscheduler", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
for policy in (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_FIFO):
    attempt(f"own policy {policy}", lambda: os.sched_setscheduler(0, policy, os.sched_param(int(policy == os.SCHED_FIFO))))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCHLD, 0):
    attempt(f"kill {number}", lambda: os.kill(1, number))
attempt("sigqueue", lambda: call("rt_sigqueueinfo", 1, 15, ctypes.create_string_buffer(128)))
attempt("tgkill", lambda: call("tgkill", 1, 1, 15))
attempt("tkill", lambda: call("tkill", 1, 15))
attempt("ioprio_set", lambda: call("ioprio_set", 1, 1, 0x6000))
attempt("pidfd_send_signal", lambda: signal.pidfd_send_signal(os.open("/proc/1", os.O_RDONLY), signal.SIGTERM))
def ia32(number, *args):
    # push rbx; mov eax, ...; mov ebx, ecx, edx, esi, ...; int 0x80; pop rbx; ret
    words = [number, *args, 0, 0, 0, 0][:5]
    code = b"\x53" + b"".join(bytes([op]) + word.to_bytes(4, "little") for op, word in zip((0xb8, 0xbb, 0xb9, 0xba, 0xbe), words)) + b"\xcd\x80\x5b\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    if result < 0:
        raise OSError(-result, "32-bit")
    return result
def own():
    if ia32(20) != os.getpid():
        raise OSError(99, "another getpid")
attempt("32-bit", own)
has_ia32 = outcomes.pop("32-bit") == 0
if has_ia32:
    attempt("32-bit kill", lambda: ia32(37, 1, 9))
    attempt("32-bit tgkill", lambda: ia32(270, 1, 1, 9))
    attempt("32-bit prlimit64", lambda: ia32(340, 1, 7, 0, 0))
    attempt("32-bit setpriority", lambda: ia32(97, 0, 1, 19))
if MACHINE == "x86_64":
    attempt("x32 kill", lambda: call("x32 kill", 1, 9))
tell()
resource.prlimit(0, resource.RLIMIT_NOFILE)
print("own", has_ia32)
"#;
    const NUMBERS: &str = "
X86_64.update({'rt_sigqueueinfo': 129, 'tgkill': 234, 'tkill': 200, 'ioprio_set': 251, 'x32 kill': 0x40000000 | 62})
AARCH64.update({'rt_sigqueueinfo': 138, 'tgkill': 131, 'tkill': 130, 'ioprio_set': 30})
";
    let arena = arena()?;
    let session = arena.home.session("insider").await?;
    let shell = Shell::Assigned(session);
    let output = shell
        .python(&format!("{PRELUDE}{NUMBERS}{ATTEMPTS}{CONTROL_ATTEMPTS}{PROGRAM}"))
        .await?;
    let (told, own) = output.split_once('\n').context(output.clone())?;
    syscalls::judge(told)?;
    match own {
        "own True\n" => {}
        "own False\n" => not_proven("that 32-bit programs are held as well: this node runs none")?,
        _ => anyhow::bail!("the control: {output}"),
    }
    let Shell::Assigned(session) = shell else {
        anyhow::bail!("not a session");
    };
    let pod = session.bash("hostname").await?.stdout;
    for all in [
        "kill -STOP -1",
        "kill -KILL -1",
        "setsid bash -c 'kill -STOP -1; kill -KILL -1'",
    ] {
        // It may stop or end what waits for its end.
        session.call(serde_json::json!({"command": all, "timeout": 5})).await?;
        cluster::eventually("an answer after a signal to all", async || {
            let result = session.bash("hostname").await?;
            ensure!(result.stdout == pod, "{all}: {result:?}");
            Ok(())
        })
        .await?;
    }
    ensure!(session.delete().await? == 204);
    Ok(())
}
