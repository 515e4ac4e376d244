//! Decisions of the guard with a reviewer that counts its questions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::{Body, to_bytes};
use axum::routing::any;
use axum::{Extension, Router, middleware};
use tokio::time::Instant;
use tower::ServiceExt;

use super::cache::{Answers, CAPACITY, QUESTIONS, TTL};
use super::review::ReviewError;
use super::*;

#[derive(Default)]
struct Asked {
    authentications: AtomicUsize,
    authorizations: Mutex<Vec<String>>,
    broken: AtomicBool,
    hangs: AtomicBool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Asked>);

impl Review for Fake {
    async fn authenticate(&self, token: &str) -> Result<Option<User>, ReviewError> {
        self.0.authentications.fetch_add(1, Ordering::SeqCst);
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.0.broken.load(Ordering::SeqCst) {
            return Err(ReviewError("connection refused".into()));
        }
        Ok((token != "stranger").then(|| User {
            name: token.to_owned(),
            ..User::default()
        }))
    }

    async fn authorize(&self, user: &User, verb: &str) -> Result<bool, ReviewError> {
        self.0
            .authorizations
            .lock()
            .unwrap()
            .push(format!("{} {verb}", user.name));
        Ok(user.name != "guest" || verb == "get")
    }

    fn what(&self) -> String {
        "climcpinstances/mcp \"demo\"".to_owned()
    }

    fn remedy(&self) -> String {
        "an administrator must bind it".to_owned()
    }
}

fn router(fake: &Fake, registry: &mut Registry) -> Router {
    let guard = Guard::new(fake.clone(), registry);
    Router::new()
        .route(
            "/",
            any(|Extension(Caller(user)): Extension<Caller>| async move { user.name.clone() }),
        )
        .layer(middleware::from_fn_with_state(guard, Guard::<Fake>::check))
}

async fn send(router: &Router, method: Method, authorization: &[&str]) -> (Response, String) {
    let mut request = Request::builder().method(method).uri("/");
    for value in authorization {
        request = request.header(header::AUTHORIZATION, *value);
    }
    let response = router
        .clone()
        .oneshot(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(to_bytes(body, 65536).await.unwrap().to_vec()).unwrap();
    (Response::from_parts(parts, Body::empty()), body)
}

#[tokio::test]
async fn strangers_and_the_unentitled_are_told_what_to_do() {
    let router = router(&Fake::default(), &mut Registry::default());
    for authorization in [
        &[][..],
        &["Basic abc"],
        &["Bearer "],
        &["Bearer a", "Bearer b"],
        &["Bearer stranger"],
    ] {
        let (response, body) = send(&router, Method::POST, authorization).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{authorization:?}");
        assert!(
            response.headers()[header::WWW_AUTHENTICATE]
                .to_str()
                .unwrap()
                .starts_with("Bearer ")
        );
        assert!(body.starts_with("{\"error\":") && !body.contains("stranger"), "{body}");
    }
    let (response, body) = send(&router, Method::POST, &["Bearer guest"]).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(
        body.contains("create climcpinstances/mcp") && body.contains("an administrator must bind it"),
        "{body}"
    );
}

#[tokio::test]
async fn the_verb_is_the_methods_and_answers_are_kept() {
    let fake = Fake::default();
    let router = router(&fake, &mut Registry::default());
    for method in [
        Method::POST,
        Method::GET,
        Method::DELETE,
        Method::POST,
        Method::GET,
        Method::DELETE,
    ] {
        let (response, body) = send(&router, method, &["bearer admin"]).await;
        assert_eq!((response.status(), body.as_str()), (StatusCode::OK, "admin"));
    }
    assert_eq!(fake.0.authentications.load(Ordering::SeqCst), 1);
    assert_eq!(
        *fake.0.authorizations.lock().unwrap(),
        ["admin create", "admin get", "admin delete"]
    );
}

#[tokio::test(start_paused = true)]
async fn answers_expire() {
    let fake = Fake::default();
    let router = router(&fake, &mut Registry::default());
    send(&router, Method::GET, &["Bearer admin"]).await;
    tokio::time::advance(TTL).await;
    send(&router, Method::GET, &["Bearer admin"]).await;
    assert_eq!(fake.0.authentications.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_api_error_denies_and_is_not_kept() {
    let fake = Fake::default();
    fake.0.broken.store(true, Ordering::SeqCst);
    let mut registry = Registry::default();
    let router = router(&fake, &mut registry);
    let (response, body) = send(&router, Method::GET, &["Bearer admin"]).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("retry"), "{body}");
    fake.0.broken.store(false, Ordering::SeqCst);
    assert_eq!(
        send(&router, Method::GET, &["Bearer admin"]).await.0.status(),
        StatusCode::OK
    );
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains("auth_decisions_total{result=\"unavailable\"} 1"),
        "{text}"
    );
    assert!(text.contains("auth_decisions_total{result=\"allowed\"} 1"), "{text}");
}

#[tokio::test]
async fn many_requests_at_once_ask_little() {
    let fake = Fake::default();
    let router = router(&fake, &mut Registry::default());
    let requests = (0..200).map(|_| {
        let router = router.clone();
        tokio::spawn(async move { send(&router, Method::POST, &["Bearer admin"]).await.0.status() })
    });
    for request in requests.collect::<Vec<_>>() {
        assert_eq!(request.await.unwrap(), StatusCode::OK);
    }
    assert!(fake.0.authentications.load(Ordering::SeqCst) <= 16);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_reviews_that_hang_is_told_so() {
    let fake = Fake::default();
    fake.0.hangs.store(true, Ordering::SeqCst);
    let router = router(&fake, &mut Registry::default());
    let (first, one_more) = (QUESTIONS, 1);
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..first + one_more {
        let router = router.clone();
        requests.spawn(async move { send(&router, Method::GET, &[&format!("Bearer user-{n}")]).await });
    }
    let (response, body) = requests.join_next().await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("retry"), "{body}");
    assert_eq!(fake.0.authentications.load(Ordering::SeqCst), QUESTIONS);
}

#[test]
fn the_memory_is_bounded() {
    let mut answers = Answers::default();
    let now = Instant::now();
    for key in 0..CAPACITY + 100 {
        answers.put(key, true, now);
    }
    assert_eq!(answers.len(), CAPACITY);
    assert_eq!(answers.get(&(CAPACITY + 99), now), Some(true));
}
