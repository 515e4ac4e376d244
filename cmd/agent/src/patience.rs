//! How long a process is waited for where the machine may be busy or the sandbox's share of it used up.

use std::time::Duration;

use tokio::time::Instant;

use crate::processes;

/// What a process that wants to run has on top of its time, as a multiple of it.
const HARD_LIMIT: u32 = 10;

/// How often at least it is looked at: the agent itself may be the one that got no processor, and finds the time gone.
const LOOKS: u32 = 10;

/// Gives a process an amount of time, by the clock while it sleeps. While it wants to run it is over only once the process
/// has run for as long: one that gets no processor, because others do or because its cgroup has used its quota, is not slow.
#[derive(Debug)]
pub(crate) struct Patience {
    pid: i32,
    time: Duration,
    begun: Instant,
    had_run: Duration,
    looks: u32,
}

impl Patience {
    /// Begins now.
    #[must_use]
    pub(crate) fn new(pid: i32, time: Duration) -> Self {
        Self {
            pid,
            time,
            begun: Instant::now(),
            had_run: processes::has_run(pid),
            looks: 0,
        }
    }

    /// Whether the process has had its time. To be asked between two looks for what is waited for.
    pub(crate) fn is_over(&mut self) -> bool {
        self.looks += 1;
        let waited = self.begun.elapsed();
        self.looks >= LOOKS
            && waited >= self.time
            && processes::process(self.pid).is_none_or(|process| {
                is_over(
                    self.time,
                    waited,
                    process.state,
                    process.has_run.saturating_sub(self.had_run),
                )
            })
    }
}

fn is_over(time: Duration, waited: Duration, state: u8, ran: Duration) -> bool {
    let wants_to_run = matches!(state, b'R' | b'D');
    waited >= time && (!wants_to_run || ran >= time || waited >= time * HARD_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_got_no_processor_looks_again() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut patience = Patience::new(own, Duration::ZERO);
        let looks = std::iter::repeat_with(|| patience.is_over())
            .take_while(|over| !over)
            .count();
        assert!(looks + 1 >= LOOKS as usize, "over after {looks} looks");
    }

    #[test]
    fn a_process_that_gets_no_processor_is_given_more_time() {
        let millis = Duration::from_millis;
        for (waited, state, ran, over) in [
            (99, b'S', 0, false),
            (100, b'S', 0, true),
            (100, b'R', 20, false),
            (100, b'R', 100, true),
            (900, b'D', 20, false),
            (1000, b'R', 20, true),
            (100, b'T', 0, true),
        ] {
            assert_eq!(
                is_over(millis(100), millis(waited), state, millis(ran)),
                over,
                "{waited} ms, {}, {ran} ms",
                char::from(state)
            );
        }
    }
}
