//! Kept connections to agents: few a sandbox, tried before use when they were idle for long.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::dial::{DialError, Dialed};

/// Idle connections a sandbox; more calls at once open more, which are closed after use.
const KEPT_PER_SANDBOX: usize = 2;

/// After this long idle a connection is tried with `GET /health` before a command is trusted to it: a command lost on a
/// dead connection could not be sent again.
const TRUSTED_FOR: Duration = Duration::from_secs(5);

/// How long a connection may take to be ready for the next request.
const TURN_ROUND: Duration = Duration::from_millis(20);

/// How long that trial may take.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    idle_since: Instant,
}

impl Connection {
    /// Speaks HTTP on a new stream. One that was forwarded by the API server is tried first.
    pub(super) async fn open(dialed: Dialed) -> Result<Self, DialError> {
        let handshake = http1::handshake(TokioIo::new(dialed.stream)).await;
        let (sender, connection) = handshake.map_err(|error| DialError::new(error.to_string()))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "Connection to an agent ended");
            }
        });
        let mut opened = Self {
            sender,
            idle_since: Instant::now(),
        };
        if !dialed.proven && !opened.answers().await {
            return Err(DialError::new(
                "the forwarded port is not answered by the agent".to_owned(),
            ));
        }
        Ok(opened)
    }

    /// Whether the agent answers on it. Any status will do: what it says is asked elsewhere.
    async fn answers(&mut self) -> bool {
        let Ok(request) = Request::get("/health")
            .header(header::HOST, "agent")
            .body(Full::default())
        else {
            return false;
        };
        let trial = async {
            let response = self.sender.send_request(request).await.ok()?;
            response.into_body().collect().await.ok()?;
            self.sender.ready().await.ok()
        };
        tokio::time::timeout(TRIAL_TIMEOUT, trial)
            .await
            .ok()
            .flatten()
            .is_some()
    }
}

/// Idle connections by the pod's UID.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

impl Pool {
    /// A connection that a command can be trusted to.
    pub(super) async fn take(&self, uid: &str) -> Option<Connection> {
        loop {
            let mut kept = self.with(|idle| idle.get_mut(uid)?.pop())?;
            // Just after an answer the connection may still be turning round.
            if !matches!(tokio::time::timeout(TURN_ROUND, kept.sender.ready()).await, Ok(Ok(()))) {
                continue;
            }
            if kept.idle_since.elapsed() < TRUSTED_FOR || kept.answers().await {
                return Some(kept);
            }
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn put(&self, uid: &str, mut connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        connection.idle_since = Instant::now();
        self.with(|idle| {
            let kept = idle.entry(uid.to_owned()).or_default();
            if kept.len() < KEPT_PER_SANDBOX {
                kept.push(connection);
            }
        });
    }

    pub(super) fn forget(&self, uid: &str) {
        self.with(|idle| idle.remove(uid));
    }

    pub(super) fn retain(&self, living: impl Fn(&str) -> bool) {
        self.with(|idle| idle.retain(|uid, _| living(uid)));
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, Vec<Connection>>) -> T) -> T {
        change(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
