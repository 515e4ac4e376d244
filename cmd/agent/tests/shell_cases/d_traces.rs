//! Section D: traces, traps and prompts, which see more than commands.

use cli_mcp_sandbox::wire::StreamLine;

use crate::harness::Agent;

#[test]
fn a_prompt_that_cannot_be_taken_away_changes_no_status() {
    for prompt in ["readonly PS1=y", "readonly PS0=y", "readonly PS1=y PS0=z TMOUT=9"] {
        let agent = Agent::start();
        agent.out(prompt);
        for (command, code) in [("true", 0), ("(exit 4)", 4), ("K=1", 0)] {
            let result = agent.run(command);
            assert_eq!(
                (result.exit_code, result.stderr.as_str()),
                (code, ""),
                "{prompt}: {command}"
            );
        }
        assert_eq!(agent.out("echo $? $K"), "0 1\n", "{prompt}");
    }
}

#[test]
fn case_053_no_trap_of_the_agents_is_shown() {
    for command in ["exit 3", "env --ignore-signal=INT sleep 99", "sleep 99 & wait"] {
        let agent = Agent::start();
        let result = agent.run_for(1, &format!("set -v\n{command}"));
        let note = if result.timed_out {
            "cli-mcp: timed out after 1 s; the command was ended\n"
        } else {
            ""
        };
        assert_eq!(result.stderr, format!("{command}\n{note}"));
    }
    let agent = Agent::start();
    agent.out("set -v");
    let lines = agent.stream("exit 3");
    let heard: String = lines
        .iter()
        .filter_map(|line| match line {
            StreamLine::Chunk(chunk) => Some(chunk.data.as_str()),
            StreamLine::Result(_) => None,
        })
        .collect();
    assert_eq!(heard, "exit 3\n");
    // What only looks so is the command's own.
    let result = agent.run("set +v; eval \"set -- $(trap -p EXIT)\"; printf '%s\\n' \"$3\" >&2; exit 3");
    assert!(result.stderr.contains("_X=$? CLI_MCP_"), "{result:?}");
}

#[test]
fn case_053_tracing_shows_the_users_commands_only() {
    let agent = Agent::start();
    let result = agent.run("set -x; true");
    assert_eq!(result.stderr.trim_start_matches('+'), " true\n");
    let result = agent.run("echo hi");
    assert_eq!(result.stdout, "hi\n");
    assert!(result.stderr.trim_start_matches('+') == " echo hi\n", "{result:?}");
    assert_eq!(agent.run("set +x").stderr.trim_start_matches('+'), " set +x\n");
    assert_eq!(agent.run("(exit 3)").stderr, "");
    agent.run("set -v");
    let result = agent.run("echo one\necho two\n");
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str()),
        ("one\ntwo\n", "echo one\necho two\n"),
        "{result:?}"
    );
    agent.run("set +v");
    for options in [
        "set -v",
        "set -a; set -v",
        "set -av; TIMEFORMAT=%R",
        "set -avx; TIMEFORMAT=%R",
    ] {
        assert_eq!(agent.run(options).exit_code, 0, "{options}");
        let result = agent.run("echo v");
        assert_eq!(
            (result.exit_code, result.stdout.as_str(), result.session_reset),
            (0, "v\n", None),
            "{options}"
        );
        assert!(!result.stderr.contains("/proc"), "{options}: {}", result.stderr);
        agent.run("set +avx; unset TIMEFORMAT");
    }
    let result = agent.run("PS4='$(echo boo >&2)+'; set -x; echo ok; set +x");
    assert_eq!((result.stdout.as_str(), result.exit_code), ("ok\n", 0));
    assert_eq!(
        agent
            .run("set -x; exit 4")
            .stderr
            .trim_start_matches(['+', 'b', 'o', '\n', ' ']),
        "exit 4\n"
    );
}

#[test]
fn traces_in_a_file_show_the_users_commands_only() {
    let agent = Agent::start();
    agent.out("exec 7>~/xt; BASH_XTRACEFD=7; set -x; : one");
    assert_eq!(agent.out("echo two"), "two\n");
    assert_eq!(agent.run("ls /nosuch 2>/dev/null").exit_code, 2);
    agent.out("x=$BASH_XTRACEFD; set +x");
    assert_eq!(
        agent.out("cat ~/xt; echo \"$x ${CLI_MCP_T-none}\""),
        "++ : one\n++ echo two\n++ ls /nosuch\n++ x=7\n++ set +x\n7 none\n"
    );
    // Its number is the agent's as soon as the call is over.
    assert_eq!(agent.out("BASH_XTRACEFD=252; set -x; : three"), "++ : three\n");
    assert_eq!(agent.out("echo four; set +x"), "four\n");
    assert_eq!(agent.out("unset BASH_XTRACEFD; set -u; echo five"), "five\n");
    let result = agent.run("set -x; (exit 6)");
    assert_eq!((result.exit_code, result.stderr.as_str()), (6, "++ exit 6\n"));
}

#[test]
fn traces_whose_number_is_readonly_change_no_status() {
    for declare in [
        "declare -r BASH_XTRACEFD=1",
        "declare -irx BASH_XTRACEFD=2",
        "exec 7>~/xt; readonly BASH_XTRACEFD=7",
    ] {
        let agent = Agent::start();
        let result = agent.run(declare);
        assert_eq!((result.exit_code, result.stderr.as_str()), (0, ""), "{declare}");
        assert_eq!(agent.run("K=1; (exit 4)").exit_code, 4, "{declare}");
        assert_eq!(agent.out("echo $? $K"), "4 1\n", "{declare}");
    }
}

#[test]
fn case_054_traps() {
    let agent = Agent::start();
    agent.run("trap 'echo D >>d' DEBUG; trap 'echo E >>e' ERR; set -ET; trap 'echo bye' EXIT; : >d; : >e");
    let result = agent.run("false");
    assert_eq!((result.exit_code, result.stdout.as_str()), (1, ""));
    let count = |file: &str| {
        std::fs::read_to_string(agent.home.path().join(file))
            .unwrap()
            .lines()
            .count()
    };
    // Since 5.3 no form of a command keeps the ERR trap from the sourcing and not from what is sourced.
    let newer =
        agent.out("(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 503 )) && echo newer || echo older") == "newer\n";
    assert_eq!(count("e"), if newer { 2 } else { 1 });
    let result = agent.run("trap 'echo D' DEBUG; true");
    assert_eq!(result.stdout, "D\n");
    let result = agent.run("exit 3");
    assert_eq!(
        (result.exit_code, result.stdout.as_str()),
        (3, "D\nD\nbye\n"),
        "{result:?}"
    );
    let result = agent.run("trap - DEBUG ERR EXIT; echo clean");
    assert!(result.stdout.ends_with("clean\n"), "{result:?}");
    assert_eq!(agent.run("exit 2").stdout, "");
    // A DEBUG trap that skips commands cannot skip the end of a call.
    let agent = Agent::start();
    agent.run("shopt -s extdebug; set -T; trap false DEBUG");
    assert!(!agent.run_for(10, "echo skipped").timed_out);
    assert!(!agent.run("trap - DEBUG; shopt -u extdebug").timed_out);
}

#[test]
fn case_055_prompts() {
    let agent = Agent::start();
    agent.run("PS1='$ '; PS0=zz; PS2='>>'; PROMPT_COMMAND='echo PC; false'; PS4='$(echo boo >&2)+'");
    let result = agent.run("echo ok");
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str(), result.exit_code),
        ("ok\n", "", 0)
    );
    assert_eq!(
        agent.out("echo \"$PS1|$PS0|$PS2|$PROMPT_COMMAND\""),
        "$ |zz|>>|echo PC; false\n"
    );
    // An interrupted shell shows its prompt before it says that it is there.
    agent.run("PS1='(venv) '; PROMPT_COMMAND=; J=1");
    assert!(agent.run_for(1, "sleep 99").timed_out);
    let result = agent.run("echo \"$J $PS1\"");
    assert_eq!((result.stdout.as_str(), result.session_reset), ("1 (venv) \n", None));
    // Nothing that a prompt would run may hold up, end or change a session.
    let agent = Agent::start();
    agent.run("PS1='$(sleep 1000)'; PROMPT_COMMAND=('sleep 1000' 'exit 7'); PS0='$(sleep 1000)'; TMOUT=1; TIMEFORMAT='%R 100%% it'\\''s'");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let result = agent.run("echo \"$TMOUT ${#PROMPT_COMMAND[@]}\"; time true");
    assert_eq!(
        (result.stdout.as_str(), result.session_reset.as_deref()),
        ("1 2\n", None)
    );
    assert!(
        result.stderr.starts_with("0.") && result.stderr.ends_with(" 100% it's\n"),
        "{result:?}"
    );
    agent.until_quiet();
    let agent = Agent::start();
    for poison in [
        "readonly TIMEFORMAT=x",
        "readonly PROMPT_COMMAND=true PS1=x TMOUT=9",
        "readonly PIPESTATUS",
        "unset PIPESTATUS TIMEFORMAT",
    ] {
        agent.run_for(10, poison);
        let result = agent.run_for(10, "echo ok; (exit 3)");
        assert_eq!(
            (result.stdout.as_str(), result.exit_code, result.timed_out),
            ("ok\n", 3, false),
            "{poison}"
        );
    }
}
