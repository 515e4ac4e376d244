//! An agent and what is below it, seen from outside.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Agent;

/// One row of the process table.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: i32,
    parent: i32,
    session: i32,
    state: char,
    /// With that of the children it has collected.
    has_run: Duration,
}

impl Agent {
    /// The agent's bash.
    pub(crate) fn shell(&self) -> Option<i32> {
        shell_of(self.pid(), &table())
    }

    /// Command lines of all living processes below the agent, but for its own two.
    pub(crate) fn processes(&self) -> Vec<String> {
        let table = table();
        let shell = shell_of(self.pid(), &table);
        let mut found = Vec::new();
        for process in below(self.pid(), &table) {
            let line = command_line(process.pid);
            let holder = process.parent == self.pid() && line.contains("descriptor-holder");
            if Some(process.pid) != shell && !holder && process.state != 'Z' {
                found.push(line);
            }
        }
        found
    }

    /// Asserts that no process of a call is left. The agent's own snapshot, a subshell of bash's, may be for a moment.
    pub(crate) fn until_quiet(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processor time of the agent and of all that it has ever started: what runs, and what was collected.
    pub(crate) fn processor_time(&self) -> Duration {
        let table = table();
        let own = table.iter().find(|process| process.pid == self.pid());
        below(self.pid(), &table)
            .iter()
            .chain(own)
            .map(|process| process.has_run)
            .sum()
    }

    /// How many processes have ended below the agent and were not collected.
    pub(crate) fn zombies(&self) -> usize {
        let below = below(self.pid(), &table());
        below.iter().filter(|process| process.state == 'Z').count()
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.open_descriptors().len()
    }

    /// What each open descriptor of the agent refers to.
    pub(crate) fn open_descriptors(&self) -> Vec<PathBuf> {
        descriptors_of(self.pid())
    }

    /// What each open descriptor of the agent's bash refers to.
    pub(crate) fn open_descriptors_of_shell(&self) -> Vec<PathBuf> {
        self.shell().map(descriptors_of).unwrap_or_default()
    }
}

/// A child of this process.
pub(super) fn child(parent: i32) -> Option<i32> {
    let found = table().into_iter().find(|process| process.parent == parent);
    found.map(|process| process.pid)
}

/// The bash of an agent. A subshell that has lost its parent has the same parent and command line; what tells them apart is
/// the session, which only the agent's own starts.
fn shell_of(agent: i32, table: &[Process]) -> Option<i32> {
    let shell = table.iter().find(|process| {
        process.parent == agent
            && process.session == process.pid
            && process.state != 'Z'
            && command_line(process.pid).starts_with("bash --norc --noprofile")
    });
    shell.map(|process| process.pid)
}

fn below(root: i32, table: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let children = table.iter().filter(|process| process.parent == parent);
        parents.extend(children.clone().map(|child| child.pid));
        found.extend(children);
    }
    found
}

fn table() -> Vec<Process> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            let stat = String::from_utf8_lossy(&stat);
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<u64>().ok());
            Some(Process {
                pid,
                state: fields.first()?.chars().next()?,
                parent: fields.get(1)?.parse().ok()?,
                session: fields.get(3)?.parse().ok()?,
                // `utime` to `cstime`, in hundredths of a second.
                has_run: Duration::from_millis(10 * (11..15).filter_map(ticks).sum::<u64>()),
            })
        })
        .collect()
}

fn command_line(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn descriptors_of(pid: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // One may close meanwhile.
    entries
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .collect()
}
