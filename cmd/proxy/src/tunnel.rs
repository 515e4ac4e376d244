//! The requests in a tunnel, one after the other, through one pipeline: read strictly, judge, strip, inject, exchange.
//! Upgrades take the same way as everything else (`proxy_cases.md`, case 29).

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::Poll;

use cli_mcp_kubeconfig::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};

use crate::dial::{DialError, UpstreamStream};
use crate::exchange::{self, ExchangeError, Outbound, Outcome, Progress};
use crate::head::{Framing, Head, HeadError, find_end};
use crate::kernel::Connection;
use crate::large_heads::{Crowded, LARGE_HEAD, LargeHead};
use crate::memory::{BLOCKED, OverBudget, QUIET, Share};
use crate::metrics::Open;
use crate::plan::{self, Plan};
use crate::proxy::{Entry, Shared};
use crate::pump::Inbound;
use crate::refusal::Refusal;

/// How long and how much of an unread body is thrown away, so that the client reads the refusal before its connection
/// ends.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

/// How often it is looked whether a client has taken all, before its connection ends.
const TAKEN: Duration = Duration::from_millis(10);

/// A tunnel whose TLS is established.
pub struct Tunnel<'a, S> {
    /// The client's side.
    pub stream: S,
    /// Address of the sandbox.
    pub client: IpAddr,
    /// What the CONNECT named.
    pub authority: Authority,
    /// The same as text.
    pub label: String,
    /// Whether refusals are for Kubernetes clients.
    pub kubernetes: bool,
    /// What it holds of the budget for all.
    pub share: Share,
    /// Everything else.
    pub shared: &'a Shared,
}

/// Whether the tunnel takes another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Close,
    /// The response was cut: an orderly end would make it look whole.
    Abort,
    /// The same, and what the client has not taken is thrown away.
    Cut,
}

/// Why there was no exchange with an upstream.
#[derive(Debug, thiserror::Error)]
enum NoExchange {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
}

impl NoExchange {
    const fn status(&self) -> u16 {
        match self {
            Self::Dial(error) => error.status(),
            Self::OverBudget(_) => 503,
        }
    }
}

/// A head with its place among the large ones, or why there is none.
enum Read {
    Head(Head, Option<LargeHead>),
    Malformed(HeadError),
    Crowded(Crowded),
    OverBudget(OverBudget),
    End,
}

impl<S: AsyncRead + AsyncWrite + Connection + Unpin> Tunnel<'_, S> {
    /// Serves requests until either side is done.
    pub async fn serve(mut self) {
        let mut inbound = Inbound::default();
        let mut first = true;
        loop {
            let read = self.read_head(&mut inbound, first).await;
            first = false;
            let next = match read {
                Read::End => Next::Close,
                Read::Malformed(error) => {
                    let refusal = Refusal::new(error.status(), error.to_string());
                    self.refuse_unread(refusal).await
                }
                Read::Crowded(crowded) => {
                    let refusal = Refusal::new(503, crowded.to_string());
                    self.refuse_unread(refusal).await
                }
                // Whoever leaves earlier answers unread would not read a refusal either.
                Read::OverBudget(over) => {
                    self.entry("").deny(0, &over.to_string());
                    Next::Cut
                }
                Read::Head(head, place) => self.serve_request(head, place, &mut inbound).await,
            };
            match next {
                Next::Continue => {}
                Next::Close => {
                    inbound.clear();
                    self.linger().await;
                    return self.be_taken().await;
                }
                Next::Abort => return self.be_taken().await,
                Next::Cut => return self.stream.cut(),
            }
        }
    }

    async fn read_head(&mut self, inbound: &mut Inbound, first: bool) -> Read {
        let timeouts = self.shared.timeouts;
        let mut deadline = Instant::now() + if first { timeouts.head } else { timeouts.idle };
        let mut scanned = 0;
        let mut started = false;
        let mut place = None;
        loop {
            let buffered = inbound.as_slice();
            let end = match find_end(buffered, scanned) {
                Ok(end) => end,
                Err(error) => return Read::Malformed(error),
            };
            scanned = buffered.len();
            if !started && !buffered.is_empty() {
                started = true;
                deadline = Instant::now() + timeouts.head;
            }
            // Behind the end is a body, which is held for no client for long.
            if place.is_none() && end.unwrap_or(scanned) > LARGE_HEAD {
                let (stream, taken) = (&self.stream, self.shared.large_heads.take(self.client, deadline));
                match self.share.during(|| scanned + stream.kernel().bytes(), taken).await {
                    Ok(Ok(taken)) => place = Some(taken),
                    Ok(Err(crowded)) => return Read::Crowded(crowded),
                    Err(over) => return Read::OverBudget(over),
                }
            }
            if let Some(end) = end {
                return match Head::parse(inbound.take(end)) {
                    Ok(head) => Read::Head(head, place),
                    Err(error) => Read::Malformed(error),
                };
            }
            let (stream, share) = (&mut self.stream, &mut self.share);
            // Earlier answers may still wait for the client to take them.
            let fill = poll_fn(|cx| match inbound.poll_fill(cx, stream) {
                Poll::Ready(filled) => Poll::Ready(Ok(filled)),
                Poll::Pending => {
                    let held = inbound.as_slice().len() + stream.kernel().bytes();
                    match share.poll(cx, 0, held >= QUIET, || held) {
                        Ok(()) => Poll::Pending,
                        Err(over) => Poll::Ready(Err(over)),
                    }
                }
            });
            let filled = tokio::select! {
                biased;
                filled = timeout_at(deadline, fill) => filled,
                () = self.shared.drain.cancelled(), if !started => return Read::End,
            };
            match filled {
                Ok(Ok(Ok(count))) if count > 0 => {}
                Ok(Err(over)) => return Read::OverBudget(over),
                _ => return Read::End,
            }
        }
    }

    fn entry(&self, method: &str) -> Entry<'_> {
        Entry::begin(self.shared, self.client, &self.label, &self.label, method)
    }

    /// Refuses what came before it was a request.
    async fn refuse_unread(&mut self, refusal: Refusal) -> Next {
        self.entry("").deny(refusal.status, &refusal.message);
        self.answer(&refusal, false, true).await
    }

    /// Sends a refusal. With `close`, whatever the client still sends is thrown away for a moment.
    async fn answer(&mut self, refusal: &Refusal, head_only: bool, close: bool) -> Next {
        let response = refusal.to_response(self.kubernetes, head_only, close);
        match (self.send(&response).await, close) {
            (true, false) => Next::Continue,
            (true, true) => Next::Close,
            (false, _) => Next::Cut,
        }
    }

    /// Sends something small of the proxy's own: whether the client's kernel has it in time.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let (stream, share) = (&mut self.stream, &mut self.share);
        let mut rest = bytes;
        let sent = poll_fn(|cx| {
            while !rest.is_empty() {
                match Pin::new(&mut *stream).poll_write(cx, rest) {
                    Poll::Ready(Ok(count)) if count > 0 => rest = rest.get(count..).unwrap_or_default(),
                    Poll::Ready(_) => return Poll::Ready(false),
                    Poll::Pending => break,
                }
            }
            if rest.is_empty()
                && let Poll::Ready(flushed) = Pin::new(&mut *stream).poll_flush(cx)
            {
                return Poll::Ready(flushed.is_ok());
            }
            match share.poll(cx, 0, true, || BLOCKED + stream.kernel().bytes()) {
                Ok(()) => Poll::Pending,
                Err(OverBudget) => Poll::Ready(false),
            }
        });
        timeout(self.shared.timeouts.head, sent).await.unwrap_or(false)
    }

    /// Keeps the connection's place until the client's side has all that was sent, or the kernel gives it up: closed
    /// earlier, it would go on to hold memory, and be counted by nobody.
    async fn be_taken(&mut self) {
        let stream = &self.stream;
        let taken = async {
            while stream.kernel().to_send > 0 {
                sleep(TAKEN).await;
            }
        };
        if self.share.during(|| stream.kernel().bytes(), taken).await.is_err() {
            self.stream.cut();
        }
    }

    /// Ends the connection, and throws away for a moment what the client still sends: unread, it would become a reset
    /// that overtakes the answer (RFC 9112, section 9.6).
    async fn linger(&mut self) {
        let linger = async {
            if self.stream.shutdown().await.is_err() {
                return;
            }
            let mut discarded = 0;
            let mut scratch = [0_u8; 4096];
            while discarded < LINGER_BYTES {
                match self.stream.read(&mut scratch).await {
                    Ok(count) if count > 0 => discarded += count,
                    _ => return,
                }
            }
        };
        // The peer may be gone or slow; the connection ends either way.
        let _ = timeout(LINGER, linger).await;
    }

    async fn serve_request(&mut self, head: Head, mut place: Option<LargeHead>, inbound: &mut Inbound) -> Next {
        let shared = self.shared;
        let _open = Open::new(&shared.metrics.streams);
        let method = head.request_line().map_or("", |(method, _)| method).to_owned();
        let label = self.label.clone();
        let mut entry = Entry::begin(shared, self.client, &label, &label, &method);
        let head_only = method == "HEAD";
        let close_client = shared.drain.is_cancelled() || head.has_member("connection", "close");

        let mut plan = match plan::plan(&head, &self.authority, &shared.state.load(), &mut entry) {
            Ok(plan) => plan,
            Err((refusal, close)) => {
                entry.deny(refusal.status, &refusal.message);
                let unread = !matches!(head.request_framing(), Ok(Framing::Empty));
                drop((head, place));
                return self.answer(&refusal, head_only, close || unread || close_client).await;
            }
        };
        let expects = head.values("expect").next().is_some();
        // A watch must not hold for hours what was needed for a moment.
        drop(head);
        if expects && plan.framing != Framing::Empty && inbound.is_empty() {
            // Answered here: the decision has fallen, and the upstream is asked without it.
            if !self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await {
                entry.allow(0, ExchangeError::ClientGone.to_string());
                return Next::Cut;
            }
        }
        let close_refused = close_client || plan.framing != Framing::Empty;
        let exchanged = self
            .exchange(&mut plan, &method, close_client, inbound, &mut place, entry.progress())
            .await;
        // The head is sent, or given up.
        drop(place);
        let (outcome, upstream) = match exchanged {
            Ok(done) => done,
            Err(error) => {
                let refusal = Refusal::new(error.status(), error.to_string());
                entry.allow(refusal.status, refusal.message.clone());
                return self.answer(&refusal, head_only, close_refused).await;
            }
        };
        if outcome.upstream_reusable {
            plan.backend.upstream().pool.put(upstream);
        } else {
            // The rest of a request that nobody waits for any more.
            if outcome.error.is_some() {
                upstream.cut();
            }
            drop(upstream);
        }
        let reason = outcome.error.map(|error| error.to_string()).unwrap_or_default();
        match after(outcome.error, entry.progress().status, outcome.client_reusable) {
            After::Go { status, next } => {
                entry.allow(status, reason);
                next
            }
            After::Refuse { status, close } => {
                let refusal = Refusal::new(status, format!("{label}: {reason}"));
                entry.allow(status, reason);
                self.answer(&refusal, head_only, close || close_refused).await
            }
        }
    }

    async fn exchange(
        &mut self,
        plan: &mut Plan,
        method: &str,
        close_client: bool,
        inbound: &mut Inbound,
        place: &mut Option<LargeHead>,
        progress: &mut Progress,
    ) -> Result<(Outcome, UpstreamStream), NoExchange> {
        let mut head = std::mem::take(&mut plan.outbound);
        let upstream = plan.backend.upstream();
        let mut kept = upstream.pool.take();
        loop {
            let reused = kept.is_some();
            let mut stream = match kept.take() {
                Some(stream) => stream,
                None => {
                    let client = &self.stream;
                    let dialled = self.share.during(|| client.kernel().bytes(), upstream.dialer.dial());
                    dialled.await??
                }
            };
            let outbound = Outbound {
                method,
                head,
                framing: plan.framing,
                upgrade: plan.upgrade.as_deref(),
                token: plan.backend.token(),
                close_client,
                head_timeout: (!plan.patient).then_some(self.shared.timeouts.response),
                place: &mut *place,
            };
            let (client, share) = (&mut self.stream, &mut self.share);
            let mut outcome = exchange::run(client, inbound, &mut stream, outbound, share, progress).await;
            // A kept connection that was found dead: nothing of the request has left, so that another may take it.
            let died = matches!(outcome.error, Some(ExchangeError::NoResponse));
            match outcome.unsent.take() {
                Some(unsent) if reused && died => head = unsent,
                _ => return Ok((outcome, stream)),
            }
        }
    }
}

/// What becomes of a connection after an exchange, and the status of the audit line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// All that there is to say is said.
    Go { status: u16, next: Next },
    /// The client has had no answer yet, and gets the proxy's.
    Refuse { status: u16, close: bool },
}

/// `answered` is the status that the client has got, 0 when none.
fn after(error: Option<ExchangeError>, answered: u16, client_reusable: bool) -> After {
    let refuse = |status| After::Refuse { status, close: false };
    match error {
        None => After::Go {
            status: answered,
            next: if client_reusable { Next::Continue } else { Next::Close },
        },
        Some(ExchangeError::ClientGone | ExchangeError::ClientTimeout) => After::Go {
            status: answered,
            next: Next::Abort,
        },
        Some(ExchangeError::OverBudget(_)) if answered != 0 => After::Go {
            status: answered,
            next: Next::Cut,
        },
        Some(ExchangeError::OverBudget(_)) => After::Refuse {
            status: 503,
            close: true,
        },
        Some(_) if answered != 0 => After::Go {
            status: answered,
            next: Next::Abort,
        },
        Some(ExchangeError::ClientMalformed | ExchangeError::ClientAhead) => After::Refuse {
            status: 400,
            close: true,
        },
        Some(ExchangeError::Timeout) => refuse(504),
        Some(
            ExchangeError::NoResponse
            | ExchangeError::BadResponse(_)
            | ExchangeError::Interim
            | ExchangeError::BadUpgrade
            | ExchangeError::Truncated,
        ) => refuse(502),
    }
}

#[cfg(test)]
mod tests;
