//! The unsafe edge: what the kernel and libc offer only by raw number or between fork and exec.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::{AccessFlags, access};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

mod request {
    use nix::libc;

    nix::ioctl_read_bad!(
        /// How many bytes can be read.
        fionread,
        libc::FIONREAD,
        libc::c_int
    );
}

/// One `(resource, soft, hard)` limit, as `prlimit(2)` names resources by number.
pub type ResourceLimit = (u32, u64, u64);

/// The resource that is signals which wait for a process of this user.
pub const WAITING_SIGNALS: u32 = libc::RLIMIT_SIGPENDING;

/// The resource that is processes and threads of this user.
pub const PROCESSES: u32 = libc::RLIMIT_NPROC;

/// The resource that is open descriptors of a process.
pub const OPEN_DESCRIPTORS: u32 = libc::RLIMIT_NOFILE;

/// Every resource limit that Linux has.
const RESOURCES: u32 = 16;

/// Bytes that wait in a pipe.
#[must_use]
pub fn readable_bytes(fd: BorrowedFd<'_>) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the pointer it is given.
    match unsafe { request::fionread(fd.as_raw_fd(), &raw mut count) } {
        Ok(_) => usize::try_from(count).unwrap_or(0),
        Err(_) => 0,
    }
}

/// Registers a descriptor for readiness to read.
///
/// # Errors
///
/// When the runtime's poller refuses it.
pub fn watch_readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same until it is dropped, which the AsyncFd that owns it does last.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Takes over a descriptor that this process inherited under a known number, and keeps it from its children.
///
/// # Errors
///
/// When no such descriptor is open.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on any number is sound; an unused number gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, was passed for this purpose, and nothing else in this fresh process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Puts `fd` under `number`, in place of what was there, and closes the original.
///
/// # Errors
///
/// Those of `dup3(2)`.
pub fn place(fd: OwnedFd, number: RawFd) -> io::Result<()> {
    // SAFETY: dup3 on any pair of numbers is sound; the target numbers are owned by nothing in the holder.
    if unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Receives one message with its descriptors. An empty payload is the end of the connection.
///
/// # Errors
///
/// Those of `recvmsg(2)`.
pub fn receive_with_descriptors(socket: BorrowedFd<'_>, payload: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut parts = [io::IoSliceMut::new(payload)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .map_err(io::Error::from)?;
    let mut descriptors = Vec::new();
    for control_message in message.cmsgs().map_err(io::Error::from)? {
        if let ControlMessageOwned::ScmRights(numbers) = control_message {
            // SAFETY: the kernel has just installed these descriptors for this process alone.
            descriptors.extend(
                numbers
                    .into_iter()
                    .map(|number| unsafe { OwnedFd::from_raw_fd(number) }),
            );
        }
    }
    Ok((message.bytes, descriptors))
}

/// Collects one ended child or orphan: its pid, and its status as `$?` shows it. None when none has ended.
///
/// By number, since a process may die of a real-time signal that safe wrappers refuse to name, losing its status.
#[must_use]
pub fn collect_ended() -> Option<(i32, u8)> {
    let mut status: libc::c_int = 0;
    let pid = loop {
        // SAFETY: waitpid writes one int.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid <= 0 {
            return None;
        }
        // A child that has made the agent its tracer is also seen to stop, which is no end.
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            break pid;
        }
    };
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    Some((pid, u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
}

/// All resource limits of a process.
#[must_use]
pub fn resource_limits(pid: i32) -> Vec<ResourceLimit> {
    (0..RESOURCES)
        .filter_map(|resource| resource_limit(pid, resource))
        .collect()
}

/// One resource limit of a process. None when it is gone.
#[must_use]
pub fn resource_limit(pid: i32, resource: u32) -> Option<ResourceLimit> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: prlimit64 reads a null new limit as "none" and writes one rlimit64.
    let read = unsafe { libc::prlimit64(pid, resource, std::ptr::null(), &raw mut limit) };
    (read == 0).then_some((resource, limit.rlim_cur, limit.rlim_max))
}

/// Whether this process is root's, whom some limits do not bind.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: getuid takes nothing and always succeeds.
    unsafe { libc::getuid() == 0 }
}

/// Keeps every descriptor that this process was started with, but the standard three, from its children.
pub fn keep_inherited_descriptors() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for number in entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok())
        .filter(|number| *number > 2)
    {
        // SAFETY: setting a flag on any number is sound; one that is closed meanwhile gives EBADF.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Raises this process's soft limit of open descriptors to its hard one: each call with living background jobs keeps two.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls get a valid rlimit64.
    unsafe {
        if libc::getrlimit64(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(1 << 16).max(limit.rlim_cur);
            libc::setrlimit64(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// What `sched_setattr(2)` takes, in its first version.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for short turns on the processor, for this process and none of its children: since Linux 6.12 who asks for less at
/// once gets it sooner, without more in sum. Elsewhere it changes nothing.
///
/// # Errors
///
/// Those of `sched_setattr(2)`.
pub fn ask_for_short_turns(turn: Duration) -> io::Result<()> {
    const RESET_ON_FORK: u64 = 1;
    let attributes = SchedulingAttributes {
        size: u32::try_from(size_of::<SchedulingAttributes>()).unwrap_or(0),
        flags: RESET_ON_FORK,
        runtime: u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX),
        ..SchedulingAttributes::default()
    };
    // SAFETY: the kernel reads `size` bytes of a structure that has as many.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes the allocator give big buffers back at once, and grow small: a call's output is not kept as free memory.
pub fn return_big_buffers() {
    // SAFETY: mallopt takes two numbers.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Between fork and exec: a session of its own, an end with the agent, and none of the signals blocked that the agent
/// reads as events.
///
/// # Safety
///
/// For a child that is about to exec.
unsafe fn default_process_state() {
    // SAFETY: async-signal-safe calls; the set is initialised before it is used.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// What a new bash is started with.
pub struct BashSpawn<'a> {
    /// Arguments after the program name.
    pub arguments: &'a [&'a str],
    /// Its whole environment.
    pub environment: &'a [(OsString, OsString)],
    /// Descriptor 0: the control pipe.
    pub control: OwnedFd,
    /// Descriptor 2: the status pipe.
    pub status: OwnedFd,
    /// Limits to start with.
    pub limits: &'a [ResourceLimit],
    /// File mode creation mask.
    pub umask: u32,
    /// What is written to `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Whether it and all that it starts run behind this process wherever both want the processor (`sched(7)`, `SCHED_IDLE`).
    pub behind_the_agent: bool,
    /// The seccomp filter that it and all that it starts run under; empty for none.
    pub filter: Vec<libc::sock_filter>,
}

/// Whether this process and all that it starts can gain no privileges: what a process without any needs to install a filter.
#[must_use]
pub fn no_new_privileges() -> bool {
    nix::sys::prctl::get_no_new_privs().unwrap_or(false)
}

/// Puts this process under a filter. A kernel that has none, or refuses, leaves it as it is: then the sandbox's own
/// isolation is what there is.
///
/// # Safety
///
/// Async-signal-safe: for a child that is about to exec.
unsafe fn install_filter(filter: &mut [libc::sock_filter]) {
    let Ok(len) = u16::try_from(filter.len()) else { return };
    let program = libc::sock_fprog {
        len,
        filter: filter.as_mut_ptr(),
    };
    // gVisor knows no such flag; without it older kernels slow down a process that has a filter.
    for flags in [libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0] {
        // SAFETY: the kernel copies the program, whose memory lives until the call is over.
        let installed = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        if installed == 0 {
            return;
        }
    }
}

/// Starts bash in a session of its own, with every signal at its default and nothing of the agent's left in it: its process
/// id, for the reaper.
///
/// # Errors
///
/// When there is no bash, or no process can be made. That it cannot run is seen by its end, with status 127.
pub fn spawn_bash(spawn: BashSpawn<'_>) -> io::Result<i32> {
    let BashSpawn {
        arguments,
        environment,
        control,
        status,
        limits,
        umask,
        oom_score_adj,
        behind_the_agent,
        mut filter,
    } = spawn;
    let program = find_program("bash", environment)?;
    let score = oom_score_adj.to_string();
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let environment = environment.iter().map(|(name, value)| {
        let mut text = name.clone();
        text.push("=");
        text.push(value);
        text
    });
    let program = Program::new(program, [&["bash"], arguments].concat(), environment)?;
    let in_child = || {
        // SAFETY: async-signal-safe system calls on memory prepared before the fork.
        unsafe {
            default_process_state();
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            let path = c"/proc/self/oom_score_adj";
            let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, score.as_ptr().cast(), score.len());
                libc::close(file);
            }
            for (resource, soft, hard) in limits {
                let limit = libc::rlimit64 {
                    rlim_cur: *soft,
                    rlim_max: *hard,
                };
                libc::setrlimit64(*resource, &raw const limit);
            }
            libc::umask(umask);
            if behind_the_agent {
                let parameters = libc::sched_param { sched_priority: 0 };
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
            }
            if !filter.is_empty() {
                install_filter(&mut filter);
            }
        }
    };
    // SAFETY: `in_child` makes only async-signal-safe system calls, and touches only what was made before the fork.
    unsafe { program.start([control.as_fd(), nowhere.as_fd(), status.as_fd()], in_child) }
}

/// Starts this program again as `arguments`, with `socket` as its standard input and an empty environment: its process id.
///
/// # Errors
///
/// When no process can be made.
pub fn spawn_self(arguments: &[&str], socket: OwnedFd) -> io::Result<i32> {
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let program = Program::new("/proc/self/exe".into(), [&["agent"], arguments].concat(), [])?;
    // SAFETY: only async-signal-safe system calls.
    unsafe {
        program.start([socket.as_fd(), nowhere.as_fd(), nowhere.as_fd()], || {
            default_process_state();
        })
    }
}

/// The first program of this name in the folders of `PATH`.
fn find_program(name: &str, environment: &[(OsString, OsString)]) -> io::Result<PathBuf> {
    let path = environment.iter().find(|(variable, _)| variable == "PATH");
    std::env::split_paths(path.map_or(OsStr::new(""), |(_, value)| value))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no {name} in PATH")))
}

/// A program with its arguments and environment, in the form that `execve(2)` takes.
struct Program {
    file: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    fn new<E: IntoIterator<Item = OsString>>(file: PathBuf, arguments: Vec<&str>, environment: E) -> io::Result<Self> {
        let text = |text: OsString| CString::new(text.into_vec()).map_err(io::Error::other);
        Ok(Self {
            file: text(file.into_os_string())?,
            arguments: arguments
                .into_iter()
                .map(|argument| text(argument.into()))
                .collect::<io::Result<_>>()?,
            environment: environment.into_iter().map(text).collect::<io::Result<_>>()?,
        })
    }

    /// Starts it with these standard descriptors, after `in_child`, and does not wait until it runs, as the standard library
    /// would: a command can stop all processes, also one that is not what it is to be yet, and must not so stop the agent.
    ///
    /// # Safety
    ///
    /// `in_child` runs between fork and exec: it makes only async-signal-safe calls.
    unsafe fn start(&self, standard: [BorrowedFd<'_>; 3], mut in_child: impl FnMut()) -> io::Result<i32> {
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts
                .iter()
                .map(|text| text.as_ptr())
                .chain([std::ptr::null()])
                .collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: the child makes only async-signal-safe calls, on memory prepared before, and never returns.
        unsafe {
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => {
                    // The standard three are open in the agent, so none of these is among them.
                    for (number, descriptor) in (0..).zip(standard) {
                        libc::dup2(descriptor.as_raw_fd(), number);
                    }
                    in_child();
                    libc::execve(self.file.as_ptr(), arguments.as_ptr(), environment.as_ptr());
                    libc::_exit(127)
                }
                pid => Ok(pid),
            }
        }
    }
}
