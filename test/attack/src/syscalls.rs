//! System calls made from Python in a sandbox, each with what the kernel said: whether it was refused for want of a right, or
//! for something else, which a caller with the right would meet as well.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// Beginning of a program: `call(NAME, ARGUMENTS)` returns what the kernel does, and raises `OSError` for an error. On another
/// architecture than these the program ends with an error.
pub const PRELUDE: &str = r#"
import ctypes, os, sys
X86_64 = dict(getpid=39, close=3, unshare=272, mount=165, bpf=321, perf_event_open=298, keyctl=250, add_key=248, request_key=249,
    init_module=175, finit_module=313, delete_module=176, userfaultfd=323, setns=308, pivot_root=155, chroot=161, settimeofday=164,
    setuid=105, setgroups=116, reboot=169, swapon=167, iopl=172, kexec_load=246, open_by_handle_at=304, fsopen=430, open_tree=428,
    quotactl=179, sethostname=170, syslog=103, acct=163)
AARCH64 = dict(getpid=172, close=57, unshare=97, mount=40, bpf=280, perf_event_open=241, keyctl=219, add_key=217, request_key=218,
    init_module=105, finit_module=273, delete_module=106, userfaultfd=282, setns=268, pivot_root=41, chroot=51, settimeofday=170,
    setuid=146, setgroups=159, reboot=142, swapon=224, kexec_load=104, open_by_handle_at=265, fsopen=430, open_tree=428,
    quotactl=60, sethostname=161, syslog=116, acct=89)
MACHINE = os.uname().machine
NUMBERS = {"x86_64": X86_64, "aarch64": AARCH64}.get(MACHINE)
if NUMBERS is None:
    sys.exit("no numbers of system calls are known for " + MACHINE)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    result = libc.syscall(NUMBERS[name], *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
"#;

/// Middle of a program: `attempt(WHAT, FUNCTION)` runs it in a process of its own, and notes its errno, or 0. `tell()` prints
/// the notes.
pub const ATTEMPTS: &str = r#"
import json
outcomes = {}
def attempt(what, function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
            code = 0
        except OSError as error:
            code = error.errno
        except BaseException:
            code = 255
        os._exit(code)
    outcomes[what] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def tell():
    print(json.dumps(outcomes))
"#;

const EPERM: i32 = 1;
const EBADF: i32 = 9;
const EACCES: i32 = 13;
const ENOSYS: i32 = 38;

/// What everybody may do, and its outcome: without it the rest proves nothing.
const CONTROLS: [(&str, i32); 2] = [("getpid", 0), ("close nothing", EBADF)];

/// The attempts of the controls.
pub const CONTROL_ATTEMPTS: &str = r#"
attempt("getpid", lambda: call("getpid"))
attempt("close nothing", lambda: call("close", -1))
"#;

/// Judges what `tell()` printed: the controls came out as they must, and everything else was refused for want of a right, or
/// is not in this kernel.
///
/// # Errors
///
/// What got further, each with its errno.
pub fn judge(told: &str) -> Result<()> {
    let mut outcomes: BTreeMap<String, i32> = serde_json::from_str(told).context(told.to_owned())?;
    for (control, expected) in CONTROLS {
        let outcome = outcomes.remove(control);
        ensure!(outcome == Some(expected), "the control {control}: {outcome:?}");
    }
    ensure!(!outcomes.is_empty(), "nothing was tried");
    outcomes.retain(|_, errno| !matches!(*errno, EPERM | EACCES | ENOSYS));
    ensure!(outcomes.is_empty(), "not refused, each with its errno: {outcomes:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_for_want_of_a_right_counts() {
        let told = |outcome: i32| format!("{{\"getpid\": 0, \"close nothing\": 9, \"reboot\": {outcome}}}");
        for refused in [EPERM, EACCES, ENOSYS] {
            judge(&told(refused)).unwrap();
        }
        for got_further in [0, 2, 22, 255, -31] {
            let error = judge(&told(got_further)).unwrap_err().to_string();
            assert!(error.contains("\"reboot\""), "{error}");
        }
        assert!(judge("{\"getpid\": 1, \"close nothing\": 9, \"reboot\": 1}").is_err());
        assert!(judge("{\"getpid\": 0, \"close nothing\": 1, \"reboot\": 1}").is_err());
        assert!(judge("{\"getpid\": 0, \"close nothing\": 9}").is_err());
        assert!(judge("").is_err());
    }
}
