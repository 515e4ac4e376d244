//! Places for large heads: what is read of a request before it can be judged is held in memory, and few clients at most
//! send more than a little.

use std::net::IpAddr;
use std::sync::Arc;

use cli_mcp_serving::places::{Place, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Up to here, in bytes, a head takes no place: that of a Kubernetes client is a tenth of it.
pub const LARGE_HEAD: usize = 16 * 1024;

/// How many large heads may be read and not yet sent, of all clients together: 8 MiB as they came, and as much again as
/// they are sent.
const ALL: usize = 64;

/// How many of one client: it takes eight to leave none to the others.
const PER_CLIENT: usize = 8;

/// The places, in all and by client.
pub struct LargeHeads {
    all: Arc<Semaphore>,
    clients: Places,
}

/// A large head's place; free again when it is dropped.
pub struct LargeHead {
    _of_all: OwnedSemaphorePermit,
    _of_client: Place,
}

/// There is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Crowded {
    /// The client has all of its own.
    #[error("this client has too many requests with headers over {} KiB on their way: send fewer at a time", LARGE_HEAD / 1024)]
    Client,
    /// All are taken, and none became free in time.
    #[error("the proxy has too many requests with headers over {} KiB on their way: try again", LARGE_HEAD / 1024)]
    All,
}

impl Default for LargeHeads {
    fn default() -> Self {
        Self::new(ALL, PER_CLIENT)
    }
}

impl LargeHeads {
    /// So many in all, and so many for each client.
    #[must_use]
    pub fn new(all: usize, per_client: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            clients: Places::new(per_client),
        }
    }

    /// A place for this client. Waits for others to give theirs back, but not for the client's own.
    ///
    /// # Errors
    ///
    /// When the client has its share, or there is none until `deadline`.
    pub async fn take(&self, client: IpAddr, deadline: Instant) -> Result<LargeHead, Crowded> {
        let of_client = self.clients.take(client).ok_or(Crowded::Client)?;
        match timeout_at(deadline, self.all.clone().acquire_owned()).await {
            Ok(Ok(of_all)) => Ok(LargeHead {
                _of_all: of_all,
                _of_client: of_client,
            }),
            _ => Err(Crowded::All),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn case_50_one_client_leaves_places_to_the_others_and_gets_its_own_back() {
        let (one, two): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let heads = LargeHeads::new(3, 2);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let first = heads.take(one, later).await.ok().unwrap();
        let _second = heads.take(one, later).await.ok().unwrap();
        assert_eq!(heads.take(one, later).await.err(), Some(Crowded::Client));
        let _third = heads.take(two, later).await.ok().unwrap();
        assert_eq!(heads.take(two, now).await.err(), Some(Crowded::All));
        drop(first);
        assert!(heads.take(two, later).await.is_ok());
    }
}
