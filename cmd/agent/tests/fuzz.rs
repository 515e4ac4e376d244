//! Random bodies and random command bytes: the agent answers each, stays alive, and leaks nothing.
//!
//! `AGENT_FUZZ_SECONDS` sets for how long, `AGENT_FUZZ_SEED` where it begins.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod harness;

use std::time::{Duration, Instant};

use cli_mcp_agent::snapshot::{self, Snapshot};
use cli_mcp_agent::{request, script};
use harness::{Agent, TOKEN};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

const PIECES: [&str; 64] = [
    "'",
    "\"",
    "`",
    "\\",
    "\n",
    "$(",
    ")",
    "(",
    "{ ",
    " }",
    "|",
    "||",
    "&",
    "&&",
    ";",
    ";;",
    "<<E\n",
    "E\n",
    "<",
    "<<<",
    "$x",
    "${x",
    "}",
    "[[ ",
    " ]]",
    "((",
    "))",
    "if ",
    "then ",
    "fi ",
    "while ",
    "do ",
    "done ",
    "case ",
    "esac ",
    "!",
    "#",
    "é",
    "\u{1}",
    "\u{7f}",
    "*",
    "x=",
    "true ",
    "exit ",
    "[[ -v",
    "alias ",
    "alias '!'=x\n",
    "alias time=x\n",
    "readonly ",
    "TIMEFORMAT",
    "trap '' ",
    "INT ",
    "EXIT ",
    "set -",
    "e",
    "shopt -s ",
    "eval ",
    "exec ",
    "coproc ",
    "unset ",
    "f() { ",
    "local x=1; ",
    "return ",
    "printf ",
];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

#[test]
fn random_bodies_and_commands_do_no_harm() {
    let mut random = StdRng::seed_from_u64(number("AGENT_FUZZ_SEED", 7));
    let end = Instant::now() + Duration::from_secs(number("AGENT_FUZZ_SECONDS", 5));
    let mut agent = Agent::start();
    let authorization = format!("Bearer {TOKEN}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
    ];
    agent.run("true");
    let descriptors = agent.descriptors();
    let mut rounds = 0_u64;
    while Instant::now() < end {
        let command: String = (0..random.random_range(0..12))
            .map(|_| PIECES[random.random_range(0..PIECES.len())])
            .collect();
        let answer = agent.exec_body(&json!({"command": command, "timeout": 1}));
        assert_eq!(answer.status, 200, "{command:?}: {answer:?}");

        let mut body = json!({"command": "true", "timeout": 1}).to_string().into_bytes();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..body.len());
            match random.random_range(0..3) {
                0 => body[at] = random.random(),
                1 => body.truncate(at.max(1)),
                _ => body.insert(at, random.random()),
            }
        }
        let answer = agent.request("POST", "/exec", &headers, &body);
        assert!([200, 400].contains(&answer.status), "{body:?}: {answer:?}");
        // Whatever the last command left behind, the next is answered, and says nothing of the agent's own lines.
        let next = agent.run("\\builtin printf '%s' alive");
        assert!(
            !next.timed_out && !format!("{next:?}").contains("CLI_MCP_"),
            "{command:?}: {next:?}"
        );
        rounds += 1;
        if rounds.is_multiple_of(50) {
            agent = afresh(agent, descriptors);
        }
    }
    afresh(agent, descriptors);
    eprintln!("{rounds} rounds");
}

/// What the commands of one agent did must be gone with its shell; the next commands meet another agent, since aliases and
/// functions called like all that a test could say pile up.
fn afresh(mut agent: Agent, descriptors: usize) -> Agent {
    assert!(agent.running());
    assert!(!agent.run("\\kill -9 $$").timed_out);
    assert_eq!(agent.run("true").exit_code, 0);
    assert_eq!(agent.request("GET", "/health", &[], b"").status, 200);
    agent.until_quiet();
    let deadline = Instant::now() + Duration::from_secs(10);
    while agent.descriptors() > descriptors + 2 {
        // Those of the last connections and outputs go a moment after the answer.
        assert!(
            Instant::now() < deadline,
            "{descriptors} then {:?}",
            agent.open_descriptors()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Agent::start()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn parsers_take_any_bytes(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
        let _ = request::exec_request(&bytes);
        let _ = request::assign_request(&bytes);
        let _ = script::find_status(&bytes, &script::Nonce::new());
        let framed = [b"BEGIN\0".as_slice(), &bytes, b"\0END\0"].concat();
        if let Some(state) = Snapshot::parse(&framed) {
            let _ = (state.hazards(), state.restore_script(&[], ""), snapshot::may_change_state("x", &state));
        }
        let text = String::from_utf8_lossy(&bytes);
        let _ = snapshot::may_set_traps(&text, &snapshot::Snapshot::default());
    }
}
