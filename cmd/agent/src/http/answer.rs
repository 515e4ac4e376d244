//! Answers: their two forms of body, and the words of what is refused.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use cli_mcp_sandbox::wire::{ErrorBody, ExecResult, NDJSON};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;
use crate::queue::{Refusal, Ticket};

/// Lines of a stream that wait for a client; more is not read from the command until it takes them.
pub(super) const STREAM_LINES: usize = 32;

/// An answer's body: whole, or line by line.
#[derive(Debug)]
pub enum AnswerBody {
    /// All at once.
    Whole(Option<Bytes>),
    /// As output arrives; dropped early, it ends the call.
    Lines(mpsc::Receiver<Bytes>, Ticket),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Lines(lines, _) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Lines(..) => SizeHint::default(),
        }
    }
}

pub(super) type Answer = Response<AnswerBody>;
/// An answer that ends a request before its work.
pub(super) type Refused = Box<Answer>;

pub(super) fn json<T: serde::Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value).unwrap_or_default();
    whole(status, "application/json", Bytes::from(body))
}

pub(super) fn whole(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(Some(body)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(super) fn error(status: StatusCode, text: impl Into<String>) -> Answer {
    json(status, &ErrorBody { error: text.into() })
}

pub(super) fn refused(status: StatusCode, text: impl Into<String>) -> Refused {
    Box::new(error(status, text))
}

pub(super) fn refusal(refusal: &Refusal) -> Answer {
    let status = match refusal {
        Refusal::Full | Refusal::TooLarge => StatusCode::CONFLICT,
        Refusal::NoShell(_) | Refusal::EgressNotEnforced(_) | Refusal::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut answer = error(status, refusal.to_string());
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Minds the client of a connection while there is something to wait for.
pub(super) async fn leaves(client: Option<&Client>) -> Infallible {
    match client {
        Some(client) => client.leaves().await,
        None => std::future::pending().await,
    }
}

/// The stream begins with the first line, so that a call that is refused meanwhile has its own status.
pub(super) async fn stream(
    mut lines: mpsc::Receiver<Bytes>,
    ticket: Ticket,
    result: oneshot::Receiver<Result<ExecResult, Refusal>>,
    client: Option<Client>,
) -> Answer {
    let mut first = Vec::new();
    if lines.recv_many(&mut first, 1).await == 0 {
        return match result.await {
            Ok(Err(reason)) => refusal(&reason),
            _ => refusal(&Refusal::ShuttingDown),
        };
    }
    let (sender, receiver) = mpsc::channel(STREAM_LINES);
    let forward = async move {
        first.reverse();
        loop {
            let next = match first.pop() {
                Some(line) => Some(line),
                None => tokio::select! {
                    line = lines.recv() => line,
                    () = sender.closed() => None,
                },
            };
            let Some(line) = next else { return };
            if sender.send(line).await.is_err() {
                return;
            }
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            () = forward => {}
            never = leaves(client.as_ref()) => match never {},
        }
    });
    let mut answer = Response::new(AnswerBody::Lines(receiver, ticket));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    answer
}
