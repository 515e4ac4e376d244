//! One bash process and the private channels to it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2, write};
use tokio::time::{Instant, timeout_at};

use crate::holder::{Holder, Slot};
use crate::pipes::{Input, memory_file};
use crate::processes;
use crate::reaper::{Exit, ExitCode, Reaper};
use crate::script::{self, Before, Dialect, Hazards, Nonce, Status};
use crate::snapshot::{self, PRINT_STATE, Snapshot};
use crate::sys::{self, BashSpawn, ResourceLimit};

/// No terminal, no start-up files, no history expansion; interactive, so that SIGINT ends a list and not the shell.
const ARGUMENTS: [&str; 7] = ["--norc", "--noprofile", "--noediting", "-i", "+m", "+H", "+o"];
/// How long a shell may take to start and restore.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a shell that should answer is looked at for having broken off.
const PROMPT_LOOK: Duration = Duration::from_millis(25);
/// Noise kept while a status line is looked for.
const MAX_NOISE: usize = 256 << 10;
/// How much more likely the kernel ends the sandbox's processes than the agent when memory runs out (case 48).
const OOM_SCORE_STEP: i32 = 200;

/// What every bash of this agent is started with.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its first working directory.
    pub directory: String,
    /// The limits that the agent itself was started with.
    pub limits: Vec<ResourceLimit>,
    /// The mask that the agent itself was started with.
    pub umask: u32,
}

/// Why there is no shell.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ended while starting.
    #[error("bash ended with status {0} while starting")]
    Ended(ExitCode),
    /// It did not answer.
    #[error("bash did not answer within {} s", START_TIMEOUT.as_secs())]
    Silent,
}

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

/// A running bash.
#[derive(Debug)]
pub struct Shell {
    /// Its process id.
    pub pid: i32,
    /// How it ended, once it has.
    pub exit: Exit,
    control: OwnedFd,
    status: Input,
    noise: Vec<u8>,
    state_pipe: Input,
    state_bytes: Vec<u8>,
    /// How the next call begins.
    pub before: Before,
    /// What the wrapper must mind.
    pub hazards: Hazards,
    /// Where it says it is.
    pub directory: String,
    /// What it does differently from other versions.
    pub dialect: Dialect,
}

impl Shell {
    /// Starts a bash and brings `state` back in it, or starts it plain.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub async fn start(
        origin: &Origin,
        holder: &Holder,
        reaper: &Reaper,
        state: Option<&Snapshot>,
    ) -> Result<Self, StartError> {
        let (control_read, control) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        fcntl(&control, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
        let (status, status_write) = Input::pipe()?;
        let (state_pipe, state_write) = Input::pipe()?;
        let inherited: Vec<String> = origin
            .environment
            .iter()
            .filter_map(|(name, _)| name.to_str().map(str::to_owned))
            .collect();
        let exit_trap = script::exit_trap(&holder.path(Slot::ExitScript), &holder.path(Slot::Snapshot));
        let exit_script = memory_file(script::exit_script(&holder.path(Slot::Script)).as_bytes())?;
        let text = match state {
            Some(state) => state.restore_script(&inherited, &exit_trap),
            None => snapshot::startup_script(&origin.directory, &exit_trap),
        };
        let script = memory_file(text.as_bytes())?;
        holder
            .put(&[
                (Slot::Script, &script),
                (Slot::Snapshot, &state_write),
                (Slot::ExitScript, &exit_script),
            ])
            .await?;
        let own_score = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
        let own_score: i32 = own_score.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let quiet = state.is_some_and(Snapshot::aliases_keywords);
        let child = sys::spawn_bash(BashSpawn {
            arguments: &[&ARGUMENTS[..], &["history"]].concat(),
            environment: &origin.environment,
            control: control_read,
            status: status_write,
            limits: &origin.limits,
            umask: origin.umask,
            oom_score_adj: (own_score + OOM_SCORE_STEP).min(1000),
        })?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let mut shell = Self {
            pid,
            exit: reaper.watch(pid),
            control,
            status,
            noise: Vec::new(),
            state_pipe,
            state_bytes: Vec::new(),
            before: Before::default(),
            hazards: Hazards {
                // Attributes of this variable are not brought back.
                time_unusable: false,
                ..state.map(Snapshot::hazards).unwrap_or_default()
            },
            directory: String::new(),
            dialect: Dialect::default(),
        };
        let nonce = Nonce::new();
        shell.write(&script::startup(&nonce, &holder.path(Slot::Script), quiet))?;
        match shell.answer_or_prompt(&nonce, Instant::now() + START_TIMEOUT).await {
            Answer::Status(status) => {
                shell.dialect = status.dialect;
                shell.settle(status);
            }
            Answer::Ended(code) => return Err(StartError::Ended(code)),
            Answer::Nothing => {
                shell.signal(Signal::SIGKILL);
                return Err(StartError::Silent);
            }
        }
        shell.before.code = 0;
        holder
            .put(&[(Slot::Script, &memory_file(PRINT_STATE.as_bytes())?)])
            .await?;
        Ok(shell)
    }

    /// Writes a whole line to an idle bash.
    ///
    /// # Errors
    ///
    /// When bash does not read, or is gone.
    pub fn write(&self, line: &[u8]) -> io::Result<()> {
        match write(&self.control, line) {
            Ok(count) if count == line.len() => Ok(()),
            Ok(_) | Err(Errno::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes over what a status line said.
    pub fn settle(&mut self, status: Status) {
        self.directory = status.directory;
        self.before = Before {
            code: status.code,
            flags: status.flags,
            stash: status.stash,
            aliases: status.aliases,
        };
        self.hazards.time_unusable |= status.time_unusable;
    }

    /// Sends a signal to bash itself.
    pub fn signal(&self, signal: Signal) {
        if self.exit.code().is_none() {
            // Gone already is as good.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Forgets what came over the status pipe so far.
    pub fn forget_noise(&mut self) {
        self.noise.clear();
    }

    /// Whether bash waits for input of its own again: during a call descriptor 0 is `/dev/null`. A bash that only got no
    /// processor yet is not asleep, or has its line still to read; one that waits for a child of the line's does not read.
    #[must_use]
    pub fn at_prompt(&self) -> bool {
        let link = |path: String| std::fs::read_link(path).ok();
        let control = link(format!("/proc/self/fd/{}", self.control.as_raw_fd()));
        let waits = control.is_some() && link(format!("/proc/{}/fd/0", self.pid)) == control;
        let reads = || {
            processes::reads_descriptor_0(self.pid).unwrap_or_else(|| match processes::children(self.pid) {
                Some(children) => children.is_empty(),
                None => processes::table().iter().all(|process| process.parent != self.pid),
            })
        };
        waits
            && sys::readable_bytes(self.control.as_fd()) == 0
            && processes::process(self.pid).is_some_and(|bash| bash.state == b'S')
            && reads()
    }

    /// Reads what the status pipe holds, without waiting, and looks for the status of `nonce`.
    pub fn poll_status(&mut self, nonce: &Nonce) -> Option<Status> {
        let mut buffer = [0_u8; 4096];
        while let Some(count) = self.status.read_now(&mut buffer) {
            self.hear(&buffer[..count]);
        }
        script::find_status(&self.noise, nonce)
    }

    fn hear(&mut self, bytes: &[u8]) {
        if self.noise.len() + bytes.len() > MAX_NOISE {
            self.noise.drain(..self.noise.len() / 2);
        }
        self.noise.extend_from_slice(bytes);
    }

    /// Waits until something comes over the status pipe, a piece of a snapshot does, or bash ends.
    pub async fn hear_more(&mut self) -> Option<ExitCode> {
        let mut line = [0_u8; 4096];
        let mut piece = [0_u8; 16 << 10];
        tokio::select! {
            biased;
            count = self.status.read(&mut line), if !self.status.ended() => self.hear(&line[..count]),
            count = self.state_pipe.read(&mut piece), if !self.state_pipe.ended() => self.keep_state(&piece[..count]),
            code = self.exit.wait() => return Some(code),
        }
        None
    }

    fn keep_state(&mut self, bytes: &[u8]) {
        // Beyond the bound only the fact that it was passed is of use.
        if self.state_bytes.len() <= snapshot::MAX_BYTES {
            self.state_bytes.extend_from_slice(bytes);
        }
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

    /// As [`Self::answer`], but gives up as soon as bash is back at its prompt without having said so: what the user left
    /// has broken the line.
    pub async fn answer_or_prompt(&mut self, nonce: &Nonce, deadline: Instant) -> Answer {
        loop {
            let look_at = (Instant::now() + PROMPT_LOOK).min(deadline);
            match self.answer(nonce, look_at).await {
                Answer::Nothing if look_at < deadline && !self.at_prompt() => {}
                // It may have said so just before it was looked at.
                Answer::Nothing => return self.answer(nonce, Instant::now()).await,
                answer => return answer,
            }
        }
    }

    /// What was printed of the state, and a clean start for the next.
    pub fn take_state(&mut self) -> Option<Snapshot> {
        let mut piece = [0_u8; 16 << 10];
        while let Some(count) = self.state_pipe.read_now(&mut piece) {
            self.keep_state(&piece[..count]);
        }
        let bytes = std::mem::take(&mut self.state_bytes);
        if bytes.len() > snapshot::MAX_BYTES {
            None
        } else {
            Snapshot::parse(&bytes)
        }
    }

    /// Whether the shell has begun to print its state, and the status it is about to end with.
    #[must_use]
    pub fn ending_with(&self) -> Option<ExitCode> {
        let text = self.state_bytes.strip_prefix(b"BEGIN\0")?;
        let end = text.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()?.parse().ok()
    }
}
