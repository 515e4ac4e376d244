//! Descriptors that a command closes, or puts something else in place of.

use crate::harness::Agent;

const CLOSE_ALL_BUT_THREE: &str =
    "for fd in $(ls /proc/$$/fd); do ((fd > 2)) && eval \"exec $fd>&-\"; done; echo out; echo err >&2; false";

#[test]
fn descriptors_that_a_command_closes_cost_no_shell() {
    let agent = Agent::start();
    agent.out("K=1; sleep 300 & J=$!");
    for close in [
        "exec 10>&- 11<&- 12>&-; echo out; echo err >&2; false",
        "for fd in {3..255}; do eval \"exec $fd>&-\"; done; echo out; echo err >&2; false",
        CLOSE_ALL_BUT_THREE,
    ] {
        let result = agent.run(close);
        assert_eq!(
            (result.exit_code, result.stdout.as_str()),
            (1, "out\n"),
            "{close}: {result:?}"
        );
        assert!(result.stderr.starts_with("err\n"), "{close}: {result:?}");
        assert!(
            !result.stderr.contains("TIMEFORMAT") && !result.stderr.contains('\u{1f}'),
            "{close}: {result:?}"
        );
        let next = agent.run("echo \"$? $K\"; echo err >&2; kill -0 $J");
        assert_eq!(
            (
                next.stdout.as_str(),
                next.stderr.as_str(),
                next.exit_code,
                next.session_reset
            ),
            ("1 1\n", "err\n", 0, None),
            "after {close}"
        );
    }
    let all = "for fd in $(ls /proc/$$/fd); do eval \"exec $fd>&-\"; done";
    assert_eq!(agent.run(all).session_reset, None);
    assert_eq!(agent.run("echo $K").stdout, "1\n");
}

#[test]
fn every_number_but_the_last_ones_is_the_users() {
    let agent = Agent::start();
    agent.out("printf 'echo owned\\nsecond\\nthird\\n' > lines");
    for number in [4, 9, 10, 11, 12, 13, 63, 99, 200, 251] {
        let first = format!("exec {number}<lines; read -u {number} x; echo $x");
        assert_eq!(agent.out(&first), "echo owned\n", "{number}");
        assert_eq!(
            agent.out(&format!("read -u {number} x; echo $x")),
            "second\n",
            "{number}"
        );
        assert_eq!(
            agent.out(&format!("cat <&{number}; exec {number}<&-")),
            "third\n",
            "{number}"
        );
    }
    // What a shell keeps for itself is no child's.
    assert_eq!(agent.out("ls /proc/self/fd"), "0\n1\n2\n3\n");
}

#[test]
fn what_a_command_puts_in_place_of_the_shells_own_costs_no_shell() {
    let agent = Agent::start();
    agent.out("K=1; printf 'echo owned\\necho owned\\necho owned\\n' > lines");
    for number in 252..262 {
        let result = agent.run(&format!("exec {number}<lines; echo $K; false"));
        assert_eq!(
            (result.stdout.as_str(), result.exit_code),
            ("1\n", 1),
            "{number}: {result:?}"
        );
        let next = agent.run("echo $? $K; cat; echo err >&2");
        assert_eq!(
            (next.stdout.as_str(), next.stderr.as_str(), next.session_reset),
            ("1 1\n", "err\n", None),
            "{number}"
        );
        agent.run(&format!("exec {number}<&-"));
        assert_eq!(agent.run("echo $K").stdout, "1\n", "{number}");
    }
}

#[test]
fn an_interrupted_call_leaves_its_descriptors_in_order() {
    let agent = Agent::start();
    let open = agent.out("ls /proc/$$/fd");
    for _ in 0..2 {
        assert!(agent.run_for(1, "sleep 99").timed_out);
        assert_eq!(agent.run("kill -INT $$").exit_code, 130);
        let result = agent.run("echo out; echo err >&2");
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(agent.out("ls /proc/$$/fd"), open);
    }
}

#[test]
fn a_limit_of_descriptors_below_the_shells_own_hides_no_status() {
    let agent = Agent::start();
    agent.out("K=1");
    for limit in [300, 256, 100, 20] {
        assert_eq!(
            agent
                .run(&format!(
                    "ulimit -Sn {limit}; echo in; exit_code() {{ return 3; }}; exit_code"
                ))
                .exit_code,
            3
        );
        let next = agent.run("echo $K; (exit 4)");
        assert_eq!(
            (next.stdout.as_str(), next.exit_code, next.session_reset),
            ("1\n", 4, None),
            "{limit}"
        );
    }
}

#[test]
fn a_limit_below_the_standard_descriptors_costs_no_status_where_a_trap_is_set_for_the_end() {
    for limit in ["ulimit -n 0", "ulimit -n 2"] {
        let agent = Agent::start();
        for command in [
            format!("trap ':' EXIT; {limit}"),
            format!("trap ':' EXIT; f() {{ {limit}; }}; f"),
        ] {
            let result = agent.run(&command);
            assert_eq!((result.exit_code, result.stderr.as_str()), (0, ""), "{command}");
            assert!(
                agent
                    .run("true")
                    .session_reset
                    .unwrap()
                    .contains("limit of open descriptors"),
                "{command}"
            );
        }
        agent.out("trap ':' EXIT; three() { return 3; }");
        let result = agent.run(&format!("{limit}; three"));
        assert_eq!((result.exit_code, result.stderr.as_str()), (3, ""), "{limit}");
    }
}

#[test]
fn a_limit_below_the_standard_descriptors_shows_nothing_of_the_agents() {
    let agent = Agent::start();
    agent.out("K=1");
    for (limit, told) in [
        ("ulimit -Sn 0", ""),
        ("ulimit -Sn 1", ""),
        ("ulimit -Sn 2; set -x", "++ exit_code\n++ return 3\n"),
        ("ulimit -Sn 0; : >/dev/null", "bash: /dev/null: Too many open files\n"),
        ("lower() { ulimit -n 0; }; lower", ""),
    ] {
        let command = format!("cd /usr; exit_code() {{ return 3; }}; echo out; echo err >&2; {limit}; exit_code");
        let result = agent.run(&command);
        assert_eq!(
            (result.stdout.as_str(), result.stderr, result.exit_code),
            ("out\n", format!("err\n{told}"), 3),
            "{limit}"
        );
        let next = agent.run("echo $K $PWD; cd /; (exit 4)");
        assert_eq!((next.stdout.as_str(), next.exit_code), ("1 /usr\n", 4), "{limit}");
        let reset = next.session_reset.unwrap();
        assert!(reset.contains("limit of open descriptors"), "{limit}: {reset}");
        assert_eq!(agent.run("true").session_reset, None, "{limit}");
    }
    for (ended, code) in [("exit 5", 5), ("set -e; false", 1), ("kill -INT $$", 130)] {
        let result = agent.run(&format!("echo err >&2; ulimit -Sn 2; {ended}"));
        assert_eq!((result.stderr.as_str(), result.exit_code), ("err\n", code), "{ended}");
        assert_eq!(agent.out("echo $K"), "1\n", "{ended}");
    }
}
