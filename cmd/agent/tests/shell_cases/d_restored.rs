//! Section D: what a replaced shell brings back, kind by kind, whichever way the last one ended.

use crate::harness::{Agent, Setup};

/// Both ways to a state: printed by the shell that ends itself, and on record from before.
const ENDS: [&str; 2] = ["exit 3", "kill -9 $$"];

fn restored(define: &str, show: &str, expected: &str) {
    for end in ENDS {
        let agent = Agent::start();
        agent.run(define);
        agent.run(end);
        let result = agent.run(show);
        assert_eq!(result.stdout, expected, "{define}; {end}: {result:?}");
        assert!(result.session_reset.unwrap().contains("are restored"), "{define}");
        // What was brought back is on record again as it was.
        agent.run("kill -9 $$");
        assert_eq!(agent.run(show).stdout, expected, "{define}; {end}, twice");
    }
}

#[test]
fn what_is_declared_without_a_value_and_what_is_not_exported_comes_back_so() {
    restored(
        "declare plain; declare -x exported; cd /usr; cd /; declare +x OLDPWD PAGER; unset EDITOR",
        "declare -p plain exported OLDPWD PAGER; echo \"${EDITOR-unset}\"; env | grep -c '^OLDPWD\\|^PAGER'",
        "declare -- plain\ndeclare -x exported\ndeclare -- OLDPWD=\"/usr\"\ndeclare -- PAGER=\"cat\"\nunset\n0\n",
    );
    restored("unset OLDPWD", "declare -p OLDPWD; echo \"${OLDPWD-unset}\"", "unset\n");
    restored("true", "declare -p OLDPWD", "declare -x OLDPWD\n");
}

#[test]
fn names_of_the_agents_that_are_readonly_keep_no_state_back() {
    restored(
        "for n in A B C D E F G I L M N O P Q R S T X Z; do readonly CLI_MCP_$n=1; done; K=1; f() { echo F; }",
        "echo $K; f",
        "1\nF\n",
    );
}

#[test]
fn a_function_that_bash_reads_only_with_extglob_costs_no_other() {
    restored(
        "shopt -s extglob\nf() { case xy in !(z)) echo F; esac; }\nshopt -u extglob; zz() { echo ZZ; }; alias q='echo Q'; \
         e() { echo E; }; export -f e; eval() { builtin eval \"$@\"; }; shopt() { builtin shopt \"$@\"; }",
        "zz; q; bash -c e; shopt -q extglob || echo off; declare -F shopt eval; (shopt -s extglob; f)",
        "ZZ\nQ\nE\noff\nshopt\neval\nF\n",
    );
}

#[test]
fn a_function_that_bash_does_not_read_again_is_named() {
    for end in ENDS {
        let agent = Agent::start();
        agent.out("a() { :; }; c() { echo C; }; alias q='echo Q'");
        // 5.1 reads no such function, and 5.3 reads its own text of it.
        agent.run("bad() { case $1 in (esac) echo;; esac; }");
        let unreadable = agent
            .run("T=$(declare -f bad) && ! (eval \"$T\") 2>/dev/null")
            .exit_code
            == 0;
        agent.run(end);
        let result = agent.run("c; q; echo \"${!CLI_MCP_*}\"");
        assert_eq!(result.stdout, "C\nQ\n\n", "{end}");
        let notice = result.session_reset.unwrap();
        assert_eq!(notice.ends_with(" again: bad."), unreadable, "{end}: {notice}");
    }
}

#[test]
fn functions_with_odd_names_are_restored() {
    restored(
        "for n in a=b -x a/b '[x]' 'a%b' '*' '?' @ 1 '~x' if 'a[1]=c' \u{e9} $'\\xff'; do eval \"function $n { echo \\\"ran $n\\\"; }\"; done; \
         declare -fx -- -x; readonly -f 'a=b'; after() { echo A; }",
        "set -f; declare -F | wc -l; \\a=b; \\-x; \\a/b; '[x]'; a%b; '*'; '?'; '~x'; \\if; \u{e9}; after; $'\\xff' | od -An -tx1; declare -F | grep -- '-x$\\|a=b'",
        "15\nran a=b\nran -x\nran a/b\nran [x]\nran a%b\nran *\nran ?\nran ~x\nran if\nran \u{e9}\nA\n 72 61 6e 20 ff 0a\n\
         declare -fx -x\ndeclare -fr a=b\n",
    );
}

#[test]
fn a_variable_called_like_the_agents_marks_is_a_variable() {
    restored("BEGIN=1; END=2; K=3", "echo $BEGIN $END $K", "1 2 3\n");
}

#[test]
fn traps_are_restored_with_those_that_sourcing_hides() {
    restored(
        "trap 'D=1' DEBUG; trap 'R=1' RETURN; trap $'echo \"U\n\"' USR1; :",
        "set -T; builtin :",
        "",
    );
    for end in ENDS {
        let agent = Agent::start();
        agent.run("trap 'D=1' DEBUG; trap 'R=1' RETURN; trap 'E=1' ERR; trap $'echo \"U\n\"' USR1; :");
        agent.run(end);
        agent.run("set -T");
        assert_eq!(
            agent.out("trap -p USR1 DEBUG ERR RETURN"),
            "trap -- 'echo \"U\n\"' SIGUSR1\ntrap -- 'D=1' DEBUG\ntrap -- 'E=1' ERR\ntrap -- 'R=1' RETURN\n",
            "{end}"
        );
    }
    let agent = Agent::start();
    agent.run("trap 'D=1' DEBUG; exit 3");
    agent.run("set -T");
    assert_eq!(agent.out("trap -p DEBUG"), "trap -- 'D=1' DEBUG\n");
}

#[test]
fn what_a_function_hides_is_restored_when_the_shell_ends_inside_it() {
    let agent = Agent::start();
    agent.out("set -- a b; trap 'E=1' ERR; trap 'R=1' RETURN");
    assert_eq!(agent.run("die() { exit 2; }; die q").exit_code, 2);
    let result = agent.run("echo \"$*\"; trap -p ERR RETURN");
    assert_eq!(result.stdout, "a b\ntrap -- 'E=1' ERR\ntrap -- 'R=1' RETURN\n");
    // 5.1 leaves the function first.
    let left =
        agent.out("(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 502 )) && echo left || echo inside") == "left\n";
    let notice = result.session_reset.unwrap();
    let said = "positional parameters and the DEBUG, ERR and RETURN traps are as that call found them.";
    assert_ne!(notice.ends_with(said), left, "{notice}");
}

#[test]
fn builtins_that_are_switched_off_stay_so() {
    restored("enable -n test", "enable -n", "enable -n test\n");
    let agent = Agent::start();
    agent.run("enable -n test printf");
    agent.run("exit 3");
    let result = agent.run("enable -n");
    assert_eq!(result.stdout, "enable -n test\n");
    assert!(result.session_reset.unwrap().ends_with(" led by them: printf."));
}

#[test]
fn a_shell_that_was_restricted_is_not_any_more_and_says_so() {
    let agent = Agent::start();
    agent.run("set -r");
    let result = agent.run("cd /usr && pwd");
    assert_eq!(result.stdout, "/usr\n");
    assert!(result.session_reset.unwrap().contains("It was restricted"));
}

#[test]
fn a_value_that_reads_like_a_declaration_is_a_value() {
    restored(
        "X=$'1\\ndeclare -i NONE=\"1\"\\n'; K=$'\"\\n]'; declare -A M=([$'\"\\n]']=$'\\n\"\\ndeclare -x NONE' ['a b']=2); A=($'\\n\\\\' \"'\"); Y=3",
        "echo \"$X${NONE-none} ${M[$K]} ${M[a b]} ${#A[@]} ${A[1]} $Y\"",
        "1\ndeclare -i NONE=\"1\"\nnone \n\"\ndeclare -x NONE 2 2 ' 3\n",
    );
}

#[test]
fn a_state_too_big_to_keep_does_not_cost_the_directory() {
    let agent = Agent::start();
    agent.out("big=$(head -c 9000000 /dev/zero | tr '\\0' a)");
    agent.out("cd /usr");
    agent.run("exit 1");
    let result = agent.run("pwd");
    assert_eq!(result.stdout, "/usr\n");
    let notice = result.session_reset.unwrap();
    assert!(
        notice.contains("the working directory is restored as it was last seen"),
        "{notice}"
    );
}

#[test]
fn a_state_that_takes_too_long_to_print_leaves_the_status_that_was_asked_for() {
    let agent = Agent::start();
    let result = agent.run("for ((i = 0; i < 60000; i++)); do declare V$i=1; done; exit 3");
    assert_eq!(result.exit_code, 3);
    let notice = agent.run("true").session_reset.unwrap();
    assert!(notice.contains("ended with status 3 "), "{notice}");
}

#[test]
fn attributes_of_variables_without_a_value_are_restored() {
    restored(
        "declare -i n; export EX; declare -A as; declare -a ar; declare -n ref; declare -l low; export HOME; unset HOME; export HOME",
        "(n=2+3; EX=1; as[x]=1; low=ABC; HOME=2; echo $n $low; env | grep -c '^EX\\|^HOME'; declare -p as; declare -p ar ref)",
        "5 abc\n2\ndeclare -A as=([x]=\"1\" )\ndeclare -a ar\ndeclare -n ref\n",
    );
}

#[test]
fn the_directory_is_the_kernels_where_the_variable_names_another() {
    for define in [
        "cd /usr; PWD=/etc",
        "cd /usr; unset PWD",
        "cd /; readonly PWD; cd /usr",
        "cd /usr; PWD=",
        "cd /usr; pwd() { echo /etc; }; PWD=x",
    ] {
        restored(define, "command pwd -P", "/usr\n");
    }
    // By the name that the user went by.
    restored(
        "ln -s /usr ~/link; cd ~/link; HERE=$PWD",
        "[[ $PWD == $HERE && $PWD == */link ]]; echo $?",
        "0\n",
    );
}

#[test]
fn a_separator_that_cannot_be_changed_hides_nothing() {
    restored(
        "X=1; readonly IFS; f() { echo F; }; alias q='echo Q'",
        "echo $X; f; q; Y=2",
        "1\nF\nQ\n",
    );
}

#[test]
fn bytes_that_are_no_text_are_restored() {
    restored(
        "mkdir -p $'x\\xff'; cd $'x\\xff'; V=$'v\\xff'; set -- $'p\\xff'; f() { printf '\u{e9}\\xff'; }; alias q=$'printf \\'%s\\' \\'a\\xff\\''; \
         eval $'g() { printf \"%s\" \"\\xff\"; }'; trap $'printf \\xff >~/t' USR1",
        "kill -USR1 $$; { printf '%s' \"${PWD##*/}\" \"$V\" \"$1\"; f; g; q; cat ~/t; } | od -An -tx1",
        " 78 ff 76 ff 70 ff c3 a9 ff ff 61 ff ff\n",
    );
}

#[test]
fn directory_stack_completions_and_found_commands_are_restored() {
    restored(
        "cd /; pushd /usr; pushd /etc; mkdir ~/'a b'; pushd -n ~/'a b'; complete -W 'x y' -o nospace foo; hash -p /bin/true bar",
        "dirs -l | sed \"s=$HOME=H=\"; complete -p; bar && hash -t bar",
        "/etc H/a b /usr /\ncomplete -o nospace -W 'x y' foo\n/bin/true\n",
    );
}

#[test]
fn a_local_variable_is_no_state_where_functions_may_not_nest() {
    for limit in ["FUNCNEST=1", "declare -i FUNCNEST=1", "readonly FUNCNEST=1"] {
        let agent = Agent::start();
        agent.run(&format!("{limit}; A=1; f() {{ local A=2; exit 3; }}"));
        agent.run("f");
        assert_eq!(agent.run("echo $A $FUNCNEST").stdout, "1 1\n", "{limit}");
    }
    let agent = Agent::start();
    agent.run("FUNCNEST=7; A=1; f() { local FUNCNEST=1 A=2; exit 3; }");
    agent.run("f");
    assert_eq!(agent.run("echo $A $FUNCNEST").stdout, "1 7\n");
}

#[test]
fn a_parser_that_went_wrong_costs_the_next_call_nothing() {
    let agent = Agent::start();
    agent.out("K=1; sleep 300 &");
    for unclosed in [
        "echo $(",
        "echo \"$(",
        "trap 'echo $(' USR1; kill -USR1 $$; true",
        "echo 'echo $(' >~/s; . ~/s 2>/dev/null; true",
        "eval 'echo $(' 2>/dev/null; true",
        "dash -c 'eval \"echo (\"'",
        "bash -c 'eval \"x=\\$(\"'",
        "bash -c \"echo 'x: foo eval: (a)' >&2; exit 2\"",
    ] {
        agent.run(unclosed);
        for command in [
            "echo \"A\"; f() { :; }",
            "echo \"${K}\"; echo $(echo \"A\")",
            "jobs -r | wc -l",
        ] {
            let result = agent.run(command);
            assert_eq!(
                (result.exit_code, result.session_reset),
                (0, None),
                "{unclosed}: {command}"
            );
        }
        assert_eq!(agent.run("jobs -r | wc -l").stdout, "1\n", "{unclosed}");
    }
}

#[test]
fn a_shell_with_spoilt_memory_ends_no_later_call() {
    // Which line the memory ends is decided by chance.
    for _ in 0..8 {
        let agent = Agent::start();
        agent.out("K=1");
        agent.run("eval 'echo $(' 2>/dev/null\nL=\"2\"\n");
        for command in [
            "echo \"A\"; f() { :; }",
            "echo \"A\"; for i in 1; do :; done",
            "echo \"A\"",
        ] {
            let result = agent.run(command);
            assert_eq!(
                (result.exit_code, result.stdout.as_str()),
                (0, "A\n"),
                "{command}: {result:?}"
            );
        }
        assert_eq!(agent.out("echo $K"), "1\n");
    }
}

#[test]
fn a_time_format_that_every_variable_is_exported_with_is_the_users() {
    let agent = Agent::start();
    agent.run("set -a");
    agent.run("A=1");
    agent.run("exit 3");
    agent.run("true; :");
    assert!(!agent.out("echo \"$TIMEFORMAT\"").contains('\u{1f}'));
    assert!(agent.out("env; echo \"$TIMEFORMAT\"").contains("real"));
}

#[test]
fn functions_of_the_images_environment_cost_nothing() {
    for names in [
        [".", "builtin", "command", "echo", "exec", "source"].as_slice(),
        &["[["],
        &["eval"],
        &["declare"],
        &["."],
    ] {
        let mut setup = Setup::new().env("BASH_FUNC_hello%%", "() { echo hello; }");
        for name in names {
            setup = setup.env(&format!("BASH_FUNC_{name}%%"), "() { :; }");
        }
        let agent = setup.env("BASH_FUNC_gone%%", "() { echo here; }").start();
        assert_eq!(agent.out("K=1; cd /usr; unset -f gone; hello"), "hello\n", "{names:?}");
        agent.run("kill -9 $$");
        let result = agent.run("echo $K $PWD; hello; bash -c hello; gone");
        assert_eq!(
            (result.stdout.as_str(), result.exit_code),
            ("1 /usr\nhello\nhello\n", 127),
            "{names:?}: {result:?}"
        );
    }
}
