//! One request and its response between a client and an upstream: both bodies stream at the same time, an early
//! response is an ordinary one, and either side's leaving is seen at once.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use crate::body::Decoder;
use crate::head::{Framing, Head, HeadError, find_end};
use crate::kernel::Connection;
use crate::large_heads::LargeHead;
use crate::memory::{BLOCKED, OverBudget, QUIET, Share};
use crate::pump::{Inbound, Pump, PumpError};
use crate::strip;

/// How much a client may send ahead of its next request, in bytes. No Kubernetes client does, and those that do send a
/// few requests; one that would go on could no longer be seen to leave.
const MAX_PIPELINED: usize = 8 * 1024;

/// How many interim answers may precede the answer.
const MAX_INTERIM: usize = 16;

/// A request as it is sent.
pub struct Outbound<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its head, written anew.
    pub head: Vec<u8>,
    /// How long its body is.
    pub framing: Framing,
    /// The protocol that the connection may switch to.
    pub upgrade: Option<&'a str>,
    /// The injected token, to recognise it in the response's head.
    pub token: Option<&'a [u8]>,
    /// Whether the client's connection ends with this response.
    pub close_client: bool,
    /// How long the response's head may take, from the last byte of the request's body that moved.
    pub head_timeout: Option<Duration>,
    /// A place among the large heads, given back when the head is sent.
    pub place: &'a mut Option<LargeHead>,
}

/// How far an exchange has come, also when it is given up in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Status of the response; 0 while none has begun.
    pub status: u16,
    /// Bytes of the request's body that were sent on.
    pub bytes_in: u64,
    /// Bytes of the response's body that were sent on.
    pub bytes_out: u64,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The client left.
    #[error("the client closed the connection")]
    ClientGone,
    /// The kernel gave the client's connection up.
    #[error("the client's connection timed out: it took nothing, or is gone")]
    ClientTimeout,
    /// The client goes on sending what nobody has asked for yet.
    #[error("the client sent more than {MAX_PIPELINED} bytes ahead of the answer")]
    ClientAhead,
    /// The client's body does not follow its framing.
    #[error("the request's body is malformed: chunked framing without extensions is expected")]
    ClientMalformed,
    /// The upstream closed without an answer.
    #[error("the upstream closed the connection without an answer")]
    NoResponse,
    /// The upstream's answer is not understood.
    #[error("the upstream's answer is malformed: {0}")]
    BadResponse(HeadError),
    /// The upstream does not come to its answer.
    #[error("the upstream sent more than {MAX_INTERIM} interim answers")]
    Interim,
    /// The upstream switched to a protocol that was not asked for.
    #[error("the upstream switched protocols without being asked")]
    BadUpgrade,
    /// The upstream closed in the middle of a body.
    #[error("the upstream closed the connection in the middle of its answer")]
    Truncated,
    /// The upstream did not begin to answer in time.
    #[error("the upstream did not answer in time")]
    Timeout,
    /// All streams together hold too much, and this client most of it.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

/// How an exchange went. Not for logs: the head holds the credential.
pub struct Outcome {
    /// The request's head, when not a byte of it reached the upstream's connection.
    pub unsent: Option<Vec<u8>>,
    /// Whether the upstream's connection can take another request.
    pub upstream_reusable: bool,
    /// Whether the client's connection can.
    pub client_reusable: bool,
    /// What failed, if anything.
    pub error: Option<ExchangeError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    Active,
    Done,
    Failed,
}

enum Receiving {
    Head { scanned: usize },
    Body(Pump),
}

struct Exchange<'a, C, U> {
    client: &'a mut C,
    client_in: &'a mut Inbound,
    upstream: &'a mut U,
    upstream_in: Inbound,
    outbound: Outbound<'a>,
    share: &'a mut Share,
    up: Pump,
    sending: Sending,
    receiving: Receiving,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes of the request's body at the last look.
    moved: u64,
    interim: usize,
    progress: &'a mut Progress,
    keep_upstream: bool,
    switched: bool,
}

/// Runs one exchange to its end.
pub async fn run<C, U>(
    client: &mut C,
    client_in: &mut Inbound,
    upstream: &mut U,
    mut outbound: Outbound<'_>,
    share: &mut Share,
    progress: &mut Progress,
) -> Outcome
where
    C: AsyncRead + AsyncWrite + Connection + Unpin,
    U: AsyncRead + AsyncWrite + Connection + Unpin,
{
    share.restart();
    let up = Pump::new(
        std::mem::take(&mut outbound.head),
        Decoder::new(outbound.framing),
        false,
    );
    let deadline = outbound
        .head_timeout
        .map(|timeout| Box::pin(tokio::time::sleep(timeout)));
    *progress = Progress::default();
    let mut exchange = Exchange {
        client,
        client_in,
        upstream,
        upstream_in: Inbound::default(),
        up,
        sending: Sending::Active,
        receiving: Receiving::Head { scanned: 0 },
        deadline,
        moved: 0,
        interim: 0,
        progress,
        keep_upstream: false,
        switched: false,
        outbound,
        share,
    };
    let result = poll_fn(|cx| {
        let result = exchange.poll(cx);
        exchange.report();
        match result {
            Poll::Pending => exchange
                .look(cx)
                .map_or_else(|over| Poll::Ready(Err(over.into())), |()| Poll::Pending),
            ended => ended,
        }
    })
    .await;
    exchange.outcome(result.err())
}

impl<C, U> Exchange<'_, C, U>
where
    C: AsyncRead + AsyncWrite + Connection + Unpin,
    U: AsyncRead + AsyncWrite + Connection + Unpin,
{
    fn outcome(self, error: Option<ExchangeError>) -> Outcome {
        let complete = error.is_none() && self.sending == Sending::Done && !self.switched;
        Outcome {
            unsent: self.up.into_unsent(),
            upstream_reusable: complete && self.keep_upstream && self.upstream_in.is_empty(),
            client_reusable: complete && !self.outbound.close_client,
            error,
        }
    }

    fn report(&mut self) {
        self.progress.bytes_in = self.up.content();
        self.progress.bytes_out = match &self.receiving {
            Receiving::Head { .. } => 0,
            Receiving::Body(down) => down.content(),
        };
    }

    /// Counts what waits in here for a reader that takes nothing, or for the end of a head.
    fn look(&mut self, cx: &mut Context<'_>) -> Result<(), OverBudget> {
        let down = match &self.receiving {
            Receiving::Head { .. } => 0,
            Receiving::Body(down) => down.waiting(),
        };
        let full = usize::from(self.up.waiting() > 0) + usize::from(down > 0);
        let unread = self.client_in.as_slice().len() + self.upstream_in.as_slice().len();
        let moved = self.progress.bytes_in.saturating_add(self.progress.bytes_out);
        let (client, upstream) = (&*self.client, &*self.upstream);
        self.share.poll(cx, moved, full > 0 || unread > QUIET, || {
            full * BLOCKED + unread + client.kernel().bytes() + upstream.kernel().bytes()
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        if self.sending == Sending::Active {
            match self.up.poll(cx, self.client, self.client_in, self.upstream) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.sending = Sending::Done,
                // Nothing of the request is used up, so that another connection may take it whole.
                Poll::Ready(Err(PumpError::Sink(_))) if !self.switched && !self.up.has_written() => {
                    return Poll::Ready(Err(ExchangeError::NoResponse));
                }
                // It may still have answered: a refusal before the body was read.
                Poll::Ready(Err(PumpError::Sink(_))) => self.sending = Sending::Failed,
                Poll::Ready(Err(PumpError::Source(kind))) => return Poll::Ready(Err(client_left(kind))),
                Poll::Ready(Err(PumpError::Malformed)) => return Poll::Ready(Err(ExchangeError::ClientMalformed)),
            }
            if self.up.has_sent_head() || self.sending == Sending::Failed {
                *self.outbound.place = None;
            }
            self.put_off_deadline();
            if self.switched && self.sending != Sending::Active {
                return Poll::Ready(Ok(()));
            }
        }
        if self.sending != Sending::Active {
            self.watch_client(cx)?;
        }
        loop {
            match &mut self.receiving {
                Receiving::Head { .. } => {
                    ready!(self.poll_head(cx))?;
                    if self.switched {
                        // Now both directions are raw; the client's may have bytes waiting.
                        cx.waker().wake_by_ref();
                    }
                }
                Receiving::Body(down) => {
                    let moved = down.poll(cx, self.upstream, &mut self.upstream_in, self.client);
                    return moved.map_err(|error| match error {
                        PumpError::Sink(kind) => client_left(kind),
                        PumpError::Source(_) | PumpError::Malformed => ExchangeError::Truncated,
                    });
                }
            }
        }
    }

    /// A long upload is no silent upstream.
    fn put_off_deadline(&mut self) {
        let moved = self.up.content();
        if moved != self.moved
            && let (Some(deadline), Some(timeout)) = (&mut self.deadline, self.outbound.head_timeout)
        {
            self.moved = moved;
            deadline.as_mut().reset(Instant::now() + timeout);
        }
    }

    /// While the upstream works, an end of the client's connection ends the request. So there must always be room to
    /// look for it.
    fn watch_client(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        loop {
            match self.client_in.poll_fill(cx, self.client) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(ExchangeError::ClientGone),
                Poll::Ready(Err(error)) => return Err(client_left(error.kind())),
                // The rest of a body that nobody takes any more.
                Poll::Ready(Ok(_)) if self.sending == Sending::Failed => self.client_in.clear(),
                Poll::Ready(Ok(_)) if self.client_in.as_slice().len() > MAX_PIPELINED => {
                    return Err(ExchangeError::ClientAhead);
                }
                Poll::Ready(Ok(_)) => {}
            }
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        while let Receiving::Head { scanned } = &mut self.receiving {
            let buffered = self.upstream_in.as_slice();
            match find_end(buffered, *scanned).map_err(ExchangeError::BadResponse)? {
                Some(end) => {
                    let head = Head::parse(self.upstream_in.take(end)).map_err(ExchangeError::BadResponse)?;
                    self.take_head(&head)?;
                    continue;
                }
                None => *scanned = buffered.len(),
            }
            match self.upstream_in.poll_fill(cx, self.upstream) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(ExchangeError::NoResponse)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => {
                    if let Some(deadline) = &mut self.deadline
                        && deadline.as_mut().poll(cx).is_ready()
                    {
                        return Poll::Ready(Err(ExchangeError::Timeout));
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take_head(&mut self, head: &Head) -> Result<(), ExchangeError> {
        let (minor, status) = head.status_line().map_err(ExchangeError::BadResponse)?;
        if status == 101 {
            return self.switch(head);
        }
        if status < 200 {
            // Interim answers are for this hop: the client's Expect was answered here.
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(ExchangeError::Interim);
            }
            self.receiving = Receiving::Head { scanned: 0 };
            return Ok(());
        }
        let framing = head
            .response_framing(self.outbound.method, status)
            .map_err(ExchangeError::BadResponse)?;
        let mut out = start(head, self.outbound.token);
        strip::write_response_fields(head, self.outbound.token, &mut out);
        match framing {
            Framing::Length(length) => strip::write_field(b"Content-Length", length.to_string().as_bytes(), &mut out),
            Framing::Chunked | Framing::UntilClose => strip::write_field(b"Transfer-Encoding", b"chunked", &mut out),
            // What a GET would have been: one plain number, or nothing.
            Framing::Empty if status != 204 => {
                if let Ok(Framing::Length(length)) = head.request_framing()
                    && head.values("content-length").next().is_some()
                {
                    strip::write_field(b"Content-Length", length.to_string().as_bytes(), &mut out);
                }
            }
            Framing::Empty => {}
        }
        // What is left of the request would be read as another one: it is thrown away with the connection.
        self.outbound.close_client |= self.sending != Sending::Done;
        if self.outbound.close_client {
            strip::write_field(b"Connection", b"close", &mut out);
        }
        out.extend_from_slice(b"\r\n");
        self.progress.status = status;
        self.keep_upstream = minor == 1 && framing != Framing::UntilClose && !head.has_member("connection", "close");
        let mut down = Pump::new(out, Decoder::new(framing), framing == Framing::UntilClose);
        down.absorb(&mut self.upstream_in)
            .map_err(|_| ExchangeError::Truncated)?;
        self.receiving = Receiving::Body(down);
        Ok(())
    }

    /// Only a switch that was asked for, to what was asked for, with a request that is complete (case 45).
    fn switch(&mut self, head: &Head) -> Result<(), ExchangeError> {
        let asked = self.outbound.upgrade.filter(|protocol| {
            self.sending == Sending::Done
                && head.has_member("upgrade", protocol)
                && head.has_member("connection", "upgrade")
        });
        let Some(protocol) = asked else {
            return Err(ExchangeError::BadUpgrade);
        };
        let mut out = start(head, self.outbound.token);
        strip::write_response_fields(head, self.outbound.token, &mut out);
        strip::write_field(b"Connection", b"Upgrade", &mut out);
        strip::write_field(b"Upgrade", protocol.as_bytes(), &mut out);
        out.extend_from_slice(b"\r\n");
        self.progress.status = 101;
        self.switched = true;
        self.sending = Sending::Active;
        self.up = Pump::new(Vec::new(), Decoder::UntilClose, false);
        self.receiving = Receiving::Body(Pump::new(out, Decoder::UntilClose, false));
        Ok(())
    }
}

fn client_left(how: io::ErrorKind) -> ExchangeError {
    match how {
        io::ErrorKind::TimedOut => ExchangeError::ClientTimeout,
        _ => ExchangeError::ClientGone,
    }
}

fn start(head: &Head, token: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(b"HTTP/1.1");
    let text = head.status_text();
    // A reason phrase is any text; the code is all that a client reads.
    let shown = if strip::echoes(text, token) {
        text.get(..5).unwrap_or_default()
    } else {
        text
    };
    out.extend_from_slice(shown);
    out.extend_from_slice(b"\r\n");
    out
}

#[cfg(test)]
mod tests;
