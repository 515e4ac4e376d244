//! Answers of the API server, kept briefly and bounded. Tokens are kept as digests only.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::review::{Review, ReviewError, User};

/// How long an answer is kept: as kube-rbac-proxy and the delegating API servers do (`--authentication-token-webhook-cache-ttl`
/// of 10 s), so that a deleted token or binding stops working while one looks on.
pub(super) const TTL: Duration = Duration::from_secs(10);

/// Answers kept a kind; the oldest makes room.
pub(super) const CAPACITY: usize = 4096;

/// Questions to the API server at one time: a flood of made-up tokens must not become a flood of reviews.
pub(super) const QUESTIONS: usize = 16;

/// How long a request waits until its question is asked: with an API server that hangs the queue is as long as there are
/// connections.
const TURN: Duration = Duration::from_secs(10);

type TokenDigest = [u8; 32];

/// A review with a memory.
pub(super) struct Cache<R> {
    review: R,
    questions: Semaphore,
    users: Mutex<Answers<TokenDigest, Option<Arc<User>>>>,
    rights: Mutex<Answers<(TokenDigest, String), bool>>,
}

impl<R: Review> Cache<R> {
    pub(super) fn new(review: R) -> Self {
        Self {
            review,
            questions: Semaphore::new(QUESTIONS),
            users: Mutex::new(Answers::default()),
            rights: Mutex::new(Answers::default()),
        }
    }

    pub(super) fn review(&self) -> &R {
        &self.review
    }

    pub(super) async fn authenticate(&self, token: &str) -> Result<Option<Arc<User>>, ReviewError> {
        let key = digest(token);
        remembered(&self.users, key, &self.questions, async || {
            Ok(self.review.authenticate(token).await?.map(Arc::new))
        })
        .await
    }

    pub(super) async fn authorize(&self, token: &str, user: &User, verb: &str) -> Result<bool, ReviewError> {
        let key = (digest(token), verb.to_owned());
        remembered(&self.rights, key, &self.questions, async || {
            self.review.authorize(user, verb).await
        })
        .await
    }
}

async fn remembered<K: Eq + Hash + Clone, V: Clone>(
    answers: &Mutex<Answers<K, V>>,
    key: K,
    questions: &Semaphore,
    ask: impl AsyncFnOnce() -> Result<V, ReviewError>,
) -> Result<V, ReviewError> {
    let known = || lock(answers).get(&key, Instant::now());
    if let Some(answer) = known() {
        return Ok(answer);
    }
    let _turn = match tokio::time::timeout(TURN, questions.acquire()).await {
        Ok(turn) => turn.map_err(|error| ReviewError(error.to_string()))?,
        Err(_) => {
            return Err(ReviewError(format!(
                "{QUESTIONS} other reviews were not answered within {} s",
                TURN.as_secs()
            )));
        }
    };
    // Whoever waited may find that the one before asked the same.
    if let Some(answer) = known() {
        return Ok(answer);
    }
    let answer = ask().await?;
    lock(answers).put(key, answer.clone(), Instant::now());
    Ok(answer)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn digest(token: &str) -> TokenDigest {
    Sha256::digest(token).into()
}

/// A bounded map of answers with an expiry.
#[derive(Debug)]
pub(super) struct Answers<K, V> {
    entries: HashMap<K, (V, Instant)>,
}

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Answers<K, V> {
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.entries
            .get(key)
            .filter(|(_, expires)| *expires > now)
            .map(|(value, _)| value.clone())
    }

    pub(super) fn put(&mut self, key: K, value: V, now: Instant) {
        if self.entries.len() >= CAPACITY {
            self.entries.retain(|_, (_, expires)| *expires > now);
        }
        if self.entries.len() >= CAPACITY
            && let Some(oldest) = self
                .entries
                .iter()
                .min_by_key(|(_, (_, expires))| *expires)
                .map(|(key, _)| key.clone())
        {
            self.entries.remove(&oldest);
        }
        self.entries.insert(key, (value, now + TTL));
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
