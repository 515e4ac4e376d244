//! Random sequences of calls give what one bash script with the same text gives: stdout, stderr, statuses, and all state.
//! Timeouts and cancels between them end the call whole, and change nothing else; a call that ends the shell leaves the
//! state that the next one's notice tells of.
//!
//! Two runs: one with a seed of its own, the same each time, and one with a new seed, which it prints.
//! `AGENT_DIFFERENTIAL_SEED` gives that one, `AGENT_DIFFERENTIAL_CASES` how many sequences each tries.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod grammar;
#[path = "../harness/mod.rs"]
mod harness;
mod model;

use std::path::Path;
use std::time::Duration;

use cli_mcp_sandbox::wire::ExecResult;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

use crate::grammar::{By, Call, calls};
use crate::harness::Agent;
use crate::harness::http::receive;
use crate::model::{Left, model};

/// What a call gave: stdout, stderr without places, status.
type Given = (String, String, i32);

const STATE: &str = "echo \"$?|$PWD|$#|$*\"; declare -p A B C A_n B_n C_n LA LB LC M r x v E i line 2>/dev/null; declare -f fA fB fC; alias; shopt; set +o; umask; trap -p USR1 INT; env | grep -E '^[ABC]=' | sort";

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

/// Runs a call, and ends it where it does not end by itself.
fn run(agent: &Agent, call: &Call) -> ExecResult {
    match call {
        Call::Run(text) => agent.run(text),
        Call::Last { text, end, .. } => agent.run(&format!("{text}; {end}")),
        Call::Ended { text, hang, by, .. } => {
            let begun = agent.home.path().join("begun");
            let command = format!("{text}; : >~/begun; {hang}; touch ~/after");
            let timeout = if matches!(by, By::Timeout) { 1 } else { 90 };
            let mut running = agent.begin(&json!({"command": command, "timeout": timeout}), "*/*");
            if let By::Cancel(delay) = by {
                agent.until_file("begun");
                std::thread::sleep(Duration::from_millis(*delay));
                assert_eq!(agent.cancel()["cancelled"], true, "{command}");
            }
            let result = receive(&mut running).unwrap().result();
            agent.until_quiet();
            // A second that was too short for the text tells nothing of what follows it.
            assert!(std::fs::remove_file(&begun).is_ok(), "{command} did not begin");
            result
        }
    }
}

/// What each call gave, and in which state it left the shell to the next, as the notice there says.
fn agent_runs(agent: &Agent, calls: &[Call]) -> Vec<(Given, Left)> {
    let mut given: Vec<(Given, Left)> = Vec::new();
    let mut may_trap_interrupts = false;
    for (index, call) in calls.iter().enumerate() {
        let result = run(agent, call);
        let left = Left::told(result.session_reset.as_deref());
        match index.checked_sub(1).map(|before| &calls[before]) {
            Some(Call::Last { .. }) => assert_ne!(left, Left::Kept, "after {:?}", calls[index - 1]),
            Some(Call::Ended { keeps_shell, .. }) if !keeps_shell || may_trap_interrupts => {}
            _ => assert_eq!(left, Left::Kept, "{index} of {calls:?}: {result:?}"),
        }
        if let Some((_, of_before)) = given.last_mut() {
            *of_before = left;
        }
        may_trap_interrupts |= call.may_trap_interrupts();
        let stderr = if let Call::Ended { .. } = call {
            assert_eq!(result.stdout, "", "{call:?}: {result:?}");
            String::new()
        } else {
            without_places(&result.stderr)
        };
        assert!(!agent.home.path().join("after").exists(), "{call:?}");
        given.push(((result.stdout, stderr, i32::from(result.exit_code)), Left::Kept));
    }
    given
}

/// What an interactive shell has on that a script has not.
fn without_options_of_interactive_shells(text: &str) -> String {
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
}

/// A text without the home folder's own name.
fn placed(home: &Path, text: &str) -> String {
    text.replace(home.to_str().unwrap(), "HOME")
        .replace(home.file_name().unwrap().to_str().unwrap(), "LEAF")
}

fn agree(mut calls: Vec<Call>) -> Result<(), TestCaseError> {
    calls.push(Call::Run(STATE.to_owned()));
    let agent = Agent::start();
    let given = agent_runs(&agent, &calls);
    let left: Vec<Left> = given.iter().map(|(_, left)| *left).collect();
    let home = tempfile::tempdir().unwrap();
    let expected = model(home.path(), &calls, &left);
    for (index, call) in calls.iter().enumerate() {
        let (stdout, stderr, status) = &given[index].0;
        let (mut found, mut wanted) = (
            placed(agent.home.path(), stdout),
            placed(home.path(), &expected[index].0),
        );
        if index == calls.len() - 1 {
            found = without_options_of_interactive_shells(&found);
            wanted = without_options_of_interactive_shells(&wanted);
        }
        prop_assert_eq!(found, wanted, "stdout of call {} of {:?}; {:?}", index, calls, left);
        prop_assert_eq!(
            placed(agent.home.path(), stderr),
            placed(home.path(), &expected[index].1),
            "stderr of call {} of {:?}; {:?}",
            index,
            calls,
            left
        );
        prop_assert_eq!(
            *status,
            expected[index].2,
            "status of call {} {:?}; {:?}",
            index,
            call,
            left
        );
    }
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn sequences_agree(seed: u64) {
    let config = Config {
        cases: number("AGENT_DIFFERENTIAL_CASES").map_or(15, |cases| u32::try_from(cases).unwrap()),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    if let Err(failure) = TestRunner::new_with_rng(config, random).run(&calls(), agree) {
        panic!("AGENT_DIFFERENTIAL_SEED={seed}: {failure}");
    }
}

#[test]
fn sequences_of_calls_agree_with_one_script() {
    sequences_agree(1);
}

#[test]
fn new_sequences_of_calls_agree_with_one_script() {
    let seed = number("AGENT_DIFFERENTIAL_SEED").unwrap_or_else(rand::random);
    eprintln!("AGENT_DIFFERENTIAL_SEED={seed}");
    sequences_agree(seed);
}
