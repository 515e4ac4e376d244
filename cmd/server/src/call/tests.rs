//! How long a sandbox is waited for, and what a call answers when it goes away.

use std::future::pending;

use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use cli_mcp_sandbox::pod::{CONTAINER, session_pod_name};
use cli_mcp_sandbox::wire::{ExecRequest, StreamChunk};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::budget::Held;
use crate::fixtures::{Api, Replica, agent, local_pod, pods};
use crate::store::fixtures::{pod, session};
use crate::trace::TraceContext;

/// No agent is asked.
const NO_PORT: u16 = 1;

fn runner(replica: &Replica) -> Runner {
    runner_of(replica, NO_PORT)
}

/// A runner whose agents listen on this port.
fn runner_of(replica: &Replica, port: u16) -> Runner {
    Runner::new(
        replica.allocator(port),
        replica.cluster.clone(),
        replica.cache.clone(),
        replica.agents(port),
        replica.key.clone(),
        Activity::new(replica.cluster.clone()),
        replica.telemetry.clone(),
    )
}

fn flight(sent: bool) -> Flight {
    let request = ExecRequest {
        command: "echo".to_owned(),
        timeout: None,
    };
    let flight = Flight::new(request, TraceContext::default(), Held::default());
    if sent {
        flight.mark_sent();
    }
    flight
}

fn living() -> Pod {
    pod("p", "u", 1, Some("s1"))
}

/// The later state of [`living`] with this status.
fn later(status: Value) -> Pod {
    let mut later = pod("p", "u", 2, Some("s1"));
    later.status = Some(serde_json::from_value(status).unwrap());
    later
}

fn evicted() -> Pod {
    later(json!({"phase": "Failed", "reason": "Evicted"}))
}

struct Nowhere;

impl OutputSink for Nowhere {
    async fn chunk(&mut self, _chunk: StreamChunk) {}
}

/// What a first call answers when its pod has this status and no other comes.
async fn first_call(status: Value) -> Failure {
    first_call_and_stages(status).await.0
}

/// The same, and the times of its stages.
async fn first_call_and_stages(status: Value) -> (Failure, String) {
    let mut created = pod(&session_pod_name("demo", "s1"), "u", 1, Some("s1"));
    created.status = Some(serde_json::from_value(status).unwrap());
    let replica = Replica::new(Api::new(move |line| {
        Some(if line.starts_with("POST") {
            Json(&created).into_response()
        } else {
            pods(std::slice::from_ref(&created))
        })
    }));
    let mut trail = Trail::default();
    let result = runner(&replica)
        .run(&session("s1"), &flight(false), None::<&mut Nowhere>, &mut trail)
        .await;
    assert_eq!(replica.api.requests("POST").len(), 1);
    (result.unwrap_err(), replica.metrics())
}

/// How often a stage was timed.
fn times(stages: &str, stage: &str) -> u64 {
    let name = format!("stage_seconds_count{{stage=\"{stage}\"}} ");
    let count = stages.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_stage_has_its_time_also_where_the_call_has_no_result() {
    let (failed, stages) = first_call_and_stages(json!({"phase": "Pending"})).await;
    assert_eq!(failed.outcome(), "not_ready");
    let counts = ["Lookup", "Create", "Ready", "Exec"].map(|stage| times(&stages, stage));
    assert_eq!(counts, [1, 1, 1, 0], "{stages}");
    assert!(
        stages.contains("stage_seconds_bucket{le=\"30.0\",stage=\"Ready\"} 0\n"),
        "it waited for as long as a call may: {stages}"
    );

    let replica = Replica::new(Api::refusing(StatusCode::FORBIDDEN, "no"));
    let mut trail = Trail::default();
    let refused = runner(&replica)
        .run(&session("s1"), &flight(false), None::<&mut Nowhere>, &mut trail)
        .await;
    assert_eq!(refused.unwrap_err().outcome(), "cluster_error");
    let stages = replica.metrics();
    let counts = ["Lookup", "Create", "Ready", "Exec"].map(|stage| times(&stages, stage));
    assert_eq!(counts, [1, 1, 0, 0], "{stages}");
}

#[tokio::test]
async fn a_command_whose_client_leaves_has_its_time() {
    let entered = Arc::new(Notify::new());
    let enter = entered.clone();
    let hang = move || async move {
        enter.notify_one();
        pending::<()>().await;
    };
    let port = agent(Router::new().route("/exec", post(hang))).await;
    let replica = Replica::new(Api::willing());
    replica.watched(&local_pod("p", Some("s1")));
    let (runner, flight, mut trail) = (runner_of(&replica, port), flight(false), Trail::default());
    let session = session("s1");
    tokio::select! {
        result = runner.run(&session, &flight, None::<&mut Nowhere>, &mut trail) => panic!("{result:?}"),
        () = entered.notified() => {}
    }
    let stages = replica.metrics();
    let counts = ["Lookup", "Ready", "Exec"].map(|stage| times(&stages, stage));
    assert_eq!(counts, [1, 1, 1], "{stages}");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_does_not_start_is_told_with_the_reason_that_its_pod_gives() {
    let full = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]);
    let waiting = |state: Value| json!([{"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    for (status, outcome, expected) in [
        (
            json!({"phase": "Pending", "conditions": full}),
            "not_ready",
            "is still starting (Unschedulable: 0/3 nodes). Retry",
        ),
        (json!({"phase": "Pending"}), "not_ready", "is still starting. Retry"),
        (json!({"phase": "Running"}), "not_ready", "is still starting. Retry"),
        (
            json!({"phase": "Pending", "containerStatuses": waiting(json!({"waiting": {"reason": "InvalidImageName"}}))}),
            "cannot_start",
            "cannot start: InvalidImageName. An administrator",
        ),
        (
            json!({"phase": "Failed", "containerStatuses": waiting(json!({"terminated": {"exitCode": 2}}))}),
            "cannot_start",
            "cannot start: Terminated: its container ended with exit code 2. An administrator",
        ),
    ] {
        let failed = first_call(status.clone()).await;
        assert_eq!(failed.outcome(), outcome, "{status}");
        let text = failed.to_string();
        assert!(text.contains(expected) && text.contains("was not run"), "{text}");
    }
}

/// What comes of a command during which its pod comes to this state.
async fn during(next: Event<Pod>, sent: bool, answers: bool) -> Result<Result<&'static str, AgentError>, Failure> {
    let replica = Replica::new(Api::willing());
    let sandbox = replica.watched(&living());
    let (runner, flight) = (runner(&replica), flight(sent));
    let exec = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        replica.cache.apply(&next);
        if !answers {
            pending::<()>().await;
        }
        tokio::time::sleep(LAST_WORDS / 2).await;
        Ok("its last words")
    };
    runner.watch_over(&sandbox, &flight, exec).await
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_sandbox_goes_away_is_lost_with_it_only_when_it_may_have_started() {
    for (next, why) in [
        (Event::Apply(evicted()), "Evicted"),
        (Event::Delete(living()), DELETED),
        (Event::Apply(pod("p", "another", 2, Some("s1"))), DELETED),
    ] {
        let died = during(next.clone(), true, false).await.unwrap_err();
        assert!(matches!(&died, Failure::Died(reason) if reason == why), "{died:?}");
        assert_eq!(died.outcome(), "sandbox_died");
        let unsent = during(next.clone(), false, false).await.unwrap().unwrap_err();
        assert!(
            matches!(&unsent, AgentError::NotReached(error) if error.to_string() == why),
            "{unsent:?}"
        );
        assert_eq!(during(next, true, true).await.unwrap().unwrap(), "its last words");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_never_answers_is_given_up_and_its_session_is_active_until_then() {
    let replica = Replica::new(Api::willing());
    let sandbox = replica.watched(&living());
    let (runner, flight) = (runner(&replica), flight(true));
    let watched = runner.watch_over::<()>(&sandbox, &flight, pending());
    let outcome = tokio::time::timeout(AGENT_LIMIT * 2, watched).await.unwrap();
    assert!(matches!(&outcome, Err(Failure::Lost(_))), "{outcome:?}");
    let writes = replica.api.requests("PATCH").len() as u64;
    let beats = AGENT_LIMIT.as_secs() / activity::INTERVAL.as_secs();
    assert!(
        (beats - 1..=beats + 1).contains(&writes),
        "{writes} in {beats} intervals"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_broken_connection_the_sandboxs_death_is_told_where_there_was_one() {
    let mut terminating = pod("p", "u", 2, Some("s1"));
    terminating.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    for (next, expected) in [
        (
            Some(Event::Apply(evicted())),
            "sandbox died while the command was running (Evicted)",
        ),
        (Some(Event::Delete(living())), "(its pod was deleted)"),
        (Some(Event::Apply(terminating)), "(its pod was deleted)"),
        (
            None,
            "connection to the sandbox broke while the command was running (reset)",
        ),
    ] {
        let replica = Replica::new(Api::willing());
        let sandbox = replica.watched(&living());
        let runner = runner(&replica);
        let told = async {
            tokio::time::sleep(OBITUARY / 2).await;
            if let Some(next) = &next {
                replica.cache.apply(next);
            }
        };
        let (failed, ()) = tokio::join!(runner.fate(&sandbox, "reset".to_owned()), told);
        assert!(failed.to_string().contains(expected), "{failed}");
    }
}

#[tokio::test]
async fn a_sandbox_that_stays_unavailable_is_reported_and_an_open_network_to_the_operator_too() {
    let replica = Replica::new(Api::willing());
    let sandbox = replica.watched(&pod(&session_pod_name("demo", "s1"), "u", 1, Some("s1")));
    let runner = runner(&replica);
    let given_up = |message: &'static str| {
        let (runner, sandbox) = (&runner, &sandbox);
        async move {
            runner
                .give_up_waiting(&session("s1"), sandbox, message)
                .await
                .unwrap_err()
        }
    };
    assert!(matches!(given_up("bash is not running").await, Failure::NotReady(_)));
    assert!(replica.api.requests("").is_empty());
    let unproven = given_up("EgressNotEnforced: no connection to the proxy at 10.96.0.7:8080").await;
    assert!(matches!(unproven, Failure::EgressNotEnforced(_)));
    assert!(replica.api.requests("").is_empty());
    let open = given_up("EgressNotEnforced: a direct connection to 10.96.0.1:443 succeeded").await;
    assert!(matches!(open, Failure::EgressNotEnforced(_)));
    let told = replica.api.requests("PATCH");
    assert!(
        told.len() == 1 && told[0].contains(labels::EGRESS_NOT_ENFORCED),
        "{told:?}"
    );
}

#[test]
fn a_refusal_says_what_to_do_about_it() {
    let refused = |status| refusal(status, "no".to_owned());
    assert!(matches!(refused(StatusCode::CONFLICT), Failure::Busy(_)));
    let stranger = refused(StatusCode::UNAUTHORIZED).to_string();
    assert!(stranger.contains("end the session"), "{stranger}");
    let other = refused(StatusCode::PAYLOAD_TOO_LARGE).to_string();
    assert_eq!(other, "The sandbox refused the command: no. The command was not run.");
}

/// Until when this answer is waited out.
fn until(message: &str, (fresh, claimed, ready): (bool, bool, bool), since: Instant, deadline: Instant) -> Instant {
    let mut sandbox = Sandbox::from_pod(&pod("a", "1", 1, Some("s"))).unwrap();
    (sandbox.claimed, sandbox.ready) = (claimed, ready);
    let sandbox = Arc::new(sandbox);
    let allocated = Allocated {
        sandbox: sandbox.clone(),
        fresh,
    };
    patience(&allocated, &sandbox, message, since, deadline)
}

#[test]
fn an_open_network_has_its_time_from_the_first_answer_of_a_sandbox_that_is_new() {
    let began = Instant::now();
    let deadline = began + START_LIMIT;
    // A pod that took longer to start than a policy may take to settle.
    let answered = began + wire::POLICY_SETTLES * 3;
    let until = |fresh, claimed, ready, since| {
        until(
            "EgressNotEnforced: it is open",
            (fresh, claimed, ready),
            since,
            deadline,
        )
    };
    for (fresh, ready) in [(true, true), (true, false), (false, false)] {
        assert_eq!(until(fresh, false, ready, answered), answered + wire::POLICY_SETTLES);
    }
    assert_eq!(until(true, true, true, answered), answered + wire::POLICY_SETTLES);
    assert_eq!(until(true, false, true, deadline), deadline);
    assert_eq!(
        until(false, false, true, answered),
        answered,
        "one that was closed before"
    );
}

#[test]
fn a_claimed_sandbox_without_its_session_is_waited_for_as_long_as_another_replica_may_decide() {
    let since = Instant::now();
    let deadline = since + START_LIMIT;
    let until = |claimed| {
        until(
            "this sandbox has no session yet",
            (false, claimed, true),
            since,
            deadline,
        )
    };
    assert_eq!(until(true), since + OTHER_DECIDES);
    assert_eq!(until(false), deadline);
}
