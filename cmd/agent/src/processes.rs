//! The process table as `/proc` shows it, and which of its processes belong to one call.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use nix::libc;
use nix::sys::signal::Signal;

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

/// The processes that make up the agent's own side of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// The agent: everything below it is the sandbox's.
    pub agent: i32,
    /// The descriptor holder.
    pub holder: i32,
    /// The persistent bash.
    pub bash: i32,
}

/// What belongs to a call: every descendant of the agent that is neither the agent's own, nor was there before the call,
/// nor descends from one that was. Orphans are the agent's children by then, so a double fork or `setsid` hides nothing
/// (case 69); a process below an earlier job is that job's (case 71).
#[must_use]
pub fn of_call<S: std::hash::BuildHasher>(
    table: &[Process],
    roots: Roots,
    earlier: &HashSet<Identity, S>,
) -> Vec<Process> {
    let by_pid: HashMap<i32, &Process> = table.iter().map(|process| (process.identity.pid, process)).collect();
    let belongs = |process: &&Process| {
        let mut current = **process;
        // A chain of parents is shorter than the table, whatever changed while it was read.
        for _ in 0..=table.len() {
            if current.identity.pid == roots.holder || earlier.contains(&current.identity) {
                return false;
            }
            if current.parent == roots.agent {
                return true;
            }
            match by_pid.get(&current.parent) {
                Some(parent) => current = **parent,
                None => return false,
            }
        }
        false
    };
    let own = |pid: i32| pid == roots.agent || pid == roots.holder || pid == roots.bash;
    table
        .iter()
        .filter(|process| !own(process.identity.pid))
        .filter(belongs)
        .copied()
        .collect()
}

/// What has come into this pid namespace from outside, as `kubectl exec` does, and its descendants. One whose parent has gone
/// while the table was read is none.
#[must_use]
pub fn entered_from_outside(table: &[Process]) -> Vec<Identity> {
    let by_pid: HashMap<i32, &Process> = table.iter().map(|process| (process.identity.pid, process)).collect();
    let entered = |process: &&Process| {
        let mut current = *process;
        for _ in 0..=table.len() {
            if current.parent == 0 {
                return current.identity.pid != 1;
            }
            match by_pid.get(&current.parent) {
                Some(parent) => current = parent,
                None => return false,
            }
        }
        false
    };
    table.iter().filter(entered).map(|process| process.identity).collect()
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

    fn row(pid: i32, parent: i32) -> Process {
        Process {
            identity: Identity {
                pid,
                start: 100 + u64::try_from(pid).unwrap(),
            },
            parent,
            state: b'S',
            wait_status: 0,
            has_run: Duration::ZERO,
        }
    }

    const ROOTS: Roots = Roots {
        agent: 1,
        holder: 2,
        bash: 3,
    };

    fn pids(table: &[Process], earlier: &[i32]) -> Vec<i32> {
        let earlier: HashSet<_> = earlier.iter().map(|pid| row(*pid, 0).identity).collect();
        of_call(table, ROOTS, &earlier)
            .iter()
            .map(|process| process.identity.pid)
            .collect()
    }

    #[test]
    fn children_orphans_and_their_children_belong_to_the_call() {
        let table = [
            row(1, 0),
            row(2, 1),
            row(3, 1),
            row(10, 3),
            row(11, 10),
            row(12, 1),
            row(13, 12),
        ];
        assert_eq!(pids(&table, &[]), [10, 11, 12, 13]);
    }

    #[test]
    fn an_earlier_job_and_what_it_started_since_do_not() {
        let table = [row(1, 0), row(2, 1), row(3, 1), row(10, 3), row(11, 10), row(12, 3)];
        assert_eq!(pids(&table, &[10]), [12]);
    }

    #[test]
    fn a_later_process_with_an_earlier_number_is_not_taken_for_it() {
        let mut reused = row(10, 3);
        reused.identity.start += 1;
        assert_eq!(pids(&[row(1, 0), row(3, 1), reused], &[10]), [10]);
    }

    #[test]
    fn processes_of_other_trees_are_left_alone() {
        assert_eq!(pids(&[row(1, 0), row(3, 1), row(20, 0), row(21, 20)], &[]), [0_i32; 0]);
    }

    #[test]
    fn what_has_entered_from_outside_is_told_from_what_lost_its_parent() {
        let table = [row(1, 0), row(3, 1), row(20, 0), row(21, 20), row(30, 29), row(31, 30)];
        let pids: Vec<i32> = entered_from_outside(&table)
            .iter()
            .map(|identity| identity.pid)
            .collect();
        assert_eq!(pids, [20, 21]);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read() {
        let fields = "S 7 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let parsed = parse_stat(9, format!("9 (a) b (c)) {fields}").as_bytes()).unwrap();
        assert_eq!((parsed.parent, parsed.identity.start, parsed.state), (7, 4242, b'S'));
    }

    #[test]
    fn this_process_is_below_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(descends_from(own, process(own).unwrap().parent));
        assert!(!descends_from(own, own));
    }
}
