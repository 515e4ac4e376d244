//! Section E: background jobs and timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::http::receive;
use crate::harness::{Agent, GENEROUS, Setup, cancel_at, installed, until};

#[test]
fn case_065_background_jobs_do_not_hold_a_call() {
    let agent = Agent::start();
    for command in [
        "sleep 300 & echo started",
        "setsid sleep 300 & echo started",
        "nohup sleep 300 & echo started",
        "(sleep 300 | cat) & echo started",
        "sleep 300 >/dev/null & echo started",
        "coproc sleep 300; echo started",
        "exec 5> >(sleep 300); echo started",
    ] {
        let result = agent.run(command);
        assert_eq!(
            (result.stdout.as_str(), result.exit_code),
            ("started\n", 0),
            "{command}"
        );
        assert!(result.duration_ms < 20_000, "{result:?}");
    }
    if installed("python3") {
        agent.out("python3 -m http.server 18099 & echo $!");
        agent.until("curl -s -o /dev/null -w %{http_code} localhost:18099", "200");
    }
}

#[test]
fn case_067_no_output_reaches_a_later_call() {
    let agent = Agent::start();
    let result =
        agent.run("(for i in 1 2 3 4 5; do echo BG; echo BGE >&2; sleep .1; done; echo survived >~/mark) & echo first");
    assert!(result.stdout.contains("first"));
    for _ in 0..4 {
        let result = agent.run("sleep .2; echo second");
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("second\n", ""));
    }
    agent.until("cat ~/mark", "survived\n");
}

#[test]
fn case_068_jobs_survive_and_can_be_managed() {
    let agent = Agent::start();
    agent.out("sleep 300 & p=$!");
    let result = agent.run("jobs; kill -0 $p && echo up");
    assert!(
        result.stdout.contains("sleep 300") && result.stdout.ends_with("up\n"),
        "{result:?}"
    );
    assert_eq!(agent.run("kill %1; wait $p; echo $?").stdout, "143\n");
    agent.out("nohup sleep 301 & sleep 302 & disown");
    agent.out("true");
    assert_eq!(agent.processes().len(), 2);
}

#[test]
fn case_069_the_whole_tree_of_a_timed_out_call_is_gone() {
    let agent = Agent::start();
    for command in [
        "yes | grep -v y | cat",
        "(sleep 500; sleep 500) & sleep 500",
        "for i in 1 2 3; do echo $i; done | xargs -P8 -I{} sleep 500",
        "setsid sleep 500; sleep 500",
        "setsid sh -c 'sleep 500 & sleep 500 &' & sleep 500",
        "(setsid sh -c '(sleep 500 &)' &) ; sleep 500",
        "trap '' TERM INT HUP; sleep 500",
        "sh -c 'trap \"\" TERM INT HUP QUIT; while :; do sleep 500; done'",
        "nohup sleep 500 & sleep 500",
        "timeout 400 sleep 500",
        "set -m; sleep 500 & sleep 500",
        "sleep 500 & disown; sleep 500",
        "sleep 500 & kill -STOP $!; sleep 500",
        "coproc sleep 500; read <&${COPROC[0]}",
        "x=$(sleep 500)",
        "cat <(sleep 500)",
        "while :; do :; done",
        "f() { f2; }; f2() { sleep 500; }; f",
        "bash -c 'while :; do sleep 0.01 & done'",
        // Orphans with the shell's own parent and command line.
        "( (while :; do :; done) & ); sleep 500",
        "( (sleep 500; :) & ); while :; do :; done",
        "( (trap '' TERM INT HUP; while :; do :; done) & ); wait; sleep 500",
    ] {
        let result = agent.run_for(1, command);
        assert_eq!(
            (result.exit_code, result.timed_out),
            (124, true),
            "{command}: {result:?}"
        );
        agent.until_quiet();
        assert!(result.duration_ms < 10_000, "{command}: {result:?}");
    }
    assert_eq!(agent.run("echo alive").stdout, "alive\n");
}

#[test]
fn case_071_earlier_jobs_live() {
    let agent = Agent::start();
    agent.out("sleep 300 & setsid sleep 301 & (sleep 302 &)");
    agent.out("sh -c 'while :; do sleep 0.05; done' &");
    for command in ["sleep 100", "trap '' INT; sleep 100", "while :; do :; done"] {
        assert_eq!(agent.run_for(1, command).exit_code, 124);
        let processes = agent.processes();
        for job in ["sleep 300", "sleep 301", "sleep 302", "sh -c while"] {
            assert!(
                processes.iter().any(|process| process.starts_with(job)),
                "{job} after {command}: {processes:?}"
            );
        }
        assert!(
            !processes.iter().any(|process| process.starts_with("sleep 100")),
            "{processes:?}"
        );
    }
}

/// What is detached has lost its parent, but not the session or group that came with the job.
#[test]
fn case_071_what_an_earlier_job_detaches_is_the_jobs() {
    for job in [
        "setsid sh -c 'until [ -e go ]; do sleep 0.05; done; (sleep 77 &); touch detached; sleep 300' & true",
        "set -m; { until [ -e go ]; do sleep 0.05; done; ( sleep 77 & ); touch detached; sleep 300; } & set +m",
    ] {
        let agent = Agent::start();
        agent.out(job);
        let result = agent.run_for(
            3,
            "touch go; until [ -e detached ]; do sleep 0.05; done; echo seen; (sleep 50 &); sleep 50",
        );
        assert_eq!((result.exit_code, result.stdout.as_str()), (124, "seen\n"), "{job}");
        let mut processes = agent.processes();
        processes.retain(|process| process.starts_with("sleep "));
        processes.sort();
        assert_eq!(processes, ["sleep 300 ", "sleep 77 "], "{job}");
    }
}

#[test]
fn case_072_nothing_of_the_call_runs_on() {
    let agent = Agent::start();
    for command in [
        "cd /usr; X=1; sleep 100; touch ~/after",
        "cd /usr; X=1; while :; do sleep 100; touch ~/after; done",
        "cd /usr; X=1; f() { sleep 100; touch ~/after; }; f; touch ~/after",
        "cd /usr; X=1; y=$(sleep 100); touch ~/after",
        "cd /usr; X=1; sleep 100 & wait; touch ~/after",
        "cd /usr; X=1; sleep 100 & wait $!; touch ~/after",
        "cd /usr; X=1; sleep 100 & wait -n; touch ~/after",
        "cd /usr; X=1; f() { sleep 100 & wait || touch ~/after; touch ~/after; }; f; touch ~/after",
        "cd /usr; X=1; sleep 100 & set -x; wait; touch ~/after; set +x",
        "cd /usr; X=1; sleep 100 || touch ~/after; touch ~/after",
        "cd /usr; X=1; (sleep 100; touch ~/after); touch ~/after",
        "cd /usr; X=1; sleep 100 | cat; touch ~/after",
        "cd /usr; X=1; eval 'sleep 100; touch ~/after'; touch ~/after",
        "cd /usr; X=1; if sleep 100; then touch ~/after; else touch ~/after; fi; touch ~/after",
        "cd /usr; X=1; bash -c 'sleep 100; touch ~/after'; touch ~/after",
        "cd /usr; X=1; until sleep 100; do touch ~/after; done; touch ~/after",
        "cd /usr; X=1\nsleep 100\ntouch ~/after",
        "cd /usr; X=1; read -r line < <(sleep 100); touch ~/after",
        "cd /usr; X=1; kill -STOP $$; touch ~/after",
    ] {
        agent.out("cd; X=0");
        assert_eq!(agent.run_for(1, command).exit_code, 124, "{command}");
        let result = agent.run("echo $PWD $X");
        assert_eq!(result.stdout, "/usr 1\n", "{command}: {result:?}");
        assert_eq!(result.session_reset, None, "{command}");
        assert!(!agent.home.path().join("after").exists(), "{command}");
    }
    // With `errexit` bash itself ends on an interrupt; what the call had changed comes back all the same.
    agent.out("cd; X=0");
    assert_eq!(
        agent
            .run_for(1, "cd /usr; X=1; set -e; sleep 100; touch ~/after")
            .exit_code,
        124
    );
    assert_eq!(agent.run("echo $PWD $X").stdout, "/usr 1\n");
    assert!(!agent.home.path().join("after").exists());
    for command in [
        "trap 'echo caught; touch ~/after' INT; sleep 100; touch ~/after",
        "trap 'touch ~/after' INT TERM QUIT; while :; do sleep 100; touch ~/after; done",
        "trap '' INT; sleep 100; touch ~/after",
        "sh -c 'trap \"exit 0\" INT; sleep 100 & wait'; touch ~/after",
        "sh -c 'trap \"\" INT; sleep 100'; touch ~/after",
    ] {
        agent.out("cd; X=0");
        assert_eq!(agent.run_for(1, command).exit_code, 124, "{command}");
        assert_eq!(agent.run("trap - INT TERM QUIT; echo $X").stdout, "0\n", "{command}");
        agent.until_quiet();
        assert!(!agent.home.path().join("after").exists(), "{command}");
    }
}

#[test]
fn case_073_a_timeout_keeps_the_shell() {
    let agent = Agent::start();
    agent.out("cd /usr; export K=1; f(){ echo F; }; set -- a b");
    let bash = agent.out("echo $$");
    for _ in 0..5 {
        assert_eq!(agent.run_for(1, "L=$((L+1)); sleep 9").exit_code, 124);
    }
    let result = agent.run("pwd; echo $K $L $#; f");
    assert_eq!(
        (result.stdout.as_str(), result.session_reset.as_deref()),
        ("/usr\n1 5 2\nF\n", None)
    );
    assert_eq!(agent.out("echo $$"), bash);
}

/// A bash that gets no processor stops late: it may still collect the call's child, or start it, while that is being ended.
#[test]
fn case_073_a_busy_sandbox_keeps_the_shell() {
    let agent = Agent::start();
    agent.out("for job in 1 2 3; do while :; do :; done & done");
    for round in 0..60 {
        let mut running = agent.begin(&json!({"command": "touch begun; sleep 99; touch after"}), "*/*");
        agent.until_file("begun");
        agent.cancel();
        assert_eq!(receive(&mut running).unwrap().result().exit_code, 130);
        let result = agent.run("rm begun; jobs -p | wc -l; ls");
        assert_eq!(
            (result.stdout.as_str(), result.session_reset),
            ("3\n", None),
            "round {round}"
        );
    }
}

#[test]
fn case_076_no_words_about_the_agents_own_kills() {
    let agent = Agent::start();
    for command in [
        "(sleep 500; sleep 500) & sleep 500",
        "yes | grep -v y | cat",
        "set -m; sleep 500 & sleep 500",
        "sleep 500 & wait",
    ] {
        assert_eq!(agent.run_for(1, command).exit_code, 124);
        for _ in 0..3 {
            let result = agent.run("true");
            assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", ""), "{command}");
        }
    }
}

#[test]
fn case_077_wait_for_a_job_that_never_ends() {
    let agent = Agent::start();
    agent.out("sleep 300 &");
    assert_eq!(agent.run_for(1, "wait").exit_code, 124);
    assert!(agent.run("jobs").stdout.contains("sleep 300"));
    agent.out("kill %1; wait");
    assert_eq!(agent.out("wait; echo done"), "done\n");
}

#[test]
fn case_078_timeouts_out_of_range() {
    let agent = Agent::start();
    for timeout in [
        json!(0),
        json!(-5),
        json!(301),
        json!(1.5),
        json!("5"),
        json!(1e9),
        json!(true),
        json!([]),
    ] {
        let answer = agent.exec_body(&json!({"command": "touch ran", "timeout": timeout}));
        assert_eq!(answer.status, 400, "{timeout}");
        assert!(answer.error().contains("1 to 300"), "{answer:?}");
    }
    assert_eq!(
        agent
            .exec_body(&json!({"command": "ls", "timeout": null}))
            .result()
            .stdout,
        ""
    );
    assert_eq!(agent.exec_body(&json!({"command": "ls", "timeout": 300})).status, 200);
}

#[test]
fn a_timeout_of_a_flood_and_of_a_fork_storm_comes_in_time() {
    let agent = Agent::start();
    let begun = Instant::now();
    let result = agent.run_for(1, "for i in {1..8}; do yes & done; wait");
    assert_eq!(result.exit_code, 124);
    let result = agent.run_for(
        1,
        "ulimit -u 4000; b() { for i in 1 2 3 4; do sleep 0.2 & done; }; while :; do b; done 2>/dev/null",
    );
    assert_eq!(result.exit_code, 124);
    assert!(begun.elapsed() < GENEROUS);
    agent.until_quiet();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(agent.run("echo ok").stdout, "ok\n");
}

#[test]
fn commands_come_behind_the_agent_in_a_pod_of_its_own() {
    // sched(7): SCHED_OTHER is 0, SCHED_IDLE is 5. proc_pid_stat(5): the policy is field 41, and the name ends before field 3.
    let policy = "stat=$(</proc/$BASHPID/stat); set -- ${stat##*) }; echo ${39}";
    let policies = format!("{policy}; ({policy}) & wait; bash -c '{policy}'");
    let own = std::process::Command::new("bash")
        .args(["-c", policy])
        .output()
        .unwrap();
    let own = String::from_utf8(own.stdout).unwrap();
    assert_eq!(Agent::start().out(&policies), own.repeat(3), "as the agent was started");
    let Some(setup) = Setup::contained() else { return };
    let agent = setup.start();
    assert_eq!(agent.out(&policies), "5\n5\n5\n");
    assert_eq!(agent.run("kill -9 $$").exit_code, 137);
    assert_eq!(agent.out(&policies), "5\n5\n5\n", "in the shell that replaced it");
}

#[test]
fn too_many_processes_are_ended_before_they_fill_the_sandbox() {
    let Some(setup) = Setup::contained() else {
        return;
    };
    let agent = setup.env("SANDBOX_MAX_PROCESSES", "150").start();
    // No fork bomb, which nothing here would hold, but as hard to catch: each goes on while others are looked at.
    agent.out("K=1; cd /usr; grow() { while :; do setsid sleep 1000 & sleep 0.02; done; }");
    let grow = "for i in {1..8}; do grow & done";
    // In a call.
    let result = agent.run_for(80, &format!("sleep 1000 & {grow}; sleep 1000; touch ~/after"));
    assert!(!result.timed_out, "{result:?}");
    assert_eq!(result.exit_code, 137, "{result:?}");
    assert!(
        result.stderr.ends_with(
            "cli-mcp: the sandbox had more than 150 processes; the command was ended, and with it all that earlier ones had left running\n"
        ),
        "{}",
        result.stderr
    );
    let few = "set -- /proc/[0-9]*; echo $(($# < 10)) $K $PWD";
    agent.until(few, "1 1 /usr\n");
    assert!(!agent.home.path().join("after").exists());
    // Between two calls.
    assert_eq!(agent.run(grow).exit_code, 0);
    until("they are ended", || {
        let result = agent.run(few);
        let told = result.stderr + &result.session_reset.unwrap_or_default();
        told.contains("the sandbox had more than 150 processes")
    });
    agent.until(few, "1 1 /usr\n");
    // As many as may be are let be.
    let result = agent.run("for i in {1..100}; do sleep 0.5 & done; wait; echo all");
    assert_eq!((result.stdout.as_str(), result.session_reset), ("all\n", None));
}

/// Those without job control ignore interrupts too, and nothing waits for them.
#[test]
fn jobs_in_the_background_of_a_timed_out_call_cost_no_shell() {
    let agent = Agent::start();
    let bash = agent.out("echo $$");
    for command in [
        "sleep 99 & sleep 99",
        "(sleep 99; touch ~/after) & wait",
        "sleep 99 | cat & sleep 99 | cat",
        "setsid sleep 99 & sleep 99",
        "cat <(sleep 99) & coproc sleep 99; while :; do :; done",
        "exec 5> >(sleep 99); sleep 99 & while :; do sleep 0.1; done",
    ] {
        assert_eq!(agent.run_for(1, command).exit_code, 124, "{command}");
        agent.until_quiet();
        let result = agent.run("exec 5>&-; echo $$");
        assert_eq!((result.stdout, result.session_reset), (bash.clone(), None), "{command}");
    }
    assert!(!agent.home.path().join("after").exists());
}

/// A cancel may come at any moment, also while bash reads the agent's own line for the call, or tells its status.
#[test]
fn a_burst_of_cancels_costs_no_state() {
    let agent = Agent::start();
    agent.out("KEEP=1; cd /usr");
    let bash = agent.out("echo $$");
    let address = agent.address;
    let over = Arc::new(AtomicBool::new(false));
    let canceller = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            while !over.load(Ordering::Relaxed) {
                cancel_at(address);
            }
        }
    });
    let results: Vec<_> = (0..150)
        .map(|call| (call, agent.run(&format!("echo {call} $KEEP"))))
        .collect();
    over.store(true, Ordering::Relaxed);
    canceller.join().unwrap();
    assert!(
        results.iter().any(|(_, result)| result.exit_code == 130),
        "nothing was cancelled"
    );
    for (call, result) in results {
        assert_eq!(result.session_reset, None, "{call}: {result:?}");
        if result.exit_code == 0 {
            assert_eq!(result.stdout, format!("{call} 1\n"));
        }
    }
    assert_eq!(agent.out("echo $PWD $$"), format!("/usr {bash}"));
}
