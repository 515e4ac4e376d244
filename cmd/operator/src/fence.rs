//! Fencing: a client through which a replica can write only while it leads. A lost lease stops every write, wherever
//! in the program it comes from.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request};
use kube::client::ClientBuilder;
use kube::client::retry::RetryPolicy;
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;
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

/// Requests that wait for the connection, as many as kube's own client lets wait.
const BUFFERED: usize = 1024;

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

/// A client whose writes pass the fence.
///
/// kube's own retry is the innermost layer: a write that the API server was too busy for would be sent again, seconds
/// later, by a replica that has lost its Lease meanwhile. Here every attempt passes the fence.
///
/// # Errors
///
/// When the client cannot be made of the configuration.
pub fn client(mut config: Config, fence: &Fence) -> kube::Result<Client> {
    config.default_retry = false;
    let client = ClientBuilder::try_from(config)?
        // To be sent again a request needs a service that can be cloned.
        .with_layer(&BufferLayer::new(BUFFERED))
        .with_layer(fence)
        .with_layer(&RetryLayer::new(RetryPolicy::server_retry()));
    Ok(client.build())
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::StatusCode;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{ObjectMeta, PostParams};
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// An API server that is too busy for the first request, and what it does then.
    async fn busy_once(then: impl Fn() + Clone + Send + Sync + 'static) -> (Config, Arc<AtomicUsize>) {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        let router = axum::Router::new().fallback(move || {
            let first = count.fetch_add(1, Ordering::SeqCst) == 0;
            if first {
                then();
            }
            std::future::ready(if first {
                (StatusCode::SERVICE_UNAVAILABLE, String::new())
            } else {
                (StatusCode::CREATED, r#"{"metadata": {}}"#.to_owned())
            })
        });
        tokio::spawn(async move { axum::serve(socket, router).await });
        (Config::new(format!("http://{address}").parse().unwrap()), received)
    }

    async fn write(client: Client) -> kube::Result<ConfigMap> {
        let api: Api<ConfigMap> = Api::namespaced(client, "ns");
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some("a".to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &object).await
    }

    fn leading() -> Fence {
        let fence = Fence::default();
        fence.open_until(Instant::now() + Duration::from_secs(3600));
        fence
    }

    #[tokio::test]
    async fn a_write_that_is_sent_again_passes_the_fence_again() {
        // Another test of this process may have said it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let fence = leading();
        let (config, received) = busy_once(|| {}).await;
        write(client(config, &fence).unwrap()).await.unwrap();
        assert_eq!(received.load(Ordering::SeqCst), 2, "a leader's write is sent again");

        let lost = fence.clone();
        let (config, received) = busy_once(move || lost.close()).await;
        let error = write(client(config, &fence).unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("does not lead"), "{error}");
        assert_eq!(
            received.load(Ordering::SeqCst),
            1,
            "the Lease was lost before the second attempt"
        );
    }

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
