//! What goes wrong between a client and the API server.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{StatusCode, header};
use tokio_util::sync::CancellationToken;

use super::{Cluster, status};

/// What becomes of a request.
pub(super) enum Fault {
    /// It is refused with this status and does nothing; once.
    Refused(StatusCode),
    /// It is done, and its answer is lost on the way; once.
    AnswerIsLost,
    /// It waits until the token is cancelled.
    Waits(CancellationToken),
}

/// A fault, and which requests meet it.
pub(super) struct Trap {
    method: &'static str,
    /// Part of the request's path and query.
    part: &'static str,
    fault: Fault,
}

impl Cluster {
    /// The next request of this method whose path and query contain `part` is refused.
    pub(crate) fn refuse_next(&self, method: &'static str, part: &'static str, with: StatusCode) {
        self.trap(method, part, Fault::Refused(with));
    }

    /// The next such request is done, and the client learns of a timeout.
    pub(crate) fn lose_next_answer(&self, method: &'static str, part: &'static str) {
        self.trap(method, part, Fault::AnswerIsLost);
    }

    /// All such requests wait until the token is cancelled.
    pub(crate) fn withhold(&self, method: &'static str, part: &'static str) -> CancellationToken {
        let release = CancellationToken::new();
        self.trap(method, part, Fault::Waits(release.clone()));
        release
    }

    fn trap(&self, method: &'static str, part: &'static str, fault: Fault) {
        self.lock().traps.push(Trap { method, part, fault });
    }

    /// The fault that a request meets.
    fn fault(&self, request: &Request) -> Option<Fault> {
        let (method, uri) = (request.method().as_str(), request.uri().to_string());
        let mut inner = self.lock();
        let traps = &mut inner.traps;
        let met = traps
            .iter()
            .position(|trap| trap.method == method && uri.contains(trap.part))?;
        if let Fault::Waits(release) = &traps[met].fault {
            return Some(Fault::Waits(release.clone()));
        }
        Some(traps.remove(met).fault)
    }
}

/// Notes a request and lets it meet its fault.
pub(super) async fn meet(State(cluster): State<Cluster>, request: Request, next: Next) -> Response {
    let line = format!("{} {}", request.method(), request.uri());
    let user_agent = request.headers().get(header::USER_AGENT);
    let user_agent = user_agent.map_or("none", |name| name.to_str().unwrap()).to_owned();
    {
        let mut inner = cluster.lock();
        inner.requests.push(line);
        inner.user_agents.insert(user_agent);
    }
    match cluster.fault(&request) {
        None => next.run(request).await,
        Some(Fault::Refused(code)) => status(code, "Refused"),
        Some(Fault::AnswerIsLost) => {
            next.run(request).await;
            status(StatusCode::GATEWAY_TIMEOUT, "Timeout")
        }
        Some(Fault::Waits(release)) => {
            release.cancelled().await;
            next.run(request).await
        }
    }
}
