//! The program as a user starts it, without a cluster: help, completion, and what a bad invocation gets.
#![allow(clippy::unwrap_used, reason = "a test that cannot start what it tests has failed")]

use std::process::{Command, Output};

fn plugin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-cli_mcp"))
        .args(arguments)
        .env_clear()
        .env("HOME", "/nonexistent")
        .output()
        .unwrap()
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
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
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
    let told: serde_json::Value = serde_json::from_slice(&deleted.stdout).unwrap();
    for (place, session) in ["s1", "s2"].iter().enumerate() {
        let ended = &told["sessions"][place];
        assert!(
            ended["session"] == *session && ended["ended"] == false && ended["error"].is_string(),
            "each is tried, and told: {told}"
        );
    }
}
