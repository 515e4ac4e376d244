//! Section G: the log has one line a call, and nothing that a command, its output or a token says, at any level.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::http::receive;
use crate::harness::{Agent, Setup, TOKEN};

/// What no line may hold. The command spells each in two parts, so that its output has what its text has not.
const SECRETS: [&str; 6] = ["hush", "whisper", "murmur", "mutter", "mumble", "breathe"];

/// Calls of every kind, and for how many of them a line is due.
fn call_in_every_way(agent: &Agent) -> usize {
    agent.out("echo 'hush'; printf '%s%s\\n' whis per; printf '%s%s\\n' mur mur >&2");
    agent.out(
        "mkdir -p 'mutter'; cd 'mutter'; export HUSH=hush; mumble() { echo 'mumble'; }; alias breathe='echo breathe'",
    );
    assert_eq!(agent.run("hush-no-such-program").exit_code, 127);
    assert_eq!(agent.run("echo 'hush").exit_code, 2);
    assert!(agent.run("yes whisper | head -c 1000000").truncated);
    assert!(!agent.stream("mumble; breathe").is_empty());
    assert_eq!(agent.run_for(1, "mumble; sleep 99; : hush").exit_code, 124);
    let mut running = agent.begin(&json!({"command": "touch ~/begun; sleep 99; : hush"}), "*/*");
    agent.until_file("begun");
    agent.cancel();
    assert_eq!(receive(&mut running).unwrap().result().exit_code, 130);
    assert_eq!(agent.run("exit 3 # hush").exit_code, 3);
    // The shell is restored, in another folder, with the rest of the words in its state.
    agent.run("rmdir ~/mutter; kill -9 $$");
    assert!(agent.run("mumble").session_reset.is_some());
    // No calls: these are refused.
    for (path, token, body, status) in [
        ("/exec", "hush", json!({"command": "echo hush"}), 401),
        ("/exec", TOKEN, json!({"command": ["hush"]}), 400),
        ("/exec", TOKEN, json!({"command": "hush\0"}), 400),
        ("/exec", TOKEN, json!({"hush": "whisper"}), 400),
        ("/assign", "hush", json!({"token": "whisper"}), 409),
        ("/hush", "whisper", json!("murmur"), 404),
    ] {
        assert_eq!(agent.post(path, token, &body).status, status, "{path} {body}");
    }
    11
}

fn log_at(level: &str, calls: impl FnOnce(&Agent) -> usize) -> (usize, Vec<Value>) {
    let agent = Setup::new().env("RUST_LOG", level).log_kept().start();
    let count = calls(&agent);
    let log = agent.end_and_log();
    for secret in SECRETS.iter().chain(&[TOKEN]) {
        let found = log.lines().find(|line| line.to_lowercase().contains(secret));
        assert_eq!(found, None, "{secret} at {level}");
    }
    let lines = log.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("not JSON at {level}: {line}: {error}"))
    });
    (count, lines.collect())
}

fn is_of_a_call(line: &Value) -> bool {
    line["message"] == "Call ended"
}

#[test]
fn the_log_has_one_line_a_call_and_no_word_of_it() {
    for level in ["info", "debug", "trace"] {
        let (calls, lines) = log_at(level, call_in_every_way);
        let of_calls: Vec<&Value> = lines.iter().filter(|line| is_of_a_call(line)).collect();
        assert_eq!(of_calls.len(), calls, "{level}: {of_calls:#?}");
        let outcomes: BTreeSet<&str> = of_calls.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
        assert_eq!(
            outcomes,
            BTreeSet::from(["cancelled", "failure", "shell_ended", "success", "timed_out"]),
            "{level}"
        );
        if level == "info" {
            let first = lines.iter().position(is_of_a_call).unwrap();
            let last = lines.iter().rposition(is_of_a_call).unwrap();
            assert_eq!(last - first + 1, calls, "something else between the calls: {lines:#?}");
        }
    }
    let (_, lines) = log_at("off", call_in_every_way);
    assert!(lines.is_empty(), "{lines:#?}");
}

/// What goes wrong is told with more lines, and no word of the command either.
#[test]
fn a_shell_that_is_given_up_is_told_without_a_word_of_its_call() {
    for level in ["info", "trace"] {
        let (calls, lines) = log_at(level, |agent| {
            agent.out("echo $((1+1)) hush");
            assert_eq!(
                agent
                    .run_for(1, "trap 'echo whisper' INT; sleep 99; : murmur")
                    .exit_code,
                124
            );
            // The holder, which commands can end.
            agent.run("kill -9 $(pgrep -f descriptor-holde[r] -P $PPID); : hush");
            agent.out("echo mutter");
            4
        });
        let told = |message: &str| lines.iter().filter(|line| line["message"] == message).count();
        assert_eq!(told("Call ended"), calls, "{level}: {lines:#?}");
        assert_eq!(told("Giving the shell up"), 1, "{level}: {lines:#?}");
    }
}
