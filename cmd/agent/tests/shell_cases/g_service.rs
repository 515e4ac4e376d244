//! Section G: server, concurrency, process hygiene.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::http::{receive, send};
use crate::harness::{Agent, GENEROUS, Setup, TOKEN, installed, signal};

#[test]
fn case_089_no_zombies() {
    let agent = Agent::start();
    agent.out("for i in {1..200}; do sh -c 'sleep 0.05 & '; done; for i in {1..100}; do (sleep 0.05 &); done");
    agent.until_quiet();
    let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | awk -v p=$PPID '$4==p && $3==\"Z\"' | wc -l";
    agent.until(zombies, "0\n");
    assert_eq!(
        agent
            .run("sleep 0.1 & wait $!; echo $?; (exit 7) & wait $!; echo $?")
            .stdout,
        "0\n7\n"
    );
}

#[test]
fn case_092_nothing_grows() {
    let agent = Agent::start();
    let calls = |count: usize| {
        for _ in 0..count {
            agent.run("echo $RANDOM; true &");
        }
    };
    calls(50);
    let bash = || agent.out("ls /proc/$$/fd | wc -l").trim().parse::<usize>().unwrap();
    let open = bash();
    let (descriptors, resident) = (agent.descriptors(), agent.resident_kib());
    calls(300);
    for _ in 0..3 {
        agent.run_for(1, "sleep 100");
    }
    calls(50);
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        agent.descriptors() <= descriptors + 2,
        "{} then {}",
        descriptors,
        agent.descriptors()
    );
    assert!(bash() <= open + 1, "{open} then {}", bash());
    assert!(
        agent.resident_kib() < resident + 1024,
        "{resident} then {}",
        agent.resident_kib()
    );
}

#[test]
fn case_095_no_secret_can_be_seen() {
    let agent = Setup::new()
        .env("SANDBOX_ASSIGN_TOKEN_SHA256", &"ab".repeat(32))
        .start();
    let pid = agent.pid();
    let look = format!(
        "env; set; tr '\\0' '\\n' </proc/{pid}/environ; tr '\\0' ' ' </proc/{pid}/cmdline; cat /proc/$$/environ; \
         for p in /proc/[0-9]*; do [[ $(cat $p/stat 2>/dev/null) == *' {pid} '* ]] && cat $p/environ $p/cmdline; done"
    );
    let result = agent.run(&look);
    let all = format!("{}{}", result.stdout, result.stderr);
    assert!(
        !all.contains(TOKEN) && !all.contains(&"ab".repeat(32)) && !all.contains("SANDBOX_"),
        "{all}"
    );
    // Root may look into any process; what anyone else may is decided by this: only root owns a process that is not dumpable.
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0);
    let as_other = format!(
        "exec 2>&1; setpriv --reuid 65534 --regid 65534 --clear-groups cat /proc/{pid}/environ; setpriv --reuid 65534 --regid 65534 --clear-groups ls /proc/{pid}/fd"
    );
    if installed("setpriv") {
        assert_eq!(agent.run(&as_other).stdout.matches("Permission denied").count(), 2);
    }
    let sockets = agent.out("ls -l /proc/$$/fd /proc/self/fd | grep -c socket || true");
    assert_eq!(sockets, "0\n");
    // No descriptor of the wrapper reaches a child.
    assert_eq!(agent.out("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
}

#[test]
fn case_096_locale() {
    let agent = Agent::start();
    assert_eq!(
        agent.out("printf 'ABC你好' | od -An -tx1").trim(),
        "41 42 43 e4 bd a0 e5 a5 bd"
    );
    assert_eq!(
        agent.out("x=é; echo ${#x}; touch 中; ls; echo $LANG"),
        "1\n中\nC.UTF-8\n"
    );
    if installed("python3") {
        assert_eq!(agent.out("python3 -c 'print(\"ü\")'"), "ü\n");
    }
    let agent = Setup::new().env("LC_ALL", "C").start();
    assert_eq!(agent.out("echo \"$LC_ALL${LANG-}\""), "C\n");
}

#[test]
fn case_098_shutdown() {
    let mut agent = Agent::start();
    let pid = agent.pid();
    assert_eq!(
        agent
            .run(&format!(
                "kill -TERM {pid}; kill -INT {pid}; kill -HUP {pid}; sleep 0.3; echo alive"
            ))
            .stdout,
        "alive\n"
    );
    assert_eq!(agent.run("echo again").stdout, "again\n");
    agent.out("setsid sleep 300 & (nohup sleep 301 &)");
    let mut running = agent.begin(&json!({"command": "echo begun; trap '' INT TERM; sleep 200"}), "*/*");
    let deadline = Instant::now() + GENEROUS;
    let sleeping = || {
        agent
            .processes()
            .iter()
            .filter(|line| line.starts_with("sleep "))
            .count()
    };
    while sleeping() < 3 {
        assert!(Instant::now() < deadline, "{:?}", agent.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut waiting = agent.begin(&json!({"command": "touch ~/ran"}), "*/*");
    let queued = || {
        let metrics = agent.request("GET", "/metrics", &[], b"").body;
        String::from_utf8(metrics)
            .unwrap()
            .contains("cli_mcp_agent_waiting_calls 1")
    };
    while !queued() {
        assert!(Instant::now() < deadline, "the second call does not wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    agent.terminate();
    let result = receive(&mut running).expect("the running call is answered").result();
    assert_eq!((result.exit_code, result.stdout.as_str()), (130, "begun\n"));
    assert!(result.stderr.contains("shutting down"), "{result:?}");
    assert_eq!(receive(&mut waiting).expect("the waiting call is answered").status, 503);
    assert!(agent.wait().success());
    for job in ["sleep 300", "sleep 301", "sleep 200"] {
        let (program, argument) = job.split_once(' ').unwrap();
        let left = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line == format!("{program}\0{argument}\0").as_bytes()
                && std::fs::read_to_string(entry.path().join("environ"))
                    .is_ok_and(|text| text.contains(agent.home.path().to_str().unwrap()))
        });
        assert!(!left, "{job} is left");
    }
    assert!(!agent.home.path().join("ran").exists());
}

#[test]
fn case_099_bad_requests() {
    let agent = Agent::start();
    agent.out("K=1");
    let authorization = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
    ];
    for (body, word) in [
        ("{", "not a valid request"),
        ("{\"command\":\"\\ud800\"}", "not a valid request"),
        ("{\"command\":\"id\",\"cwd\":\"/\",\"timeout\":5}", "cwd"),
        ("{\"command\":5}", "string"),
        ("{\"command\":null}", "string"),
        ("{}", "missing"),
        ("", "not a valid request"),
        ("[\"id\"]", "not a valid request"),
        (
            "{\"command\":\"touch a\"} {\"command\":\"touch b\"}",
            "not a valid request",
        ),
    ] {
        let answer = agent.request("POST", "/exec", &headers, body.as_bytes());
        assert_eq!(answer.status, 400, "{body}");
        if word != "string" || !body.contains("null") {
            assert!(answer.error().contains(word), "{body}: {answer:?}");
        }
    }
    let invalid = agent.request("POST", "/exec", &headers, b"{\"command\":\"echo \xff\"}");
    assert_eq!(invalid.status, 400);
    let large = format!("{{\"command\":\"{}\"}}", "x".repeat(5 << 20));
    let answer = agent.request("POST", "/exec", &headers, large.as_bytes());
    assert_eq!(answer.status, 413);
    assert!(answer.error().contains("4194304"));
    let fits = format!("{{\"command\":\": {}\"}}", "x".repeat((4 << 20) - 64));
    assert_eq!(agent.request("POST", "/exec", &headers, fits.as_bytes()).status, 200);
    assert_eq!(agent.out("echo $K; ls"), "1\n");
    // Half a request, and none at all, hold up nobody.
    let mut silent = agent.connect();
    silent
        .get_mut()
        .write_all(b"POST /exec HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    let mut half = agent.connect();
    send(
        half.get_mut(),
        "POST",
        "/exec",
        &[
            ("Authorization", &authorization),
            ("Content-Type", "application/json"),
            ("Expect", "x"),
        ],
        b"",
    );
    let begun = Instant::now();
    assert_eq!(agent.out("echo $K"), "1\n");
    assert!(begun.elapsed() < GENEROUS);
}

#[test]
fn the_holder_can_be_killed() {
    let agent = Agent::start();
    agent.out("K=1; cd /usr");
    agent.out(FIND_HOLDER);
    agent.out("kill -9 $holder");
    let result = agent.run("echo $K $PWD");
    assert_eq!(result.stdout, "1 /usr\n", "{result:?}");
    assert_eq!(agent.run("exit 3").exit_code, 3);
    assert_eq!(agent.run("echo $K $PWD").stdout, "1 /usr\n");
}

/// The shell's variable `holder` is then the process id of the descriptor holder.
const FIND_HOLDER: &str =
    "for p in $(</proc/$PPID/task/$PPID/children); do [[ $p == $$ ]] || holder=$p; done; [[ -n $holder ]]";

#[test]
fn a_stopped_holder_holds_up_no_call() {
    let agent = Agent::start();
    agent.out(FIND_HOLDER);
    agent.out("X=1; kill -STOP $holder");
    let result = agent.run("echo $X");
    assert_eq!((result.stdout.as_str(), result.session_reset), ("1\n", None));
    // Let go on, it is stopped again and again.
    agent.out("while kill -STOP $holder 2>/dev/null; do :; done & true");
    for _ in 0..2 {
        assert_eq!(agent.run("echo $X").stdout, "1\n");
    }
    let Some(setup) = Setup::contained() else { return };
    let agent = setup.start();
    agent.out("X=1; kill -STOP -1; echo stopped");
    assert_eq!(agent.run("echo $X").stdout, "1\n");
}

#[test]
fn a_job_that_stops_everything_again_and_again_leaves_the_agent_answering() {
    let Some(setup) = Setup::contained() else { return };
    let agent = setup.start();
    agent.out("(until [[ -e go ]]; do sleep 0.05; done; while :; do kill -STOP -1; done) & true");
    for command in ["touch go; sleep 99", "kill -9 $$", "echo a", "echo b"] {
        let answer = agent.exec_body(&json!({"command": command, "timeout": 1}));
        assert!([200, 503].contains(&answer.status), "{command}: {answer:?}");
        assert_ne!(agent.request("GET", "/metrics", &[], b"").body, b"", "{command}");
    }
}

#[test]
fn a_holder_that_breaks_off_is_replaced_at_once() {
    let Some(setup) = Setup::contained() else { return };
    let agent = setup.start();
    agent.out("X=1");
    for round in 0..20 {
        assert_eq!(agent.out("kill -9 -1; echo ended"), "ended\n", "round {round}");
        assert_eq!(agent.out("echo $X"), "1\n", "round {round}");
    }
    // The shell goes on with the other holder: its state is on record again.
    agent.out("X=2");
    assert_eq!(agent.run("exit 3").exit_code, 3);
    assert_eq!(agent.run("echo $X").stdout, "2\n");
}

#[test]
fn a_shell_that_is_traced_can_be_replaced() {
    if !installed("python3") {
        return;
    }
    let agent = Agent::start();
    let attach = "import ctypes, os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n\
        ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None)\ntime.sleep(600)";
    agent.out(&format!("X=1; setsid python3 -c \"{attach}\" $$ & true"));
    assert_eq!(agent.run_for(1, "touch go; sleep 100").exit_code, 124);
    assert_eq!(agent.run("echo $X").stdout, "1\n");
}

#[test]
fn idle_connections_take_no_place_from_others() {
    let agent = Agent::start();
    agent.out("X=1");
    let idle: Vec<_> = (0..600).map(|_| agent.connect()).collect();
    let mut probe = agent.connect();
    probe.get_ref().set_read_timeout(Some(GENEROUS)).unwrap();
    send(probe.get_mut(), "GET", "/health", &[], b"");
    assert_eq!(receive(&mut probe).expect("the probe is answered").status, 200);
    assert_eq!(agent.cancel()["cancelled"], false);
    assert_eq!(agent.out("echo $X"), "1\n", "the kept connection has shown a token");
    drop(idle);
}

#[test]
fn commands_leave_the_agents_own_processes_alone() {
    let Some(setup) = Setup::contained() else { return };
    let agent = setup.start();
    let limits = || std::fs::read_to_string(format!("/proc/{}/limits", agent.pid())).unwrap();
    let before = limits();
    agent.out(FIND_HOLDER);
    for command in [
        "prlimit --pid 1 --nofile=3:3",
        "prlimit --pid 1 --nproc=0:0",
        "prlimit --pid 1 --as=1000:1000",
        "prlimit --pid 1 --cpu=1:1",
        "prlimit --pid $holder --nofile=3:3",
        "renice -n 19 -p 1",
        "renice -n 19 -u $UID",
        "chrt --idle -p 0 1",
        "taskset -p 1 1",
        "ionice -c 3 -p 1",
        "kill -TERM 1",
        "kill -STOP $holder",
        "kill -KILL -- -$holder",
    ] {
        let result = agent.run(command);
        assert_ne!(result.exit_code, 0, "{command}");
        let said = result.stderr.to_lowercase();
        assert!(said.contains("not permitted"), "{command}: {result:?}");
    }
    assert_eq!(limits(), before);
    // What is a command's own it may do as before.
    for command in [
        "prlimit --pid $$ --core=0:0",
        "sleep 9 & renice -n 19 -p $!",
        "sleep 99 & kill $!; wait $!; [[ $? == 143 ]]",
        "timeout 0.1 sleep 99; [[ $? == 124 ]]",
        "(ulimit -n 20)",
    ] {
        agent.out(command);
    }
}

#[test]
fn no_full_queue_of_signals_hides_a_sender() {
    if !installed("python3") {
        return;
    }
    // Beyond a user's limit a signal comes without its sender, as one from outside the sandbox does.
    let send = "import ctypes, os, signal, sys\nlibc = ctypes.CDLL(None)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n\
        while libc.sigqueue(os.getpid(), 40, 0) == 0: pass\nlibc.sigqueue(int(sys.argv[1]), signal.SIGTERM, 0)";
    for setup in [Some(Setup::new()), Setup::contained()].into_iter().flatten() {
        let mut agent = setup.start();
        let result = agent.run(&format!("python3 -c '{send}' $PPID; sleep 0.3; echo alive"));
        assert_eq!(result.stdout, "alive\n", "{result:?}");
        assert_eq!(agent.run("echo again").stdout, "again\n");
        agent.terminate();
        assert!(agent.wait().success(), "one from outside counts");
    }
}

#[test]
fn a_limit_that_leaves_no_room_for_a_subshell_holds_up_no_call() {
    for trap in ["", "trap 'echo caught' INT; "] {
        let Some(setup) = Setup::contained() else { return };
        let agent = setup.start();
        // Bash goes on trying for 15 s before it gives a subshell up.
        agent.out(&format!("{trap}(sleep 10; touch late) & ulimit -u 1"));
        assert_eq!(agent.out("[[ -e late ]] || echo soon"), "soon\n", "{trap}");
        // Nor does a status that the next call must find.
        assert_eq!(agent.run("seven() { return 7; }; seven").exit_code, 7, "{trap}");
        let next = agent.run("echo $?; [[ -e late ]] || echo soon; declare -F");
        assert_eq!(
            (next.stdout.as_str(), next.session_reset),
            ("7\nsoon\ndeclare -f seven\n", None),
            "{trap}"
        );
    }
}

#[test]
fn health_is_truthful() {
    let agent = Agent::start();
    let mut running = agent.begin(&json!({"command": "sleep 1"}), "*/*");
    std::thread::sleep(Duration::from_millis(200));
    let answer = agent.request("GET", "/health", &[], b"");
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("ok")));
    assert_eq!(answer.json()["egress_check"], "Disabled");
    assert_eq!(receive(&mut running).unwrap().status, 200);
    let metrics = agent.request("GET", "/metrics", &[], b"");
    assert!(
        String::from_utf8(metrics.body)
            .unwrap()
            .contains("cli_mcp_agent_calls_total{outcome=\"success\"} 1")
    );
    signal(agent.pid(), "0");
}
