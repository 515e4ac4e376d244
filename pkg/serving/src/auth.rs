//! Delegated Kubernetes authentication and authorization of HTTP requests: TokenReview says who, SubjectAccessReview says
//! whether (<https://kubernetes.io/docs/reference/access-authn-authz/webhook/>). Answers are kept briefly; an API error denies.

mod cache;
pub mod review;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use self::cache::Cache;
use self::review::{Review, User};

/// The longest token that is looked at. ServiceAccount tokens have about 1 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Who makes a request; an extension of every request that passed.
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<User>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    /// `allowed`, `no_token`, `bad_token` (the API server does not know it), `forbidden` (the user lacks the right), `unavailable`
    /// (the API server did not answer).
    result: &'static str,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// No usable bearer token.
    NoToken(&'static str),
    /// The API server does not know the token.
    BadToken,
    /// The user lacks the verb.
    Forbidden(String),
    /// The API server did not answer.
    Unavailable,
}

/// Guards a router. Clones share cache and counters.
pub struct Guard<R> {
    inner: Arc<Inner<R>>,
}

impl<R> Clone for Guard<R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<R> {
    cache: Cache<R>,
    results: Family<ResultLabels, Counter>,
}

impl<R: Review> Guard<R> {
    /// A guard that asks `review`, and counts its decisions in the registry.
    #[must_use]
    pub fn new(review: R, registry: &mut Registry) -> Self {
        let results = Family::default();
        registry.register(
            "auth_decisions",
            "Requests by the decision on their bearer token",
            results.clone(),
        );
        Self {
            inner: Arc::new(Inner {
                cache: Cache::new(review),
                results,
            }),
        }
    }

    /// The middleware, for [`axum::middleware::from_fn_with_state`].
    pub async fn check(State(guard): State<Self>, mut request: Request, next: Next) -> Response {
        let decision = guard.decide(request.headers(), request.method()).await;
        let result = match &decision {
            Ok(_) => "allowed",
            Err(Refusal::NoToken(_)) => "no_token",
            Err(Refusal::BadToken) => "bad_token",
            Err(Refusal::Forbidden(_)) => "forbidden",
            Err(Refusal::Unavailable) => "unavailable",
        };
        guard.inner.results.get_or_create(&ResultLabels { result }).inc();
        match decision {
            Ok(user) => {
                request.extensions_mut().insert(Caller(user));
                next.run(request).await
            }
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn decide(&self, headers: &HeaderMap, method: &Method) -> Result<Arc<User>, Refusal> {
        let token = bearer(headers).map_err(Refusal::NoToken)?;
        let verb = verb(method);
        let cache = &self.inner.cache;
        let user = match cache.authenticate(token).await {
            Ok(Some(user)) => user,
            Ok(None) => return Err(Refusal::BadToken),
            Err(error) => {
                tracing::warn!(%error, "TokenReview failed, the request is denied");
                return Err(Refusal::Unavailable);
            }
        };
        match cache.authorize(token, &user, verb).await {
            Ok(true) => Ok(user),
            Ok(false) => Err(Refusal::Forbidden(format!(
                "user {:?} may not {verb} {}: {}",
                user.name,
                cache.review().what(),
                cache.review().remedy(),
            ))),
            Err(error) => {
                tracing::warn!(%error, user = %user.name, "SubjectAccessReview failed, the request is denied");
                Err(Refusal::Unavailable)
            }
        }
    }
}

/// The verb of an HTTP method, as Kubernetes' own request attributes have it
/// (<https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>).
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::DELETE => "delete",
        Method::PATCH => "patch",
        _ => "update",
    }
}

fn bearer(headers: &HeaderMap) -> Result<&str, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values
        .next()
        .ok_or("a bearer token is needed: send Authorization: Bearer <token>")?;
    if values.next().is_some() {
        return Err("more than one Authorization header: send one");
    }
    let (scheme, token) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .unwrap_or_default();
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err("the Authorization header holds no bearer token: send Authorization: Bearer <token>");
    }
    if token.len() > MAX_TOKEN_BYTES {
        return Err("the bearer token is too long");
    }
    Ok(token)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // RFC 6750, section 3: no error code where the request carried no token.
        const CHALLENGE: &str = r#"Bearer realm="cli-mcp""#;
        const BAD_TOKEN: &str = r#"Bearer realm="cli-mcp", error="invalid_token""#;
        const FORBIDDEN: &str = r#"Bearer realm="cli-mcp", error="insufficient_scope""#;
        let (status, challenge, text) = match self {
            Self::NoToken(text) => (StatusCode::UNAUTHORIZED, Some(CHALLENGE), text.to_owned()),
            Self::BadToken => (
                StatusCode::UNAUTHORIZED,
                Some(BAD_TOKEN),
                "the bearer token is unknown, expired or made for another audience: get a new one, for example by kubectl create token".to_owned(),
            ),
            Self::Forbidden(text) => (StatusCode::FORBIDDEN, Some(FORBIDDEN), text),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                None,
                "the token could not be checked, because the API server did not answer: retry in some seconds".to_owned(),
            ),
        };
        let mut response = (
            status,
            [(header::CONTENT_TYPE, "application/json")],
            serde_json::json!({"error": text}).to_string(),
        )
            .into_response();
        match challenge {
            Some(challenge) => {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_static(challenge));
            }
            None => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, http::HeaderValue::from_static("2"));
            }
        }
        response
    }
}

#[cfg(test)]
mod tests;
