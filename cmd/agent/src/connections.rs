//! How many connections there may be, whose they are, and which gives way where there are too many: what runs in the sandbox
//! can open any number, and must take no place from those who call it from outside, nor from the probe.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections at once from outside.
const OUTSIDE: usize = 512;
/// Connections at once from the sandbox itself: the probe, a forwarded port, and whatever its commands open.
const INSIDE: usize = 32;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Another machine or pod.
    Outside,
    /// This one.
    Inside,
}

impl Side {
    /// Where the connection between these two ends comes from.
    #[must_use]
    pub fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        let (from, to) = (peer.ip().to_canonical(), local.ip().to_canonical());
        if from.is_loopback() || to.is_loopback() || from == to || is_own(peer) {
            Self::Inside
        } else {
            Self::Outside
        }
    }
}

/// Whether an address is one of this machine's: only those can be bound.
fn is_own(peer: SocketAddr) -> bool {
    let mut address = peer;
    address.set_port(0);
    if let IpAddr::V4(canonical) = peer.ip().to_canonical() {
        address = SocketAddr::from((canonical, 0));
    }
    UdpSocket::bind(address).is_ok()
}

/// What a connection has shown of itself: one that has never sent a valid token gives way to others.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<AtomicBool>);

impl Standing {
    /// It has sent a valid token.
    pub fn prove(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    #[must_use]
    pub fn proven(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Held {
    standing: Standing,
    closing: CancellationToken,
}

/// The places of one side, by age.
#[derive(Debug)]
struct Share {
    limit: usize,
    held: Mutex<(u64, BTreeMap<u64, Held>)>,
}

impl Share {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            held: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Held>)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of both sides.
#[derive(Clone, Debug)]
pub struct Places {
    outside: Arc<Share>,
    inside: Arc<Share>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            outside: Share::new(OUTSIDE),
            inside: Share::new(INSIDE),
        }
    }
}

impl Places {
    /// A place for a new connection. Where all are taken the oldest that has proven nothing gives way; None where all have.
    #[must_use]
    pub fn take(&self, side: Side) -> Option<Place> {
        let share = match side {
            Side::Outside => &self.outside,
            Side::Inside => &self.inside,
        };
        let mut held = share.lock();
        let (next, connections) = &mut *held;
        if connections.len() >= share.limit {
            let oldest = connections
                .iter()
                .find(|(_, held)| !held.standing.proven())
                .map(|(number, _)| *number)?;
            if let Some(gone) = connections.remove(&oldest) {
                gone.closing.cancel();
            }
        }
        let number = *next;
        *next += 1;
        let (standing, closing) = (Standing::default(), CancellationToken::new());
        connections.insert(
            number,
            Held {
                standing: standing.clone(),
                closing: closing.clone(),
            },
        );
        Some(Place {
            share: share.clone(),
            number,
            standing,
            closing,
        })
    }
}

/// The place of one connection, free again when dropped.
#[derive(Debug)]
pub struct Place {
    share: Arc<Share>,
    number: u64,
    /// What the connection has shown of itself.
    pub standing: Standing,
    /// Cancelled when it has to go.
    pub closing: CancellationToken,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.share.lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unproven_one_gives_way_on_its_own_side_only() {
        let places = Places::default();
        let outside = places.take(Side::Outside).unwrap();
        let inside: Vec<Place> = (0..INSIDE).map(|_| places.take(Side::Inside).unwrap()).collect();
        inside[0].standing.prove();
        let _next = places.take(Side::Inside).unwrap();
        let closing: Vec<usize> = (0..INSIDE)
            .filter(|index| inside[*index].closing.is_cancelled())
            .collect();
        assert_eq!(closing, [1]);
        assert!(!outside.closing.is_cancelled());
    }

    #[test]
    fn proven_ones_keep_their_places_and_give_them_back() {
        let places = Places::default();
        let mut inside: Vec<Place> = (0..INSIDE).map(|_| places.take(Side::Inside).unwrap()).collect();
        for place in &inside {
            place.standing.prove();
        }
        assert!(places.take(Side::Inside).is_none());
        inside.pop();
        assert!(places.take(Side::Inside).is_some());
    }

    #[test]
    fn what_comes_from_an_own_address_is_inside() {
        let side = |peer: &str, local: &str| Side::of(peer.parse().unwrap(), local.parse().unwrap());
        assert_eq!(side("127.0.0.2:1", "127.0.0.1:8090"), Side::Inside);
        assert_eq!(side("[::ffff:127.0.0.1]:1", "[::1]:8090"), Side::Inside);
        // 192.0.2.0/24 is nobody's (RFC 5737).
        assert_eq!(side("192.0.2.1:1", "192.0.2.1:8090"), Side::Inside);
        assert_eq!(side("192.0.2.1:1", "127.0.0.1:8090"), Side::Inside);
        assert_eq!(side("192.0.2.1:1", "192.0.2.2:8090"), Side::Outside);
    }
}
