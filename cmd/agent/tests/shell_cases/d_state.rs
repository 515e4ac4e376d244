//! Section D: state that poisons the wrapper.

use cli_mcp_sandbox::wire::StreamLine;

use crate::harness::{Agent, Setup};

#[test]
fn case_051_functions_and_aliases_named_like_builtins() {
    let agent = Agent::start();
    agent.out(
        "echo(){ :; }; printf(){ command echo HIJACK; }; cd(){ :; }; eval(){ :; }; source(){ :; }; command(){ :; }; builtin(){ :; }; \
         test(){ return 1; }; set(){ :; }; exit(){ :; }; trap(){ :; }; declare(){ :; }; unset(){ :; }; return(){ :; }; shopt(){ :; }",
    );
    assert_eq!(agent.out("ls -d /"), "/\n");
    assert_eq!(agent.out("echo mine"), "");
    assert_eq!(agent.run("(kill -9 $BASHPID)").exit_code, 137);
    assert_eq!(agent.out("ls -d /usr"), "/usr\n");
    agent.run("kill -9 $$");
    assert_eq!(agent.out("ls -d /usr; echo still mine"), "/usr\n");

    let agent = Agent::start();
    agent.out("function . { :; }");
    assert_eq!(agent.out("ls -d /"), "/\n");
    agent.out("builtin() { :; }; command() { :; }");
    assert_eq!(agent.run("ls -d /usr").stdout, "/usr\n");
    assert_eq!(agent.out("ls -d /"), "/\n");

    let agent = Agent::start();
    agent.out("alias time='echo T' set='echo S' exit='echo E' '[['='echo B' '{'='echo C' '!'='echo N' if='echo I'");
    assert_eq!(agent.run("ls -d /").stdout, "/\n");
    assert_eq!(agent.run("ls -d /nosuch").exit_code, 2);
    assert_eq!(agent.run("ls -d /usr").stdout, "/usr\n");
}

#[test]
fn case_058_a_working_directory_that_is_gone() {
    let agent = Agent::start();
    agent.out("mkdir -p d/e; cd d/e; rmdir ../e");
    assert!(agent.run("echo hi; pwd").stdout.starts_with("hi\n"));
    assert_eq!(agent.out("cd /usr && pwd"), "/usr\n");
    agent.out("mkdir -p ~/d/e; cd ~/d/e; rm -r ../../d");
    agent.run("kill -9 $$");
    let result = agent.run("pwd -P");
    assert_eq!(
        result.stdout.trim(),
        agent.home.path().canonicalize().unwrap().to_str().unwrap()
    );
    assert!(
        result
            .session_reset
            .unwrap()
            .contains("is gone, the working directory is now")
    );
}

#[test]
fn case_058_a_new_shell_has_no_directory_to_go_back_to() {
    let agent = Agent::start();
    assert_eq!(agent.run("cd -").stderr, "bash: cd: OLDPWD not set\n");
    agent.run("kill -9 $$");
    assert_eq!(agent.run("cd -").stderr, "bash: cd: OLDPWD not set\n");
    agent.out("cd /usr; cd /tmp");
    agent.run("kill -9 $$");
    assert_eq!(agent.out("cd -"), "/usr\n");
}

#[test]
fn case_059_declarations_are_at_top_level() {
    let agent = Agent::start();
    agent.out("declare -A m=([a]=1); declare -i n=5; f(){ echo F; }; export -f f; alias g='echo G'; shopt -s nullglob");
    assert_eq!(
        agent
            .run("echo ${m[a]} $n; f; bash -c f; shopt -q nullglob; echo $?")
            .stdout,
        "1 5\nF\nF\n0\n"
    );
    let result = agent.run("local z=1");
    assert!(
        result.exit_code == 1 && result.stderr.contains("can only be used in a function"),
        "{result:?}"
    );
}

#[test]
fn case_061_state_is_the_shells_own() {
    let agent = Agent::start();
    agent.out("cd /usr; export A=1; umask 077; set -- a b; false || true");
    assert_eq!(agent.out("pwd; echo $A; umask; echo $#"), "/usr\n1\n0077\n2\n");
    assert_eq!(agent.run("(exit 42)").exit_code, 42);
    assert_eq!(agent.out("echo $?"), "42\n");
    agent.out("exec 7>held; (sleep 0.1) & saved=$!");
    assert_eq!(
        agent.out(
            "[[ $! == $saved ]] && echo same; echo x >&7; cat ~/held 2>/dev/null || cat /usr/held; rm -f /usr/held"
        ),
        "same\nx\n"
    );
}

#[test]
fn case_062_aliases() {
    let agent = Agent::start();
    agent.out("alias ll='ls -d'");
    assert_eq!(agent.out("ll /etc/hostname"), "/etc/hostname\n");
    assert_eq!(agent.out("alias x='echo X'\nx"), "X\n");
}

#[test]
fn case_064_job_control_of_the_users() {
    let agent = Agent::start();
    let result = agent.run_for(1, "set -m; sleep 100");
    assert_eq!(result.exit_code, 124);
    agent.until_quiet();
    assert_eq!(agent.run("set +m; echo ok").stdout, "ok\n");
    let result = agent.run_for(1, "set -m; sleep 100 & sleep 100 | cat");
    assert_eq!(result.exit_code, 124);
    agent.until_quiet();
}

#[test]
fn surroundings_of_bash_do_not_reach_the_session() {
    let home = tempfile::tempdir().unwrap();
    for file in [".bashrc", ".bash_profile", ".profile", ".bash_login", "env"] {
        std::fs::write(home.path().join(file), "echo HOSTILE; sleep 1000; exit 9\n").unwrap();
    }
    let agent = Setup::new()
        .home(home.path())
        .env("BASH_ENV", home.path().join("missing").to_str().unwrap())
        .env("ENV", home.path().join("env").to_str().unwrap())
        .env("SHELLOPTS", "noexec:errexit:xtrace:posix")
        .env("BASHOPTS", "extdebug")
        .env("POSIXLY_CORRECT", "1")
        .env("PROMPT_COMMAND", "sleep 1000")
        .env("PS1", "$(sleep 1000)")
        .env("TMOUT", "1")
        .env("HISTFILE", "/dev/full")
        .start();
    let result = agent.run("echo ok; bash -c 'echo child'");
    assert_eq!(result.stdout, "ok\nchild\n");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(agent.run("echo ok").session_reset, None);
}

#[test]
fn aliases_called_like_keywords_change_nothing() {
    let agent = Agent::start();
    for name in ["time", "!", "[[", "{", "if", "for", "_"] {
        for define in [
            format!("alias '{name}=false'"),
            format!("BASH_ALIASES['{name}']=false"),
            format!("echo \"alias '{name}=false'\" >~/s; . ~/s"),
        ] {
            let result = agent.run(&format!("K=1; {define}; (exit 7)"));
            assert_eq!((result.exit_code, result.session_reset), (7, None), "{define}");
            let result = agent.run("(exit 5)");
            assert_eq!((result.exit_code, result.session_reset), (5, None), "{define}");
            let result = agent.run("echo $K");
            assert_eq!(
                (result.stdout.as_str(), result.session_reset),
                ("1\n", None),
                "{define}"
            );
            assert_eq!(agent.run("shopt -q expand_aliases").exit_code, 0, "{define}");
            assert_eq!(agent.run("exit 3").exit_code, 3, "{define}");
            assert_eq!(agent.run("(exit 4)").exit_code, 4, "{define}");
            assert_eq!(agent.out(&format!("\\unalias '{name}'; K=; alias")), "", "{define}");
        }
    }
    assert_eq!(agent.run("shopt -u expand_aliases; alias '!'=false").exit_code, 0);
    assert_eq!(agent.run("(exit 6)").exit_code, 6);
    assert_eq!(agent.run("shopt -q expand_aliases").exit_code, 1);
}

#[test]
fn a_time_format_that_cannot_be_set_hides_no_status() {
    for attribute in ["readonly", "declare -u", "declare -i", "declare -a", "declare -n"] {
        let agent = Agent::start();
        agent.out("K=1");
        let result = agent.run(&format!("{attribute} TIMEFORMAT; (exit 7)"));
        assert_eq!((result.exit_code, result.session_reset), (7, None), "{attribute}");
        for code in [5, 0, 1] {
            let result = agent.run(&format!("(exit {code})"));
            assert_eq!((result.exit_code, result.session_reset), (code, None), "{attribute}");
        }
        assert_eq!(agent.out("echo $K"), "1\n", "{attribute}");
    }
    let agent = Agent::start();
    agent.out("f() { readonly TIMEFORMAT; return 9; }");
    assert_eq!(agent.run("f").exit_code, 9);
    assert_eq!(agent.run("(exit 3)").exit_code, 3);
    let agent = Agent::start();
    assert_eq!(agent.run("declare -n TIMEFORMAT=zz; (exit 7)").exit_code, 7);
    assert_eq!(agent.run("false").exit_code, 1);
    assert_eq!(agent.out("echo \"[$zz]\""), "[]\n");
    for code in [0, 6] {
        let agent = Agent::start();
        agent.out("echo 'readonly TIMEFORMAT' >~/s");
        assert_eq!(agent.run(&format!(". ~/s; (exit {code})")).exit_code, code);
        assert_eq!(agent.run("true").exit_code, 0);
        assert_eq!(agent.out("echo $?"), "0\n");
    }
}

#[test]
fn an_unclosed_condition_costs_the_next_call_nothing() {
    let agent = Agent::start();
    agent.out("K=1; sleep 300 &");
    for command in ["[[", "[[ -v", "[[ a == b &&", "{ [[ x", "eval '[['", "if [["] {
        let result = agent.run(command);
        assert!(
            result.exit_code != 0 && !result.stderr.is_empty(),
            "{command}: {result:?}"
        );
        let result = agent.run("echo $K; jobs -r | wc -l");
        assert_eq!(
            (result.stdout.as_str(), result.stderr.as_str(), result.session_reset),
            ("1\n1\n", "", None),
            "{command}"
        );
    }
}

#[test]
fn builtins_that_are_switched_off_are_missed_by_the_user_alone() {
    let agent = Agent::start();
    agent.out("K=1; enable -n printf declare set unset cd test [ umask shopt");
    agent.run("K=2");
    assert_eq!(agent.run("exit 3").exit_code, 3);
    assert_eq!(agent.run("echo $K").stdout, "2\n");
}

#[test]
fn what_answers_in_place_of_a_command_is_not_taken_for_it() {
    let command = format!("echo real $K; false # {}", "x".repeat(5000));
    for (state, costs_a_shell) in [
        (
            "K=1; .() { echo DOT; }; builtin() { echo B; }; command() { echo C; }",
            true,
        ),
        ("K=1; enable -n . source builtin command exec", true),
        ("K=1; .() { echo DOT; }; enable -n builtin", false),
    ] {
        let agent = Agent::start();
        agent.out(state);
        let lines = agent.stream(&command);
        let [StreamLine::Chunk(chunk), StreamLine::Result(result)] = lines.as_slice() else {
            panic!("{state}: {lines:?}")
        };
        assert_eq!(
            (chunk.data.as_str(), result.exit_code, result.session_reset.is_some()),
            ("real 1\n", 1, costs_a_shell),
            "{state}"
        );
        assert_eq!(agent.out("echo $K"), "1\n");
    }
    // Where the agent has no state on record it learns of it only now.
    let agent = Agent::start();
    agent.out("x=$(printf %09000000d); .() { echo DOT; }");
    let result = agent.run(&command);
    assert_eq!((result.stdout.as_str(), result.exit_code), ("real\n", 1), "{result:?}");
    assert!(result.session_reset.is_some());
}

#[test]
fn functions_called_like_builtins_survive_their_shell() {
    let agent = Agent::start();
    let names = [
        "printf", "enable", "shopt", "declare", "compgen", "alias", "ulimit", "umask", "local", "export", "typeset",
    ];
    let define: String = names
        .iter()
        .map(|name| format!("{name}() {{ builtin echo my {name}; }}; "))
        .collect();
    let prefix = "K=1; f() { echo F; }; builtin export -f f";
    agent.out(&format!(
        "{prefix}; {define} builtin export -f umask declare; readonly -f alias"
    ));
    let calls = names.join("; ");
    let expected: String = names.iter().map(|name| format!("my {name}\n")).collect();
    for end in [
        "exit 3",
        "kill -9 $$",
        "trap 'echo D >/dev/null' DEBUG; exit 4",
        "exit 5",
    ] {
        agent.run(end);
        assert_eq!(agent.run(&calls).stdout, expected, "{end}");
        assert_eq!(
            agent
                .run("echo $K; builtin declare -F; bash -c 'f; umask; declare; printf ok'")
                .stdout,
            "1\ndeclare -fr alias\ndeclare -f compgen\ndeclare -fx declare\ndeclare -f enable\ndeclare -f export\n\
             declare -fx f\ndeclare -f local\ndeclare -f printf\ndeclare -f shopt\ndeclare -f typeset\n\
             declare -f ulimit\ndeclare -fx umask\nF\nmy umask\nmy declare\nok",
            "{end}"
        );
    }
}
