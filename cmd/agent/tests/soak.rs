//! Ten thousand calls of mixed kinds: descriptors, zombies, memory and the shell itself stay as they were.
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

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_calls_leave_no_trace() {
    let agent = Agent::start();
    let round = |calls: usize| {
        let begun = Instant::now();
        for index in 0..calls {
            match index % 100 {
                0 => assert_eq!(agent.run_for(1, "sleep 50 & sleep 50").exit_code, 124),
                1 => assert!(agent.run("yes | head -c 1000000").truncated),
                2 => assert_eq!(agent.run("exit 3").exit_code, 3),
                3 => assert_eq!(agent.stream("echo x").len(), 2),
                index if index % 10 == 4 => assert_eq!(agent.run("sleep 0.01 &").exit_code, 0),
                index if index % 10 == 5 => assert_eq!(agent.run("nosuch").exit_code, 127),
                _ => assert_eq!(agent.run("echo $RANDOM; x=$((x+1))").exit_code, 0),
            }
        }
        begun.elapsed()
    };
    round(500);
    std::thread::sleep(Duration::from_millis(500));
    let (descriptors, resident) = (agent.descriptors(), agent.resident_kib());
    let first = round(1000);
    round(8000);
    let last = round(1000);
    std::thread::sleep(Duration::from_millis(500));
    agent.until_quiet();
    assert!(
        agent.descriptors() <= descriptors + 2,
        "{descriptors} then {}",
        agent.descriptors()
    );
    assert!(
        agent.resident_kib() <= resident + 1024,
        "{resident} then {} KiB",
        agent.resident_kib()
    );
    assert!(last < first * 2, "{first:?} then {last:?}");
    assert_eq!(
        agent
            .run("cat /proc/[0-9]*/stat 2>/dev/null | awk -v p=$PPID '$4==p && $3==\"Z\"' | wc -l")
            .stdout,
        "0\n"
    );
}
