//! What the API server's errors mean, and when a pod that cannot be deleted is gone.

use axum::Json;
use axum::response::IntoResponse;
use http::StatusCode;

use super::*;
use crate::fixtures::{Api, Replica, status};
use crate::store::fixtures::pod;

/// What comes of a write that is answered so.
async fn written(code: StatusCode, message: &'static str) -> ClusterError {
    let replica = Replica::new(Api::refusing(code, message));
    let sandbox = replica.watched(&pod("p", "u", 1, Some("s1")));
    let told = replica.cluster.told(&sandbox).await;
    told.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn an_error_says_whether_another_was_first_or_whom_to_ask() {
    use ClusterError as Error;
    assert!(matches!(written(StatusCode::NOT_FOUND, "x").await, Error::NotFound));
    assert!(matches!(written(StatusCode::CONFLICT, "x").await, Error::Conflict));
    let another = "metadata.uid: Invalid value: field is immutable";
    assert!(matches!(
        written(StatusCode::UNPROCESSABLE_ENTITY, another).await,
        Error::Conflict
    ));
    for code in [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::FORBIDDEN] {
        let refused = written(code, "no right").await;
        assert_eq!(refused.to_string(), "the API server refused: no right", "{code}");
    }
    for code in [StatusCode::TOO_MANY_REQUESTS, StatusCode::INTERNAL_SERVER_ERROR] {
        let unreachable = written(code, "too much").await;
        assert_eq!(
            unreachable.to_string(),
            "the API server does not answer: too much",
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_not_waited_for_for_ever_nor_taken_for_more_than_it_is() {
    let silent = Replica::new(Api::new(|_| None));
    let failed = silent.cluster.probe().await.unwrap_err();
    assert_eq!(
        failed.to_string(),
        "the API server does not answer: no answer within 15 s"
    );
    let nonsense = Replica::new(Api::new(|_| Some("<html>".into_response())));
    let failed = nonsense.cluster.probe().await.unwrap_err();
    assert!(matches!(failed, ClusterError::Unreachable(_)), "{failed:?}");
}

/// What comes of ending a pod, of which the API server says this, and the methods of its requests.
async fn end(
    mark: StatusCode,
    delete: StatusCode,
    now: Option<&'static str>,
) -> (Result<(), ClusterError>, Vec<String>) {
    let replica = Replica::new(Api::new(move |line| {
        let code = match line.split_once(' ').unwrap().0 {
            "PATCH" => mark,
            "DELETE" => delete,
            _ if now.is_none() => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        };
        Some(if code == StatusCode::OK {
            Json(pod("p", now.unwrap_or("u"), 2, Some("s1"))).into_response()
        } else {
            status(code, "so it is")
        })
    }));
    let sandbox = replica.watched(&pod("p", "u", 1, Some("s1")));
    let ended = replica.cluster.end(&sandbox, "client").await;
    let requests = replica.api.requests("");
    let methods = requests.iter().map(|line| line.split_once(' ').unwrap().0.to_owned());
    (ended, methods.collect())
}

#[tokio::test(start_paused = true)]
async fn ending_a_pod_that_is_gone_is_no_error_and_one_that_could_not_be_marked_is_not_deleted() {
    let (ok, gone, conflict, no) = (
        StatusCode::OK,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::FORBIDDEN,
    );
    for (mark, delete, now, ends, expected) in [
        (ok, ok, Some("u"), true, "PATCH DELETE"),
        (ok, gone, None, true, "PATCH DELETE"),
        (gone, ok, None, true, "PATCH"),
        // A conflict: there is none, there is another, it is that one.
        (conflict, ok, None, true, "PATCH GET"),
        (conflict, ok, Some("another"), true, "PATCH GET"),
        (conflict, ok, Some("u"), false, "PATCH GET"),
        (ok, conflict, Some("another"), true, "PATCH DELETE GET"),
        (ok, conflict, Some("u"), false, "PATCH DELETE GET"),
        (no, ok, Some("u"), false, "PATCH"),
        (ok, no, Some("u"), false, "PATCH DELETE"),
    ] {
        let (ended, methods) = end(mark, delete, now).await;
        let case = format!("{mark} {delete} {now:?}: {ended:?}");
        assert_eq!(ended.is_ok(), ends, "{case}");
        assert_eq!(methods.join(" "), expected, "{case}");
    }
}
