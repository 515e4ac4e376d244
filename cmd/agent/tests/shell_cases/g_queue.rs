//! Section G: calls that wait for their turn.

use std::io::Write as _;
use std::time::Duration;

use serde_json::json;

use crate::harness::http::{receive, receive_head};
use crate::harness::{Agent, TOKEN};

#[test]
fn case_087_the_queue() {
    let agent = Agent::start();
    let waiting_calls = |count: usize| agent.until_metric(&format!("cli_mcp_agent_waiting_calls {count}"));
    let hold = "touch begun; until [ -e go ]; do sleep 0.05; done; rm begun go; echo a";
    let mut running = agent.begin(&json!({"command": hold}), "*/*");
    agent.until_file("begun");
    let mut second = agent.begin(&json!({"command": "echo b", "timeout": 1}), "*/*");
    waiting_calls(1);
    let mut waiting: Vec<_> = (0..15)
        .map(|index| {
            let command = format!("echo {index} >>order; echo {index}");
            let connection = agent.begin(&json!({"command": command}), "*/*");
            waiting_calls(index + 2);
            connection
        })
        .collect();
    let refused = agent.exec_body(&json!({"command": "touch refused"}));
    assert_eq!(refused.status, 409);
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert!(!refused.error().is_empty());
    // The queue is asked before the body is sent.
    let mut unsent = agent.connect();
    let head = format!(
        "POST /exec HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    );
    unsent.get_mut().write_all(head.as_bytes()).unwrap();
    assert_eq!(receive_head(&mut unsent).unwrap().status, 409);
    agent.until_metric("cli_mcp_agent_calls_total{outcome=\"queue_full\"} 2");
    agent.until_metric("cli_mcp_agent_refused_calls_total 2");
    // Longer than the second one may take.
    std::thread::sleep(Duration::from_millis(1100));
    std::fs::write(agent.home.path().join("go"), "").unwrap();
    assert_eq!(receive(&mut running).unwrap().result().stdout, "a\n");
    assert_eq!(
        receive(&mut second).unwrap().result().stdout,
        "b\n",
        "its clock starts when it runs"
    );
    for (index, connection) in waiting.iter_mut().enumerate() {
        assert_eq!(receive(connection).unwrap().result().stdout, format!("{index}\n"));
    }
    let order: Vec<String> = (0..15).map(|index| index.to_string()).collect();
    assert_eq!(agent.out("cat order").lines().collect::<Vec<_>>(), order);
    assert_eq!(agent.out("ls"), "order\n");
}

#[test]
fn what_waits_is_bounded_in_bytes_too() {
    let agent = Agent::start();
    let hold = "touch begun; until [ -e go ]; do sleep 0.05; done";
    let mut running = agent.begin(&json!({"command": hold}), "*/*");
    agent.until_file("begun");
    let large = json!({"command": format!("# {}", "x".repeat((4 << 20) - 64))});
    let before = agent.resident_kib();
    let mut waiting = Vec::new();
    for count in 1..=2 {
        waiting.push(agent.begin(&large, "*/*"));
        agent.until_metric(&format!("cli_mcp_agent_waiting_calls {count}"));
    }
    for _ in 0..14 {
        let refused = agent.exec_body(&large);
        assert_eq!(refused.status, 409);
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
        assert!(refused.error().contains("too large together"), "{}", refused.error());
    }
    let growth = agent.resident_kib().saturating_sub(before);
    assert!(growth < 24 << 10, "{growth} KiB more");
    // There is room for others.
    let mut small = agent.begin(&json!({"command": "echo small"}), "*/*");
    agent.until_metric("cli_mcp_agent_waiting_calls 3");
    std::fs::write(agent.home.path().join("go"), "").unwrap();
    for connection in [&mut running].into_iter().chain(&mut waiting) {
        assert_eq!(receive(connection).unwrap().result().exit_code, 0);
    }
    assert_eq!(receive(&mut small).unwrap().result().stdout, "small\n");
}

#[test]
fn a_call_whose_client_left_the_queue_is_counted() {
    let agent = Agent::start();
    let hold = "touch begun; until [ -e go ]; do sleep 0.05; done";
    let mut running = agent.begin(&json!({"command": hold}), "*/*");
    agent.until_file("begun");
    let waiting = agent.begin(&json!({"command": "touch ran"}), "*/*");
    agent.until_metric("cli_mcp_agent_waiting_calls 1");
    drop(waiting);
    agent.until_metric("cli_mcp_agent_calls_total{outcome=\"client_left\"} 1");
    std::fs::write(agent.home.path().join("go"), "").unwrap();
    assert_eq!(receive(&mut running).unwrap().result().exit_code, 0);
}
