//! What bash says over its status pipe, and waiting for it.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, timeout_at};

use super::{Shell, keep_state};
use crate::processes::{self, Process};
use crate::reaper::ExitCode;
use crate::script::{self, Nonce, Status};

/// How often a shell that should answer is looked at for having broken off.
const PROMPT_LOOK: Duration = Duration::from_millis(25);
/// Noise kept while a status line is looked for.
const MAX_NOISE: usize = 256 << 10;

/// What came first while a status was awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The status line.
    Status(Status),
    /// The end of the shell.
    Ended(ExitCode),
    /// Neither in time.
    Nothing,
}

fn hear(noise: &mut Vec<u8>, bytes: &[u8]) {
    if noise.len() + bytes.len() > MAX_NOISE {
        noise.drain(..noise.len() / 2);
    }
    noise.extend_from_slice(bytes);
}

impl Shell {
    /// Reads what the status pipe holds, without waiting, and looks for the status of `nonce`. No more than a part of what is
    /// kept of noise: a job may write there faster than it can be read.
    pub fn poll_status(&mut self, nonce: &Nonce) -> Option<Status> {
        let Self { status, noise, .. } = self;
        status.read_waiting(&mut [0; 4096], |bytes| hear(noise, bytes));
        let status = script::find_status(&self.noise, nonce)?;
        // A command that knows the nonce can say anything: bash itself says it from the agent's line.
        if self.exit.code().is_none() && !self.reads_own_lines() && processes::descriptor(self.pid, 0).is_some() {
            self.noise.clear();
            return None;
        }
        Some(status)
    }

    /// Waits until something comes over the status pipe, a piece of a snapshot does, or bash ends.
    pub async fn hear_more(&mut self) -> Option<ExitCode> {
        let mut line = [0_u8; 4096];
        let mut piece = [0_u8; 16 << 10];
        tokio::select! {
            biased;
            count = self.status.read(&mut line), if !self.status.ended() => hear(&mut self.noise, &line[..count]),
            count = self.state_pipe.read(&mut piece), if !self.state_pipe.ended() => {
                keep_state(&mut self.state_bytes, &piece[..count]);
            }
            code = self.exit.wait() => return Some(code),
        }
        None
    }

    /// Waits for the status of `nonce` until `deadline`.
    pub async fn answer(&mut self, nonce: &Nonce, deadline: Instant) -> Answer {
        loop {
            if let Some(status) = self.poll_status(nonce) {
                return Answer::Status(status);
            }
            match timeout_at(deadline, self.hear_more()).await {
                Ok(Some(code)) => return Answer::Ended(code),
                Ok(None) => {}
                Err(_) => return Answer::Nothing,
            }
        }
    }

    /// As [`Self::answer_or_prompt`], for a line that begins with a subshell. None where the user's limits leave no room for
    /// one: bash would go on trying for 15 s, and is interrupted in that. One that has a trap for SIGINT goes on all the same.
    pub async fn answer_of_subshell(&mut self, nonce: &Nonce, deadline: Instant) -> Option<Answer> {
        let mut given_up = false;
        let answer = self
            .answer_with_looks(nonce, deadline, |shell| {
                if processes::sleeps_by_the_clock(shell.pid) == Some(true) {
                    given_up = true;
                    shell.signal(Signal::SIGINT);
                }
            })
            .await;
        (!given_up || answer != Answer::Nothing).then_some(answer)
    }

    /// As [`Self::answer`], but gives up as soon as bash is back at its prompt without having said so: what the user left
    /// has broken the line.
    pub async fn answer_or_prompt(&mut self, nonce: &Nonce, deadline: Instant) -> Answer {
        self.answer_with_looks(nonce, deadline, |_| {}).await
    }

    async fn answer_with_looks(&mut self, nonce: &Nonce, deadline: Instant, mut at_work: impl FnMut(&Self)) -> Answer {
        loop {
            let look_at = (Instant::now() + PROMPT_LOOK).min(deadline);
            match self.answer(nonce, look_at).await {
                Answer::Nothing if look_at < deadline && !self.at_prompt() => {
                    // A command of an earlier call can stop all processes.
                    if processes::process(self.pid).as_ref().is_some_and(Process::stands) {
                        self.signal(Signal::SIGCONT);
                    }
                    at_work(self);
                }
                // It may have said so just before it was looked at.
                Answer::Nothing => return self.answer(nonce, Instant::now()).await,
                answer => return answer,
            }
        }
    }
}
