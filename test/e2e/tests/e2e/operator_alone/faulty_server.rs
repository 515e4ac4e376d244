//! A reverse proxy before the API server that fails on purpose: it answers 429, 500 and 409, delays, cuts watches, is away,
//! or falls silent after a chosen write, so that the operator can be killed right there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use cli_mcp_e2e::cluster;
use futures::StreamExt;
use http::{Method, StatusCode, header};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// What the proxy does to requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Plan {
    /// It passes everything.
    #[default]
    Pass,
    /// It fails this share of the requests, in percent, and cuts every watch after a moment.
    Faulty(u64),
    /// It is away.
    Down,
    /// It passes one write more, and then neither passes nor answers anything.
    SilentAfterWrite,
    /// It has fallen silent.
    Silent,
    /// It answers nothing about Leases, and passes everything else.
    SilentLeases,
}

struct Faults {
    client: kube::Client,
    plan: Mutex<Plan>,
    random: Mutex<u64>,
    silent: Notify,
    writes: Mutex<Vec<String>>,
}

/// A running proxy; dropping it ends it.
pub(crate) struct FaultyServer {
    faults: Arc<Faults>,
    address: std::net::SocketAddr,
    serving: AbortHandle,
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// What happens to one request.
enum Fault {
    None,
    /// It is passed, its answer is kept back, and so is everything after it.
    Last,
    Silence,
    Refuse(StatusCode, &'static str),
    Delay(Duration),
}

impl FaultyServer {
    /// Starts a proxy before the cluster of the current context, which passes everything. The seed decides its faults.
    ///
    /// # Errors
    ///
    /// When the cluster cannot be reached.
    pub(crate) async fn start(seed: u64) -> Result<Self> {
        let faults = Arc::new(Faults {
            client: cluster::client().await?,
            plan: Mutex::default(),
            random: Mutex::new(seed.max(1)),
            silent: Notify::new(),
            writes: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(any(answer)).with_state(faults.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Ok(Self {
            faults,
            address,
            serving,
        })
    }

    /// A kubeconfig that leads here.
    pub(crate) fn kubeconfig(&self) -> String {
        let server = format!("http://{}", self.address);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "faulty",
            "clusters": [{"name": "faulty", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
        })
        .to_string()
    }

    /// Changes what it does.
    pub(crate) fn set(&self, plan: Plan) {
        *lock(&self.faults.plan) = plan;
    }

    /// Waits until it has fallen silent.
    pub(crate) async fn silent(&self) {
        self.faults.silent.notified().await;
    }

    /// The writes that passed since the last call, as `METHOD path status`.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.faults.writes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    /// xorshift64 (Marsaglia, 2003): the same faults for the same seed and order of requests.
    fn random(&self) -> u64 {
        let mut state = lock(&self.random);
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn decide(&self, path: &str, write: bool) -> Fault {
        let mut plan = lock(&self.plan);
        match *plan {
            Plan::SilentAfterWrite if write => {
                *plan = Plan::Silent;
                Fault::Last
            }
            Plan::Silent => Fault::Silence,
            Plan::SilentLeases if path.contains("/leases") => Fault::Silence,
            Plan::Pass | Plan::SilentAfterWrite | Plan::SilentLeases => Fault::None,
            Plan::Down => Fault::Refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            Plan::Faulty(share) if self.random() % 100 < share => match self.random() % 4 {
                0 => Fault::Refuse(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
                1 => Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
                2 if write => Fault::Refuse(StatusCode::CONFLICT, "Conflict"),
                _ => Fault::Delay(Duration::from_millis(self.random() % 1500)),
            },
            Plan::Faulty(_) => Fault::None,
        }
    }

    fn cuts_watches(&self) -> bool {
        matches!(*lock(&self.plan), Plan::Faulty(_) | Plan::Down)
    }
}

async fn answer(State(faults): State<Arc<Faults>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    // Events are told and never read back.
    let write = *request.method() != Method::GET && !path.contains("/events");
    let fault = faults.decide(&path, write);
    match fault {
        Fault::None | Fault::Last => {}
        Fault::Silence => std::future::pending().await,
        Fault::Delay(time) => tokio::time::sleep(time).await,
        Fault::Refuse(code, reason) => return refuse(code, reason),
    }
    let named = format!("{} {path}", request.method());
    let Ok(response) = pass(&faults, request).await else {
        return refuse(StatusCode::BAD_GATEWAY, "InternalError");
    };
    if write {
        lock(&faults.writes).push(format!("{named} {}", response.status().as_u16()));
    }
    if matches!(fault, Fault::Last) {
        faults.silent.notify_one();
        // The caller never learns that it was done.
        std::future::pending::<()>().await;
    }
    let (parts, body) = response.into_parts();
    if !watch {
        return Response::from_parts(parts, Body::new(body));
    }
    let whole = Body::new(body).into_data_stream();
    let cut = async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        while !faults.cuts_watches() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    Response::from_parts(parts, Body::from_stream(whole.take_until(Box::pin(cut))))
}

async fn pass(faults: &Faults, request: Request) -> Result<http::Response<kube::client::Body>> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(header::HOST);
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = axum::body::to_bytes(body, 4 << 20).await?;
    let request = http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    Ok(faults.client.send(request).await?)
}

fn refuse(code: StatusCode, reason: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": "the test says so", "code": code.as_u16()});
    (
        code,
        [(header::CONTENT_TYPE, "application/json"), (header::RETRY_AFTER, "1")],
        status.to_string(),
    )
        .into_response()
}
