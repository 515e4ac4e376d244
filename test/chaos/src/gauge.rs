//! What the programs hold, and what they ask of the API server: figures that must not grow with time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{kubectl, metrics, node};
use serde_json::Value;

use crate::trend;
use crate::witness::audit_log;

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
    /// Tasks of the async runtime that have not ended, as the program's metrics say; none of the agent's.
    pub tasks: u64,
}

/// What a process may seem to keep of memory over a run, KiB: what an allocator holds on to for a while. An hour of the load is
/// some eight thousand calls, so that this is a hundred bytes for each that a server passes on, and five hundred for each that an
/// agent runs: whoever keeps something of a call keeps more.
pub const MEMORY: f64 = 1024.0;

/// The same of a run of minutes, whose slope is mostly that of what the allocators happen to hold (up to 1.4 MiB a process was seen): of
/// some six hundred calls whoever keeps 3.5 KiB of each keeps more.
pub const MEMORY_IN_MINUTES: f64 = 2048.0;

/// What all processes of a program may seem to keep of descriptors, threads or tasks over a run: what happens to be going on. One
/// more a round in any one of them is more.
const COUNT: f64 = 4.0;

/// What the same program held, one time after the other, did not grow, by its slope; its memory by no more than so many KiB a process.
///
/// # Errors
///
/// What grew.
pub fn is_flat(series: &[Held], memory: f64) -> Result<()> {
    let processes = series.first().map_or(0, |first| first.processes);
    for held in series {
        ensure!(held.processes == processes, "not the same processes: {series:?}");
        ensure!(held.zombies == 0, "zombies: {series:?}");
    }
    let is_flat = |name: &str, of: fn(&Held) -> u64, most: f64| {
        let values: Vec<f64> = series.iter().map(|held| of(held) as f64).collect();
        let grown = trend::growth(&values);
        ensure!(
            grown <= most,
            "{name} grew by {grown:.1} in {processes} processes: {values:?}"
        );
        Ok(())
    };
    is_flat(
        "resident memory in KiB",
        |held| held.resident,
        memory * processes as f64,
    )?;
    is_flat("the number of descriptors", |held| held.descriptors, COUNT)?;
    is_flat("the number of threads", |held| held.threads, COUNT)?;
    is_flat("the number of tasks", |held| held.tasks, COUNT)
}

/// How many standard deviations a number of requests may seem to grow by: one run in seven hundred that does not grow has more.
const DEVIATIONS: f64 = 3.0;

/// What is asked of the API server in rounds of one length and one load did not grow by a tenth of what it is, nor by more than
/// independent requests (a Poisson process) would by chance: in an hour the tenth counts, in a minute's few requests the chance.
///
/// # Errors
///
/// By how much it grew.
pub fn asks_no_more(requests: &[f64]) -> Result<()> {
    let grown = trend::growth(requests);
    let rounds = requests.len().max(1) as f64;
    let mean = requests.iter().sum::<f64>() / rounds;
    // Of a fitted line's rise over n values that have the variance of a Poisson distribution, which is its mean.
    let deviation = (12.0 * mean * (rounds - 1.0) / (rounds * (rounds + 1.0))).sqrt();
    ensure!(
        grown <= mean * 0.1 + DEVIATIONS * deviation,
        "requests to the API server a round grew by {grown:.1}: {requests:?}"
    );
    Ok(())
}

/// Tasks of a program's pods in a namespace, as their metrics say.
///
/// # Errors
///
/// When there is none, or its metrics cannot be had.
pub fn tasks(namespace: &str, program: &str) -> Result<u64> {
    let label = format!("cli-mcp.redhat.com/component={program}");
    let pods = kubectl::names(namespace, "pods", &label)?;
    ensure!(!pods.is_empty(), "no pod of {program}");
    pods.iter()
        .map(|pod| {
            let text = metrics::of_pod(namespace, pod.trim_start_matches("pod/"))?;
            runtime_tasks(&text, program)
        })
        .sum()
}

/// Those of the operator, for a bearer of this token.
///
/// # Errors
///
/// When its metrics cannot be had.
pub fn tasks_of_operator(token: &str) -> Result<u64> {
    let (status, text) = metrics::of_operator(Some(token))?;
    ensure!(status == 200, "{status} {text}");
    runtime_tasks(&text, "operator")
}

fn runtime_tasks(text: &str, program: &str) -> Result<u64> {
    let series = format!("cli_mcp_{program}_runtime_tasks");
    metrics::value(text, &series).with_context(|| format!("no {series} in {text}"))
}

/// Looks at every process of every program in these namespaces, from outside.
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
        Ok(Self(audit_log()?.seek(SeekFrom::End(0))?))
    }

    /// Requests since then of each ServiceAccount of the namespaces.
    ///
    /// # Errors
    ///
    /// When the log cannot be read, or was rotated meanwhile.
    pub fn count(&self, namespaces: &[&str]) -> Result<BTreeMap<String, u64>> {
        let mut log = audit_log()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_processes_are_added_and_growth_is_told() {
        let held = sum("1000 4 12\nzombie\n500 3 10\n").unwrap();
        let whole = Held {
            processes: 2,
            resident: 1500,
            threads: 7,
            descriptors: 22,
            zombies: 1,
            tasks: 0,
        };
        assert_eq!(held, whole);
        assert!(sum("1 2\n").is_err());
        assert!(is_flat(&[held, held], MEMORY).is_err(), "a zombie");

        let whole = Held { zombies: 0, ..whole };
        let series = |change: fn(&mut Held, u64)| -> Vec<Held> {
            (0..8)
                .map(|round| {
                    let mut held = whole;
                    change(&mut held, round);
                    held
                })
                .collect()
        };
        is_flat(&series(|_, _| {}), MEMORY).unwrap();
        // Once, and what is within the noise.
        is_flat(
            &series(|held, round| held.resident += u64::from(round == 3) * 90_000),
            MEMORY,
        )
        .unwrap();
        is_flat(&series(|held, round| held.resident += round * 200), MEMORY).unwrap();
        is_flat(&series(|held, round| held.resident += round * 400), MEMORY_IN_MINUTES).unwrap();
        assert!(is_flat(&series(|held, round| held.resident += round * 700), MEMORY_IN_MINUTES).is_err());
        for grown in [
            series(|held, round| held.resident += round * 400),
            series(|held, round| held.descriptors += round),
            series(|held, round| held.threads += round),
            series(|held, round| held.tasks += round),
            series(|held, round| held.processes += u64::from(round == 7)),
        ] {
            assert!(is_flat(&grown, MEMORY).is_err(), "{grown:?}");
        }
    }

    #[test]
    fn requests_that_grow_are_told_and_their_chance_is_not() {
        let few = [14.0, 14.0, 15.0, 9.0, 16.0, 17.0, 14.0, 15.0];
        asks_no_more(&few).unwrap();
        asks_no_more(&few.map(|count| count * 100.0)).unwrap();
        // By a fifth of many, and by more than there were of few.
        let grown = [900.0, 930.0, 960.0, 990.0, 1020.0, 1050.0, 1080.0, 1110.0];
        assert!(asks_no_more(&grown).is_err());
        assert!(asks_no_more(&[14.0, 17.0, 20.0, 23.0, 26.0, 29.0, 32.0, 35.0]).is_err());
        asks_no_more(&[]).unwrap();
    }
}
