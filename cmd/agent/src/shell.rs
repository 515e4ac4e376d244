//! One bash process and the private channels to it.

mod answers;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2, write};
use tokio::time::Instant;

pub use self::answers::Answer;
use crate::echo::Echo;
use crate::guard;
use crate::holder::{Holder, Slot};
use crate::origin::Origin;
use crate::pipes::{Input, memory_file};
use crate::processes;
use crate::reaper::{Exit, ExitCode, Reaper};
use crate::script::{self, Before, Channel, Dialect, Hazards, Nonce, Status};
use crate::snapshot::{self, PRINT_STATE, Snapshot};
use crate::sys::{self, BashSpawn};
use crate::torn::STANDARD_DESCRIPTORS;
use crate::trap_table::TrapTable;

/// No terminal, no start-up files, no history expansion; interactive, so that SIGINT ends a list and not the shell.
const ARGUMENTS: [&str; 7] = ["--norc", "--noprofile", "--noediting", "-i", "+m", "+H", "+o"];
/// How long a shell may take to start and restore.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How much more likely the kernel ends the sandbox's processes than the agent when memory runs out (case 48).
const OOM_SCORE_STEP: i32 = 200;

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

fn agent() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
}

/// What a descriptor of the agent's leads to, as its link in `/proc` names it.
fn link(descriptor: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()
}

fn keep_state(state: &mut Vec<u8>, bytes: &[u8]) {
    // Beyond the bound only the fact that it was passed is of use.
    if state.len() <= snapshot::MAX_BYTES {
        state.extend_from_slice(bytes);
    }
}

/// A running bash.
#[derive(Debug)]
pub struct Shell {
    /// Its process id.
    pub pid: i32,
    /// How it ended, once it has.
    pub exit: Exit,
    control: OwnedFd,
    control_read: OwnedFd,
    control_link: Option<PathBuf>,
    status: Input,
    status_write: OwnedFd,
    status_link: Option<PathBuf>,
    /// The paths to both.
    pub channel: Channel,
    noise: Vec<u8>,
    state_pipe: Input,
    state_bytes: Vec<u8>,
    /// How the next call begins.
    pub before: Before,
    /// What the wrapper must mind.
    pub hazards: Hazards,
    /// Where it says it is.
    pub directory: Vec<u8>,
    /// Which functions it could not bring back, by their numbers in the state.
    pub unrestored: Vec<usize>,
    /// What it does differently from other versions.
    pub dialect: Dialect,
    /// Whether the running call was brought out of its `wait`, as far as that goes.
    pub leaves_wait: bool,
    /// Whether it can save what it puts back after the next command above the numbers that commands use.
    pub has_room: bool,
    /// The traps that it holds, where they can be seen.
    pub(crate) traps: Option<TrapTable>,
    /// What it may show of the agent's traps.
    pub(crate) echo: Echo,
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
        let environment = origin.environment_with(state);
        let inherited: Vec<String> = environment
            .iter()
            .filter_map(|(name, _)| name.to_str().map(str::to_owned))
            .collect();
        let own_score = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
        let own_score: i32 = own_score.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let quiet = state.is_some_and(Snapshot::aliases_keywords);
        let filter = if sys::no_new_privileges() {
            guard::filter(&[agent(), holder.pid()])
        } else {
            Vec::new()
        };
        let pid = sys::spawn_bash(BashSpawn {
            arguments: &[&ARGUMENTS[..], &["history"]].concat(),
            environment: &environment,
            control: control_read.try_clone()?,
            status: status_write.try_clone()?,
            limits: &origin.limits,
            umask: origin.umask,
            oom_score_adj: (own_score + OOM_SCORE_STEP).min(1000),
            behind_the_agent: origin.behind_the_agent,
            filter,
        })?;
        let exit_trap = script::exit_trap(pid, &holder.path(Slot::ExitScript), &holder.path(Slot::Snapshot));
        let exit_script = memory_file(script::exit_script(&holder.path(Slot::Script)).as_bytes())?;
        let text = match state {
            Some(state) => state.restore_script(&inherited, &exit_trap),
            None => snapshot::startup_script(&origin.directory, &exit_trap),
        };
        let script = memory_file(&text)?;
        let mut shell = Self {
            pid,
            exit: reaper.watch(pid),
            control,
            control_link: link(&control_read),
            control_read,
            status,
            status_link: link(&status_write),
            status_write,
            channel: holder.channel(),
            noise: Vec::new(),
            state_pipe,
            state_bytes: Vec::new(),
            before: Before::default(),
            hazards: state.map(Snapshot::hazards_restored).unwrap_or_default(),
            directory: Vec::new(),
            unrestored: Vec::new(),
            dialect: Dialect::default(),
            leaves_wait: false,
            has_room: true,
            traps: None,
            echo: Echo::of(&exit_trap),
        };
        holder
            .put(&[
                (Slot::Script, &script),
                (Slot::Snapshot, &state_write),
                (Slot::ExitScript, &exit_script),
                (Slot::Status, &shell.status_write),
                (Slot::Control, &shell.control_read),
            ])
            .await?;
        let nonce = Nonce::new();
        shell.write(&script::startup(
            &nonce,
            &holder.path(Slot::Script),
            quiet,
            &shell.channel,
        ))?;
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
        shell.traps = TrapTable::find(pid, &exit_trap);
        if shell.traps.is_none() {
            tracing::debug!("The shell's memory does not tell its traps");
        }
        holder
            .put(&[(
                Slot::Script,
                &memory_file(script::with_own_names(PRINT_STATE).as_bytes())?,
            )])
            .await?;
        Ok(shell)
    }

    /// Goes on with another holder. The script of the EXIT trap was the first one's: a shell that ends itself now does not
    /// save its state.
    ///
    /// # Errors
    ///
    /// When the descriptors have run out, or the holder is gone.
    pub async fn go_on_with(&mut self, holder: &Holder) -> io::Result<()> {
        let (state_pipe, state_write) = Input::pipe()?;
        let script = memory_file(script::with_own_names(PRINT_STATE).as_bytes())?;
        holder
            .put(&[
                (Slot::Script, &script),
                (Slot::Snapshot, &state_write),
                (Slot::Status, &self.status_write),
                (Slot::Control, &self.control_read),
            ])
            .await?;
        self.channel = holder.channel();
        self.state_pipe = state_pipe;
        self.state_bytes.clear();
        Ok(())
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
        self.unrestored = status.unrestored;
        self.before = Before {
            code: status.code,
            flags: status.flags,
            stash: *status.stash,
            aliases: status.aliases,
            traces: status.traces.unwrap_or(self.before.traces),
            no_room: false,
        };
        self.hazards.time_unusable |= status.time_unusable;
    }

    /// Sends a signal to bash itself. With SIGKILL goes a process of the sandbox that traces it: the end of a traced process
    /// is its tracer's to collect first, and one that does not would keep it from the agent for good.
    pub fn signal(&self, signal: Signal) {
        if self.exit.code().is_some() {
            return;
        }
        // Gone already is as good.
        let _ = kill(Pid::from_raw(self.pid), signal);
        if signal == Signal::SIGKILL
            && let Some(tracer) = processes::tracer(self.pid)
            && processes::descends_from(tracer, agent())
        {
            let _ = kill(Pid::from_raw(tracer), Signal::SIGKILL);
        }
    }

    /// Forgets what came over the status pipe so far.
    pub fn forget_noise(&mut self) {
        self.noise.clear();
    }

    /// Whether bash is outside of any command: during a call descriptor 0 is `/dev/null`, and else where its lines come from.
    #[must_use]
    pub fn reads_own_lines(&self) -> bool {
        let input = processes::descriptor(self.pid, 0);
        input.is_some() && input == self.control_link
    }

    /// Whether it can no longer put the standard descriptors back after a command.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        let limit = sys::resource_limit(self.pid, sys::OPEN_DESCRIPTORS);
        limit.is_some_and(|(_, soft, _)| soft < STANDARD_DESCRIPTORS)
    }

    /// Looks where the idle shell has room for what it saves during a call, and puts right what the last command has done to
    /// the descriptors that lead there: in time for the call after the next at the latest.
    pub fn look_for_room(&mut self) {
        let bash = self.pid;
        let null = processes::descriptor(bash, script::NULL);
        let status = processes::descriptor(bash, script::STATUS);
        let leads = status.is_some() && status == self.status_link;
        let limit = sys::resource_limit(bash, sys::OPEN_DESCRIPTORS).map_or(0, |(_, soft, _)| soft);
        let roomy = limit >= script::ROOM;
        let mut mend = String::new();
        let left = script::TELLING
            .iter()
            .any(|number| processes::descriptor(bash, *number).is_some());
        // A bash that is not at its prompt yet may be about to close them itself: then this does nothing.
        if left {
            mend.push_str(&script::close_left(&self.hazards));
        }
        if roomy && !leads {
            mend.push_str(&self.channel.keep_status(&self.hazards));
        }
        if roomy && null.is_none() {
            mend.push_str(&script::keep_null(&self.hazards));
        }
        let mended = mend.is_empty() || self.write(mend.as_bytes()).is_ok();
        let is_null = null.is_none_or(|null| null == Path::new("/dev/null"));
        self.has_room = roomy && is_null && mended;
    }

    /// Whether bash waits for input of its own again. A bash that only got no processor yet is not asleep, or has its line
    /// still to read; one that waits for a child of the line's does not read.
    #[must_use]
    pub fn at_prompt(&self) -> bool {
        let reads = || {
            processes::reads_descriptor_0(self.pid).unwrap_or_else(|| match processes::children(self.pid) {
                Some(children) => children.is_empty(),
                None => processes::table().iter().all(|process| process.parent != self.pid),
            })
        };
        self.reads_own_lines()
            && sys::readable_bytes(self.control.as_fd()) == 0
            && processes::process(self.pid).is_some_and(|bash| bash.state == b'S')
            && reads()
    }

    /// What was printed of the state, and a clean start for the next.
    pub fn take_state(&mut self) -> Option<Snapshot> {
        let Self {
            state_pipe,
            state_bytes,
            ..
        } = self;
        state_pipe.read_waiting(&mut [0; 16 << 10], |bytes| keep_state(state_bytes, bytes));
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
        let (_, text) = snapshot::split_begin(&self.state_bytes)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()?.parse().ok()
    }
}
