//! A steady load: sessions with known state, whose every command leaves a mark of its own in the sandbox, and one outside.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cli_mcp_demo::session::{BashResult, Endpoint, Session, SessionError};
use cli_mcp_demo::stream::Stream;
use cli_mcp_e2e::cluster;
use serde_json::json;

use crate::history::{self, Ending, Fate, Life};
use crate::witness;

/// What the commands of a session are like. A fault seldom meets a short one on its way: the long ones are nearly always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They end at once.
    Short,
    /// They last two seconds.
    Long,
    /// They last two seconds, and what they print is followed.
    Followed,
}

impl Work {
    /// The command of this mark. It prints the mark and the value that the shell keeps; it succeeds if the mark is left.
    fn command(self, session: &str, mark: u64) -> String {
        let goes_on = match self {
            Self::Short => "",
            Self::Long => "; sleep 2",
            Self::Followed => "; for tick in 1 2 3 4; do sleep 0.5; echo $tick; done",
        };
        let testimony = witness::testimony(session, mark);
        format!(
            "echo {mark} >>/workspace/marks && {{ {testimony}; kept=${{kept:-$RANDOM$RANDOM$RANDOM}}; echo {mark} $kept{goes_on}; }}"
        )
    }
}

/// One session under load.
#[derive(Clone)]
pub struct Client {
    /// Its id.
    pub id: String,
    work: Work,
    endpoint: Arc<Mutex<Endpoint>>,
    life: Arc<Mutex<Life>>,
    stop: Arc<AtomicBool>,
    marks: Arc<AtomicU64>,
}

impl Client {
    /// Begins a session and its load.
    pub fn start(endpoint: &Endpoint, id: &str, work: Work) -> Self {
        let client = Self {
            id: id.to_owned(),
            work,
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

    /// The mark of the command that comes next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.marks.load(Ordering::Relaxed)
    }

    /// The commands so far, over all sandboxes.
    #[must_use]
    pub fn all(&self) -> BTreeMap<u64, Fate> {
        self.life().all()
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
        self.life().verdict().with_context(|| format!("session {}", self.id))
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
        let command = self.work.command(&self.id, mark);
        let result = match self.work {
            Work::Short | Work::Long => session.bash(&command).await,
            Work::Followed => follow(session, &command).await,
        };
        let keep = result.is_ok();
        self.life().record(mark, &Ending::from(result));
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
            (life.here(), life.resets)
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
        history::at_most_once(&sent, &counts)
            .and_then(|()| history::none_is_missing(&sent, &counts))
            .with_context(|| format!("session {}, by the marks in its sandbox", self.id))
    }
}

/// A call whose output is shown as it comes: what was shown is what the result has.
async fn follow(session: &Session, command: &str) -> Result<BashResult, SessionError> {
    let mut shown = String::new();
    let result = session
        .follow(json!({ "command": command }), |stream, text| {
            if stream == Stream::Stdout {
                shown.push_str(text);
            }
            Ok::<_, SessionError>(())
        })
        .await?;
    if shown != result.stdout {
        return Err(SessionError::Result(format!("{shown:?} was shown of {result:?}")));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_command_leaves_its_mark_and_fails_where_it_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let run = |work: Work, workspace: &str| {
            let command = work
                .command("chaos-0", 7)
                .replace("/workspace", workspace)
                // Nothing of this machine is asked.
                .replace("curl ", "false ")
                .replace("sleep ", "true ");
            let output = Command::new("bash").args(["-c", &command]).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let workspace = folder.path().to_str().unwrap();
        for (work, lines) in [(Work::Short, 1), (Work::Long, 1), (Work::Followed, 5)] {
            let (code, stdout) = run(work, workspace);
            assert!(
                code == Some(0) && stdout.starts_with("7 "),
                "{work:?}: {code:?} {stdout}"
            );
            assert_eq!(stdout.lines().count(), lines, "{work:?}");
        }
        let marks = std::fs::read_to_string(folder.path().join("marks")).unwrap();
        assert_eq!(marks, "7\n7\n7\n");
        assert_eq!(run(Work::Short, "/nowhere"), (Some(1), String::new()));
    }
}
