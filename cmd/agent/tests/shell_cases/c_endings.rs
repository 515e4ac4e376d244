//! Section C: commands that end, replace or freeze the shell.

use crate::harness::{Agent, installed, signal};

const STATE: &str = "export K=1; cd /usr; f(){ echo F; }; PLAIN='a b'";
const SHOW: &str = "echo $K $PWD $PLAIN; f";
const SHOWN: &str = "1 /usr a b\nF\n";

#[test]
fn the_trap_that_saves_the_state_does_nothing_in_another_shell() {
    let agent = Agent::start();
    agent.out("X=1; cd /usr");
    for command in [
        "(X=9; cd /tmp; old=$(trap -p EXIT); trap 'echo cleanup' EXIT; eval \"$old\"; echo body)",
        "bash -c \"$(trap -p EXIT); X=9; cd /tmp; echo body; exit 3\"",
        "(X=9; cd /tmp; eval \"$(trap -p)\"; echo body; exit 0) & wait",
    ] {
        // Longer than a shell has that saves its state.
        let result = agent.run(&format!("{command}; sleep 4; echo done"));
        assert_eq!(
            (result.stdout.as_str(), result.exit_code),
            ("body\ndone\n", 0),
            "{command}"
        );
        assert_eq!(agent.run(&format!("{command}; exit 4")).exit_code, 4, "{command}");
        assert_eq!(agent.out("echo $X $PWD"), "1 /usr\n", "{command}");
    }
}

#[test]
fn a_status_is_told_without_a_working_directory_in_a_variable() {
    let agent = Agent::start();
    assert_eq!(agent.run("set -u; unset PWD; (exit 4)").exit_code, 4);
    assert_eq!(agent.run("set -u; unset PWD; true").exit_code, 0);
}

#[test]
fn case_038_exit() {
    let agent = Agent::start();
    agent.out(STATE);
    let result = agent.run("echo hi; LATE=2; exit 3");
    assert_eq!(
        (result.stdout.as_str(), result.exit_code, result.timed_out),
        ("hi\n", 3, false)
    );
    assert_eq!(result.session_reset, None);
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    let notice = result.session_reset.unwrap();
    assert!(!notice.contains('\n') && notice.contains("status 3"), "{notice}");
    let result = agent.run("echo $LATE");
    assert_eq!((result.stdout.as_str(), result.session_reset), ("2\n", None));
    for (command, status) in [
        ("exit -1", 255),
        ("exit 256", 0),
        ("exit abc", 2),
        ("exit", 0),
        ("false; exit", 1),
    ] {
        assert_eq!(agent.run(command).exit_code, status, "{command}");
        assert_eq!(agent.run(SHOW).stdout, SHOWN);
    }
}

#[test]
fn case_040_a_shell_killed_between_calls() {
    let agent = Agent::start();
    agent.out(STATE);
    let bash: i32 = agent.out("echo $$").trim().parse().unwrap();
    signal(bash, "KILL");
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    assert!(result.session_reset.is_some());
    for _ in 0..2 {
        let result = agent.run(SHOW);
        assert_eq!((result.stdout.as_str(), result.session_reset), (SHOWN, None));
    }
    assert_eq!(agent.request("GET", "/health", &[], b"").status, 200);
}

#[test]
fn case_042_errexit_does_not_leak() {
    let agent = Agent::start();
    assert_eq!(agent.out("set -euo pipefail; echo ok"), "ok\n");
    assert_eq!(agent.out("false; echo reached"), "reached\n");
    assert_eq!(agent.out("echo \"[$UNSET]\""), "[]\n");
    let result = agent.run("set -e; X=5; cd /usr; false; echo not-reached");
    assert_eq!((result.stdout.as_str(), result.exit_code), ("", 1));
    assert_eq!(agent.out("echo $X $PWD"), "5 /usr\n");
    assert_eq!(agent.run("set -e; (exit 3)").exit_code, 3);
    assert_eq!(agent.out("set -e; ! true; echo here"), "here\n");
    // Nor does it cost the shell, and with that its jobs.
    for command in ["set -e; true", "set -e", "set -eu; A=0; sleep 99 & true"] {
        agent.run(command);
        let next = agent.run("sleep 0; jobs %% >/dev/null 2>&1; true");
        assert_eq!(next.session_reset, None, "{command}");
    }
    assert_eq!(agent.out("jobs -r | grep -c 'sleep 99'"), "1\n");
}

#[test]
fn case_043_unset_variables() {
    let agent = Agent::start();
    let result = agent.run("cd /usr; : ${NOPE:?must be set}; echo no");
    assert_eq!((result.exit_code, result.stdout.as_str()), (1, ""), "{result:?}");
    assert!(result.stderr.contains("NOPE: must be set"), "{result:?}");
    assert_eq!(agent.out("pwd"), "/usr\n");
    let result = agent.run("set -u; echo $NOPE; echo no");
    assert!(
        result.exit_code != 0 && result.stderr.contains("NOPE: unbound variable"),
        "{result:?}"
    );
    assert_eq!(agent.out("pwd"), "/usr\n");
}

#[test]
fn an_error_that_discards_the_list_is_no_success() {
    let agent = Agent::start();
    agent.out("PS1='mine '; sleep 99 & a=(1 2 3); cnt=(0)");
    for (command, code) in [
        ("declare -i m=08; echo no", 1),
        ("cnt[file.txt]=1 && echo no", 1),
        ("echo ${a[09]}", 1),
        ("printf -v 'a[1/0]' x", 1),
        ("f() { declare -i q=1+; }; f; echo no", 1),
        ("set -u; ((x)); echo no", 1),
        ("set -u; : ${a[nope]}; echo no", 1),
        ("set -e; declare -i n=08", 1),
        ("! true; declare -i k=08", 1),
        ("(exit 7); declare -i k=08", 7),
        ("true | (exit 7); declare -i k=08", 7),
        ("set -x; declare -i k=08", 1),
        ("alias '[[=echo' 'time=echo'; declare -i k=08", 1),
    ] {
        let result = agent.run(command);
        assert_eq!((result.exit_code, result.stdout.as_str()), (code, ""), "{command}");
        let next = agent.run("echo $?; set +x; false; jobs -r | wc -l; echo \"$PS1\"; unalias -a");
        assert_eq!(
            (next.stdout, next.session_reset),
            (format!("{code}\n1\nmine \n"), None),
            "{command}"
        );
    }
    // Not only when it would have been looked at next.
    let result = agent.run_for(3, "sleep 1.6; cnt[a.b]=1");
    assert_eq!((result.exit_code, result.timed_out), (1, false));
    for (set, code) in [("-u", 1), ("-s", 0)] {
        agent.out(&format!("shopt {set} expand_aliases"));
        agent.run("declare -i n=08");
        assert_eq!(agent.run("shopt -q expand_aliases").exit_code, code, "{set}");
    }
}

#[test]
fn case_044_exec() {
    let agent = Agent::start();
    agent.out(STATE);
    assert_eq!(agent.run("exec true").exit_code, 0);
    assert_eq!(agent.run(SHOW).stdout, SHOWN);
    let result = agent.run("exec sh -c 'echo q; exit 5'");
    assert_eq!((result.stdout.as_str(), result.exit_code), ("q\n", 5));
    assert_eq!(agent.run("exec /nosuch").exit_code, 127);
    assert_eq!(agent.run("echo alive").stdout, "alive\n");
    assert_eq!(agent.run(SHOW).stdout, SHOWN);
    let result = agent.run("exec 3>fd3; echo x >&3; exec >redirected; echo lost");
    assert_eq!(result.stdout, "");
    assert_eq!(
        agent.out("echo seen; cd; cat /usr/fd3 2>/dev/null; ls redirected 2>/dev/null; cd /usr"),
        "seen\nx\n"
    );
    agent.run("rm -f /usr/fd3 /usr/redirected");
}

#[test]
fn case_045_killing_the_shell() {
    let mut agent = Agent::start();
    agent.out(STATE);
    assert_eq!(agent.run("kill -9 $$").exit_code, 137);
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    assert!(result.session_reset.is_some());
    for command in ["kill $$; true", "kill -- -$$; true", "kill 0; true"] {
        let result = agent.run(command);
        assert!([0, 143].contains(&result.exit_code), "{command}: {result:?}");
        assert_eq!(agent.run(SHOW).stdout, SHOWN);
    }
    assert!(agent.running());
}

#[test]
fn case_045_an_interrupt_of_the_shell_by_itself() {
    let agent = Agent::start();
    agent.out(STATE);
    agent.out("f() { kill -INT $$; echo no; }; PS1='mine '");
    for command in [
        "kill -INT $$; echo no",
        "f; echo no",
        "while :; do f; done",
        "eval 'kill -INT $$; echo no'",
    ] {
        let result = agent.run(command);
        assert_eq!(
            (result.exit_code, result.stdout.as_str()),
            (130, ""),
            "{command}: {result:?}"
        );
        let next = agent.run("echo $?; echo $PS1");
        assert_eq!(
            (next.stdout.as_str(), next.session_reset),
            ("130\nmine\n", None),
            "{command}"
        );
    }
    assert_eq!(
        agent
            .run("trap 'echo caught' INT; kill -INT $$; echo on; (exit 3)")
            .exit_code,
        3
    );
}

#[test]
fn an_exit_trap_is_heard_in_the_call_whose_shell_ends() {
    let agent = Agent::start();
    for end in [
        "exit 1",
        "set -e; false",
        "set -e; f() { false; }; f",
        "set -e; true | false",
    ] {
        let result = agent.run(&format!("trap 'echo bye; echo bye2 >&2' EXIT; echo hi; {end}; echo no"));
        assert_eq!(
            (result.exit_code, result.stdout.as_str(), result.stderr.as_str()),
            (1, "hi\nbye\n", "bye2\n"),
            "{end}"
        );
        assert_eq!(agent.run("echo fresh").stdout, "fresh\n");
    }
    agent.run("trap 'echo bye' EXIT");
    assert_eq!(agent.run("set -e; false").stdout, "bye\n", "set by an earlier call");
}

#[test]
fn case_046_a_stopped_shell() {
    let agent = Agent::start();
    agent.out(STATE);
    for command in [
        "kill -STOP $$; echo x",
        "kill -TSTP $$; kill -STOP $$; echo x",
        "sh -c 'kill -STOP $$'; echo x",
    ] {
        let result = agent.run_for(1, command);
        assert_eq!((result.exit_code, result.stdout.as_str()), (124, ""), "{command}");
        agent.until_quiet();
        assert_eq!(agent.run(SHOW).stdout, SHOWN);
    }
}

#[test]
fn case_048_children_go_first_when_memory_runs_out() {
    let agent = Agent::start();
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid())).unwrap();
    let own: i32 = own.trim().parse().unwrap();
    let childs: i32 = agent.out("cat /proc/self/oom_score_adj").trim().parse().unwrap();
    assert!(childs > own, "{childs} > {own}");
    // A child that the kernel ends is a failing command; a shell that it ends is a reset.
    agent.out(STATE);
    let result = agent.run("sh -c 'kill -KILL $$'");
    assert_eq!((result.exit_code, result.session_reset), (137, None));
    assert_eq!(agent.run(SHOW).session_reset, None);
    assert_eq!(
        agent
            .run("ulimit -v 300000; x=$(yes | head -c 900000000); echo ${#x}")
            .exit_code,
        2
    );
    assert_eq!(agent.run(SHOW).stdout, SHOWN);
}

#[test]
fn case_049_a_reset_brings_everything_back() {
    let agent = Agent::start();
    agent.out(
        "cd /usr; export K='v w'; N=$'line\\nbreak\\t\\'q\\''; declare -i I=5; declare -a A=(1 'b c' [5]=x); declare -A M=([k y]='v'); \
         f() { cat <<E\nhere $1\nE\n}; g() { echo G; }; export -f g; declare -r RO=1; declare -n REF=K",
    );
    agent.out("alias ll='echo \"it'\\''s\"'; shopt -s extglob nullglob; shopt -u checkwinsize; set -o noclobber -o pipefail; umask 027");
    agent.out("ulimit -n 111; set -- 'p 1' q; trap 'echo U' USR1; unset GIT_PAGER; IFS=,; h() { case $1 in @(a|b)) echo ab;; esac; }");
    let show = "pwd; echo \"$K|$N|$I|${A[*]}|${!A[*]}|${M[k y]}|$RO|$REF|$#|$1|${GIT_PAGER-unset}|$IFS\"; I=2+3; echo $I; f x; bash -c g; ll; h a; \
                shopt extglob nullglob checkwinsize; set -o | grep -E 'noclobber|pipefail'; umask; ulimit -n; trap -p USR1; alias";
    let before = agent.run(show);
    assert_eq!(before.stderr, "");
    for end in ["kill -9 $$", "exit 5", "exec true", "trap '' INT; while :; do :; done"] {
        let result = agent.run_for(1, end);
        assert_ne!(result.exit_code, 1, "{end}: {result:?}");
        let after = agent.run(show);
        assert_eq!(after.stdout, before.stdout, "{end}");
        assert_eq!(after.stderr, "", "{end}");
        let notice = after.session_reset.unwrap();
        assert!(notice.contains("job table and open descriptors are lost"), "{notice}");
    }
    if installed("python3") {
        assert_eq!(agent.out("python3 -c 'import os; print(os.environ[\"K\"])'"), "v w\n");
    }
}

#[test]
fn local_variables_of_a_function_that_ends_the_shell_are_no_state() {
    let agent = Agent::start();
    agent.out("X=global; A=(g h); declare -A M=([k]=g); IFS=,; export E=global");
    let command = "outer() { local X=1 Y=2 E=3; local -a A=(l) AN=(n); local -A MM=([q]=r); local -n RO=X; inner; }; \
                   inner() { local X=4 M=5 IFS=: Z; local -n R=X; local -i I=6; NEW=kept; exit 3; }; outer";
    assert_eq!(agent.run(command).exit_code, 3);
    let show = "echo \"$X|${A[*]}|${M[k]}|$IFS|$E|$NEW|${Y-none}|${Z-none}|${I-none}|${R-none}|${AN-none}|${MM[q]-none}|${RO-none}\"";
    assert_eq!(
        agent.run(show).stdout,
        "global|g,h|g|,|global|kept|none|none|none|none|none|none|none\n"
    );
}

#[test]
fn what_a_call_set_before_it_had_to_be_ended_is_kept() {
    let agent = Agent::start();
    for hang in [
        "trap '' INT; while :; do :; done",
        "trap 'echo caught' INT; sleep 99; touch ~/after",
        "kill -STOP $$; touch ~/after",
        "trap '' INT; echo \"$(sleep 99)\" >~/after",
        "f() { local K=local; trap '' INT; sleep 99; touch ~/after; }; f",
    ] {
        agent.out("cd; trap - INT; K=0; unset M");
        let result = agent.run_for(1, &format!("K=1; declare -A M=([a]=b); cd /usr; {hang}"));
        assert_eq!((result.exit_code, result.stdout.as_str()), (124, ""), "{hang}");
        let result = agent.run("echo \"$K ${M[a]} $PWD\"; ls ~/after 2>/dev/null");
        assert_eq!(result.stdout, "1 b /usr\n", "{hang}");
        // A shell that was only stopped is kept.
        let notice = result.session_reset.unwrap_or_default();
        assert_eq!(notice.is_empty(), hang.starts_with("kill"), "{hang}: {notice}");
        assert!(!notice.contains("before"), "{notice}");
    }
}

#[test]
fn a_reset_says_what_a_killed_call_took_with_it() {
    let agent = Agent::start();
    agent.out(STATE);
    assert_eq!(agent.run("K=2; kill -9 $$").exit_code, 137);
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    let notice = result.session_reset.unwrap();
    assert!(notice.contains("as they were before that call"), "{notice}");
}

#[test]
fn limits_that_leave_no_room_for_a_command_are_given_up() {
    let agent = Agent::start();
    agent.out(STATE);
    agent.run("ulimit -n 4");
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    let notice = result.session_reset.unwrap();
    assert!(!notice.contains('\n'), "{notice}");
    assert_eq!(agent.run(SHOW).session_reset, None);
}

#[test]
fn the_users_prompts_survive_a_reset() {
    let agent = Agent::start();
    agent.out("PS1='mine> '; PROMPT_COMMAND='echo boo'; PS4='> '");
    assert_eq!(agent.run("exit 3").exit_code, 3);
    assert_eq!(agent.out("echo \"$PS1|$PROMPT_COMMAND|$PS4\""), "mine> |echo boo|> \n");
}

#[test]
fn a_prompt_that_fits_in_no_line_costs_only_itself() {
    let agent = Agent::start();
    agent.out(STATE);
    agent.out("PS1=$(head -c 90000 /dev/zero | tr '\\0' a)");
    let result = agent.run(SHOW);
    assert_eq!(result.stdout, SHOWN);
    let notice = result.session_reset.unwrap();
    assert!(notice.contains("without prompts"), "{notice}");
    assert_eq!(agent.run(SHOW).session_reset, None);
}

/// A busy machine may let a sandbox wait for seconds: here a job of an earlier call stops the shell as soon as it has a second
/// child, the one that prints its state between two calls.
#[test]
fn a_shell_that_gets_no_processor_between_two_calls_is_not_lost() {
    let agent = Agent::start();
    agent.run("kept=here");
    agent.run(
        "(until read -r -a kids </proc/$$/task/$$/children; [ ${#kids[@]} -ge 2 ]; do :; done; \
         kill -STOP $$; : >caught; sleep 4; kill -CONT $$) >/dev/null 2>&1 & x=0",
    );
    for _ in 0..1000 {
        let result = agent.run("x=$((x+1)); [ -e caught ] && echo $kept $!");
        assert_eq!(result.session_reset, None, "{result:?}");
        if result.exit_code == 0 {
            let (kept, job) = result.stdout.trim_end().split_once(' ').unwrap();
            assert_eq!(kept, "here");
            assert_ne!(job, "", "the shell was replaced");
            return;
        }
    }
    panic!("the shell was not caught between two calls");
}
