//! Fencing: a client through which a replica can write only while it leads. A lost lease stops every write, wherever
//! in the program it comes from.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request};
use tower::{BoxError, Layer, Service};

/// Until when this replica may write.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Mutex<Until>>);

#[derive(Clone, Copy, Debug, Default)]
enum Until {
    /// It does not lead.
    #[default]
    Closed,
    /// It leads until then, unless it renews.
    Open(Instant),
    /// There is no election.
    Always,
}

/// A write was held back.
#[derive(Debug, thiserror::Error)]
#[error("this replica does not lead: the write was held back")]
pub struct NotLeading;

impl Fence {
    /// A fence that never closes, for an operator that runs without leader election.
    #[must_use]
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(Until::Always)))
    }

    /// Writes may pass until then.
    pub fn open_until(&self, end: Instant) {
        self.set(Until::Open(end));
    }

    /// No write may pass.
    pub fn close(&self) {
        self.set(Until::Closed);
    }

    /// Whether writes may pass now.
    #[must_use]
    pub fn holds_at(&self, now: Instant) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Until::Closed => false,
            Until::Open(end) => now < end,
            Until::Always => true,
        }
    }

    fn set(&self, until: Until) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced {
            fence: self.clone(),
            inner,
        }
    }
}

/// A client's service behind a [`Fence`].
#[derive(Clone)]
pub struct Fenced<S> {
    fence: Fence,
    inner: S,
}

impl<S, B> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if !reads && !self.fence.holds_at(Instant::now()) {
            return Box::pin(async { Err(NotLeading.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move { answer.await.map_err(Into::into) })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn passes(fence: &Fence, method: Method) -> bool {
        let service = fence.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(())));
        service
            .oneshot(Request::builder().method(method).body(()).unwrap())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn reads_always_pass_and_writes_only_while_leading() {
        let fence = Fence::default();
        assert!(passes(&fence, Method::GET).await);
        assert!(!passes(&fence, Method::PATCH).await);
        fence.open_until(Instant::now() + Duration::from_secs(3600));
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(passes(&fence, method).await);
        }
        fence.open_until(Instant::now());
        assert!(!passes(&fence, Method::DELETE).await);
        fence.open_until(Instant::now() + Duration::from_secs(3600));
        fence.close();
        assert!(!passes(&fence, Method::POST).await);
        assert!(passes(&Fence::open(), Method::POST).await);
    }
}
