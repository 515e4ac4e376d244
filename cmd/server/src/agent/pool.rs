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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// A new connection, and the agent's end of it.
    fn stream(proven: bool) -> (Dialed, DuplexStream) {
        let (near, far) = tokio::io::duplex(4096);
        let dialed = Dialed {
            stream: Box::new(near),
            proven,
        };
        (dialed, far)
    }

    /// A connection that was used last so long ago.
    async fn idle_for(long: Duration) -> (Connection, DuplexStream) {
        let (dialed, far) = stream(true);
        let mut connection = Connection::open(dialed).await.unwrap();
        connection.sender.ready().await.unwrap();
        connection.idle_since = Instant::now().checked_sub(long).unwrap();
        (connection, far)
    }

    /// Keeps connections as they are, the last to be taken first.
    fn keep(pool: &Pool, connections: Vec<Connection>) {
        pool.with(|idle| idle.insert("u".to_owned(), connections));
    }

    /// Answers one request: its first line.
    async fn answer(far: &mut DuplexStream, status: &str) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let more = tokio::time::timeout(TRIAL_TIMEOUT, far.read_buf(&mut request)).await;
            assert_ne!(more.expect("no request came").unwrap(), 0, "it was closed");
        }
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        far.write_all(answer.as_bytes()).await.unwrap();
        let request = String::from_utf8(request).unwrap();
        request.lines().next().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_idle_for_long_is_tried_before_it_is_trusted() {
        let pool = Pool::default();
        let (connection, mut far) = idle_for(TRUSTED_FOR).await;
        keep(&pool, vec![connection]);
        // Whatever the agent says of its health, it is there.
        let (taken, asked) = tokio::join!(pool.take("u"), answer(&mut far, "503 Service Unavailable"));
        assert!(taken.is_some());
        assert_eq!(asked, "GET /health HTTP/1.1");

        let (connection, mut far) = idle_for(Duration::ZERO).await;
        keep(&pool, vec![connection]);
        let taken = pool.take("u").await;
        assert!(taken.is_some());
        drop(taken);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "one that was just used is not");
        assert!(pool.take("u").await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_connection_that_is_dead_is_passed_over() {
        let pool = Pool::default();
        let (living, _far) = idle_for(Duration::ZERO).await;
        let (silent, _says_nothing) = idle_for(TRUSTED_FOR).await;
        let (closed, far) = idle_for(Duration::ZERO).await;
        drop(far);
        // The connection notices it.
        tokio::task::yield_now().await;
        keep(&pool, vec![living, silent, closed]);
        let taken = pool.take("u").await.unwrap();
        assert!(!taken.sender.is_closed());
        assert!(pool.take("u").await.is_none(), "the dead ones are gone");

        let (closed, far) = idle_for(Duration::ZERO).await;
        drop(far);
        tokio::task::yield_now().await;
        pool.put("other", closed);
        assert!(!pool.with(|idle| idle.contains_key("other")), "and are not kept at all");
    }

    #[tokio::test]
    async fn few_connections_are_kept_of_each_sandbox() {
        let pool = Pool::default();
        let mut ends = Vec::new();
        for _ in 0..=KEPT_PER_SANDBOX {
            let (connection, far) = idle_for(TRUSTED_FOR).await;
            pool.put("u", connection);
            ends.push(far);
        }
        // They count as used just now: none is tried.
        for _ in 0..KEPT_PER_SANDBOX {
            assert!(pool.take("u").await.is_some());
        }
        assert!(pool.take("u").await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_forwarded_port_is_a_connection_when_the_agent_answers_on_it() {
        let (dialed, mut far) = stream(false);
        let (opened, asked) = tokio::join!(Connection::open(dialed), answer(&mut far, "200 OK"));
        assert!(opened.is_ok());
        assert_eq!(asked, "GET /health HTTP/1.1");
        // Silent, and closed.
        let (dialed, _far) = stream(false);
        assert!(Connection::open(dialed).await.is_err());
        let (dialed, far) = stream(false);
        drop(far);
        assert!(Connection::open(dialed).await.is_err());
    }
}
