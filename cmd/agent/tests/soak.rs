//! Ten thousand calls of mixed kinds: descriptors, zombies, memory, the spill folder and the shell itself stay as
//! they were, and a plain call takes no longer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod harness;

use std::time::{Duration, Instant};

use harness::Agent;

/// Calls between two that end the shell: what grows in one has this long to show.
const LIFE: usize = 1000;
/// How much longer a plain call may take at the end: the machine has other work too.
const SLOWER: f64 = 1.5;

/// A thousand calls, the first of which find a new shell. Gives what the plain ones took, and how many descriptors the shell had
/// early and late in its life.
fn thousand(agent: &Agent) -> (Vec<Duration>, [usize; 2]) {
    let mut plain = Vec::new();
    let mut early = 0;
    for index in 0..LIFE {
        match index % 100 {
            0 => assert_eq!(agent.run_for(1, "sleep 50 & sleep 50").exit_code, 124),
            1 => assert!(agent.run("yes | head -c 1000000").truncated),
            2 if index == 2 => assert_eq!(agent.run("exit 3").exit_code, 3),
            3 => assert_eq!(agent.stream("echo x").len(), 2),
            index if index % 10 == 4 => assert_eq!(agent.run("sleep 0.01 &").exit_code, 0),
            index if index % 10 == 5 => assert_eq!(agent.run("nosuch").exit_code, 127),
            _ => {
                let begun = Instant::now();
                assert_eq!(agent.run("echo $RANDOM; x=$((x+1))").exit_code, 0);
                plain.push(begun.elapsed());
            }
        }
        if index == 10 {
            early = settled(agent);
        }
    }
    (plain, [early, settled(agent)])
}

/// The descriptors of the shell once the last call's are closed.
fn settled(agent: &Agent) -> usize {
    agent.until_quiet();
    std::thread::sleep(Duration::from_millis(500));
    agent.open_descriptors_of_shell().len()
}

fn median(samples: &mut [Duration]) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_calls_leave_no_trace() {
    let agent = Agent::start();
    thousand(&agent);
    let (descriptors, resident) = (agent.descriptors(), agent.resident_kib());
    let mut tenths: Vec<_> = (0..10).map(|_| thousand(&agent)).collect();
    let of_shell: Vec<[usize; 2]> = tenths.iter().map(|(_, of_shell)| *of_shell).collect();
    let first = of_shell[0][0];
    assert!(
        of_shell.iter().all(|counts| *counts == [first, first]),
        "descriptors of the shell, early and late in its life: {of_shell:?}"
    );
    assert!(
        agent.descriptors() <= descriptors,
        "{descriptors} then {:?}",
        agent.open_descriptors()
    );
    assert!(
        agent.resident_kib() <= resident + 1024,
        "{resident} then {} KiB",
        agent.resident_kib()
    );
    assert_eq!(agent.zombies(), 0);
    let kept: Vec<u64> = std::fs::read_dir(agent.home.path().join(".cli-mcp/output"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert!(
        kept.len() <= 64 && kept.iter().sum::<u64>() <= 64 << 20,
        "{} files of {} bytes",
        kept.len(),
        kept.iter().sum::<u64>()
    );
    let p50: Vec<Duration> = tenths.iter_mut().map(|(plain, _)| median(plain)).collect();
    eprintln!("p50 of a plain call, by tenths: {p50:?}");
    assert!(p50[9] < p50[0].mul_f64(SLOWER), "{p50:?}");
}
