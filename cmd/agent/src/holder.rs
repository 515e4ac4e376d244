//! The descriptor holder: a child process whose only work is to hold the ends of pipes that bash opens by path.
//!
//! The agent is not dumpable, so bash cannot open `/proc/<agent>/fd`; and bash can receive no descriptor. The holder can
//! be opened, knows nothing, and gets each call's fresh pipes over a socket. No file on a disk is involved, so neither a
//! full nor a read-only file system matters (cases 18 and 34).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, send, sendmsg, socketpair};
use nix::unistd::Pid;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::patience::Patience;
use crate::processes::{self, Process};
use crate::reaper::{Exit, Reaper};
use crate::script::Channel;
use crate::sys;

/// The subcommand that the agent starts itself with.
pub const SUBCOMMAND: &str = "descriptor-holder";

/// How long the holder may take to answer, and how often it is looked at meanwhile.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
const ANSWER_LOOK: Duration = Duration::from_millis(20);

/// A number under which the holder keeps a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Slot {
    /// Read end of the command's bytes.
    Command = 10,
    /// Write end of the call's stdout.
    Stdout = 11,
    /// Write end of the call's stderr.
    Stderr = 12,
    /// A script of the agent's: start-up and restore, or snapshot.
    Script = 13,
    /// Write end of the snapshot.
    Snapshot = 14,
    /// The script of the agent's own EXIT trap.
    ExitScript = 15,
    /// Write end of the status pipe.
    Status = 16,
    /// Read end of the pipe that bash takes its lines from.
    Control = 17,
}

/// The agent's side of the holder.
#[derive(Debug)]
pub struct Holder {
    pid: i32,
    socket: AsyncFd<OwnedFd>,
    exit: Exit,
    broken: AtomicBool,
}

impl Holder {
    /// Starts a holder.
    ///
    /// # Errors
    ///
    /// When the process or its socket cannot be made.
    pub fn start(reaper: &Reaper) -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let pid = sys::spawn_self(&[SUBCOMMAND], theirs)?;
        nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(Self {
            pid,
            socket: sys::watch_readable(ours)?,
            exit: reaper.watch(pid),
            broken: AtomicBool::new(false),
        })
    }

    /// The process id of the holder.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the holder can be used: a command can end it. One that has broken off may not be collected yet.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.exit.code().is_none() && !self.broken.load(Ordering::Relaxed)
    }

    fn signal(&self, signal: Signal) {
        // After its end the number may be another's.
        if self.exit.code().is_none() {
            // Gone already is as good.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// The path by which bash opens a slot.
    #[must_use]
    pub fn path(&self, slot: Slot) -> String {
        format!("/proc/{}/fd/{}", self.pid, slot as i32)
    }

    /// Where bash finds its own descriptors again.
    #[must_use]
    pub fn channel(&self) -> Channel {
        Channel {
            control: self.path(Slot::Control),
            status: self.path(Slot::Status),
        }
    }

    /// Puts descriptors into slots and waits until they are there. A holder that a command has stopped is let go on.
    ///
    /// # Errors
    ///
    /// When the holder is gone, or does not answer: it is ended then, and must be replaced.
    pub async fn put(&self, entries: &[(Slot, &OwnedFd)]) -> io::Result<()> {
        let put = self.try_put(entries).await;
        if put.is_err() {
            self.broken.store(true, Ordering::Relaxed);
            self.signal(Signal::SIGKILL);
        }
        put
    }

    async fn try_put(&self, entries: &[(Slot, &OwnedFd)]) -> io::Result<()> {
        let numbers: Vec<u8> = entries.iter().map(|(slot, _)| *slot as u8).collect();
        let descriptors: Vec<RawFd> = entries.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        sendmsg::<()>(
            self.socket.get_ref().as_raw_fd(),
            &[IoSlice::new(&numbers)],
            &[ControlMessage::ScmRights(&descriptors)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        let mut patience = Patience::new(self.pid, ANSWER_WAIT);
        loop {
            if let Ok(answer) = timeout(ANSWER_LOOK, self.answer()).await {
                return answer;
            }
            if processes::process(self.pid).as_ref().is_some_and(Process::stands) {
                self.signal(Signal::SIGCONT);
            }
            if patience.is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    async fn answer(&self) -> io::Result<()> {
        loop {
            let mut guard = self.socket.readable().await?;
            let mut answer = [0_u8; 1];
            match recv(self.socket.get_ref().as_raw_fd(), &mut answer, MsgFlags::empty()) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EAGAIN) => guard.clear_ready(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The holder's own program: standard input is the socket.
///
/// # Errors
///
/// When the socket breaks in another way than by closing, or the kernel lets nobody look into this process.
pub fn run() -> io::Result<()> {
    let _ = prctl::set_name(c"cli-mcp-fds");
    // Who runs a file that may not be read is not dumpable, and bash could open nothing here.
    prctl::set_dumpable(true)?;
    let socket = io::stdin();
    let mut numbers = [0_u8; 8];
    loop {
        let (count, descriptors) = sys::receive_with_descriptors(socket.as_fd(), &mut numbers)?;
        if count == 0 {
            return Ok(());
        }
        for (number, descriptor) in numbers.iter().take(count).zip(descriptors) {
            sys::place(descriptor, RawFd::from(*number))?;
        }
        send(socket.as_fd().as_raw_fd(), b"+", MsgFlags::MSG_NOSIGNAL)?;
    }
}
