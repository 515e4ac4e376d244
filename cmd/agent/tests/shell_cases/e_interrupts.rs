//! Section E: what a timed-out call has made of the shell and its children that no process table tells.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::http::receive;
use crate::harness::{Agent, Setup, installed, path};

/// Whatever wakes the call's processes wakes one that says so; an interrupt ends it before it could.
#[test]
fn case_069_nothing_of_a_nested_shell_runs_on_for_a_while() {
    if !installed("python3") {
        return;
    }
    let agent = Agent::start();
    agent.out(
        "cat >waker.py <<'E'\nimport signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n\
         signal.signal(signal.SIGCONT, lambda *_: open('woken', 'w'))\nwhile True: signal.pause()\nE\n",
    );
    for command in [
        "python3 waker.py | (sleep 99; :)",
        "python3 waker.py | bash -c 'sleep 99; :'",
        "x=$(python3 waker.py | (sleep 99; :); :)",
    ] {
        assert_eq!(agent.run_for(1, command).exit_code, 124, "{command}");
        assert!(!agent.home.path().join("woken").exists(), "{command}");
        assert_eq!(agent.run("true").session_reset, None, "{command}");
    }
}

/// A nested shell that has just collected a child takes an interrupt for one that the child has handled.
#[test]
fn case_073_a_nested_loop_of_programs_costs_no_shell() {
    let agent = Agent::start();
    for round in 0..8 {
        for command in [
            "(while :; do sleep 0.01; touch begun; done)",
            "bash -c 'while :; do sleep 0.005; touch begun; done'",
        ] {
            let mut running = agent.begin(&json!({"command": command}), "*/*");
            agent.until_file("begun");
            agent.cancel();
            assert_eq!(receive(&mut running).unwrap().result().exit_code, 130, "{command}");
            let result = agent.run("rm begun");
            assert_eq!(result.session_reset, None, "round {round}: {command}");
        }
    }
}

#[test]
fn case_072_no_trap_runs_a_list_on_whatever_hides_it() {
    let text = "\"tr\"\"ap 'touch ~/after' INT\"";
    for setting in [
        format!("printf -v 'BASH_ALIASES[zz]' %s {text}\nzz"),
        format!("declare BASH_ALIASES[zz]={text}\nzz"),
        format!(": ${{BASH_ALIASES[zz]:={text}}}\nzz"),
        format!("declare -n q=BASH_\"AL\"IASES; q[zz]={text}\nzz"),
    ] {
        let agent = Agent::start();
        let command = format!("{setting}\nsleep 99\ntouch ~/after2");
        assert_eq!(agent.run_for(1, &command).exit_code, 124, "{command}");
        agent.until_quiet();
        // The trap has come back with the rest of the state: it was there.
        assert_eq!(
            agent.out("trap -p INT"),
            "trap -- 'touch ~/after' SIGINT\n",
            "{command}"
        );
        for file in ["after", "after2"] {
            assert!(!agent.home.path().join(file).exists(), "{file}: {command}");
        }
        // One for the end runs on no better, where the shell must be ended.
        let command = command
            .replace("INT\"", "EXIT\"")
            .replace("sleep", "env --ignore-signal=INT sleep");
        assert_eq!(agent.run_for(1, &command).exit_code, 124, "{command}");
        agent.until_quiet();
        assert!(agent.run("true").session_reset.is_some(), "{command}");
        assert!(!agent.home.path().join("after").exists(), "{command}");
    }
}

/// Their text does not tell that they set no trap.
#[test]
fn case_073_what_only_might_have_set_a_trap_costs_no_shell() {
    let agent = Agent::start();
    let bash = agent.out("echo 'sleep 99' >~/s; echo $$");
    for command in [
        "mapfile -t lines < <(sleep 99)",
        "program=sleep; $program 99",
        ". ~/s",
        "trap 'touch ~/after' INT; trap - INT; sleep 99",
        "trap 'touch ~/after' USR1; sleep 99",
    ] {
        assert_eq!(
            agent.run_for(1, &format!("{command}\ntouch ~/after")).exit_code,
            124,
            "{command}"
        );
        let result = agent.run("echo $$");
        assert_eq!((result.stdout, result.session_reset), (bash.clone(), None), "{command}");
    }
    assert!(!agent.home.path().join("after").exists());
}

/// A `PATH` whose `bash` is run by the dynamic loader: the program of its process is the loader, so that its memory does not tell
/// where it keeps its traps. None, visibly, where the bash is static.
fn path_of_a_bash_that_does_not_tell(folder: &Path) -> Option<String> {
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let path = path().into_string().unwrap();
    let bash = path.split(':').map(|folder| Path::new(folder).join("bash"));
    let bash = bash.into_iter().find(|bash| bash.exists()).unwrap();
    let tried = Command::new(loader).arg(&bash).args(["-c", "true"]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        eprintln!("SKIPPED: {} is not run by {loader}", bash.display());
        return None;
    }
    let script = format!("#!/bin/sh\nexec {loader} {} \"$@\"\n", bash.display());
    std::fs::write(folder.join("bash"), script).unwrap();
    std::fs::set_permissions(folder.join("bash"), Permissions::from_mode(0o755)).unwrap();
    Some(format!("{}:{path}", folder.display()))
}

/// As where the node forbids to look: the text of the commands decides.
#[test]
fn case_072_no_trap_runs_a_list_on_where_the_shell_does_not_tell_its_traps() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = path_of_a_bash_that_does_not_tell(folder.path()) else {
        return;
    };
    let agent = Setup::new().env("PATH", &path).start();
    agent.out("x=1");
    assert_eq!(agent.run_for(1, "x=2; sleep 99").exit_code, 124);
    let result = agent.run("echo $x");
    assert_eq!((result.stdout.as_str(), result.session_reset), ("2\n", None));

    for (number, setting) in [
        "trap 'touch ~/after' INT",
        "set=trap; $set 'touch ~/after' INT",
        "trap 'touch ~/after' EXIT; trap '' INT",
        "trap 'touch ~/after' VTALRM; trap '' INT",
    ]
    .into_iter()
    .enumerate()
    {
        let command = format!("x={number}; {setting}; sleep 99; touch ~/after");
        assert_eq!(agent.run_for(1, &command).exit_code, 124, "{command}");
        assert!(agent.run("true").session_reset.is_some(), "{command}");
        assert!(!agent.home.path().join("after").exists(), "{command}");
    }
}

#[test]
fn no_trap_that_a_call_sets_by_other_means_runs_its_list_on() {
    for setting in [
        "f",
        "eval \"$T\"; sleep 99; touch ~/after",
        ". ~/s",
        "builtin trap 'echo caught' INT; sleep 99; touch ~/after",
        "a",
    ] {
        let agent = Agent::start();
        agent.out(
            "T=\"trap 'echo caught' INT\"; f() { trap 'echo caught' INT; sleep 99; touch ~/after; }; alias a=f; \
             echo \"$T; sleep 99; touch ~/after\" >~/s",
        );
        let result = agent.run_for(1, setting);
        assert_eq!((result.exit_code, result.stdout.as_str()), (124, ""), "{setting}");
        agent.until_quiet();
        assert_eq!(agent.run("ls ~/after 2>/dev/null").stdout, "", "{setting}");
        assert_eq!(agent.run("echo $T").stdout, "trap 'echo caught' INT\n", "{setting}");
    }
}

/// Nothing that the shell holds may set a trap: only the command does.
#[test]
fn no_trap_that_a_command_hides_runs_its_list_on() {
    for setting in [
        "t\\rap 'echo caught' INT; sleep 99; touch ~/after",
        "t'rap' 'echo caught' INT; sleep 99; touch ~/after",
        "FOO=1 . ~/s",
        "s=source; $s ~/s",
        ">/dev/null . ~/s",
    ] {
        let agent = Agent::start();
        agent.out("echo \"trap 'echo caught' INT; sleep 99; touch ~/after\" >~/s; K=1");
        let result = agent.run_for(1, setting);
        assert_eq!((result.exit_code, result.stdout.as_str()), (124, ""), "{setting}");
        agent.until_quiet();
        assert!(!agent.home.path().join("after").exists(), "{setting}");
        assert_eq!(agent.out("echo $K"), "1\n", "{setting}");
    }
}

/// The trap is not on record: the state that has it is too large.
#[test]
fn no_trap_of_a_state_that_is_not_on_record_runs_a_list_on() {
    let agent = Agent::start();
    agent.out("X=$(head -c 9000000 /dev/zero | tr '\\0' a)");
    // Nothing that has run since may have set one.
    let bash = agent.out("echo $$");
    assert_eq!(agent.run_for(1, "sleep 99; touch ~/after").exit_code, 124);
    assert_eq!(agent.out("echo $$"), bash);
    agent.out("trap 'echo caught' INT");
    let result = agent.run_for(1, "sleep 99; touch ~/after");
    assert_eq!((result.exit_code, result.stdout.as_str()), (124, ""));
    agent.until_quiet();
    assert!(!agent.home.path().join("after").exists());
}

#[test]
fn nothing_runs_on_after_a_child_that_ignores_interrupts_or_was_stopped() {
    let agent = Agent::start();
    let is_5_3 = agent.out("echo ${BASH_VERSINFO[*]:0:2}") == "5 3\n";
    for command in [
        "env --ignore-signal=INT sleep 99; touch ~/after",
        "env --ignore-signal=INT --ignore-signal=QUIT sleep 99 </dev/null; touch ~/after",
        "f() { env --ignore-signal=INT sleep 99; touch ~/after; }; f; touch ~/after",
        "while :; do env --ignore-signal=INT sleep 99; touch ~/after; done",
        "sleep 99 & env --ignore-signal=INT sleep 99; touch ~/after",
        "sleep 99 | env --ignore-signal=INT sleep 99; touch ~/after",
        "env --ignore-signal=INT sleep 99 | sleep 99; touch ~/after",
        "x=$(env --ignore-signal=INT sleep 99); touch ~/after",
        "set -m; env --ignore-signal=INT sleep 99; touch ~/after",
        "set -m; sleep 99 & env --ignore-signal=INT sleep 99; touch ~/after",
        "(kill -STOP $BASHPID); touch ~/after",
        "(kill -STOP $BASHPID; touch ~/after); touch ~/after",
        "sleep 0.2 & kill -STOP $$; touch ~/after",
    ] {
        agent.out("cd; X=0");
        let result = agent.run_for(1, &format!("cd /usr; X=1; {command}"));
        assert_eq!(result.exit_code, 124, "{command}");
        agent.until_quiet();
        assert!(!agent.home.path().join("after").exists(), "{command}");
        let next = agent.run("echo $PWD $X; set +m");
        // There bash 5.3 does not come to save what the call has set, and the next result says so.
        if is_5_3 && command.starts_with("x=$(") {
            let told = next.session_reset.unwrap_or_default();
            assert!(told.contains("and what it changed of these is lost"), "{told}");
            assert_eq!(next.stdout, "/usr 0\n");
        } else {
            assert_eq!(next.stdout, "/usr 1\n", "{command}");
        }
    }
}
