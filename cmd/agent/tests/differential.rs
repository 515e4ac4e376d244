//! Random sequences of calls give what one bash script with the same text gives: stdout, stderr, statuses, and all state;
//! cancels between them change nothing but the call they end, and leave no process.
//!
//! `AGENT_DIFFERENTIAL_CASES` sets how many sequences are tried.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod harness;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::Agent;
use harness::http::receive;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

/// One call of a sequence.
#[derive(Clone, Debug)]
enum Call {
    Run(String),
    /// Cancelled while it sleeps after this text.
    Cancelled(String),
}

fn word() -> impl Strategy<Value = String> {
    "[a-c ]{0,4}[*$'\"é]{0,1}[x-z]{0,2}".prop_map(|text| format!("'{}'", text.replace('\'', "'\\''")))
}

fn statement() -> impl Strategy<Value = String> {
    let name = prop_oneof![Just("A"), Just("B"), Just("C")];
    let number = 0_u8..40;
    prop_oneof![
        (name.clone(), word()).prop_map(|(name, word)| format!("{name}={word}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("export {name}={number}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("(( {name}_n += {number} ))")),
        name.clone().prop_map(|name| format!("printf '%s|' \"${name}\"")),
        name.clone().prop_map(|name| format!("unset {name}")),
        name.clone().prop_map(|name| format!("env | grep '^{name}='")),
        (name.clone(), word())
            .prop_map(|(name, word)| format!("L{name}+=({word} ${name}); echo \"${{#L{name}[@]}} ${{L{name}[-1]}}\"")),
        (name.clone(), word())
            .prop_map(|(name, word)| format!("declare -A M; M[{word}k]=${name}; echo \"${{M[{word}k]}}\"")),
        (name.clone(), number.clone())
            .prop_map(|(name, number)| format!("f{name}() {{ echo f{name} \"$@\" >&2; return {number}; }}")),
        (name.clone(), word()).prop_map(|(name, word)| format!("f{name} {word}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("alias a{name}='echo aliased {number}'")),
        name.clone().prop_map(|name| format!("a{name} x")),
        prop_oneof![
            Just("/"),
            Just("/usr"),
            Just("~"),
            Just("sub"),
            Just("-"),
            Just("/nosuch")
        ]
        .prop_map(|to| format!("cd {to} >/dev/null")),
        Just("mkdir -p sub".to_owned()),
        Just("echo \"${PWD##*/}\"".to_owned()),
        Just("echo $?".to_owned()),
        number.clone().prop_map(|status| format!("(exit {status})")),
        Just("false".to_owned()),
        Just("! true".to_owned()),
        Just("set -- p q r".to_owned()),
        Just("shift; echo \"$# $1\"".to_owned()),
        Just("for i in 1 2 3; do (( i == 2 )) && continue; echo $i; done".to_owned()),
        Just("while read -r line; do echo \"<$line>\"; done <<E\none\n $A two\nE".to_owned()),
        Just("echo b a c | tr ' ' '\\n' | sort".to_owned()),
        Just("x=$(echo sub; exit 3); echo $? $x".to_owned()),
        Just("(sleep 0.01; exit 4) & wait $!; echo $?".to_owned()),
        Just("trap 'echo got' USR1; kill -USR1 $$; true".to_owned()),
        Just("case $A in *[xy]*) echo xy;; *) echo other;; esac".to_owned()),
        Just("shopt -s extglob; shopt extglob nullglob".to_owned()),
        Just("shopt -s nullglob; echo /nosuch*".to_owned()),
        Just("shopt -u nullglob".to_owned()),
        Just("set -o pipefail; false | true".to_owned()),
        Just("set +o pipefail; false | true".to_owned()),
        Just("umask 027; umask".to_owned()),
        Just("nosuchcommand".to_owned()),
        Just("echo ${NOPE:-default} ${A:+set} ${#A}".to_owned()),
        Just("printf 'no newline'".to_owned()),
        Just("cat".to_owned()),
        Just("read r; echo \"$? [$r]\"".to_owned()),
        Just("echo out; echo err >&2".to_owned()),
        Just("[[ $A == b* ]] || echo no match".to_owned()),
        Just("echo a \\\n  b # comment".to_owned()),
        Just("IFS=, ; v=1,2; echo $v; unset IFS".to_owned()),
        Just("eval 'E=1; echo $E'".to_owned()),
        Just("fi".to_owned()),
        Just("echo 'unclosed".to_owned()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(statement(), 1..4).prop_map(|statements| statements.join("\n"))
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let quiet = prop_oneof![
        (0_u8..9).prop_map(|number| format!("A={number}; cd /usr")),
        (0_u8..9).prop_map(|number| format!("export B={number}; fC() {{ return {number}; }}")),
        Just("set -- cancelled; alias aA='echo again'".to_owned()),
    ];
    proptest::collection::vec(
        prop_oneof![12 => text().prop_map(Call::Run), 1 => quiet.prop_map(Call::Cancelled)],
        1..10,
    )
}

/// Messages name where a command stands, which differs by design: what follows is compared.
fn without_places(stderr: &str) -> String {
    stderr
        .lines()
        .map(|line| {
            let line = line
                .split_once(": line ")
                .and_then(|(_, rest)| rest.split_once(": "))
                .map_or(line, |(_, rest)| rest);
            format!("{}\n", line.strip_prefix("bash: ").unwrap_or(line))
        })
        .collect()
}

const STATE: &str = "echo \"$?|$PWD|$#|$*\"; declare -p A B C A_n B_n C_n LA LB LC M r x v E i line 2>/dev/null; declare -f fA fB fC; alias; shopt; set +o; umask; trap -p USR1; env | grep -E '^[ABC]=' | sort";

fn model(home: &Path, calls: &[Call]) -> Vec<(String, String, i32)> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: String| folder.path().join(name).display().to_string();
    let mut script = String::from("shopt -s expand_aliases\ncd\n");
    for (index, call) in calls.iter().enumerate() {
        let (text, status) = match call {
            Call::Run(text) => (text.as_str(), "$?"),
            Call::Cancelled(text) => (text.as_str(), "130"),
        };
        std::fs::write(at(format!("c{index}")), text).unwrap();
        script.push_str(&format!(
            ". {} </dev/null >{} 2>{}\nset -- \"{status}\" \"$@\"; echo $1 >{}; __s=$1; shift; (exit $__s)\n",
            at(format!("c{index}")),
            at(format!("o{index}")),
            at(format!("e{index}")),
            at(format!("s{index}"))
        ));
    }
    std::fs::write(at("script".into()), script).unwrap();
    let mut command = Command::new("bash");
    command
        .args(["--norc", "--noprofile", &at("script".into())])
        .env_clear()
        .env("HOME", home)
        .env("LANG", "C.UTF-8");
    command.env("PATH", harness::path()).stdin(std::process::Stdio::null());
    assert!(command.output().unwrap().status.code().is_some());
    let read = |name: String| String::from_utf8_lossy(&std::fs::read(at(name)).unwrap_or_default()).into_owned();
    (0..calls.len())
        .map(|index| {
            let status = read(format!("s{index}")).trim().parse().unwrap_or(-1);
            (
                read(format!("o{index}")),
                without_places(&read(format!("e{index}"))),
                status,
            )
        })
        .collect()
}

fn agent_runs(agent: &Agent, calls: &[Call]) -> Vec<(String, String, i32)> {
    calls
        .iter()
        .map(|call| match call {
            Call::Run(text) => {
                let result = agent.run(text);
                assert_eq!(result.session_reset, None, "{text}");
                (
                    result.stdout,
                    without_places(&result.stderr),
                    i32::from(result.exit_code),
                )
            }
            Call::Cancelled(text) => {
                let command = format!("{text}; : >~/begun; sleep 99; touch ~/after");
                let begun = agent.home.path().join("begun");
                let _ = std::fs::remove_file(&begun);
                let mut running = agent.begin(&json!({"command": command}), "*/*");
                while !begun.exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::fs::remove_file(&begun).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(agent.cancel()["cancelled"], true);
                let result = receive(&mut running).unwrap().result();
                agent.until_quiet();
                assert!(!agent.home.path().join("after").exists());
                (result.stdout, String::new(), i32::from(result.exit_code))
            }
        })
        .collect()
}

#[test]
fn sequences_of_calls_agree_with_one_script() {
    let cases = std::env::var("AGENT_DIFFERENTIAL_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(40);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&calls(), |mut calls| {
        calls.push(Call::Run(STATE.to_owned()));
        let agent = Agent::start();
        let found = agent_runs(&agent, &calls);
        let home = tempfile::tempdir().unwrap();
        let expected = model(home.path(), &calls);
        let names = |text: &str| {
            text.replace(home.path().to_str().unwrap(), "HOME")
                .replace(agent.home.path().to_str().unwrap(), "HOME")
                .replace(home.path().file_name().unwrap().to_str().unwrap(), "LEAF")
                .replace(agent.home.path().file_name().unwrap().to_str().unwrap(), "LEAF")
        };
        // What an interactive shell has on that a script has not.
        let options = |text: String| -> String {
            let own = [
                "expand_aliases",
                "checkhash",
                "history",
                "histexpand",
                "emacs",
                "interactive",
                "progcomp",
                "checkwinsize",
                "login_shell",
                "huponexit",
            ];
            text.lines()
                .filter(|line| !own.iter().any(|name| line.contains(name)))
                .map(|line| format!("{line}\n"))
                .collect()
        };
        let last = calls.len() - 1;
        for (index, call) in calls.iter().enumerate() {
            let (mut left, mut right) = (names(&found[index].0), names(&expected[index].0));
            if index == last {
                (left, right) = (options(left), options(right));
            }
            prop_assert_eq!(left, right, "stdout of call {} {:?}", index, call);
            prop_assert_eq!(
                names(&found[index].1),
                names(&expected[index].1),
                "stderr of call {} {:?}",
                index,
                call
            );
            prop_assert_eq!(found[index].2, expected[index].2, "status of call {} {:?}", index, call);
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
