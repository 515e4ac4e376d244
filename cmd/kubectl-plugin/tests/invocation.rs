//! The program as a user starts it, without a cluster: help, completion, and what a bad invocation gets.
#![allow(clippy::unwrap_used, reason = "a test that cannot start what it tests has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-cli_mcp"));
    command.args(arguments).env_clear().env("HOME", "/nonexistent");
    command
}

fn plugin(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_and_completion_are_printed() {
    let help = text(&plugin(&["--help"]).stdout);
    assert!(
        help.contains("kubectl cli-mcp") && help.contains("investigation-kubeconfig"),
        "{help}"
    );
    for shell in ["bash", "zsh", "fish"] {
        let completion = plugin(&["completion", shell]);
        assert!(completion.status.success());
        assert!(text(&completion.stdout).contains("investigation-kubeconfig"), "{shell}");
    }
}

#[test]
fn kubectl_is_answered_what_completes_a_line() {
    let completed = plugin(&["__complete", "sessions", "--output="]);
    let answer = text(&completed.stdout);
    assert!(
        completed.status.success() && answer.contains("--output=json\t") && answer.ends_with(":4\n"),
        "{answer}"
    );
    // No cluster is there to ask.
    assert_eq!(text(&plugin(&["__complete", "delete", "-n", "ns", ""]).stdout), ":4\n");
}

#[test]
fn who_says_nothing_gets_the_help() {
    let output = plugin(&[]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("Usage: kubectl cli-mcp") && stderr.contains("investigation-kubeconfig"),
        "{stderr}"
    );
}

#[test]
fn a_bad_invocation_is_one_line_and_exit_code_2() {
    let kubeconfig = ["sessions", "--kubeconfig", "/nonexistent/config"];
    let no_namespace = ["investigation-kubeconfig", "-i", "x", "--in-namespaces", "a,,b"];
    let cases: [(&[&str], &str); 8] = [
        (&["sesions"], "sessions"),
        (&["sessions", "-o", "yaml"], "text, json"),
        (&no_namespace, "--in-namespaces"),
        (&["run", "s1"], "COMMAND"),
        (&["run", "s1", "--timeout=6m", "--", "ls"], "--timeout"),
        (&["run", "s1", "--url", "http://mcp.example.com", "--", "ls"], "--url"),
        (
            &[
                "run",
                "s1",
                "--url",
                "https://localhost:1",
                "--token-file",
                "/nonexistent/token",
                "--",
                "ls",
            ],
            "/nonexistent/token",
        ),
        (&kubeconfig, "--kubeconfig"),
    ];
    for (arguments, word) in cases {
        let output = plugin(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.lines().count() == 1 && stderr.contains(word),
            "{stderr}"
        );
        assert!(
            !stderr.contains("kubectl-cli_mcp"),
            "a user knows it as kubectl cli-mcp: {stderr}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_server_that_is_not_there_leaves_run_without_a_result() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let output = plugin(&["run", "s1", "--url", &url, "--", "ls"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(
        stderr.to_lowercase().contains("connection refused"),
        "the cause is not told: {stderr}"
    );
    let deleted = plugin(&["delete", "s1", "s2", "--url", &url, "-o", "json"]);
    assert_eq!(deleted.status.code(), Some(1), "{}", text(&deleted.stderr));
    let told: Value = serde_json::from_slice(&deleted.stdout).unwrap();
    for (place, session) in ["s1", "s2"].iter().enumerate() {
        let ended = &told["sessions"][place];
        assert!(
            ended["session"] == *session && ended["ended"] == false && ended["error"].is_string(),
            "each is tried, and told: {told}"
        );
    }
}

/// A message that a client posts.
fn posted(stream: &TcpStream) -> Value {
    let (mut reader, mut line, mut length) = (BufReader::new(stream), String::new(), 0);
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

/// A server whose command writes until its client leaves, and its end then.
fn endless() -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let message = posted(&stream);
            let mut head = |status: &str, kind: &str| {
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n"
                )
                .unwrap();
            };
            match message["method"].as_str() {
                Some("tools/call") => {
                    head("200 OK", "text/event-stream");
                    let token = &message["params"]["_meta"]["progressToken"];
                    let left = (1..1_000_000).any(|n| {
                        let progress = json!({"progressToken": token, "progress": n * 2, "message": "y\n"});
                        let event = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress});
                        write!(stream, "data: {event}\n\n").is_err()
                    });
                    assert!(left, "the client takes all there is");
                    return;
                }
                Some("initialize") => {
                    head("200 OK", "application/json");
                    let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                        "serverInfo": {"name": "t", "version": "1"}});
                    write!(
                        stream,
                        "{}",
                        json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
                    )
                    .unwrap();
                }
                Some(_) => head("202 Accepted", "text/plain"),
                None => head("405 Method Not Allowed", "text/plain"),
            }
        }
    });
    (url, server)
}

#[test]
fn a_reader_that_has_enough_ends_run_at_once() {
    let (url, server) = endless();
    let mut running = command(&["run", "s1", "--url", &url, "--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 4];
    // Dropped here, which closes the pipe.
    running.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(&some, b"y\ny\n");
    let ended = running.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141), "{}", text(&ended.stderr));
    server.join().unwrap();
}

#[test]
fn an_error_does_not_steer_the_terminal() {
    let stderr = text(&plugin(&["run", "s1", "-f", "/nonexistent/\x1b]0;x\x07"]).stderr);
    assert!(stderr.contains(r"/nonexistent/\u{1b}]0;x\u{7}"), "{stderr:?}");
    assert!(!stderr.trim_end().contains(char::is_control), "{stderr:?}");
}
