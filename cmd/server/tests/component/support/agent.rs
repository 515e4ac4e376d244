//! An agent on a loopback address, whose commands are words that this file knows.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cli_mcp_sandbox::token::TokenDigest;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Output that a terminal, a line or a JSON parser would stumble over.
pub(crate) const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;title\u{7}\r\u{0}\u{8}\u{fffd}\u{202e}\u{2028}\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\ndata: x\n\nevent: y\n";

/// Names of the pods whose agents were given a session, also of those that are gone.
pub(crate) type Assigned = Arc<Mutex<Vec<String>>>;

struct Shell {
    pod: String,
    assigned: Assigned,
    session: Mutex<Option<TokenDigest>>,
    assign: Option<TokenDigest>,
    open: bool,
    ran: Mutex<Vec<String>>,
    stopped: Mutex<Vec<String>>,
    /// Cut: the process dies.
    dead: CancellationToken,
}

/// A running agent; dropping it kills it.
pub(crate) struct Agent {
    shell: Arc<Shell>,
    address: SocketAddr,
    _alive: DropGuard,
}

impl Agent {
    pub(crate) async fn start(ip: &str, pod: &Value, open: bool, assigned: Assigned) -> Self {
        let env = |name: &str| {
            let env = pod["spec"]["containers"][0]["env"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let value = env
                .iter()
                .find(|variable| variable["name"] == name)
                .map(|variable| variable["value"].clone());
            value.and_then(|value| value.as_str().map(|digest| TokenDigest::from_hex(digest).unwrap()))
        };
        let dead = CancellationToken::new();
        let shell = Arc::new(Shell {
            pod: pod["metadata"]["name"].as_str().unwrap().to_owned(),
            assigned,
            session: Mutex::new(env("SANDBOX_AUTH_TOKEN_SHA256")),
            assign: env("SANDBOX_ASSIGN_TOKEN_SHA256"),
            open,
            ran: Mutex::default(),
            stopped: Mutex::default(),
            dead: dead.clone(),
        });
        let listener = tokio::net::TcpListener::bind((ip, 8090)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/exec", post(exec))
            .route("/assign", post(assign))
            .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
            .with_state(shell.clone());
        let alive = dead.clone().drop_guard();
        tokio::spawn(dead.run_until_cancelled_owned(async move { axum::serve(listener, router).await }));
        Self {
            shell,
            address,
            _alive: alive,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn ran(&self) -> Vec<String> {
        self.shell.ran.lock().unwrap().clone()
    }

    pub(crate) fn stopped(&self) -> Vec<String> {
        self.shell.stopped.lock().unwrap().clone()
    }
}

fn error(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({"error": text}))).into_response()
}

fn presents(headers: &HeaderMap, digest: &TokenDigest) -> bool {
    let value = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    value
        .strip_prefix("Bearer ")
        .is_some_and(|token| digest.matches(token.as_bytes()))
}

async fn assign(State(shell): State<Arc<Shell>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let Some(digest) = &shell.assign else {
        return error(StatusCode::CONFLICT, "started with a session token");
    };
    if !presents(&headers, digest) {
        return error(StatusCode::UNAUTHORIZED, "wrong assign token");
    }
    *shell.session.lock().unwrap() = Some(TokenDigest::of(body["token"].as_str().unwrap().as_bytes()));
    shell.assigned.lock().unwrap().push(shell.pod.clone());
    Json(json!({"status": "assigned"})).into_response()
}

/// Notes that a command was stopped because its caller left.
struct Running(Arc<Shell>, String, bool);

impl Drop for Running {
    fn drop(&mut self) {
        if !self.2 {
            self.0.stopped.lock().unwrap().push(self.1.clone());
        }
    }
}

async fn exec(State(shell): State<Arc<Shell>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let Some(digest) = *shell.session.lock().unwrap() else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the sandbox is unassigned");
    };
    if !presents(&headers, &digest) {
        return error(StatusCode::UNAUTHORIZED, "wrong session token");
    }
    if shell.open {
        return error(
            StatusCode::SERVICE_UNAVAILABLE,
            "EgressNotEnforced: a direct connection to 10.96.0.1:443 succeeded",
        );
    }
    let command = body["command"].as_str().unwrap().to_owned();
    shell.ran.lock().unwrap().push(command.clone());
    let mut running = Running(shell.clone(), command.clone(), false);
    let result = |stdout: &str, code: u8| json!({"stdout": stdout, "stderr": "", "exit_code": code, "duration_ms": 1});
    let (word, rest) = command.split_once(' ').unwrap_or((&command, ""));
    let answer = match word {
        "echo" => result(&format!("{rest}\n"), 0),
        "exit" => result("", rest.parse().unwrap()),
        "traceparent" => result(
            headers
                .get("traceparent")
                .map_or("none", |value| value.to_str().unwrap()),
            0,
        ),
        "accept" => result(headers[header::ACCEPT].to_str().unwrap(), 0),
        // For clients that are programs of their own.
        "stopped" => result(&shell.stopped.lock().unwrap().join(","), 0),
        "busy" => {
            running.2 = true;
            return error(StatusCode::CONFLICT, "16 commands are waiting");
        }
        "die" | "hang" => {
            if word == "die" {
                shell.dead.cancel();
            }
            shell.dead.cancelled().await;
            // The connection breaks before the answer is whole.
            let broken = futures::stream::once(async { Err::<String, _>(std::io::Error::other("killed")) });
            return Response::new(Body::from_stream(broken));
        }
        "raw" => result(HOSTILE, 0),
        "big" => result(&"0123456789abcde\n".repeat(rest.parse::<usize>().unwrap() / 16), 0),
        // What an image of somebody's own may answer.
        "garbage" => {
            running.2 = true;
            let body: &'static [u8] = match rest {
                "bytes" => b"{\"stdout\":\"\xff\xfe\",\"stderr\":\"\",\"exit_code\":0,\"duration_ms\":1}",
                "nothing" => b"",
                "types" => b"{\"stdout\":7,\"stderr\":[],\"exit_code\":\"0\",\"duration_ms\":1}",
                _ => b"<html>",
            };
            return ([(header::CONTENT_TYPE, "application/json")], body).into_response();
        }
        "wait" => {
            tokio::time::sleep(Duration::from_millis(rest.parse().unwrap())).await;
            result("waited\n", 0)
        }
        "stream" => {
            assert_eq!(headers[header::ACCEPT], "application/x-ndjson");
            running.2 = true;
            let lines = ["one\n", "two\n", "three\n"].map(|text| json!({"stream": "stdout", "data": text}));
            let last = result("one\ntwo\nthree\n", 0);
            let stream = futures::stream::unfold(0usize, move |n| {
                let line = lines
                    .get(n)
                    .or((n == 3).then_some(&last))
                    .map(|line| format!("{line}\n"));
                async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    line.map(|line| (Ok::<_, std::convert::Infallible>(line), n + 1))
                }
            });
            return (
                [(header::CONTENT_TYPE, "application/x-ndjson")],
                Body::from_stream(stream),
            )
                .into_response();
        }
        "both" => {
            running.2 = true;
            let chunk = |stream: &str, data: &str| json!({"stream": stream, "data": data});
            let last = json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 0, "duration_ms": 1});
            let chunks = [
                chunk("stdout", "out\n"),
                chunk("stderr", "err\n"),
                chunk("stdout", ""),
                last,
            ];
            let body: String = chunks.iter().map(|line| format!("{line}\n")).collect();
            return ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response();
        }
        other => {
            json!({"stdout": "", "stderr": format!("{other}: command not found\n"), "exit_code": 127, "duration_ms": 1})
        }
    };
    running.2 = true;
    Json(answer).into_response()
}
