//! Which signals end the agent: those of the kubelet, of a terminal, of a person on a laptop; never those of a command
//! (case 98).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use crate::processes;
use crate::reaper::Reaper;
use crate::sys;

/// Who sent a signal, as the kernel vouches for it; where its user has too many signals waiting, it shows `SI_USER` and 0 for
/// those that other calls than `kill(2)` sent. That commands may have fewer than the agent keeps them from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// `si_code`: `SI_USER` for `kill(2)`; a process can claim no code of the kernel's, nor `SI_USER`.
    pub code: i32,
    /// The sender's process id in this pid namespace; 0 when it is outside.
    pub pid: i32,
}

/// Whether a termination signal counts. `below`: the sender is a process of this sandbox.
fn counts(sender: Sender, agent_is_init: bool, below: bool) -> bool {
    match sender.code {
        // The kernel itself: a terminal.
        libc::SI_KERNEL => true,
        // As PID 1 of a pod, only a sender outside the pod's namespace, which has no number here, is the kubelet.
        libc::SI_USER if agent_is_init => sender.pid == 0,
        libc::SI_USER => !below,
        _ => false,
    }
}

/// The signals this program handles, blocked and read as events.
#[derive(Debug)]
pub struct Signals {
    descriptor: AsyncFd<OwnedFd>,
    reader: SignalFd,
}

impl Signals {
    /// Takes the signals over. Must run before any other thread is started.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn take_over() -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGCHLD,
            Signal::SIGHUP,
            Signal::SIGQUIT,
        ] {
            set.add(signal);
        }
        set.thread_block()?;
        let reader = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self {
            descriptor: sys::watch_readable(reader.as_fd().try_clone_to_owned()?)?,
            reader,
        })
    }

    /// Collects children, and cancels `shutdown` at the first termination signal that counts.
    pub async fn watch(self, reaper: Reaper, shutdown: CancellationToken) {
        let agent = i32::try_from(std::process::id()).unwrap_or(0);
        loop {
            let Ok(mut guard) = self.descriptor.readable().await else {
                return;
            };
            let info = match self.reader.read_signal() {
                Ok(Some(info)) => info,
                _ => {
                    guard.clear_ready();
                    continue;
                }
            };
            let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
            if signal == libc::SIGCHLD {
                reaper.reap();
                continue;
            }
            let sender = Sender {
                code: info.ssi_code,
                pid: i32::try_from(info.ssi_pid).unwrap_or(0),
            };
            let below = processes::descends_from(sender.pid, agent);
            if (signal == libc::SIGTERM || signal == libc::SIGINT) && counts(sender, agent == 1, below) {
                tracing::info!(signal, "Received signal, shutting down");
                shutdown.cancel();
            } else {
                tracing::warn!(
                    signal,
                    sender = sender.pid,
                    "Ignored a signal sent from inside the sandbox"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_pod_only_the_outside_and_the_terminal_count() {
        let user = |pid| Sender {
            code: libc::SI_USER,
            pid,
        };
        assert!(counts(user(0), true, false));
        assert!(!counts(user(7), true, true));
        assert!(!counts(user(7), true, false), "kubectl exec is inside the pod");
        assert!(
            !counts(
                Sender {
                    code: libc::SI_QUEUE,
                    pid: 0
                },
                true,
                false
            ),
            "a claimed sender"
        );
        assert!(counts(
            Sender {
                code: libc::SI_KERNEL,
                pid: 0
            },
            true,
            false
        ));
    }

    #[test]
    fn on_a_laptop_anyone_but_a_command_counts() {
        assert!(counts(
            Sender {
                code: libc::SI_USER,
                pid: 7
            },
            false,
            false
        ));
        assert!(!counts(
            Sender {
                code: libc::SI_USER,
                pid: 7
            },
            false,
            true
        ));
    }
}
