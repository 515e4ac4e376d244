//! The fresh pipes of one call, and keeping them drained after it: a background job neither reaches a later call nor dies
//! of SIGPIPE (cases 65 and 67).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{pipe2, read, write};
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Sender;
use tokio_util::task::AbortOnDropHandle;

use crate::holder::{Holder, Slot};
use crate::sys;

/// Bytes that a pipe should hold: fewer switches between writer and agent when much is written.
const PIPE_BYTES: i32 = 256 << 10;
/// Bytes that are read for good at most before others have their turn: writers that are quick enough fill the pipe again
/// and again, and this thread has other work.
const TURN_BYTES: usize = PIPE_BYTES as usize;

/// The read end of a pipe.
#[derive(Debug)]
pub struct Input {
    descriptor: AsyncFd<OwnedFd>,
    ended: bool,
}

impl Input {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        fcntl(&descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self {
            descriptor: sys::watch_readable(descriptor)?,
            ended: false,
        })
    }

    /// A pipe whose read end is this, and its write end.
    ///
    /// # Errors
    ///
    /// When no pipe can be made.
    pub fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC)?;
        // Beyond the user's quota of pipe pages the default size serves as well.
        let _ = fcntl(&write_end, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        Ok((Self::new(read_end)?, write_end))
    }

    /// Whether every writer is gone.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Bytes that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        sys::readable_bytes(self.descriptor.get_ref().as_fd())
    }

    /// Reads what is there now: None when nothing is, and when no more will come (see [`Self::ended`]).
    pub fn read_now(&mut self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            return match read(self.descriptor.get_ref(), buffer) {
                Ok(0) => {
                    self.ended = true;
                    None
                }
                Ok(count) => Some(count),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => None,
                Err(_) => {
                    self.ended = true;
                    None
                }
            };
        }
    }

    /// Hands over what is there now, piece by piece; no more than fits into the pipe, since more may come for ever.
    pub fn read_waiting(&mut self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) {
        let mut total = 0;
        while total < TURN_BYTES
            && let Some(count) = self.read_now(buffer)
        {
            take(&buffer[..count]);
            total += count;
        }
    }

    /// Waits for bytes and reads them: 0 when no more will come.
    pub async fn read(&mut self, buffer: &mut [u8]) -> usize {
        while !self.ended {
            // A pipe that is never empty is always ready: without this its reader would never let another task run.
            tokio::task::coop::consume_budget().await;
            let Ok(mut guard) = self.descriptor.readable().await else {
                self.ended = true;
                break;
            };
            match read(self.descriptor.get_ref(), buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    // A short read emptied the pipe; the next write makes it ready again.
                    if count < buffer.len() {
                        guard.clear_ready();
                    }
                    return count;
                }
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(_) => self.ended = true,
            }
        }
        0
    }

    /// Reads on and forgets, until the last writer is gone.
    pub fn drain_in_background(mut self) {
        self.read_waiting(&mut [0; 4096], |_| {});
        if !self.ended {
            tokio::spawn(async move {
                let mut scratch = vec![0_u8; 16 << 10];
                while self.read(&mut scratch).await > 0 {}
            });
        }
    }
}

/// The pipes of the next call, already in the holder.
#[derive(Debug)]
pub struct CallPipes {
    command_write: Option<OwnedFd>,
    command_read: OwnedFd,
    /// Writes what did not fit into the pipe at once.
    feeder: Option<AbortOnDropHandle<()>>,
    /// The call's stdout.
    pub stdout: Input,
    /// The call's stderr.
    pub stderr: Input,
}

impl CallPipes {
    /// Makes pipes and hands their far ends to the holder.
    ///
    /// # Errors
    ///
    /// When the descriptors have run out, or the holder is gone.
    pub async fn prepare(holder: &Holder) -> io::Result<Self> {
        let (command_read, command_write) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&command_write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (stdout, stdout_write) = Input::pipe()?;
        let (stderr, stderr_write) = Input::pipe()?;
        holder
            .put(&[
                (Slot::Command, &command_read),
                (Slot::Stdout, &stdout_write),
                (Slot::Stderr, &stderr_write),
            ])
            .await?;
        Ok(Self {
            command_write: Some(command_write),
            command_read,
            feeder: None,
            stdout,
            stderr,
        })
    }

    /// Makes the command ready to be sourced. Bash reads a pipe to its end before it runs what it has read: so what is left in
    /// it tells whether it did, however long the command is.
    ///
    /// # Errors
    ///
    /// When the pipe cannot be written to.
    pub fn offer(&mut self, command: &[u8]) -> io::Result<()> {
        let write_end = self.command_write.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let written = match write(&write_end, command) {
            Ok(count) => count,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let rest = &command[written..];
        if !rest.is_empty() {
            let (mut pipe, rest) = (Sender::from_owned_fd(write_end)?, rest.to_vec());
            self.feeder = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                // That it could not be written is seen by its being unread.
                let _ = pipe.write_all(&rest).await;
            })));
        }
        Ok(())
    }

    /// Takes the far ends of a call's output from the holder: each stream ends with the last that the call has started.
    ///
    /// # Errors
    ///
    /// When the holder is gone.
    pub async fn leave_to_writers(holder: &Holder) -> io::Result<()> {
        let null = OwnedFd::from(File::options().write(true).open("/dev/null")?);
        holder.put(&[(Slot::Stdout, &null), (Slot::Stderr, &null)]).await
    }

    /// Reads on from both streams and forgets, until the last writer of each is gone.
    pub fn drain_in_background(self) {
        self.stdout.drain_in_background();
        self.stderr.drain_in_background();
    }

    /// Whether bash never read the command: something of the user's answered in place of the sourcing builtin.
    #[must_use]
    pub fn command_unread(&self) -> bool {
        let is_fed = self.feeder.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        !is_fed || sys::readable_bytes(self.command_read.as_fd()) > 0
    }
}

/// A file in memory with this content.
///
/// # Errors
///
/// When memory is exhausted.
pub fn memory_file(content: &[u8]) -> io::Result<OwnedFd> {
    use std::io::Write;

    let descriptor = nix::sys::memfd::memfd_create(c"cli-mcp", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(descriptor);
    file.write_all(content)?;
    Ok(OwnedFd::from(file))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn what_is_written_as_fast_as_it_is_read_is_not_read_for_ever() {
        let (mut input, write_end) = Input::pipe().unwrap();
        nix::unistd::write(&write_end, &[0; 4096]).unwrap();
        let mut total = 0;
        input.read_waiting(&mut [0; 4096], |bytes| {
            total += bytes.len();
            assert!(total <= 2 * TURN_BYTES, "it goes on and on");
            nix::unistd::write(&write_end, bytes).unwrap();
        });
        assert!(input.waiting() > 0);
    }

    #[tokio::test]
    async fn a_pipe_that_is_never_empty_leaves_others_their_turn() {
        let (mut input, write_end) = Input::pipe().unwrap();
        nix::unistd::write(&write_end, &[0; 4096]).unwrap();
        let others = Cell::new(false);
        let reader = async {
            for _ in 0..100_000 {
                let count = input.read(&mut [0; 64]).await;
                nix::unistd::write(&write_end, &[0; 64][..count]).unwrap();
                if others.get() {
                    return true;
                }
            }
            false
        };
        let other = async {
            tokio::task::yield_now().await;
            others.set(true);
        };
        let (had_its_turn, ()) = tokio::join!(biased; reader, other);
        assert!(had_its_turn);
    }
}
