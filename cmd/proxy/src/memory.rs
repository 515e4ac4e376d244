//! One budget for what all streams of the process hold (`proxy.md`, limits): beyond it the client that holds most loses the
//! stream that has held for longest, so that whoever holds little never pays for others.
//!
//! The arithmetic, against the pod's limit of 1 GiB, with 4,096 connections:
//!
//! - an idle tunnel or watch is 45 KiB, two TLS sessions most of all, and 10 KiB of the kernel's for its sockets: 220 MiB;
//! - what holds less than [`QUIET`] is not counted, and 18 KiB of a TLS record that has begun to come: 136 MiB;
//! - a stream that is full, in one direction: 64 KiB as they came, 64 KiB on their way and 64 KiB encrypted, and what TLS
//!   has begun to read: [`BLOCKED`]. Beside that the two sockets, by default up to 32 MiB each: it is not by a product of
//!   bounds that 4,096 of them fit. So what they do hold is counted, against the budget: 384 MiB;
//! - 284 MiB are left for what comes between two looks, each `LOOK`, 120 MiB at 10 Gbit/s, and for the allocator.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Sleep, sleep};

/// Less than this, in bytes, is not counted: small requests, and the lines of a watch.
pub const QUIET: usize = 16 * 1024;

/// What a direction holds at most, in bytes, while its reader takes nothing: the read-ahead of its source, a part of the
/// body, and what is encrypted for its sink (64 KiB each), and a TLS record that has begun to come.
pub const BLOCKED: usize = (3 * 64 + 34) * 1024;

/// What a client may make a TLS handshake hold, in bytes: the longest that TLS puts together of one message.
pub const HANDSHAKE: usize = 64 * 1024;

/// How often a stream that is not quiet is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Bytes between two looks with which a stream counts as busy: its sockets may hold as much of what is to come.
const BUSY: u64 = 64 * 1024;

/// The stream was ended: its client held most when the budget was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ended to keep the proxy within its memory: of all clients this one holds most in streams that it does not read, or that the upstream does not take"
)]
pub struct OverBudget;

/// The budget, and who holds what of it. Clones share it.
#[derive(Clone)]
pub struct Memory {
    budget: usize,
    held: Arc<Mutex<Held>>,
    bytes: Gauge<i64, AtomicI64>,
    ended: Counter,
}

#[derive(Default)]
struct Held {
    total: usize,
    next: u64,
    /// In the order in which they began to hold.
    streams: BTreeMap<u64, Stream>,
    clients: HashMap<IpAddr, usize>,
}

struct Stream {
    client: IpAddr,
    bytes: usize,
    ended: Arc<AtomicBool>,
    waker: Waker,
}

impl Held {
    fn remove(&mut self, id: u64) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.total -= stream.bytes;
        if let Some(of_client) = self.clients.get_mut(&stream.client) {
            *of_client -= stream.bytes;
            if *of_client == 0 {
                self.clients.remove(&stream.client);
            }
        }
        Some(stream)
    }

    fn add(&mut self, id: u64, stream: Stream) {
        self.total += stream.bytes;
        *self.clients.entry(stream.client).or_default() += stream.bytes;
        self.streams.insert(id, stream);
    }

    /// Of the client that holds most, the stream that has held for longest.
    fn to_end(&self) -> Option<u64> {
        let (most, _) = self.clients.iter().max_by_key(|(_, bytes)| **bytes)?;
        self.streams
            .iter()
            .find(|(_, stream)| stream.client == *most)
            .map(|(id, _)| *id)
    }
}

impl Memory {
    /// So many bytes for all streams. `bytes` and `ended` tell of them.
    #[must_use]
    pub fn new(budget: usize, bytes: Gauge<i64, AtomicI64>, ended: Counter) -> Self {
        Self {
            budget,
            held: Arc::default(),
            bytes,
            ended,
        }
    }

    /// What a connection of this client holds: nothing yet.
    #[must_use]
    pub fn share(&self, client: IpAddr) -> Share {
        Share {
            memory: self.clone(),
            client,
            id: None,
            ended: Arc::default(),
            look: None,
            moved: 0,
        }
    }
}

/// What one connection holds of the budget; free again when it is dropped.
pub struct Share {
    memory: Memory,
    client: IpAddr,
    id: Option<u64>,
    ended: Arc<AtomicBool>,
    /// There is one only while there is something to look at: an idle watch has none.
    look: Option<Pin<Box<Sleep>>>,
    /// Bytes that had passed at the last look.
    moved: u64,
}

impl Share {
    /// Looks at what the connection holds, if it is time to. `moved` are all bytes that have passed, `full` whether some wait
    /// that their reader does not take; `held` is asked seldom, and never of a quiet stream.
    ///
    /// # Errors
    ///
    /// When the connection is to give up what it holds. It may go on with something smaller, such as a refusal.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        moved: u64,
        full: bool,
        held: impl FnOnce() -> usize,
    ) -> Result<(), OverBudget> {
        if self.ended.load(Ordering::Acquire) {
            self.ended.store(false, Ordering::Release);
            self.id = None;
            self.look = None;
            return Err(OverBudget);
        }
        let busy = full || moved.saturating_sub(self.moved) >= BUSY;
        let due = self
            .look
            .as_mut()
            .map_or(busy, |look| look.as_mut().poll(cx).is_ready());
        if !due {
            return Ok(());
        }
        self.moved = moved;
        let bytes = held();
        self.hold(bytes, cx.waker())?;
        self.look = None;
        if busy || bytes >= QUIET {
            let mut look = Box::pin(sleep(LOOK));
            // So that it wakes.
            let _ = look.as_mut().poll(cx);
            self.look = Some(look);
        }
        Ok(())
    }

    /// Waits for something during which nothing is read of the client, so that `held` may grow.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`] has it; the future is then dropped.
    pub async fn during<F: Future>(&mut self, held: impl Fn() -> usize, future: F) -> Result<F::Output, OverBudget> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => match self.poll(cx, 0, true, &held) {
                Ok(()) => Poll::Pending,
                Err(over) => Poll::Ready(Err(over)),
            },
        })
        .await
    }

    /// A new count of bytes that have passed begins.
    pub const fn restart(&mut self) {
        self.moved = 0;
    }

    fn hold(&mut self, bytes: usize, waker: &Waker) -> Result<(), OverBudget> {
        let mut ended = Vec::new();
        {
            let mut held = self.memory.held.lock().unwrap_or_else(PoisonError::into_inner);
            // Somebody may have ended it since it was looked at above.
            if self.ended.swap(false, Ordering::AcqRel) {
                self.id = None;
                return Err(OverBudget);
            }
            let before = self.id.take().map(|id| (id, held.remove(id)));
            if bytes >= QUIET {
                let id = before.map_or(held.next, |(id, _)| id);
                held.next = held.next.max(id + 1);
                let stream = Stream {
                    client: self.client,
                    bytes,
                    ended: self.ended.clone(),
                    waker: waker.clone(),
                };
                held.add(id, stream);
                self.id = Some(id);
            }
            while held.total > self.memory.budget
                && let Some(stream) = held.to_end().and_then(|id| held.remove(id))
            {
                stream.ended.store(true, Ordering::Release);
                self.memory.ended.inc();
                ended.push(stream.waker);
            }
            self.memory.bytes.set(i64::try_from(held.total).unwrap_or(i64::MAX));
        }
        ended.into_iter().for_each(Waker::wake);
        if self.ended.swap(false, Ordering::AcqRel) {
            self.id = None;
            return Err(OverBudget);
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.memory.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = self.id {
            held.remove(id);
            self.memory.bytes.set(i64::try_from(held.total).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn memory(budget: usize) -> Memory {
        Memory::new(budget, Gauge::default(), Counter::default())
    }

    fn total(memory: &Memory) -> usize {
        memory.held.lock().unwrap().total
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn case_50_who_holds_most_loses_what_has_held_for_longest_and_nobody_else_anything() {
        let memory = memory(1000 * KIB);
        let (hostile, victim) = (address(1), address(2));
        let mut small = memory.share(victim);
        assert_eq!(small.hold(20 * KIB, Waker::noop()), Ok(()));
        let mut stalled: Vec<Share> = (0..50).map(|_| memory.share(hostile)).collect();
        for share in &mut stalled {
            assert_eq!(share.hold(100 * KIB, Waker::noop()), Ok(()));
            assert!(total(&memory) <= 1000 * KIB);
        }
        let ended: Vec<bool> = stalled
            .iter()
            .map(|share| share.ended.load(Ordering::Acquire))
            .collect();
        assert_eq!(ended, [vec![true; 41], vec![false; 9]].concat());
        assert!(!small.ended.load(Ordering::Acquire));
        assert_eq!((memory.ended.get(), memory.bytes.get()), (41, 920 * 1024));

        // Nor does somebody lose a stream by opening one, while others hold more.
        let mut other = memory.share(victim);
        assert_eq!(other.hold(300 * KIB, Waker::noop()), Ok(()));
        assert!(!other.ended.load(Ordering::Acquire) && !small.ended.load(Ordering::Acquire));
        assert_eq!((memory.ended.get(), memory.bytes.get()), (44, 920 * 1024));
        drop((stalled, small, other));
        let held = memory.held.lock().unwrap();
        assert!(held.streams.is_empty() && held.clients.is_empty() && held.total == 0);
    }

    #[test]
    fn what_alone_is_beyond_the_budget_is_ended_at_once_and_may_hold_less_then() {
        let memory = memory(1000 * KIB);
        let mut share = memory.share(address(1));
        assert_eq!(share.hold(2000 * KIB, Waker::noop()), Err(OverBudget));
        assert_eq!(total(&memory), 0);
        assert_eq!(share.hold(200 * KIB, Waker::noop()), Ok(()));
        assert_eq!(share.hold(QUIET - 1, Waker::noop()), Ok(()));
        assert_eq!(total(&memory), 0, "too little to count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_counted_from_its_first_stall_until_it_is_seen_quiet() {
        let memory = memory(1000 * KIB);
        let mut share = memory.share(address(1));
        fn look(share: &mut Share, moved: u64, full: bool, held: usize) -> usize {
            let mut cx = Context::from_waker(Waker::noop());
            assert_eq!(share.poll(&mut cx, moved, full, || held), Ok(()));
            total(&share.memory)
        }
        assert_eq!(look(&mut share, BUSY - 1, false, 100 * KIB), 0, "quiet");
        assert_eq!(look(&mut share, BUSY - 1, true, 100 * KIB), 100 * KIB, "full");
        assert_eq!(look(&mut share, BUSY, false, 0), 100 * KIB, "looked at too soon");
        tokio::time::sleep(LOOK * 2).await;
        assert_eq!(look(&mut share, 3 * BUSY, false, 200 * KIB), 200 * KIB, "busy");
        tokio::time::sleep(LOOK * 2).await;
        assert_eq!(look(&mut share, 3 * BUSY, false, 0), 0, "quiet again");
        assert!(share.look.is_none(), "and without a timer");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_woken_when_it_is_ended() {
        let memory = memory(1000 * KIB);
        let (mut waits, mut other) = (memory.share(address(1)), memory.share(address(2)));
        let waiting = waits.during(|| 600 * KIB, std::future::pending::<()>());
        let over = async {
            tokio::task::yield_now().await;
            other.hold(500 * KIB, Waker::noop())
        };
        let (waited, held) = tokio::join!(waiting, over);
        assert_eq!((waited, held), (Err(OverBudget), Ok(())));
        assert_eq!(total(&memory), 500 * KIB);
    }
}
