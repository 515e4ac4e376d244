//! Section G: what an agent does that must prove its network closed (contract, section 8).

use std::net::TcpListener;

use serde_json::json;

use crate::harness::http::receive;
use crate::harness::{Agent, Setup, TOKEN, until};

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn start(target: &str, control: &str) -> Agent {
    Setup::new()
        .env("SANDBOX_EGRESS_CHECK", "Required")
        .env("SANDBOX_EGRESS_TARGET", target)
        .env("SANDBOX_EGRESS_CONTROL", control)
        .start_unready()
}

fn health(agent: &Agent) -> (u16, String) {
    let answer = agent.request("GET", "/health", &[], b"");
    (answer.status, String::from_utf8(answer.body).unwrap())
}

#[test]
fn an_open_network_takes_no_command() {
    let (open, target) = listener();
    let (_control, control) = listener();
    let agent = start(&target, &control);
    until("the open network is seen", || health(&agent).1.contains("succeeded"));

    let (status, reason) = health(&agent);
    assert_eq!(status, 503, "{reason}");
    assert!(
        reason.contains("EgressNotEnforced") && reason.contains(&target),
        "{reason}"
    );
    let answer = agent.post("/exec", TOKEN, &json!({"command": "touch ~/ran"}));
    assert_eq!(answer.status, 503);
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .starts_with("EgressNotEnforced: ")
    );
    assert!(!agent.home.path().join("ran").exists());

    // Once it is closed the agent notices by itself.
    drop(open);
    until("the closed network is seen", || health(&agent).0 == 200);
    assert_eq!(agent.out("echo $((6 * 7))"), "42\n");
}

/// The only check of a proven network is that of its period, a minute and a quarter at most.
#[test]
fn a_network_that_opens_later_takes_no_command_that_was_waiting() {
    let (first, target) = listener();
    drop(first);
    let (_control, control) = listener();
    let agent = start(&target, &control);
    until("the closed network is seen", || health(&agent).0 == 200);
    // A connection that shows no token does not stay until then.
    agent.out("true");
    let running =
        json!({"command": "touch ~/began; until [[ -e ~/go ]]; do sleep 0.1; done; echo done", "timeout": 200});
    let mut running = agent.begin(&running, "application/json");
    agent.until_file("began");
    let mut waiting = agent.begin(&json!({"command": "touch ~/ran"}), "application/json");
    agent.until_metric("cli_mcp_agent_waiting_calls 1");
    let _open = TcpListener::bind(&target).unwrap();
    // Who has shown no token keeps no connection for so long.
    let anew = [("connection", "close")];
    until("the open network is seen", || {
        agent.request("GET", "/health", &anew, b"").status == 503
    });
    std::fs::write(agent.home.path().join("go"), "").unwrap();
    assert_eq!(
        receive(&mut running).unwrap().result().stdout,
        "done\n",
        "what ran goes on"
    );
    let refused = receive(&mut waiting).unwrap();
    assert_eq!(refused.status, 503);
    assert!(
        refused.error().starts_with("EgressNotEnforced: a direct connection"),
        "{}",
        refused.error()
    );
    assert!(!agent.home.path().join("ran").exists());
    agent.until_metric("cli_mcp_agent_calls_total{outcome=\"egress_not_enforced\"} 1");
    assert_eq!(agent.exec_body(&json!({"command": "true"})).status, 503);
    agent.until_metric("cli_mcp_agent_calls_total{outcome=\"egress_not_enforced\"} 2");
}

#[test]
fn a_network_in_which_the_control_fails_too_takes_no_command() {
    let (refusing, control) = listener();
    drop(refusing);
    let agent = start("127.0.0.1:1", &control);
    until("the failed control is seen", || health(&agent).1.contains(&control));
    assert_eq!(health(&agent).0, 503);
    let answer = agent.post("/exec", TOKEN, &json!({"command": "true"}));
    assert_eq!(answer.status, 503);
}
