//! Section H: the wire.

use std::io::Write as _;
use std::time::{Duration, Instant};

use cli_mcp_sandbox::token::TokenDigest;
use cli_mcp_sandbox::wire::{OutputStream, StreamLine};
use serde_json::{Value, json};

use crate::harness::http::{receive, receive_chunk, receive_head, send};
use crate::harness::{Agent, Setup, TOKEN};

/// It is kept back only while it may be the complaint of a shell that cannot go on.
#[test]
fn what_looks_like_a_complaint_of_bash_is_streamed_while_the_command_runs() {
    let agent = Agent::start();
    let command = "echo 'bash: 258: x' >&2; until [ -e ~/heard ]; do sleep 0.01; done";
    let mut connection = agent.begin(&json!({"command": command, "timeout": 20}), "application/x-ndjson");
    assert_eq!(receive_head(&mut connection).unwrap().status, 200);
    let first = receive_chunk(&mut connection).unwrap();
    std::fs::write(agent.home.path().join("heard"), "").unwrap();
    assert_eq!(
        String::from_utf8(first).unwrap(),
        "{\"stream\":\"stderr\",\"data\":\"bash: 258: x\\n\"}\n"
    );
    let last = std::iter::from_fn(|| receive_chunk(&mut connection)).last().unwrap();
    assert!(String::from_utf8(last).unwrap().contains("\"exit_code\":0"));
}

#[test]
fn case_101_streaming() {
    let agent = Agent::start();
    let command = "for i in 1 2 3; do echo $i; echo e$i >&2; sleep .3; done";
    let mut connection = agent.begin(
        &json!({"command": command}),
        "application/json;q=0.5, application/x-ndjson",
    );
    assert_eq!(receive_head(&mut connection).unwrap().status, 200);
    let first = receive_chunk(&mut connection).unwrap();
    let begun = Instant::now();
    assert_eq!(first, b"{\"stream\":\"stdout\",\"data\":\"1\\n\"}\n");
    while receive_chunk(&mut connection).is_some() {}
    assert!(
        begun.elapsed() > Duration::from_millis(500),
        "the first line came while the command ran"
    );

    for command in [
        command,
        "printf 'a\\xe4'; sleep 0.1; printf '\\xbd\\xa0b\\xff'; printf '\\xe4\\xbd'",
        "seq 30000; seq 1000 >&2; (exit 3)",
        "true",
        "nosuch",
    ] {
        let mut lines = agent.stream(command);
        let Some(StreamLine::Result(result)) = lines.pop() else {
            panic!("no result: {lines:?}")
        };
        let plain = agent.run(command);
        assert_eq!(
            (&result.stdout, &result.stderr, result.exit_code),
            (&plain.stdout, &plain.stderr, plain.exit_code)
        );
        let mut streamed = [String::new(), String::new()];
        for line in lines {
            let StreamLine::Chunk(chunk) = line else {
                panic!("a result before the end")
            };
            streamed[usize::from(chunk.stream == OutputStream::Stderr)].push_str(&chunk.data);
        }
        assert_eq!(streamed, [plain.stdout, plain.stderr], "{command}");
    }
    // Uncut, however long.
    let lines = agent.stream("head -c 3000000 /dev/zero | tr '\\0' z");
    let total: usize = lines
        .iter()
        .map(|line| {
            if let StreamLine::Chunk(chunk) = line {
                chunk.data.len()
            } else {
                0
            }
        })
        .sum();
    assert_eq!(total, 3_000_000);
    let Some(StreamLine::Result(result)) = lines.last() else {
        panic!()
    };
    assert!(result.truncated && result.stdout.len() < 300_000);
}

#[test]
fn a_slow_reader_costs_no_memory_and_gets_everything() {
    let agent = Agent::start();
    let mut connection = agent.begin(&json!({"command": "yes | head -c 30000000"}), "application/x-ndjson");
    std::thread::sleep(Duration::from_millis(700));
    let resident = agent.resident_kib();
    assert!(resident < 64 << 10, "{resident} KiB");
    let answer = receive(&mut connection).unwrap();
    let lines = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let total: usize = lines
        .map(|line| {
            serde_json::from_slice::<Value>(line).unwrap()["data"]
                .as_str()
                .map_or(0, str::len)
        })
        .sum();
    assert_eq!(total, 30_000_000);
}

#[test]
fn case_102_cancel() {
    let agent = Agent::start();
    assert_eq!(agent.cancel(), json!({"cancelled": false}));
    let mut running = agent.begin(
        &json!({"command": "export K=1; cd /usr; echo part; sleep 100; touch ~/after"}),
        "*/*",
    );
    std::thread::sleep(Duration::from_millis(400));
    let mut waiting = agent.begin(&json!({"command": "echo waited"}), "*/*");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(agent.cancel(), json!({"cancelled": true}));
    let result = receive(&mut running).unwrap().result();
    assert_eq!(
        (result.exit_code, result.stdout.as_str(), result.timed_out),
        (130, "part\n", false)
    );
    assert!(result.duration_ms < 20_000);
    assert_eq!(receive(&mut waiting).unwrap().result().stdout, "waited\n");
    assert_eq!(agent.out("echo $K $PWD"), "1 /usr\n");
    assert!(!agent.home.path().join("after").exists());
    agent.until_quiet();
    assert_eq!(agent.cancel(), json!({"cancelled": false}));
    let authorization = format!("Bearer {TOKEN}");
    assert_eq!(
        agent
            .request("POST", "/cancel", &[("Authorization", &authorization)], b"x")
            .status,
        400
    );
    assert_eq!(
        agent
            .request("POST", "/cancel", &[("Authorization", "Bearer x")], b"")
            .status,
        401
    );
}

#[test]
fn case_103_assignment() {
    let assign = "assign-token";
    let agent = Setup::unassigned()
        .env(
            "SANDBOX_ASSIGN_TOKEN_SHA256",
            &TokenDigest::of(assign.as_bytes()).to_hex(),
        )
        .start();
    assert_eq!(agent.exec_body(&json!({"command": "id"})).status, 503);
    assert_eq!(agent.post("/assign", "wrong", &json!({"token": TOKEN})).status, 401);
    assert_eq!(agent.post("/assign", assign, &json!({"token": ""})).status, 400);
    assert_eq!(
        agent.post("/assign", assign, &json!({"token": TOKEN, "x": 1})).status,
        400
    );
    assert_eq!(agent.post("/assign", assign, &json!({"token": TOKEN})).status, 200);
    assert_eq!(agent.post("/assign", assign, &json!({"token": TOKEN})).status, 200);
    assert_eq!(agent.post("/assign", assign, &json!({"token": "another"})).status, 409);
    assert_eq!(agent.out("echo mine"), "mine\n");

    let agent = Setup::unassigned()
        .env(
            "SANDBOX_ASSIGN_TOKEN_SHA256",
            &TokenDigest::of(assign.as_bytes()).to_hex(),
        )
        .start();
    let mut racers: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|token| {
            let mut connection = agent.connect();
            let body = json!({"token": token}).to_string();
            let authorization = format!("Bearer {assign}");
            let headers = [
                ("Authorization", authorization.as_str()),
                ("Content-Type", "application/json"),
            ];
            send(connection.get_mut(), "POST", "/assign", &headers, body.as_bytes());
            connection
        })
        .collect();
    let mut statuses: Vec<u16> = racers
        .iter_mut()
        .map(|connection| receive(connection).unwrap().status)
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409, 409, 409]);

    let own_digest = TokenDigest::of(assign.as_bytes()).to_hex();
    for agent in [
        Agent::start(),
        Setup::new().env("SANDBOX_ASSIGN_TOKEN_SHA256", &own_digest).start(),
    ] {
        let started_so = agent.post("/assign", assign, &json!({"token": TOKEN}));
        assert_eq!(started_so.status, 409);
        assert_eq!(
            started_so.error(),
            "this sandbox was started with its session and cannot be assigned"
        );
        assert_eq!(
            agent.request("POST", "/assign", &[], b"").status,
            401,
            "without a token"
        );
    }
}

#[test]
fn case_104_who_may_call() {
    let agent = Agent::start();
    let body = br#"{"command":"touch ran"}"#;
    let typed = ("Content-Type", "application/json");
    let good = format!("Bearer {TOKEN}");
    let good = ("Authorization", good.as_str());
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);
    let cases: &[Case<'_>] = &[
        ("POST", "/exec", &[typed], 401),
        ("POST", "/exec", &[typed, ("Authorization", TOKEN)], 401),
        ("POST", "/exec", &[typed, ("Authorization", "Bearer")], 401),
        ("POST", "/exec", &[typed, ("Authorization", "Bearer ")], 401),
        ("POST", "/exec", &[typed, ("Authorization", "Basic dGVzdA==")], 401),
        ("POST", "/exec", &[typed, ("Authorization", "Bearer wrong")], 401),
        (
            "POST",
            "/exec",
            &[typed, ("Authorization", "Bearer test-session-toke")],
            401,
        ),
        ("POST", "/exec", &[typed, good, good], 400),
        ("POST", "/exec", &[good, ("Content-Type", "text/plain")], 415),
        ("POST", "/exec", &[good], 415),
        ("GET", "/exec", &[good], 405),
        ("PUT", "/assign", &[], 405),
        ("POST", "/health", &[], 405),
        ("GET", "/cancel", &[], 405),
        ("GET", "/nosuch", &[], 404),
        ("POST", "/exec/", &[typed, good], 404),
        ("GET", "/", &[], 404),
    ];
    for (method, path, headers, status) in cases {
        let answer = agent.request(method, path, headers, body);
        assert_eq!(answer.status, *status, "{method} {path} {headers:?}");
        assert!(!answer.error().is_empty());
        assert!(!String::from_utf8_lossy(&answer.body).contains(TOKEN));
    }
    assert_eq!(agent.request("GET", "/exec", &[], b"").headers["allow"], "POST");
    assert_eq!(agent.out("ls"), "");
    let lower = format!("bearer {TOKEN}");
    let headers = [
        ("Authorization", lower.as_str()),
        ("Content-Type", "Application/JSON; charset=utf-8"),
    ];
    assert_eq!(
        agent
            .request("POST", "/exec", &headers, br#"{"command":"true"}"#)
            .status,
        200
    );
    // Before the body and its type, the session is asked for; before that, the number of headers.
    let unassigned = Setup::unassigned()
        .env("SANDBOX_ASSIGN_TOKEN_SHA256", &"0".repeat(64))
        .start();
    assert_eq!(unassigned.request("POST", "/exec", &[good, good], body).status, 400);
    assert_eq!(unassigned.request("POST", "/exec", &[], body).status, 503);
    assert_eq!(unassigned.request("POST", "/cancel", &[], body).status, 503);
}

#[test]
fn case_105_the_spill_folder() {
    let agent = Agent::start();
    for _ in 0..70 {
        assert!(agent.run("yes 0123456789 | head -c 1000000").truncated);
    }
    let folder = agent.home.path().join(".cli-mcp/output");
    let sizes: Vec<u64> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert!(
        sizes.len() <= 64 && sizes.iter().sum::<u64>() <= 64 << 20,
        "{} files",
        sizes.len()
    );
    let result = agent.run("yes | head -c 1000000");
    let path = result
        .stdout
        .split("the full text is in ")
        .nth(1)
        .unwrap()
        .split(']')
        .next()
        .unwrap();
    assert_eq!(agent.out(&format!("wc -c <{path}")), "1000000\n");
    agent.out("rm -rf ~/.cli-mcp");
    assert!(
        agent
            .run("yes | head -c 1000000")
            .stdout
            .contains("the full text is in ")
    );
    let elsewhere = tempfile::tempdir().unwrap();
    for link in [
        "rm -rf ~/.cli-mcp; ln -s $D ~/.cli-mcp",
        "rm -rf ~/.cli-mcp; mkdir ~/.cli-mcp; ln -s $D ~/.cli-mcp/output",
    ] {
        agent.out(&format!("D={}; {link}", elsewhere.path().display()));
        let result = agent.run("yes | head -c 1000000; echo end");
        assert!(result.stdout.contains("could not be kept") && result.stdout.ends_with("end\n"));
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}

#[test]
fn case_105_a_full_disk_has_no_part_of_an_output() {
    let Some(setup) = Setup::on_small_disk() else { return };
    let agent = setup.start();
    for _ in 0..3 {
        let result = agent.run("yes | head -c 400000");
        assert!(result.stdout.contains("the full text is in "), "{}", result.stdout);
    }
    assert_eq!(
        agent.out("ls ~/.cli-mcp/output"),
        "00000002-stdout.txt\n00000003-stdout.txt\n"
    );
    let result = agent.run("yes | head -c 3000000; echo end");
    assert!(result.stdout.contains("could not be kept: No space left on device"));
    assert_eq!(
        agent.out("ls ~/.cli-mcp/output; head -c 900000 /dev/zero >~/file; wc -c <~/file"),
        "900000\n"
    );
}

#[test]
fn case_106_the_client_leaves() {
    let agent = Agent::start();
    agent.out("K=1");
    for accept in ["*/*", "application/x-ndjson"] {
        let mut running = agent.begin(&json!({"command": "echo begun; sleep 100; touch after"}), accept);
        if accept != "*/*" {
            assert_eq!(receive_head(&mut running).unwrap().status, 200);
        }
        std::thread::sleep(Duration::from_millis(300));
        let waiting = agent.begin(&json!({"command": "touch waited"}), accept);
        std::thread::sleep(Duration::from_millis(200));
        drop(waiting);
        std::thread::sleep(Duration::from_millis(200));
        drop(running);
        assert_eq!(agent.run("echo $K; ls").stdout, "1\n", "{accept}");
        agent.until_quiet();
    }
    // A stream whose client leaves before the first byte.
    let silent = agent.begin(&json!({"command": "sleep 100; touch after"}), "application/x-ndjson");
    std::thread::sleep(Duration::from_millis(300));
    drop(silent);
    assert_eq!(agent.out("ls"), "");
    agent.until_quiet();
}

#[test]
fn a_client_that_has_sent_ahead_is_seen_to_leave() {
    let agent = Agent::start();
    let next = "POST /exec HTTP/1.1\r\nHost: agent\r\nContent-Length: 0\r\n\r\n";
    for accept in ["*/*", "application/x-ndjson"] {
        for ahead in ["\r\n", "x", next] {
            let command = "echo begun; touch ~/begun; sleep 10; touch ~/after";
            let mut running = agent.begin(&json!({ "command": command }), accept);
            if accept != "*/*" {
                assert_eq!(receive_head(&mut running).unwrap().status, 200);
                assert!(receive_chunk(&mut running).is_some());
            }
            agent.until_file("begun");
            running.get_mut().write_all(ahead.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            drop(running);
            // The call after it waits for its end.
            assert_eq!(agent.out("rm begun; ls"), "", "{accept} {ahead:?}");
        }
    }
    // What is sent ahead costs a client that stays nothing.
    let mut staying = agent.begin(&json!({"command": "sleep 0.3; echo stayed"}), "*/*");
    staying
        .get_mut()
        .write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\n\r\n")
        .unwrap();
    assert_eq!(receive(&mut staying).unwrap().result().stdout, "stayed\n");
    assert_eq!(receive(&mut staying).unwrap().status, 200);
}

#[test]
fn a_refusal_is_heard_over_any_body() {
    let agent = Agent::start();
    let body = json!({"command": "x".repeat(5 << 20)}).to_string();
    let authorization = format!("Bearer {TOKEN}");
    let typed = ("Content-Type", "application/json");
    for (path, headers, status) in [
        ("/exec", [typed, ("Authorization", "Bearer wrong")], 401),
        (
            "/exec",
            [
                ("Content-Type", "text/plain"),
                ("Authorization", authorization.as_str()),
            ],
            415,
        ),
        ("/nosuch", [typed, typed], 404),
        ("/health", [typed, typed], 405),
    ] {
        let mut connection = agent.connect();
        let [first, second] = headers.map(|(name, value)| format!("{name}: {value}\r\n"));
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: agent\r\nContent-Length: {length}\r\n{first}{second}\r\n");
        let (begin, rest) = body.as_bytes().split_at(length / 2);
        connection.get_mut().write_all(head.as_bytes()).unwrap();
        connection.get_mut().write_all(begin).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let sent = connection.get_mut().write_all(rest);
        assert!(sent.is_ok(), "the door was shut: {path} {sent:?}");
        let answer = receive(&mut connection).unwrap();
        assert_eq!(answer.status, status, "{path}");
    }
}

#[test]
fn what_a_client_does_not_take_it_does_not_get() {
    let agent = Agent::start();
    for accept in ["application/x-ndjson;q=0", "application/x-ndjson; q=0.000, */*"] {
        let mut connection = agent.begin(&json!({"command": "echo plain"}), accept);
        assert_eq!(receive(&mut connection).unwrap().result().stdout, "plain\n", "{accept}");
    }
    let mut connection = agent.connect();
    send(connection.get_mut(), "HEAD", "/health", &[], b"");
    let head = receive_head(&mut connection).unwrap();
    assert_eq!(head.status, 200);
    send(connection.get_mut(), "GET", "/health", &[], b"");
    let whole = receive(&mut connection).unwrap();
    assert_eq!(head.headers["content-length"], whole.headers["content-length"]);
}
