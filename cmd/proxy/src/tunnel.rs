//! The requests in a tunnel, one after the other, through one pipeline: read strictly, judge, strip, inject, exchange.
//! Upgrades take the same way as everything else (`proxy_cases.md`, case 29).

use std::net::IpAddr;

use cli_mcp_kubeconfig::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, timeout, timeout_at};

use crate::dial::{DialError, UpstreamStream};
use crate::exchange::{self, ExchangeError, Outbound, Outcome};
use crate::head::{Framing, Head, HeadError, find_end};
use crate::metrics::Open;
use crate::plan::{self, Plan};
use crate::proxy::{Entry, Shared};
use crate::pump::Inbound;
use crate::refusal::Refusal;

/// How long and how much of an unread body is thrown away, so that the client reads the refusal before its connection
/// ends.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1024 * 1024;

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
    /// Everything else.
    pub shared: &'a Shared,
}

/// Whether the tunnel takes another request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Close,
    /// The response was cut: an orderly end would make it look whole.
    Abort,
}

/// A head, or why there is none.
enum Read {
    Head(Head),
    Malformed(HeadError),
    End,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Tunnel<'_, S> {
    /// Serves requests until either side is done.
    pub async fn serve(mut self) {
        let mut inbound = Inbound::default();
        let mut first = true;
        loop {
            let read = self.read_head(&mut inbound, first).await;
            first = false;
            let next = match read {
                Read::End => Next::Close,
                Read::Malformed(error) => self.refuse_malformed(&mut inbound, error).await,
                Read::Head(head) => self.serve_request(&head, &mut inbound).await,
            };
            match next {
                Next::Continue => {}
                Next::Close => {
                    // The peer may be gone or slow; the connection ends either way.
                    let _ = timeout(LINGER, self.stream.shutdown()).await;
                    return;
                }
                Next::Abort => return,
            }
        }
    }

    async fn read_head(&mut self, inbound: &mut Inbound, first: bool) -> Read {
        let timeouts = self.shared.timeouts;
        let mut deadline = Instant::now() + if first { timeouts.head } else { timeouts.idle };
        let mut scanned = 0;
        let mut started = false;
        loop {
            let buffered = inbound.as_slice();
            match find_end(buffered, scanned) {
                Err(error) => return Read::Malformed(error),
                Ok(Some(end)) => {
                    return Head::parse(inbound.take(end)).map_or_else(Read::Malformed, Read::Head);
                }
                Ok(None) => scanned = buffered.len(),
            }
            if !started && !buffered.is_empty() {
                started = true;
                deadline = Instant::now() + timeouts.head;
            }
            let fill = std::future::poll_fn(|cx| inbound.poll_fill(cx, &mut self.stream));
            let filled = tokio::select! {
                biased;
                filled = timeout_at(deadline, fill) => filled,
                () = self.shared.drain.cancelled(), if !started => return Read::End,
            };
            match filled {
                Ok(Ok(count)) if count > 0 => {}
                _ => return Read::End,
            }
        }
    }

    fn entry(&self, method: &str) -> Entry<'_> {
        Entry::begin(self.shared, self.client, &self.label, &self.label, method)
    }

    async fn refuse_malformed(&mut self, inbound: &mut Inbound, error: HeadError) -> Next {
        let status = match error {
            HeadError::TooLarge => 431,
            HeadError::Version => 505,
            _ => 400,
        };
        let refusal = Refusal::new(status, error.to_string());
        self.entry("").deny(status, &refusal.message);
        self.answer(&refusal, false, true, inbound).await
    }

    /// Sends a refusal. With `close`, whatever the client still sends is thrown away for a moment.
    async fn answer(&mut self, refusal: &Refusal, head_only: bool, close: bool, inbound: &mut Inbound) -> Next {
        let response = refusal.to_response(self.kubernetes, head_only, close);
        let written = async {
            self.stream.write_all(&response).await?;
            self.stream.flush().await
        };
        if timeout(self.shared.timeouts.head, written)
            .await
            .is_ok_and(|result| result.is_ok())
            && !close
        {
            return Next::Continue;
        }
        *inbound = Inbound::default();
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
        let _ = timeout(LINGER, linger).await;
        Next::Abort
    }

    async fn serve_request(&mut self, head: &Head, inbound: &mut Inbound) -> Next {
        let shared = self.shared;
        let _open = Open::new(&shared.metrics.streams);
        let method = head.request_line().map_or("", |(method, _)| method).to_owned();
        let label = self.label.clone();
        let mut entry = Entry::begin(shared, self.client, &label, &label, &method);
        let head_only = method == "HEAD";

        let plan = match plan::plan(head, &self.authority, &shared.state.load(), &mut entry) {
            Ok(plan) => plan,
            Err((refusal, close)) => {
                entry.deny(refusal.status, &refusal.message);
                let unread = !matches!(head.request_framing(), Ok(Framing::Empty));
                let close = close || unread || shared.drain.is_cancelled() || head.has_member("connection", "close");
                return self.answer(&refusal, head_only, close, inbound).await;
            }
        };
        let close_client = shared.drain.is_cancelled() || head.has_member("connection", "close");
        if head.values("expect").next().is_some() && plan.framing != Framing::Empty && inbound.is_empty() {
            // Answered here: the decision has fallen, and the upstream is asked without it.
            let written = async {
                self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                self.stream.flush().await
            };
            if !timeout(shared.timeouts.head, written)
                .await
                .is_ok_and(|result| result.is_ok())
            {
                entry.allow(0, ExchangeError::ClientGone.to_string(), 0, 0);
                return Next::Abort;
            }
        }
        let (outcome, upstream) = match self.exchange(&plan, &method, close_client, inbound).await {
            Ok(done) => done,
            Err(error) => {
                let refusal = Refusal::new(error.status(), error.to_string());
                entry.allow(refusal.status, refusal.message.clone(), 0, 0);
                let close = close_client || plan.framing != Framing::Empty;
                return self.answer(&refusal, head_only, close, inbound).await;
            }
        };
        if outcome.upstream_reusable {
            plan.backend.upstream().pool.put(upstream);
        }
        let reason = outcome.error.map(|error| error.to_string()).unwrap_or_default();
        match outcome.error {
            None => {
                entry.allow(outcome.status, reason, outcome.bytes_in, outcome.bytes_out);
                if outcome.client_reusable {
                    Next::Continue
                } else {
                    Next::Close
                }
            }
            Some(_) if outcome.status != 0 => {
                entry.allow(outcome.status, reason, outcome.bytes_in, outcome.bytes_out);
                Next::Abort
            }
            Some(ExchangeError::ClientGone) => {
                entry.allow(0, reason, outcome.bytes_in, 0);
                Next::Abort
            }
            Some(error) => {
                let status = match error {
                    ExchangeError::Timeout => 504,
                    ExchangeError::ClientMalformed => 400,
                    _ => 502,
                };
                entry.allow(status, reason.clone(), outcome.bytes_in, 0);
                let refusal = Refusal::new(status, format!("{}: {reason}", self.label));
                let close = close_client || plan.framing != Framing::Empty;
                self.answer(&refusal, head_only, close, inbound).await
            }
        }
    }

    async fn exchange(
        &mut self,
        plan: &Plan,
        method: &str,
        close_client: bool,
        inbound: &mut Inbound,
    ) -> Result<(Outcome, UpstreamStream), DialError> {
        let upstream = plan.backend.upstream();
        let mut kept = upstream.pool.take();
        loop {
            let reused = kept.is_some();
            let mut stream = match kept.take() {
                Some(stream) => stream,
                None => upstream.dialer.dial().await?,
            };
            let outbound = Outbound {
                method,
                head: plan.outbound.clone(),
                framing: plan.framing,
                upgrade: plan.upgrade.as_deref(),
                token: plan.backend.token(),
                close_client,
                head_timeout: (!plan.patient).then_some(self.shared.timeouts.response),
            };
            let outcome = exchange::run(&mut self.stream, inbound, &mut stream, outbound).await;
            // A kept connection that was found dead: nothing of the request has left, so that another may take it.
            let died = matches!(outcome.error, Some(ExchangeError::NoResponse));
            if !(reused && died && !outcome.sent) {
                return Ok((outcome, stream));
            }
        }
    }
}
