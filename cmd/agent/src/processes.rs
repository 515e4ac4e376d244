//! The process table as `/proc` shows it.

mod kinship;

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use nix::libc;
use nix::sys::signal::Signal;

pub use self::kinship::{Roots, entered_from_outside, of_call};

/// The unit of the times of `proc_pid_stat(5)`: `sysconf(_SC_CLK_TCK)` is 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// A process that cannot be taken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Clock ticks from boot to its start.
    pub start: u64,
    /// Its number.
    pub pid: i32,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which process.
    pub identity: Identity,
    /// Its parent's number.
    pub parent: i32,
    /// The number of its process group.
    pub group: i32,
    /// The number of its session.
    pub session: i32,
    /// One letter, as `ps` shows it.
    pub state: u8,
    /// For a zombie: the wait status, as `waitpid(2)` would give it.
    pub wait_status: i32,
    /// The processor time that it has used, in hundredths of a second as the kernel tells it.
    pub has_run: Duration,
}

impl Process {
    /// Whether a signal or a tracer has stopped it.
    #[must_use]
    pub fn stands(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Whether it has ended and only waits to be collected.
    #[must_use]
    pub fn ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Reads one process. None when it is gone.
#[must_use]
pub fn process(pid: i32) -> Option<Process> {
    parse_stat(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// `proc_pid_stat(5)`; the second field may hold any byte, so fields are counted from its last parenthesis.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let rest = &stat[stat.iter().rposition(|byte| *byte == b')')? + 1..];
    let text = std::str::from_utf8(rest).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let ticks = |field: usize| {
        fields
            .get(field)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Some(Process {
        identity: Identity {
            pid,
            start: fields.get(19)?.parse().ok()?,
        },
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        state: *fields.first()?.as_bytes().first()?,
        wait_status: fields.get(49).and_then(|field| field.parse().ok()).unwrap_or(0),
        // `utime` and `stime`.
        has_run: TICK * u32::try_from(ticks(11) + ticks(12)).unwrap_or(u32::MAX),
    })
}

/// Every process of this pid namespace.
#[must_use]
pub fn table() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| process(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The children of a single-threaded process, where the kernel lists them.
#[must_use]
pub fn children(pid: i32) -> Option<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_ascii_whitespace().map(|child| child.parse().ok()).collect()
}

/// What a process does with SIGINT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Dies of it.
    Default,
    /// Runs a handler.
    Caught,
    /// Nothing.
    Ignored,
}

/// Reads what a process does with SIGINT; a process that is gone counts as the default.
#[must_use]
pub fn interrupt_disposition(pid: i32) -> Disposition {
    disposition(pid, Signal::SIGINT)
}

/// Reads what a process does with a signal; a process that is gone counts as the default.
#[must_use]
pub fn disposition(pid: i32, signal: Signal) -> Disposition {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let holds = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask >> (signal as u32 - 1) & 1 != 0)
    };
    if holds("SigIgn:") {
        Disposition::Ignored
    } else if holds("SigCgt:") {
        Disposition::Caught
    } else {
        Disposition::Default
    }
}

/// Whether a process stands in `wait4(2)`, as `/proc/<pid>/syscall` shows it. None where that may not be looked at.
#[must_use]
pub fn waits_for_children(pid: i32) -> Option<bool> {
    stands_in(pid, &[libc::SYS_wait4])
}

/// Whether a process stands in `sleep(3)`, as `/proc/<pid>/syscall` shows it. None where that may not be looked at.
#[must_use]
pub fn sleeps_by_the_clock(pid: i32) -> Option<bool> {
    stands_in(pid, &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep])
}

fn stands_in(pid: i32, calls: &[libc::c_long]) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let number = text.split(' ').next()?.trim().parse().ok();
    Some(number.is_some_and(|number| calls.contains(&number)))
}

/// The process that traces another.
#[must_use]
pub fn tracer(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

/// Whether a process stands in `read(2)` of its descriptor 0, as `/proc/<pid>/syscall` shows it. None where that may not
/// be looked at.
#[must_use]
pub fn reads_descriptor_0(pid: i32) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let mut fields = text.split(' ');
    Some(fields.next() == Some(&libc::SYS_read.to_string()) && fields.next() == Some("0x0"))
}

/// Whether a descriptor is open in a process; also where that may not be looked at.
#[must_use]
pub fn has_descriptor(pid: i32, number: i32) -> bool {
    !fs::read_link(format!("/proc/{pid}/fd/{number}")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// What a descriptor of a process leads to, as its link in `/proc` names it. None where it is not open, or may not be looked
/// at.
#[must_use]
pub fn descriptor(pid: i32, number: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()
}

/// Whether a process sleeps in `wait4(2)`: then it has handled what signals it was sent.
#[must_use]
pub fn sleeps_in_wait(pid: i32) -> bool {
    process(pid).is_some_and(|process| process.state == b'S') && waits_for_children(pid) == Some(true)
}

/// How long a process has run. None at all where it is gone.
#[must_use]
pub fn has_run(pid: i32) -> Duration {
    process(pid).map_or(Duration::ZERO, |process| process.has_run)
}

/// The file mode creation mask of a process.
#[must_use]
pub fn umask(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok()
}

/// The working directory of a process, by its physical path.
#[must_use]
pub fn working_directory(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Whether `pid` is below `ancestor`.
#[must_use]
pub fn descends_from(pid: i32, ancestor: i32) -> bool {
    let mut current = pid;
    for _ in 0..10_000 {
        match process(current) {
            Some(found) if found.parent == ancestor => return true,
            Some(found) if found.parent > 1 => current = found.parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let fields = "S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let parsed = parse_stat(9, format!("9 (a) b (c)) {fields}").as_bytes()).unwrap();
        assert_eq!((parsed.parent, parsed.identity.start, parsed.state), (7, 4242, b'S'));
        assert_eq!((parsed.group, parsed.session), (1, 1));
    }

    #[test]
    fn this_process_is_below_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(descends_from(own, process(own).unwrap().parent));
        assert!(!descends_from(own, own));
    }
}
