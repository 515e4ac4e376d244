//! Places for connections: so many for one client address, so that one client cannot take all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The places that clients hold, by address. Clones share them.
#[derive(Clone, Debug)]
pub struct Places {
    per_client: usize,
    held: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A client's place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    client: IpAddr,
}

impl Places {
    /// So many for each client.
    #[must_use]
    pub fn new(per_client: usize) -> Self {
        Self {
            per_client,
            held: Arc::default(),
        }
    }

    /// A place for this client, if it has not all of its own.
    #[must_use]
    pub fn take(&self, client: IpAddr) -> Option<Place> {
        // A dual-stack listener writes an IPv4 client's address as IPv6.
        let client = client.to_canonical();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = held.entry(client).or_default();
        if *of_client >= self.per_client {
            return None;
        }
        *of_client += 1;
        Some(Place {
            places: self.clone(),
            client,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_and_gives_them_back() {
        let places = Places::new(2);
        let (one, mapped, two): (IpAddr, IpAddr, IpAddr) = (
            "10.0.0.1".parse().unwrap(),
            "::ffff:10.0.0.1".parse().unwrap(),
            "10.0.0.2".parse().unwrap(),
        );
        let first = places.take(one).unwrap();
        let second = places.take(mapped).unwrap();
        assert!(places.take(one).is_none(), "both ways of writing it are one client");
        let other = places.take(two).unwrap();
        drop(first);
        let again = places.take(one).unwrap();
        drop((second, other, again));
        assert!(places.held.lock().unwrap().is_empty());
    }
}
