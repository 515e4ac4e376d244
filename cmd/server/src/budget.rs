//! How much memory large requests and large results may take together. What is small is not counted: it is bounded by the
//! listener's connections, and must not wait for who sends or takes much.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use cli_mcp_serving::listener::Cut;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Up to this size nothing is counted.
pub const SMALL_BYTES: usize = 64 * 1024;

/// For request bodies. Of each there are up to four copies while it is read, and one while its command runs.
const BODY_BYTES: usize = 32 * 1024 * 1024;

/// For results, each counted as `RESULT_BYTES`: two streams at the agent's limit, escaped in the message.
const ALL_RESULT_BYTES: usize = 32 * 1024 * 1024;
const RESULT_BYTES: usize = 1024 * 1024;

/// How long a request waits for memory before its client is told to come back.
const TURN: Duration = Duration::from_secs(5);

/// How long a client may take for a large result. The listener gives up who takes nothing; who takes a little from time to
/// time would hold up everybody's large results.
const WRITTEN: Duration = Duration::from_secs(60);

/// Bytes a permit.
const UNIT: usize = 1024;

/// The memory that all calls share.
#[derive(Clone, Debug)]
pub struct Budget {
    bodies: Arc<Semaphore>,
    results: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bodies: Arc::new(Semaphore::new(BODY_BYTES / UNIT)),
            results: Arc::new(Semaphore::new(ALL_RESULT_BYTES / UNIT)),
        }
    }
}

impl Budget {
    /// The memory of a request with a body of at most this size, held until its answer is written; none when others hold it
    /// for too long.
    pub async fn request(&self, size: usize) -> Option<Held> {
        let units = u32::try_from(units(size)).unwrap_or(u32::MAX);
        let body = if units == 0 {
            None
        } else {
            let permit = self.bodies.clone().acquire_many_owned(units);
            Some(tokio::time::timeout(TURN, permit).await.ok()?.ok()?)
        };
        Some(Held {
            results: Some(self.results.clone()),
            cut: Cut::default(),
            permits: Arc::new(Mutex::new(Permits {
                body,
                results: Vec::new(),
            })),
        })
    }
}

/// Permits that a body of this size takes.
fn units(size: usize) -> usize {
    if size > SMALL_BYTES {
        size.min(BODY_BYTES).div_ceil(UNIT)
    } else {
        0
    }
}

/// What one call holds of the budget. Clones share it. Over stdio, where one client is served, nothing is counted.
#[derive(Clone, Debug, Default)]
pub struct Held {
    results: Option<Arc<Semaphore>>,
    cut: Cut,
    permits: Arc<Mutex<Permits>>,
}

#[derive(Debug, Default)]
struct Permits {
    body: Option<OwnedSemaphorePermit>,
    results: Vec<LargeResult>,
}

/// The memory of a large result; dropping it tells that it was written.
#[derive(Debug)]
struct LargeResult {
    _permit: OwnedSemaphorePermit,
    _written: DropGuard,
}

impl Held {
    /// The body has arrived and has this size: what was taken beyond that is for others, however long this call lasts.
    pub fn arrived(&self, size: usize) {
        if let Some(body) = &mut self.permits().body {
            let surplus = body.num_permits().saturating_sub(units(size));
            // Dropping them gives them back.
            drop(body.split(surplus));
        }
    }

    /// What ends the connection of a client that takes too long.
    #[must_use]
    pub fn over(self, cut: Cut) -> Self {
        Self { cut, ..self }
    }

    /// Waits for the memory of a large result. It comes: who holds it waits for nothing but its client, which has its time
    /// for that and is then given up.
    pub async fn large_result(&self) {
        let Some(results) = &self.results else { return };
        let units = u32::try_from(RESULT_BYTES / UNIT).unwrap_or(u32::MAX);
        if let Ok(permit) = results.clone().acquire_many_owned(units).await {
            let written = CancellationToken::new();
            tokio::spawn(cut_after(WRITTEN, written.clone(), self.cut.clone()));
            self.permits().results.push(LargeResult {
                _permit: permit,
                _written: written.drop_guard(),
            });
        }
    }

    /// An answer's body that holds this until it was written.
    pub fn until_written(self, body: Body) -> Body {
        Body::new(Holding { body, _held: self })
    }

    fn permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn cut_after(limit: Duration, written: CancellationToken, cut: Cut) {
    tokio::select! {
        () = written.cancelled() => {}
        () = tokio::time::sleep(limit) => {
            tracing::info!(seconds = limit.as_secs(), "Cut the connection of a client that took too long for a large result");
            cut.now();
        }
    }
}

struct Holding {
    body: Body,
    _held: Held,
}

impl hyper::body::Body for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const LARGE: usize = 4 * 1024 * 1024;

    #[tokio::test(start_paused = true)]
    async fn large_requests_wait_for_each_other_and_small_ones_for_nobody() {
        let budget = Budget::default();
        let mut held = Vec::new();
        for _ in 0..BODY_BYTES / LARGE {
            held.push(budget.request(LARGE).await.unwrap());
        }
        assert!(budget.request(LARGE).await.is_none(), "and are told to come back");
        assert!(budget.request(SMALL_BYTES).await.is_some());
        // Its answer has been written.
        let written = held.pop().unwrap().until_written(Body::from("x"));
        assert!(budget.request(LARGE).await.is_none());
        drop(written);
        assert!(budget.request(LARGE).await.is_some());
    }

    #[tokio::test]
    async fn a_body_that_arrived_holds_what_it_takes_and_a_small_one_nothing() {
        let budget = Budget::default();
        let free = || budget.bodies.available_permits() * UNIT;
        let held = budget.request(LARGE).await.unwrap();
        assert_eq!(free(), BODY_BYTES - LARGE);
        held.arrived(LARGE);
        assert_eq!(free(), BODY_BYTES - LARGE);
        held.arrived(LARGE / 2 - 1);
        assert_eq!(free(), BODY_BYTES - LARGE / 2, "whole units are held");
        held.arrived(SMALL_BYTES);
        assert_eq!(free(), BODY_BYTES);
        drop(held);
        assert_eq!(free(), BODY_BYTES);
    }

    #[tokio::test]
    async fn large_results_wait_for_those_that_are_not_written_yet() {
        let budget = Budget::default();
        let mut held = Vec::new();
        for _ in 0..ALL_RESULT_BYTES / RESULT_BYTES {
            let call = budget.request(0).await.unwrap();
            call.large_result().await;
            held.push(call);
        }
        let next = budget.request(0).await.unwrap();
        assert!(next.large_result().now_or_never().is_none());
        held.pop();
        assert!(next.large_result().now_or_never().is_some());
        let stdio = Held::default();
        assert!(stdio.large_result().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_too_long_for_a_large_result_is_cut_and_nobody_else() {
        let budget = Budget::default();
        let (slow, quick, small) = (Cut::default(), Cut::default(), Cut::default());
        let of_slow = budget.request(0).await.unwrap().over(slow.clone());
        let of_quick = budget.request(0).await.unwrap().over(quick.clone());
        let of_small = budget.request(0).await.unwrap().over(small.clone());
        // A command may run for long before its result is there.
        tokio::time::sleep(WRITTEN * 2).await;
        of_slow.large_result().await;
        of_quick.large_result().await;
        drop(of_quick.until_written(Body::empty()));
        tokio::time::timeout(WRITTEN * 2, slow.done())
            .await
            .expect("it is not cut");
        assert!(quick.done().now_or_never().is_none());
        assert!(small.done().now_or_never().is_none());
        drop((of_slow, of_small));
    }
}
