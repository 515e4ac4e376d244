//! Other sessions: their files, their answers, their tokens; and staying on where one should have ended.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cli_mcp_attack::arena::arena;
use cli_mcp_attack::shell::Shell;
use cli_mcp_e2e::{cluster, kubectl};

/// Tried: finding the files and output of another session of the same instance, and of the sandbox's earlier user.
/// Stopped by: one pod a session, with volumes that live and die with it.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_another_session() -> Result<()> {
    let arena = arena()?;
    let victim = arena.victim().await?;
    victim
        .bash("echo attack-diary-entry | tee /workspace/diary /tmp/diary; seq -f attack-diary-entry-%.0f 200000; cp /workspace/diary /dev/shm/")
        .await?;
    // Both the file and the long output, wherever that was kept, have it.
    let search = "grep -rlas attack-diary-[e]ntry /workspace /tmp /dev/shm /var /run /home /root /mnt /proc/[0-9]*/environ /proc/[0-9]*/fd/ 2>/dev/null | head";
    let control = victim.bash(search).await?;
    ensure!(control.stdout.contains("/workspace/diary"), "the control: {control:?}");
    let found = arena.attacker().await?.run(search).await?;
    ensure!(found.stdout.is_empty(), "{found:?}");
    // The same session id, after it was deleted.
    let before = arena.home.session("reborn").await?;
    before
        .bash("echo attack-diary-entry >/workspace/diary; seq -f attack-diary-entry-%.0f 200000")
        .await?;
    ensure!(before.delete().await? == 204);
    let after = arena.home.session("reborn").await?;
    let found = after.bash(search).await?;
    ensure!(found.stdout.is_empty(), "{found:?}");
    after.delete().await?;
    Ok(())
}

/// Tried: running on after the session was deleted: daemons in sessions of their own that ignore every signal, `trap`,
/// stopped and re-parented processes.
/// Stopped by: the kubelet ends the pod after its short grace, whatever runs in it.
#[tokio::test(flavor = "multi_thread")]
async fn surviving_deletion() -> Result<()> {
    let arena = arena()?;
    let session = arena.home.session("undead").await?;
    let daemon = session
        .bash(
            "for i in 1 2 3; do setsid nohup bash -c 'trap \"\" TERM INT HUP QUIT; while :; do sleep 1; done' >/dev/null 2>&1 & done; \
             until alive=$(pgrep -fc '[t]rap '); [ $alive -ge 3 ]; do sleep 0.1; done; trap '' TERM EXIT; kill -STOP $!; echo $alive",
        )
        .await?;
    ensure!(daemon.stdout.trim().parse::<u32>()? >= 3, "the control: {daemon:?}");
    let namespace = &arena.home.namespace;
    let pods = || kubectl::names(namespace, "pods", "cli-mcp.redhat.com/session-id=undead");
    ensure!(pods()?.len() == 1, "the control: {:?}", pods()?);
    ensure!(session.delete().await? == 204);
    cluster::eventually("the pod's end", async || {
        ensure!(pods()?.is_empty(), "{:?}", pods()?);
        Ok(())
    })
    .await
}

/// Tried: processes that leave their session and their parent, so that the timeout of the call does not find them.
/// Stopped by: the agent's timeout, which ends every descendant; the session goes on.
#[tokio::test(flavor = "multi_thread")]
async fn outliving_the_timeout() -> Result<()> {
    const SLEEPERS: &str = "pgrep -fxc 'sleep 1[0]00'";
    let session = arena()?.home.session("leavers").await?;
    session.bash("kept=yes").await?;
    let command = format!(
        "for i in $(seq 40); do (setsid sleep 1000 &) ; done >/dev/null 2>&1; until [ \"$({SLEEPERS})\" -ge 40 ]; do sleep 0.1; done; echo forty; sleep 60"
    );
    let result = session
        .call(serde_json::json!({"command": command, "timeout": 20}))
        .await?;
    ensure!(
        result.timed_out && result.stdout.starts_with("forty\n"),
        "the control: {result:?}"
    );
    cluster::eventually("the end of the processes that left", async || {
        let left = session.bash(SLEEPERS).await?;
        ensure!(left.stdout == "0\n" && left.session_reset.is_none(), "{left:?}");
        Ok(())
    })
    .await?;
    let kept = session.bash("echo $kept").await?;
    ensure!(kept.stdout == "yes\n", "{kept:?}");
    ensure!(session.delete().await? == 204);
    Ok(())
}

/// Tried: killing or stopping the agent, taking its port (also with `SO_REUSEPORT` and on the pod's own address), and
/// answering the server's and the kubelet's questions in its place.
/// Stopped by: the kernel keeps signals of its own namespace from the agent, which is process 1, and its port is taken.
#[tokio::test(flavor = "multi_thread")]
async fn answering_for_the_agent() -> Result<()> {
    const PROGRAM: &str = r#"
import os, signal, socket
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGQUIT, signal.SIGABRT):
    try:
        os.kill(1, number)
    except OSError:
        pass
taken, free = [], []
own = socket.gethostbyname(socket.gethostname())
for family, address in [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, own), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::"), (socket.AF_INET6, "::ffff:127.0.0.1")]:
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s = socket.socket(family, socket.SOCK_STREAM)
        if option:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind((address, 8090))
            s.listen()
            taken.append((address, option))
        except OSError:
            pass
        finally:
            s.close()
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.bind((address, 8099))
        s.listen()
        free.append(address)
print("FREE", len(free), "TAKEN", [t for t in taken if t[0] != "::"])
"#;
    let (shells, _guard) = arena()?.shells().await?;
    for shell in &shells {
        let output = shell.python(PROGRAM).await?;
        // The control: a port that nobody has can be taken on each of the five addresses.
        ensure!(output.trim() == "FREE 5 TAKEN []", "{}: {output}", shell.kind());
        let health = shell
            .ok("curl -s --noproxy '*' -o /dev/null -w '%{http_code}' http://127.0.0.1:8090/health")
            .await?;
        ensure!(health == "200", "{}: {health}", shell.kind());
    }
    Ok(())
}

/// Tried: answering for another session by its label: from a target that is ReadOnly, and with a credential that may write
/// pods, with which the attacker gives the victim's label to the attacker's own sandbox.
/// Stopped by: `access: ReadOnly`; and the sandbox's token, which the label does not change: an agent refuses what is meant
/// for another session, so that nothing of the victim's runs there. (That the victim's session is disturbed is what write
/// access to pods can do.)
#[tokio::test(flavor = "multi_thread")]
async fn wearing_the_victims_label() -> Result<()> {
    let arena = arena()?;
    let reader = Shell::Assigned(arena.neighbours_session("labeller").await?);
    let label = reader
        .run("kubectl label pods -n attack-home -l cli-mcp.redhat.com/component=sandbox --overwrite cli-mcp.redhat.com/session-id=labeller")
        .await?;
    ensure!(
        label.code != Some(0) && label.stderr.contains("credential proxy"),
        "{label:?}"
    );
    if let Shell::Assigned(reader) = reader {
        reader.delete().await?;
    }
    let masked = arena.home.session("masked").await?;
    let wearer = arena.home.session("wearer").await?;
    let pod = wearer.bash("hostname").await?.stdout;
    let attacker = arena.attacker().await?;
    attacker
        .ok(&format!(
            "kubectl -n attack-home label pod {} --overwrite cli-mcp.redhat.com/session-id=masked",
            pod.trim()
        ))
        .await?;
    // Whatever the victim's calls get for an answer, it does not come from there.
    for _ in 0..5 {
        let result = masked.bash("hostname; echo attack-mask >/workspace/mask").await?;
        ensure!(result.stdout != pod, "the victim's command ran in {pod}: {result:?}");
    }
    let namespace = &arena.home.namespace;
    let path = ["-n", namespace, "exec", pod.trim(), "--", "cat", "/workspace/mask"];
    let found = kubectl::run(&path)?;
    ensure!(!found.stdout.contains("attack-mask"), "{found:?}");
    for session in [masked, wearer] {
        ensure!(session.delete().await? == 204);
    }
    Ok(())
}

/// Tried: assigning an unassigned sandbox to oneself before the server does: without a token, with guesses, twice the
/// header, other methods, with hundreds of silent connections beside, before, while and after the server claims it for a
/// session.
/// Stopped by: the assign token, an HMAC that only server and operator can make; refused attempts leave no trace, and
/// connections from inside have few places of their own.
#[tokio::test(flavor = "multi_thread")]
async fn racing_for_the_assignment() -> Result<()> {
    // Counts what it was answered in a file, until another tells it to stop.
    const PROGRAM: &str = r#"
cat >/tmp/racer.py <<'PY'
import collections, http.client, json, os, socket, threading, time
counts, lock = collections.Counter(), threading.Lock()
bearer = lambda token: [("Authorization", "Bearer " + token)]
SPECIAL = [([], {}), (bearer(""), {}), (bearer("x") + bearer("y"), {}), (bearer("a"), dict(method="PUT")), (bearer("a"), dict(path="/assign/")),
    (bearer("a"), dict(path="//assign")), ([("Authorization", "Basic YTph")], {}), (bearer("a" * 64), dict(path="/exec", body='{"command":"true"}'))]
def attempt(headers, method="POST", path="/assign", body='{"token":"' + "a" * 64 + '"}'):
    c = http.client.HTTPConnection("127.0.0.1", 8090, timeout=10)
    try:
        c.putrequest(method, path)
        for name, value in headers:
            c.putheader(name, value)
        c.putheader("Content-Type", "application/json")
        c.putheader("Content-Length", str(len(body)))
        c.endheaders(body.encode())
        return str(c.getresponse().status)
    except (OSError, http.client.HTTPException):
        return "none"
    finally:
        c.close()
def guess(worker):
    n = worker
    while not os.path.exists("/tmp/stop"):
        headers, other = SPECIAL[n % len(SPECIAL)] if n % 3 == 0 else (bearer(f"{n:064x}"), {})
        answer = attempt(headers, **other)
        with lock:
            counts[answer] += 1
        n += 7
def silent():
    held = []
    while not os.path.exists("/tmp/stop"):
        try:
            held.append(socket.create_connection(("127.0.0.1", 8090), timeout=2))
            counts["silent"] += 1
        except OSError:
            pass
        if len(held) > 300:
            held.pop(0).close()
        time.sleep(0.005)
for worker in range(4):
    threading.Thread(target=guess, args=(worker,)).start()
threading.Thread(target=silent).start()
while not os.path.exists("/tmp/stop"):
    with lock:
        text = json.dumps(counts)
    open("/tmp/counts.new", "w").write(text)
    os.replace("/tmp/counts.new", "/tmp/counts")
    time.sleep(0.1)
PY
rm -f /tmp/stop; setsid python3 /tmp/racer.py >/dev/null 2>&1 </dev/null &
"#;
    let arena = arena()?;
    let (shell, _guard) = arena.claimable().await?;
    let Shell::Unassigned { namespace, pod } = &shell else {
        anyhow::bail!("not a sandbox of the pool");
    };
    let counts = async || -> Result<BTreeMap<String, u64>> {
        let text = shell.ok("cat /tmp/counts").await?;
        serde_json::from_str(&text).context(text)
    };
    let attempts = |counts: &BTreeMap<String, u64>| -> u64 {
        let answered = counts.iter().filter(|(answer, _)| *answer != "silent");
        answered.map(|(_, count)| count).sum()
    };
    shell.ok(PROGRAM).await?;
    let before = cluster::eventually("the flood", async || {
        let counts = counts().await?;
        let silent = counts.get("silent").copied().unwrap_or_default();
        ensure!(attempts(&counts) >= 200 && silent >= 300, "{counts:?}");
        Ok(counts)
    })
    .await?;
    let session = arena.neighbour.session("claimer").await?;
    let after = cluster::eventually("the flood after the claim", async || {
        let counts = counts().await?;
        ensure!(attempts(&counts) >= attempts(&before) + 50, "{counts:?}");
        Ok(counts)
    })
    .await?;
    shell.ok("touch /tmp/stop").await?;
    for answer in after.keys() {
        ensure!(
            matches!(
                answer.as_str(),
                "none" | "silent" | "400" | "401" | "404" | "405" | "409" | "503"
            ),
            "{after:?}"
        );
    }
    ensure!(after.contains_key("401"), "nobody judged the tokens: {after:?}");
    let claimed = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/session-id=claimer",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ])?;
    ensure!(
        &claimed == pod,
        "the session got {claimed}, not {pod}: the attempts spoilt the pod"
    );
    let result = session.bash("echo mine").await?;
    ensure!(result.stdout == "mine\n", "{result:?}");
    session.delete().await?;
    Ok(())
}

/// Tried: what is planted in a sandbox before it is claimed (startup files, functions, a `PATH` folder, processes) so that
/// it runs in the session that gets it.
/// Stopped by: nobody but the kubelet gets into an unassigned sandbox: the agent runs nothing there, and `exec` is refused
/// by the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn planting_in_the_pool() -> Result<()> {
    let arena = arena()?;
    let (shell, _guard) = arena.unassigned().await?;
    let Shell::Unassigned { namespace, pod } = &shell else {
        anyhow::bail!("not a sandbox of the pool");
    };
    let attacker = arena.attacker().await?;
    // The attacker's credential may do everything, and knows the pod: what stops it is the proxy.
    attacker.ok(&format!("kubectl -n {namespace} get pod {pod}")).await?;
    for command in [
        format!("kubectl -n {namespace} exec {pod} -- id"),
        format!("kubectl -n {namespace} attach {pod}"),
        format!("kubectl -n {namespace} debug {pod} --image=none"),
        format!("kubectl -n {namespace} port-forward {pod} 8090"),
        format!("kubectl -n {namespace} cp /etc/hostname {pod}:/workspace/x"),
    ] {
        let ran = attacker.run(&command).await?;
        ensure!(
            ran.code != Some(0) && ran.stderr.contains("credential proxy"),
            "{command}: {ran:?}"
        );
    }
    let direct = shell
        .ok("curl -s --noproxy '*' -H 'Content-Type: application/json' -d '{\"command\":\"touch /workspace/planted\"}' -w ' %{http_code}' http://127.0.0.1:8090/exec; ls -A /workspace")
        .await?;
    ensure!(direct.contains(" 503") && !direct.contains("planted"), "{direct}");
    Ok(())
}

/// Tried: going on in a session with another's id: ids that only differ in case, spaces, or escapes from the victim's.
/// Stopped by: the server takes ids of one strict form only; a session id names a session, and is no secret among the
/// callers of one instance.
#[tokio::test(flavor = "multi_thread")]
async fn spelling_the_victims_session() -> Result<()> {
    let arena = arena()?;
    arena.victim().await?;
    let http = arena.home.endpoint.http_client(None)?;
    for id in [
        "Victim",
        "victim-",
        "victim.",
        "victim_",
        "-victim",
        "victim%2e",
        "victim%00",
        "victim%20",
        "../victim",
        "victim;x",
    ] {
        let status = http
            .delete(format!("{}/sessions/{id}", arena.home.endpoint.base_url))
            .send()
            .await?
            .status();
        ensure!(matches!(status.as_u16(), 400 | 403 | 404 | 405), "{id}: {status}");
    }
    // The control: an id of the strict form is taken, also where it names nobody's session.
    let url = format!("{}/sessions/attack-nobody", arena.home.endpoint.base_url);
    let control = http.delete(url).send().await?.status();
    ensure!(control == 204, "the control: {control}");
    let alive = kubectl::ok(&[
        "-n",
        &arena.home.namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/session-id=victim",
        "-o",
        "jsonpath={.items[0].status.phase}",
    ])
    .context("the victim's pod")?;
    ensure!(alive == "Running", "{alive}");
    Ok(())
}
