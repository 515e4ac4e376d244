use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::fixtures::{Api, Replica};
use crate::store::fixtures::{pod, session};

fn key(user: Option<&str>, session: &str, id: RequestId) -> CallKey {
    CallKey::new(user, &session.parse().unwrap(), &id)
}

#[test]
fn only_the_very_call_is_stopped() {
    let calls = RunningCalls::default();
    let mine = calls.begin(key(Some("alice"), "s1", RequestId::Number(1)));
    for other in [
        key(Some("bob"), "s1", RequestId::Number(1)),
        key(None, "s1", RequestId::Number(1)),
        key(Some("alice"), "s2", RequestId::Number(1)),
        key(Some("alice"), "s1", RequestId::Number(2)),
        key(Some("alice"), "s1", RequestId::String("1".into())),
    ] {
        assert!(!calls.cancel(&other), "{other:?}");
    }
    assert!(!mine.cancelled.is_cancelled());
    assert!(calls.cancel(&key(Some("alice"), "s1", RequestId::Number(1))));
    assert!(mine.cancelled.is_cancelled());
}

#[test]
fn of_two_calls_with_one_id_none_is_stopped_and_one_that_is_left_is() {
    let calls = RunningCalls::default();
    let one = || key(None, "s1", RequestId::Number(1));
    let (first, second) = (calls.begin(one()), calls.begin(one()));
    assert!(!calls.cancel(&one()));
    drop(first);
    assert!(calls.cancel(&one()) && second.cancelled.is_cancelled());
    drop(second);
    assert!(!calls.cancel(&one()) && calls.calls.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_servers_are_told_of_a_call_only_when_it_is_not_here_and_may_be_there() {
    let replica = Replica::new(Api::willing());
    let calls = RunningCalls::default();
    let canceller = Canceller::new(calls.clone(), replica.cluster.clone(), replica.cache.clone());
    let call = key(None, "s1", RequestId::Number(1));
    replica.watched(&pod("other", "o", 1, Some("s2")));
    let sandbox = replica.watched(&pod("p", "u", 2, Some("s1")));
    let here = calls.begin(call.clone());
    canceller.cancel(&session("s1"), &call).await;
    assert!(here.cancelled.is_cancelled() && replica.api.requests("").is_empty());

    drop(here);
    canceller.cancel(&session("s1"), &call).await;
    let told = replica.api.requests("PATCH");
    assert!(told.len() == 1 && told[0].contains(&format!("{}.", call.0)), "{told:?}");
    replica.cache.write(|store| store.mark_ended(&sandbox));
    canceller.cancel(&session("s1"), &call).await;
    assert_eq!(replica.api.requests("").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_its_sandbox_on_another_server_is_cancelled_when_that_one_comes() {
    let replica = Replica::new(Api::willing());
    let canceller = Canceller::new(RunningCalls::default(), replica.cluster.clone(), replica.cache.clone());
    let mut going = pod("p", "u", 1, Some("s1"));
    going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    replica.watched(&going);
    let call = key(None, "s1", RequestId::Number(1));
    canceller.cancel(&session("s1"), &call).await;
    tokio::time::sleep(SANDBOX_COMES / 2).await;
    assert!(replica.api.requests("").is_empty());
    replica.watched(&pod("q", "v", 2, Some("s1")));
    tokio::time::sleep(SANDBOX_COMES).await;
    let told = replica.api.requests("PATCH");
    assert!(told.len() == 1 && told[0].contains(&format!("{}.", call.0)), "{told:?}");

    // One that never comes is given up, and so many may wait.
    for id in 0..2 * WAITING {
        let call = key(None, "s2", RequestId::Number(i64::try_from(id).unwrap()));
        canceller.cancel(&session("s2"), &call).await;
    }
    assert_eq!(canceller.waiting.available_permits(), 0);
    tokio::time::sleep(SANDBOX_COMES * 2).await;
    assert_eq!(canceller.waiting.available_permits(), WAITING);
    assert_eq!(replica.api.requests("").len(), 1);
}

#[test]
fn a_cancel_is_news_once_and_not_when_it_stood_there_before() {
    let call = key(None, "s1", RequestId::Number(1));
    let at = |second: i64| told(&call, Timestamp::from_second(second).unwrap());
    let marked = |uid: &str, told: Option<Told>| {
        let mut pod = pod("p", uid, 1, Some("s1"));
        if let Some(told) = told {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(CANCELLED_ANNOTATION.to_owned(), told.annotation());
        }
        Sandbox::from_pod(&pod).unwrap()
    };
    let mut seen = CancelsSeen::default();
    assert_eq!(seen.news(&marked("u", Some(at(1)))), None, "from before the start");
    seen.listed();
    assert_eq!(seen.news(&marked("u", Some(at(1)))), None);
    assert_eq!(seen.news(&marked("u", Some(at(2)))), Some(at(2)), "the same id again");
    assert_eq!(seen.news(&marked("u", Some(at(2)))), None);
    assert_eq!(seen.news(&marked("v", None)), None);
    assert_eq!(
        seen.news(&marked("v", Some(at(1)))),
        Some(at(1)),
        "also in a later LIST"
    );
    seen.retain(|uid| uid == "v");
    assert_eq!(seen.last.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_cancels_wait_for_an_api_server_that_is_slow() {
    let replica = Replica::new(Api::new(|_| None));
    replica.watched(&pod("p", "u", 1, Some("s1")));
    let canceller = Canceller::new(RunningCalls::default(), replica.cluster.clone(), replica.cache.clone());
    let (canceller, session) = (&canceller, &session("s1"));
    let all = (0..100).map(|id| async move {
        let call = key(None, "s1", RequestId::Number(id));
        canceller.cancel(session, &call).await;
    });
    let mut all = std::pin::pin!(futures::future::join_all(all));
    // The paused clock goes on when nothing else can.
    let soon = tokio::time::timeout(Duration::from_secs(1), &mut all).await;
    assert!(soon.is_err() && replica.api.requests("PATCH").len() == ANNOTATIONS);
    all.await;
    assert_eq!(replica.api.requests("PATCH").len(), 100, "each has its turn");
}

fn told(call: &CallKey, at: Timestamp) -> Told {
    Told {
        call: call.clone(),
        at: Timestamp::from_millisecond(at.as_millisecond()).unwrap(),
    }
}

#[test]
fn the_annotation_carries_call_and_time() {
    let told = told(&key(None, "s1", RequestId::Number(7)), Timestamp::now());
    assert_eq!(Told::from_annotation(&told.annotation()), Some(told));
    for no in ["x", "x.", "x.y", "x.99999999999999999"] {
        assert_eq!(Told::from_annotation(no), None, "{no}");
    }
}

#[test]
fn a_call_that_began_after_its_ids_cancel_is_not_meant() {
    let calls = RunningCalls::default();
    let call = key(None, "s1", RequestId::Number(1));
    let running = calls.begin(call.clone());
    let before = Timestamp::now() - CLOCKS_DIFFER - SignedDuration::from_secs(1);
    assert!(!calls.cancel_told(&told(&call, before)) && !running.cancelled.is_cancelled());
    let clock_is_behind = Timestamp::now() - SignedDuration::from_secs(1);
    assert!(calls.cancel_told(&told(&call, clock_is_behind)) && running.cancelled.is_cancelled());
}

#[test]
fn reads_the_notification_and_nothing_else() {
    let read = |text: &str| cancelled_request(text.as_bytes());
    let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"reason":"x"}}"#;
    assert_eq!(read(text), Some(RequestId::Number(3)));
    assert_eq!(read(&text.replace("notifications/cancelled", "tools/call")), None);
    assert_eq!(read(&text.replace("requestId", "id")), None);
    for no in ["", "[]", "null", "{", r#"{"method":"notifications/cancelled"}"#] {
        assert_eq!(read(no), None, "{no}");
    }
}
