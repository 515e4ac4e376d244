//! What a search answers when it finds no sandbox, and what becomes of those that are left over.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use cli_mcp_sandbox::pod::session_pod_name;
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::fixtures::{Api, Replica, agent, local_pod, pods, status};
use crate::store::REPLACES_ANNOTATION;
use crate::store::fixtures::{pod, session};

/// No agent is asked.
const NO_PORT: u16 = 1;

const LIMIT: Duration = Duration::from_secs(50);

fn created_pod(uid: &str, version: u64) -> Pod {
    pod(&session_pod_name("demo", "s1"), uid, version, Some("s1"))
}

/// Why the session's search of at most this long found nothing.
async fn failure(allocator: &Arc<Allocator>, limit: Duration) -> Failure {
    let allocated = allocator.allocate(&session("s1"), Instant::now() + limit).await;
    allocated.expect_err("a sandbox was found")
}

#[tokio::test(start_paused = true)]
async fn a_search_without_time_says_what_it_waits_for_and_writes_nothing() {
    let replica = Replica::unsynced(Api::willing());
    let failed = failure(&replica.allocator(NO_PORT), LIMIT).await;
    assert!(failed.to_string().contains("cannot read the pods"), "{failed}");

    let replica = Replica::new(Api::willing());
    let allocator = replica.allocator(NO_PORT);
    let other = allocator.search_lock(&session("s1"));
    let searching = other.lock().await;
    let failed = failure(&allocator, LIMIT).await;
    assert!(failed.to_string().contains("another call of this session"), "{failed}");
    drop(searching);
    let failed = failure(&allocator, Duration::ZERO).await;
    assert!(failed.to_string().contains("took too long"), "{failed}");
    assert_eq!(failed.outcome(), "not_ready");
    assert!(replica.api.requests("").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_search_that_is_outrun_again_and_again_comes_to_an_end() {
    let replica = Replica::new(Api::new(|line| {
        let code = if line.starts_with("POST") {
            StatusCode::CONFLICT
        } else {
            StatusCode::NOT_FOUND
        };
        Some(status(code, "so it is"))
    }));
    let failed = failure(&replica.allocator(NO_PORT), LIMIT).await;
    assert!(failed.to_string().contains("from each other"), "{failed}");
    assert_eq!(replica.api.requests("POST").len(), ATTEMPTS as usize);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_api_server_refuses_ends_the_search_with_its_reason() {
    for (pool, method) in [(true, "PATCH"), (false, "POST")] {
        let replica = Replica::new(Api::refusing(StatusCode::FORBIDDEN, "exceeded quota"));
        if pool {
            let mut ready = pod("p", "u", 1, None);
            let annotations = ready.metadata.annotations.get_or_insert_default();
            annotations.insert(
                cli_mcp_api::labels::SPEC_HASH.to_owned(),
                replica.cluster.spec_hash().to_owned(),
            );
            replica.watched(&ready);
        }
        let failed = failure(&replica.allocator(NO_PORT), LIMIT).await;
        assert_eq!(failed.outcome(), "cluster_error", "{method}");
        assert!(
            failed.to_string().contains("the API server refused: exceeded quota"),
            "{failed}"
        );
        let requests = replica.api.requests("");
        assert!(requests.len() == 1 && requests[0].starts_with(method), "{requests:?}");
    }
}

#[test]
fn a_pod_is_overdue_some_time_after_it_should_be_gone() {
    let now = Timestamp::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let left = |due: Option<i64>| until_overdue(due.map(|due| now + SignedDuration::from_secs(due)), now).as_secs();
    assert_eq!(left(None), 30, "it was deleted just now");
    assert_eq!((left(Some(0)), left(Some(-10)), left(Some(-31))), (30, 20, 0));
    assert_eq!(left(Some(300)), 330, "it has its grace first");
}

/// A search over what is left of an earlier sandbox, which should be gone at this time.
async fn over_terminating(due: Timestamp) -> (Replica, Result<Allocated, Failure>) {
    let replica = Replica::new(Api::new(|line| {
        Some(match line.split_once(' ').unwrap().0 {
            "GET" => pods(&[]),
            "POST" => Json(created_pod("new", 9)).into_response(),
            _ => status(StatusCode::NOT_FOUND, "it is gone"),
        })
    }));
    let mut left = created_pod("old", 3);
    left.metadata.deletion_timestamp = Some(Time(due));
    replica.watched(&left);
    let allocator = replica.allocator(NO_PORT);
    let allocated = allocator.allocate(&session("s1"), Instant::now() + LIMIT).await;
    (replica, allocated)
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_lost_node_is_deleted_by_force_and_replaced() {
    let (replica, allocated) = over_terminating(Timestamp::UNIX_EPOCH).await;
    let allocated = allocated.unwrap();
    assert_eq!((allocated.sandbox.uid.as_str(), allocated.fresh), ("new", true));
    let deleted = replica.api.requests("DELETE");
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert!(
        deleted[0].contains(r#""gracePeriodSeconds":0"#) && deleted[0].contains(r#""uid":"old""#),
        "{deleted:?}"
    );
    let created = replica.api.requests("POST");
    assert!(
        created.len() == 1 && created[0].contains("its pod was deleted"),
        "the new one says what it replaces: {created:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_still_has_its_grace_is_not_deleted_by_force() {
    let (replica, allocated) = over_terminating(Timestamp::now() + Duration::from_secs(3600)).await;
    let failed = allocated.unwrap_err();
    assert!(failed.to_string().contains("still terminating"), "{failed}");
    assert!(replica.api.requests("").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_by_whoever_makes_the_next_sandbox_however_far_another_server_got() {
    let mut dead = pod("left", "u", 3, Some("s1"));
    let status_of_it = dead.status.get_or_insert_default();
    (status_of_it.phase, status_of_it.reason) = (Some("Failed".to_owned()), Some("Evicted".to_owned()));
    // The first server does not get the pod deleted, the second one makes another.
    for (deletes, made) in [(false, 0), (true, 1)] {
        let replica = Replica::new(Api::new(move |line| {
            Some(match line.split_once(' ').unwrap().0 {
                "DELETE" if deletes => status(StatusCode::NOT_FOUND, "it is gone"),
                "GET" => pods(&[]),
                "POST" => Json(created_pod("new", 9)).into_response(),
                _ => status(StatusCode::INTERNAL_SERVER_ERROR, "no"),
            })
        }));
        replica.watched(&dead);
        let allocator = replica.allocator(NO_PORT);
        let allocated = allocator.allocate(&session("s1"), Instant::now() + LIMIT).await;
        assert_eq!(allocated.is_ok(), deletes);
        let created = replica.api.requests("POST");
        assert!(
            created.len() == made && created.iter().all(|pod| pod.contains("Evicted")),
            "{created:?}"
        );
        assert!(
            replica.api.requests("PATCH").is_empty(),
            "nobody is told that it ended on purpose"
        );
    }
}

/// What an agent answers to `/assign`, and whether it has a session.
#[derive(Clone, Copy)]
struct Claimed {
    assign: StatusCode,
    assigned: bool,
}

impl Claimed {
    async fn assign(State(claimed): State<Self>) -> Response {
        (claimed.assign, Json(json!({"error": "as it was told"}))).into_response()
    }

    async fn exec(State(claimed): State<Self>, headers: HeaderMap) -> Response {
        assert!(headers.contains_key(header::AUTHORIZATION));
        let status = if claimed.assigned {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        (status, Json(json!({"error": "no"}))).into_response()
    }

    async fn port(self) -> u16 {
        let router = Router::new()
            .route("/assign", post(Self::assign))
            .route("/exec", post(Self::exec))
            .with_state(self);
        agent(router).await
    }
}

/// What comes of a claim that another replica left half done, and what was written. The pod says what it replaces.
async fn taken_over(claimed: Claimed, rival: bool) -> (Replica, Result<TakenOver, Failure>) {
    let mut left = local_pod("left", Some("s1"));
    let annotations = left.metadata.annotations.get_or_insert_default();
    annotations.insert(REPLACES_ANNOTATION.to_owned(), "Evicted".to_owned());
    let listed = if rival {
        vec![left.clone(), pod("other", "o", 5, Some("s1"))]
    } else {
        vec![left.clone()]
    };
    let replica = Replica::new(Api::new(move |line| {
        Some(if line.starts_with("GET") {
            pods(&listed)
        } else {
            Json(&listed[0]).into_response()
        })
    }));
    let sandbox = replica.watched(&left);
    let allocator = replica.allocator(claimed.port().await);
    let taken = allocator.take_over(&sandbox, &session("s1")).await;
    (replica, taken)
}

#[tokio::test]
async fn a_claim_that_was_left_half_done_is_finished_and_what_takes_no_session_is_ended() {
    let (ok, refuses, fails) = (
        StatusCode::OK,
        StatusCode::UNAUTHORIZED,
        StatusCode::INTERNAL_SERVER_ERROR,
    );
    for (assign, assigned, rival, expected) in [
        (ok, false, false, Some(TakenOver::Kept)),
        // Its assign token comes of another key: no later call has more luck.
        (refuses, false, false, Some(TakenOver::GivenUp)),
        // It has a session: commands may have run in it.
        (refuses, true, false, None),
        (fails, false, false, None),
        (ok, false, true, Some(TakenOver::GivenUp)),
        (ok, true, true, Some(TakenOver::Kept)),
    ] {
        let (replica, taken) = taken_over(Claimed { assign, assigned }, rival).await;
        let case = format!("{assign} {assigned} {rival}: {taken:?}");
        match expected {
            Some(expected) => assert_eq!(taken.unwrap(), expected, "{case}"),
            None => assert!(taken.unwrap_err().to_string().contains("as it was told"), "{case}"),
        }
        let ended = expected == Some(TakenOver::GivenUp);
        assert_eq!(replica.api.requests("DELETE").len(), usize::from(ended), "{case}");
        let loss = replica.cache.read(|store| store.loss(&session("s1")));
        assert_eq!(
            loss.as_deref(),
            (ended && !rival).then_some("Evicted"),
            "{case}: the next one tells it"
        );
    }
}
