//! Which processes of a table belong to one call, and which to nobody here.

use std::collections::{HashMap, HashSet};

use super::{Identity, Process};

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

/// Sessions and process groups of earlier jobs that have any of their own. As long as one of their processes is there, the
/// kernel gives their numbers to nothing else. A session cannot be joined: what is in it descends from its own. A command can
/// put itself into a group, and so outlive its call as it would in the background.
#[derive(Debug, Default)]
struct Jobs {
    sessions: HashSet<i32>,
    groups: HashSet<i32>,
}

impl Jobs {
    fn of<S: std::hash::BuildHasher>(table: &[Process], roots: Roots, earlier: &HashSet<Identity, S>) -> Self {
        let mut jobs = Self::default();
        // Bash leads its session and its group: what is in these may as well be the call's.
        for process in table.iter().filter(|process| earlier.contains(&process.identity)) {
            if process.session != roots.bash {
                jobs.sessions.insert(process.session);
            }
            if process.group != roots.bash {
                jobs.groups.insert(process.group);
            }
        }
        jobs
    }

    fn have(&self, process: &Process) -> bool {
        self.sessions.contains(&process.session) || self.groups.contains(&process.group)
    }
}

/// What belongs to a call: every descendant of the agent that is neither the agent's own, nor was there before the call,
/// nor descends from one that was. Orphans are the agent's children by then, so a double fork or `setsid` hides nothing
/// (case 69); a process below an earlier job is that job's (case 71), and so is an orphan in a session or group of one.
#[must_use]
pub fn of_call<S: std::hash::BuildHasher>(
    table: &[Process],
    roots: Roots,
    earlier: &HashSet<Identity, S>,
) -> Vec<Process> {
    let by_pid: HashMap<i32, &Process> = table.iter().map(|process| (process.identity.pid, process)).collect();
    let jobs = Jobs::of(table, roots, earlier);
    let belongs = |process: &&Process| {
        let mut current = **process;
        // A chain of parents is shorter than the table, whatever changed while it was read.
        for _ in 0..=table.len() {
            if current.identity.pid == roots.holder || earlier.contains(&current.identity) {
                return false;
            }
            if current.parent == roots.agent {
                return current.identity.pid == roots.bash || !jobs.have(&current);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(pid: i32, parent: i32) -> Process {
        Process {
            identity: Identity {
                pid,
                start: 100 + u64::try_from(pid).unwrap(),
            },
            parent,
            group: 3,
            session: 3,
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
    fn an_orphan_in_the_session_or_group_of_an_earlier_job_is_that_jobs() {
        let in_own = |pid: i32, parent: i32, session: i32, group: i32| Process {
            session,
            group,
            ..row(pid, parent)
        };
        let job_and_orphans = |session: i32, group: i32| {
            [
                row(1, 0),
                row(3, 1),
                in_own(10, 3, session, group),
                in_own(12, 1, session, group),
                row(13, 12),
                row(14, 3),
            ]
        };
        assert_eq!(pids(&job_and_orphans(10, 10), &[10]), [14]);
        assert_eq!(pids(&job_and_orphans(3, 10), &[10]), [14]);
        // Those of bash itself tell nothing.
        assert_eq!(pids(&job_and_orphans(3, 3), &[10]), [12, 13, 14]);
        // Nor does a number whose earlier processes are gone.
        assert_eq!(pids(&job_and_orphans(10, 10), &[11]), [10, 12, 13, 14]);
        // A child of bash's is the call's, wherever it has put itself.
        assert_eq!(
            pids(
                &[row(1, 0), row(3, 1), in_own(10, 3, 3, 10), in_own(15, 3, 3, 10)],
                &[10]
            ),
            [15]
        );
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
}
