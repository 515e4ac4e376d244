//! What the programs hold, and what they ask of the API server: figures that must not grow with time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, node};
use serde_json::Value;

/// The programs that are looked at.
pub const PROGRAMS: [&str; 4] = ["operator", "server", "proxy", "agent"];

/// What all processes of one program hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Processes that are the first of a container.
    pub processes: u64,
    /// Resident memory, KiB.
    pub resident: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// Children that ended and were not waited for.
    pub zombies: u64,
}

impl Held {
    /// Whether this is no more than before, but for `memory` KiB a process of what an allocator keeps, and a descriptor or
    /// thread of whatever happens to be going on.
    ///
    /// # Errors
    ///
    /// What grew.
    pub fn flat_since(&self, before: &Self, memory: u64) -> Result<()> {
        ensure!(
            self.processes == before.processes,
            "not the same processes: {before:?}, then {self:?}"
        );
        ensure!(
            self.resident <= before.resident + memory * self.processes,
            "memory grew: {before:?}, then {self:?}"
        );
        ensure!(
            self.descriptors <= before.descriptors + 4 * self.processes,
            "descriptors grew: {before:?}, then {self:?}"
        );
        ensure!(
            self.threads <= before.threads + 2 * self.processes,
            "threads grew: {before:?}, then {self:?}"
        );
        ensure!(self.zombies == 0, "zombies: {self:?}");
        Ok(())
    }
}

/// Looks at every process of every program in these namespaces.
///
/// # Errors
///
/// When the node cannot be entered.
pub fn held(namespaces: &[&str]) -> Result<BTreeMap<&'static str, Held>> {
    let mut found = BTreeMap::new();
    for program in PROGRAMS {
        let pids = node::processes(program, namespaces)?;
        let script = "for pid; do
            awk '/^VmRSS:/ { memory = $2 } /^Threads:/ { threads = $2 } END { printf \"%d %d \", memory, threads }' /proc/$pid/status
            ls /proc/$pid/fd | wc -l
            cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent=$pid '{ sub(/^.*\\) /, \"\") } $1 == \"Z\" && $2 == parent { print \"zombie\" }'
        done";
        let mut command = vec!["bash", "-c", script, "bash"];
        command.extend(pids.iter().map(String::as_str));
        found.insert(program, sum(&node::enter(&command)?)?);
    }
    Ok(found)
}

fn sum(lines: &str) -> Result<Held> {
    let mut held = Held::default();
    for line in lines.lines() {
        if line == "zombie" {
            held.zombies += 1;
            continue;
        }
        let figures: Vec<u64> = line
            .split_whitespace()
            .map(|word| word.parse().with_context(|| line.to_owned()))
            .collect::<Result<_>>()?;
        let [resident, threads, descriptors] = figures[..] else {
            anyhow::bail!("three figures, not {line:?}");
        };
        held.processes += 1;
        held.resident += resident;
        held.threads += threads;
        held.descriptors += descriptors;
    }
    Ok(held)
}

/// A place in the API server's audit log, from which on requests are counted.
pub struct Requests(u64);

impl Requests {
    /// Counts from now on.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn from_now() -> Result<Self> {
        Ok(Self(open()?.seek(SeekFrom::End(0))?))
    }

    /// Requests since then of each ServiceAccount of the namespaces.
    ///
    /// # Errors
    ///
    /// When the log cannot be read, or was rotated meanwhile.
    pub fn count(&self, namespaces: &[&str]) -> Result<BTreeMap<String, u64>> {
        let mut log = open()?;
        ensure!(
            log.metadata()?.len() >= self.0,
            "the audit log is shorter than it was: it was rotated"
        );
        log.seek(SeekFrom::Start(self.0))?;
        let mut counts = BTreeMap::new();
        for line in BufReader::new(log).lines() {
            // The last line may be half written.
            let Ok(entry) = serde_json::from_str::<Value>(&line?) else {
                continue;
            };
            let account = entry["user"]["username"]
                .as_str()
                .and_then(|user| user.strip_prefix("system:serviceaccount:"));
            let Some((namespace, _)) = account.and_then(|account| account.split_once(':')) else {
                continue;
            };
            if entry["stage"] == "ResponseComplete" && namespaces.contains(&namespace) {
                *counts.entry(account.unwrap_or_default().to_owned()).or_default() += 1;
            }
        }
        Ok(counts)
    }
}

fn open() -> Result<File> {
    let path = cluster::setting("DEVCLUSTER_AUDIT_LOG")?;
    File::open(&path).with_context(|| path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_processes_are_added_and_growth_is_told() {
        let before = sum("1000 4 12\nzombie\n500 3 10\n").unwrap();
        assert_eq!(
            before,
            Held {
                processes: 2,
                resident: 1500,
                threads: 7,
                descriptors: 22,
                zombies: 1,
            }
        );
        assert!(before.flat_since(&before, 100).is_err());
        let whole = Held { zombies: 0, ..before };
        assert!(whole.flat_since(&before, 100).is_ok());
        for grown in [
            Held {
                resident: 1701,
                ..whole
            },
            Held {
                descriptors: 31,
                ..whole
            },
            Held { threads: 12, ..whole },
            Held { processes: 1, ..whole },
        ] {
            assert!(grown.flat_since(&whole, 100).is_err(), "{grown:?}");
        }
        assert!(sum("1 2\n").is_err());
    }
}
