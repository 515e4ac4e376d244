//! A steady load: sessions with known state, whose every command leaves a mark of its own in the sandbox.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_demo::session::{BashResult, Endpoint, Session};
use cli_mcp_e2e::cluster;

/// What is known of a command that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has a result: it ran once.
    Ran,
    /// The answer says that it was not run.
    NotRun,
    /// It broke off, and the answer says so or the connection does: it ran once or never.
    Unknown,
}

/// What a session went through in one sandbox.
#[derive(Debug, Default)]
struct Life {
    /// Marks of the commands, and their fates.
    sent: BTreeMap<u64, Fate>,
    /// The value of the variable that the first command set: another one is another shell.
    kept: Option<String>,
    /// Whether an answer was lost since the last result: what it would have told is not known.
    answer_lost: bool,
    /// Calls with a result.
    served: u64,
    /// Times that the session began anew.
    resets: u64,
    /// What must never be.
    violations: Vec<String>,
}

impl Life {
    /// Takes note of an answer; none is one that was lost, as its broken connection says.
    fn record(&mut self, mark: u64, answer: Option<BashResult>) {
        let verdict = answer.as_ref().map_or(Ok(Fate::Unknown), |result| fate(mark, result));
        let fate = match verdict {
            Ok(fate) => fate,
            Err(violation) => return self.violations.push(violation),
        };
        if let (Fate::Ran, Some(result)) = (fate, &answer) {
            let kept = result.stdout.split_whitespace().nth(1).map(str::to_owned);
            if self.kept.is_some() && self.kept != kept {
                if result.session_reset.is_none() && !self.answer_lost {
                    self.violations.push(format!(
                        "command {mark} found another shell, and its answer does not say so"
                    ));
                }
                self.resets += 1;
                self.sent.clear();
            }
            self.kept = kept;
            self.answer_lost = false;
            self.served += 1;
        } else if fate == Fate::Unknown {
            self.answer_lost = true;
        }
        self.sent.insert(mark, fate);
    }
}

/// One session under load.
#[derive(Clone)]
pub struct Client {
    /// Its id.
    pub id: String,
    endpoint: Arc<Mutex<Endpoint>>,
    life: Arc<Mutex<Life>>,
    stop: Arc<AtomicBool>,
    marks: Arc<AtomicU64>,
}

impl Client {
    /// Begins a session and its load.
    pub fn start(endpoint: &Endpoint, id: &str) -> Self {
        let client = Self {
            id: id.to_owned(),
            endpoint: Arc::new(Mutex::new(endpoint.clone())),
            life: Arc::default(),
            stop: Arc::default(),
            marks: Arc::new(AtomicU64::new(1)),
        };
        tokio::spawn(client.clone().run());
        client
    }

    /// Ends the load.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Calls with a result so far.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.life().served
    }

    /// Times that the session began anew so far.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.life().resets
    }

    /// Goes on with another token.
    pub fn renew(&self, endpoint: &Endpoint) {
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = endpoint.clone();
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the session as its caller may, so that its next command begins anew. No answer needs to say so. Nothing must be
    /// able to run in the session of before any more.
    ///
    /// # Errors
    ///
    /// When it cannot be ended.
    pub async fn begin_anew(&self) -> Result<()> {
        let session = self.endpoint().connect(&self.id).await?;
        self.life().answer_lost = true;
        let status = session.delete().await?;
        ensure!(status == 204, "session {} was not ended: {status}", self.id);
        Ok(())
    }

    fn life(&self) -> std::sync::MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was wrong so far.
    ///
    /// # Errors
    ///
    /// The first of what must never be.
    pub fn verdict(&self) -> Result<()> {
        match self.life().violations.first() {
            Some(violation) => bail!("session {}: {violation}", self.id),
            None => Ok(()),
        }
    }

    async fn run(self) {
        let mut session: Option<Session> = None;
        while !self.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let connected = match session.take() {
                Some(connected) => connected,
                None => match self.endpoint().connect(&self.id).await {
                    Ok(connected) => connected,
                    // Nobody answers: the caller knows that nothing ran.
                    Err(_) => continue,
                },
            };
            if self.call(&connected).await {
                session = Some(connected);
            }
        }
    }

    /// One command; false when the connection should be made anew.
    async fn call(&self, session: &Session) -> bool {
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        let command =
            format!("echo {mark} >>/workspace/marks; kept=${{kept:-$RANDOM$RANDOM$RANDOM}}; echo {mark} $kept");
        let result = session.bash(&command).await;
        let keep = result.is_ok();
        self.life().record(mark, result.ok());
        keep
    }

    /// Compares the marks in the sandbox with the answers so far. The load may go on meanwhile.
    ///
    /// # Errors
    ///
    /// When a command ran twice, ran against the answer's word, or did not run in spite of its result.
    pub async fn compare(&self) -> Result<()> {
        self.verdict()?;
        let (sent, resets) = {
            let life = self.life();
            (life.sent.clone(), life.resets)
        };
        // The servers may be on their way out or in: who gets no answer asks again. What a lost answer told is not known.
        let found = cluster::eventually("the marks", async || {
            let session = self.endpoint().connect(&self.id).await?;
            let answer = session.bash("cat /workspace/marks").await;
            if answer.is_err() {
                self.life().answer_lost = true;
            }
            let found = answer?;
            ensure!(found.exit_code.is_some(), "{found:?}");
            Ok(found)
        })
        .await?;
        if found.session_reset.is_some() || self.resets() != resets {
            // A new sandbox has other marks. That it is new was told here, and the load does not hear of it.
            self.life().answer_lost = true;
            return Ok(());
        }
        ensure!(found.exit_code == Some(0), "session {}: {found:?}", self.id);
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for line in found.stdout.lines() {
            *counts
                .entry(line.parse().with_context(|| line.to_owned())?)
                .or_default() += 1;
        }
        for (mark, count) in &counts {
            ensure!(*count == 1, "session {}: command {mark} ran {count} times", self.id);
        }
        for (mark, fate) in sent {
            let ran = counts.contains_key(&mark);
            match fate {
                Fate::Ran => ensure!(ran, "session {}: command {mark} has a result and did not run", self.id),
                Fate::NotRun => ensure!(!ran, "session {}: command {mark} ran, and its answer says not", self.id),
                Fate::Unknown => {}
            }
        }
        Ok(())
    }
}

/// What an answer says of its command.
///
/// # Errors
///
/// When it says nothing, or something that cannot be.
fn fate(mark: u64, result: &BashResult) -> Result<Fate, String> {
    match result.exit_code {
        Some(0) if result.stdout.split(' ').next() == Some(mark.to_string().as_str()) => Ok(Fate::Ran),
        Some(0) => Err(format!("command {mark} got the answer of another: {result:?}")),
        Some(_) => Ok(Fate::Unknown),
        None if !result.is_error || result.text.is_empty() => Err(format!("command {mark} failed without a word")),
        None if result.text.contains("was not run") => Ok(Fate::NotRun),
        None => Ok(Fate::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(exit_code: Option<i32>, stdout: &str, text: &str) -> BashResult {
        BashResult {
            exit_code,
            stdout: stdout.into(),
            text: text.into(),
            is_error: exit_code != Some(0),
            ..BashResult::default()
        }
    }

    #[test]
    fn a_session_that_begins_anew_must_say_so() {
        let mut life = Life::default();
        life.record(1, Some(answer(Some(0), "1 a\n", "")));
        life.record(2, Some(answer(Some(0), "2 b\n", "")));
        assert_eq!((life.resets, life.violations.len()), (1, 1));
        let mut told = answer(Some(0), "3 c\n", "");
        told.session_reset = Some("evicted".into());
        life.record(3, Some(told));
        life.record(4, None);
        life.record(5, Some(answer(Some(0), "5 d\n", "")));
        assert_eq!((life.resets, life.violations.len(), life.served), (3, 1, 4));
    }

    #[test]
    fn an_answer_says_what_became_of_its_command() {
        assert_eq!(fate(7, &answer(Some(0), "7 1 2\n", "")), Ok(Fate::Ran));
        assert!(fate(7, &answer(Some(0), "6 1 2\n", "")).is_err());
        assert_eq!(
            fate(7, &answer(None, "", "Not ready. The command was not run.")),
            Ok(Fate::NotRun)
        );
        assert_eq!(fate(7, &answer(None, "", "It may have run.")), Ok(Fate::Unknown));
        assert!(fate(7, &answer(None, "", "")).is_err());
    }
}
