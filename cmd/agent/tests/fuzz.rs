//! Random requests and random command bytes: the agent answers each in time, stays alive, and leaks nothing.
//!
//! `AGENT_FUZZ_SECONDS` sets for how much processor time of the agents and all that they start, `AGENT_FUZZ_AGENTS` how many run
//! beside one another, `AGENT_FUZZ_SEED` where the first begins.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod harness;

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use cli_mcp_agent::snapshot::{self, Snapshot};
use cli_mcp_agent::{request, script};
use cli_mcp_sandbox::token::TokenDigest;
use harness::http::{Answer, receive, send};
use harness::{Agent, Setup, TOKEN, cancel_at, signal, until};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

/// The token of `/assign`.
const ASSIGN_TOKEN: &str = "assign-token";
/// No answer takes this long unless something hangs: the calls have a second.
const HANG: Duration = Duration::from_secs(30);
/// Rounds between two looks at what was left behind.
const ROUNDS: u64 = 50;

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

/// Bytes that mean something to bash, to nobody, or to JSON.
fn command(random: &mut StdRng) -> String {
    (0..random.random_range(0..12))
        .map(|_| match random.random_range(0..6) {
            0 => char::from(random.random_range(0..0x80_u8)).to_string(),
            1 => random.random::<char>().to_string(),
            _ => (*PIECES.choose(random).unwrap()).to_owned(),
        })
        .collect()
}

/// A body with a few bytes lost, changed or added.
fn spoilt(random: &mut StdRng, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..body.len());
        match random.random_range(0..3) {
            0 => body[at] = random.random(),
            1 => body.truncate(at.max(1)),
            _ => body.insert(at, random.random()),
        }
    }
    body
}

/// What a header may hold: anything but the end of its line.
fn value(random: &mut StdRng) -> String {
    let bytes = (0..random.random_range(0..40)).map(|_| random.random_range(0x20..0x7f_u8));
    bytes.map(char::from).collect()
}

/// The connection to one agent, which must answer before the bound.
struct Client {
    agent: Agent,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    fn new(agent: Agent) -> Self {
        Self {
            agent,
            connection: None,
        }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let connection = self.agent.connect();
        connection.get_ref().set_read_timeout(Some(HANG)).unwrap();
        connection
    }

    fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut connection = self.connection.take().unwrap_or_else(|| self.connect());
        send(connection.get_mut(), method, path, headers, body);
        let answer = receive(&mut connection).unwrap_or_else(|| {
            panic!(
                "no answer: {method} {path} {headers:?} {:?}",
                String::from_utf8_lossy(body)
            )
        });
        if answer.headers.get("connection").is_none_or(|value| value != "close") {
            self.connection = Some(connection);
        }
        answer
    }

    fn post(&mut self, path: &str, token: &str, body: &[u8]) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
        ];
        self.ask("POST", path, &headers, body)
    }

    fn exec(&mut self, command: &str) -> Answer {
        let body = json!({"command": command, "timeout": 1}).to_string();
        self.post("/exec", TOKEN, body.as_bytes())
    }

    /// A random command; some are cancelled as they run.
    fn try_command(&mut self, random: &mut StdRng) -> String {
        let command = command(random);
        let status = if command.contains('\0') { 400 } else { 200 };
        let answer = if random.random_ratio(1, 8) {
            let mut running = self.connect();
            let body = json!({"command": command, "timeout": 1}).to_string();
            let authorization = format!("Bearer {TOKEN}");
            let headers = [
                ("Authorization", authorization.as_str()),
                ("Content-Type", "application/json"),
            ];
            send(running.get_mut(), "POST", "/exec", &headers, body.as_bytes());
            std::thread::sleep(Duration::from_millis(random.random_range(0..5)));
            cancel_at(self.agent.address);
            receive(&mut running).unwrap_or_else(|| panic!("no answer: {command:?}"))
        } else {
            self.exec(&command)
        };
        assert_eq!(answer.status, status, "{command:?}: {answer:?}");
        command
    }

    /// Bodies that are nearly right.
    fn try_bodies(&mut self, random: &mut StdRng) {
        let exec = json!({"command": "true", "timeout": 1}).to_string();
        let assign = json!({"token": TOKEN}).to_string();
        for (path, token, body, statuses) in [
            ("/exec", TOKEN, spoilt(random, exec.as_bytes()), &[200, 400][..]),
            (
                "/assign",
                ASSIGN_TOKEN,
                spoilt(random, assign.as_bytes()),
                &[200, 400, 409],
            ),
            ("/cancel", TOKEN, spoilt(random, b"x"), &[400]),
        ] {
            let answer = self.post(path, token, &body);
            assert!(statuses.contains(&answer.status), "{path} {body:?}: {answer:?}");
        }
    }

    /// Heads that are right as HTTP and mean nothing, then such as are not HTTP.
    fn try_heads(&mut self, random: &mut StdRng) {
        let paths = [
            "/exec", "/assign", "/cancel", "/health", "/metrics", "/", "/nosuch", "/exec/", "*",
        ];
        let methods = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "x"];
        let names = [
            "Authorization",
            "Content-Type",
            "Accept",
            "Expect",
            "Origin",
            "Transfer-Encoding",
            "Connection",
            "X-Other",
        ];
        let good = [
            format!("Bearer {TOKEN}"),
            format!("Bearer {ASSIGN_TOKEN}"),
            "application/json".to_owned(),
            "application/x-ndjson".to_owned(),
            "100-continue".to_owned(),
            "chunked".to_owned(),
        ];
        let (method, path) = (*methods.choose(random).unwrap(), *paths.choose(random).unwrap());
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n");
        for _ in 0..random.random_range(0..5) {
            let value = if random.random() {
                value(random)
            } else {
                good.choose(random).unwrap().clone()
            };
            head.push_str(&format!("{}: {value}\r\n", names.choose(random).unwrap()));
        }
        head.push_str("\r\n{}");
        let mut head = head.into_bytes();
        let broken = random.random();
        if broken {
            head = spoilt(random, &head);
        }
        let mut connection = self.connect();
        // An agent that has refused the head may have closed already.
        let _ = connection.get_mut().write_all(&head);
        let _ = connection.get_ref().shutdown(Shutdown::Write);
        let begun = Instant::now();
        let answer = receive(&mut connection);
        assert!(begun.elapsed() < HANG, "no end: {:?}", String::from_utf8_lossy(&head));
        if let Some(answer) = answer {
            assert!(
                answer.status < 500 || [501, 503, 505].contains(&answer.status),
                "{:?}: {answer:?}",
                String::from_utf8_lossy(&head)
            );
        }
    }

    /// Ends the shell from outside, whatever it takes for commands by then, and everything that it has left: nothing of that
    /// may stay with the agent. Gives the descriptors of agent and fresh shell.
    fn settle(&mut self) -> [usize; 2] {
        let shell = self.agent.shell().expect("a shell between two calls");
        signal(shell, "KILL");
        until("another shell is there", || {
            self.agent.shell().is_some_and(|pid| pid != shell)
        });
        // What the commands have defined comes back with the state, and piles up.
        assert_eq!(self.exec("\\unalias -a; \\unset -f f; \\trap - INT EXIT").status, 200);
        assert_eq!(self.ask("GET", "/health", &[], b"").status, 200);
        self.agent.until_quiet();
        until("all that ended was collected", || self.agent.zombies() == 0);
        [self.agent.descriptors(), self.agent.open_descriptors_of_shell().len()]
    }

    /// As [`Self::settle`]; no more may be open than was.
    fn settle_within(&mut self, most: [usize; 2]) {
        let [mut of_agent, of_shell] = self.settle();
        for _ in 0..1000 {
            if of_agent <= most[0] {
                break;
            }
            // Those of the last connections and outputs go a moment after the answer.
            std::thread::sleep(Duration::from_millis(10));
            of_agent = self.agent.descriptors();
        }
        assert!(
            of_agent <= most[0] && of_shell <= most[1],
            "{most:?} then {:?} and {:?}",
            self.agent.open_descriptors(),
            self.agent.open_descriptors_of_shell()
        );
    }
}

/// Tries one agent for so much processor time of it and all that it starts. Returns the number of rounds.
fn try_agent(seed: u64, processor_time: Duration) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let digest = TokenDigest::of(ASSIGN_TOKEN.as_bytes()).to_hex();
    let agent = Setup::unassigned().env("SANDBOX_ASSIGN_TOKEN_SHA256", &digest).start();
    assert_eq!(
        agent.post("/assign", ASSIGN_TOKEN, &json!({"token": TOKEN})).status,
        200
    );
    let mut client = Client::new(agent);
    // The agent has what it needs once it has done each of these.
    for round in 0..5 {
        client.exec(&format!("echo {round}"));
        client.settle();
    }
    std::thread::sleep(Duration::from_secs(1));
    let open = client.settle();
    let end = client.agent.processor_time() + processor_time;
    let mut rounds = 0_u64;
    while client.agent.processor_time() < end {
        let command = client.try_command(&mut random);
        client.try_bodies(&mut random);
        client.try_heads(&mut random);
        // Whatever the last command left behind, the next is answered, and says nothing of the agent's own lines.
        let body = json!({"command": "\\builtin printf '%s' alive"}).to_string();
        let next = client.post("/exec", TOKEN, body.as_bytes()).result();
        assert!(
            !next.timed_out && !format!("{next:?}").contains("CLI_MCP_"),
            "{command:?}: {next:?}"
        );
        rounds += 1;
        if rounds.is_multiple_of(ROUNDS) {
            client.settle_within(open);
        }
    }
    client.settle_within(open);
    assert!(client.agent.running());
    rounds
}

#[test]
fn random_requests_and_commands_do_no_harm() {
    let agents = number("AGENT_FUZZ_AGENTS", 1).max(1);
    let each = Duration::from_secs(number("AGENT_FUZZ_SECONDS", 1)) / u32::try_from(agents).unwrap();
    let first = number("AGENT_FUZZ_SEED", 7);
    std::thread::scope(|scope| {
        for seed in (0..agents).map(|agent| first.wrapping_add(agent)) {
            scope.spawn(move || eprintln!("seed {seed}: {} rounds", try_agent(seed, each)));
        }
    });
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
