//! Proof that the sandbox's network is closed (contract, section 8): a direct connection to the API server must fail while
//! one to the proxy succeeds. Addresses only: no name is resolved and nothing is sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cli_mcp_sandbox::wire::{EGRESS_NOT_ENFORCED, EGRESS_OPEN};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The least time without an answer that counts as closed.
const LEAST_SILENCE: Duration = Duration::from_millis(100);
/// No answer within this many round trips of the control counts as closed.
const ROUND_TRIPS: u32 = 10;
/// How long the control may take.
const CONTROL_WAIT: Duration = Duration::from_secs(5);
/// How long a probe goes on after its silence was taken for closed: a late answer still counts.
const LATE_WAIT: Duration = Duration::from_secs(5);
/// Time between two checks of a closed network, before jitter.
const PERIOD: Duration = Duration::from_secs(60);
/// Time between two checks until the network is proven closed.
const RETRY: Duration = Duration::from_secs(1);

/// Where the check connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressTargets {
    /// Must not connect: the API server's service.
    pub target: SocketAddr,
    /// Must connect: the proxy.
    pub control: SocketAddr,
}

/// What is known of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Seen open: this target has taken a direct connection.
    Open(SocketAddr),
    /// Not proven closed, and why.
    Unproven(Unproven),
    /// Proven closed at the last check.
    Enforced,
    /// Nobody asked.
    Disabled,
}

/// Why a network that was not seen open is not proven closed either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unproven {
    /// No check has ended yet.
    Unchecked,
    /// The control at this address did not connect.
    ControlFailed(SocketAddr),
}

impl Verdict {
    /// Why no command may run.
    fn reason(&self) -> Option<String> {
        Some(match self {
            Self::Open(target) => format!(
                "{EGRESS_OPEN}{target} succeeded; the likely cause is a network plugin that does not enforce NetworkPolicy"
            ),
            Self::Unproven(Unproven::Unchecked) => format!("{EGRESS_NOT_ENFORCED}: the check has not finished"),
            Self::Unproven(Unproven::ControlFailed(control)) => format!(
                "{EGRESS_NOT_ENFORCED}: no connection to the proxy at {control}, so that silence of the network proves nothing"
            ),
            Self::Enforced | Self::Disabled => return None,
        })
    }
}

/// The current verdict, shared with the endpoints.
#[derive(Clone, Debug)]
pub struct Egress(Arc<Mutex<Verdict>>);

impl Egress {
    /// Starts with this verdict.
    #[must_use]
    pub fn new(verdict: Verdict) -> Self {
        Self(Arc::new(Mutex::new(verdict)))
    }

    /// No check: commands run whatever the network lets through.
    #[must_use]
    pub fn disabled() -> Self {
        Self::new(Verdict::Disabled)
    }

    /// A check that has not finished: closed to commands until it has.
    #[must_use]
    pub fn required() -> Self {
        Self::new(Verdict::Unproven(Unproven::Unchecked))
    }

    /// Whether no check is made.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        *self.lock() == Verdict::Disabled
    }

    /// The error text while the network is not proven closed.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.lock().reason()
    }

    fn verdict(&self) -> Verdict {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Verdict> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, verdict: Verdict) {
        let mut current = self.lock();
        if *current != verdict {
            match verdict.reason() {
                Some(reason) => tracing::warn!(reason, "Egress is not proven closed"),
                None => tracing::info!("Egress is proven closed"),
            }
            *current = verdict;
        }
    }
}

/// How the two connections of one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observation {
    /// The target answered: the network is open.
    Connected,
    /// The target refused, or stayed silent while the control answered.
    Closed,
    /// The control failed, so the target's silence proves nothing.
    ControlFailed,
}

/// What an observation makes of the verdict: an open network always counts, and until it is proven closed; a failed control
/// takes no proof away.
fn judge(current: Verdict, observation: Observation, targets: EgressTargets) -> Verdict {
    match observation {
        Observation::Connected => Verdict::Open(targets.target),
        Observation::Closed => Verdict::Enforced,
        Observation::ControlFailed if !matches!(current, Verdict::Unproven(_)) => current,
        Observation::ControlFailed => Verdict::Unproven(Unproven::ControlFailed(targets.control)),
    }
}

/// Checks until the program ends.
pub async fn watch(egress: Egress, targets: EgressTargets) {
    loop {
        check(&egress, targets).await;
        let proven = egress.refusal().is_none();
        let period = if proven { PERIOD } else { RETRY };
        // A quarter of jitter either way: the sandboxes of a node do not probe in step.
        sleep(period.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
    }
}

/// One check. The verdict is set as soon as it can be, and again by a late answer.
async fn check(egress: &Egress, targets: EgressTargets) {
    let started = Instant::now();
    let mut probe = tokio::spawn(TcpStream::connect(targets.target));
    let control = timeout(CONTROL_WAIT, TcpStream::connect(targets.control)).await;
    let round_trip = started.elapsed();
    let control_answered = matches!(control, Ok(Ok(_)));
    drop(control);
    // After an open network only the whole wait is proof of the contrary.
    let was_open = matches!(egress.verdict(), Verdict::Open(_));
    let silence = if was_open {
        LATE_WAIT
    } else {
        (round_trip * ROUND_TRIPS).clamp(LEAST_SILENCE, LATE_WAIT)
    };
    let first = timeout_at(started + silence, &mut probe).await;
    let observe = |answer: &Result<Result<std::io::Result<TcpStream>, _>, _>| match answer {
        Ok(Ok(Ok(_))) => Observation::Connected,
        _ if control_answered => Observation::Closed,
        _ => Observation::ControlFailed,
    };
    let observation = observe(&first);
    let verdict = judge(egress.verdict(), observation, targets);
    egress.set(verdict);
    if first.is_err() {
        let late = timeout(LATE_WAIT, &mut probe).await;
        if observe(&late) == Observation::Connected {
            let verdict = judge(egress.verdict(), Observation::Connected, targets);
            egress.set(verdict);
        }
        probe.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn targets() -> EgressTargets {
        EgressTargets {
            target: ([127, 0, 0, 1], 1).into(),
            control: ([127, 0, 0, 1], 2).into(),
        }
    }

    #[test]
    fn only_a_connection_takes_a_proof_away() {
        let open = judge(Verdict::Enforced, Observation::Connected, targets());
        assert_eq!(open, Verdict::Open(targets().target));
        assert_eq!(
            judge(Verdict::Enforced, Observation::ControlFailed, targets()),
            Verdict::Enforced
        );
        assert_eq!(judge(open, Observation::ControlFailed, targets()), open);
        let unchecked = Verdict::Unproven(Unproven::Unchecked);
        assert_eq!(
            judge(unchecked, Observation::ControlFailed, targets()),
            Verdict::Unproven(Unproven::ControlFailed(targets().control))
        );
        assert_eq!(judge(open, Observation::Closed, targets()), Verdict::Enforced);
    }

    /// Server and operator read these texts.
    #[test]
    fn what_is_told_of_each_verdict_is_as_the_contract_has_it() {
        let told = |verdict: Verdict| Egress::new(verdict).refusal();
        assert_eq!(
            told(Verdict::Open(targets().target)).as_deref(),
            Some(
                "EgressNotEnforced: a direct connection to 127.0.0.1:1 succeeded; the likely cause is a network plugin that does not enforce NetworkPolicy"
            )
        );
        assert_eq!(
            told(Verdict::Unproven(Unproven::ControlFailed(targets().control))).as_deref(),
            Some(
                "EgressNotEnforced: no connection to the proxy at 127.0.0.1:2, so that silence of the network proves nothing"
            )
        );
        assert_eq!(
            Egress::required().refusal().as_deref(),
            Some("EgressNotEnforced: the check has not finished")
        );
        assert_eq!((told(Verdict::Enforced), told(Verdict::Disabled)), (None, None));
    }

    #[tokio::test]
    async fn a_refused_target_beside_a_living_control_is_closed() {
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = refused.local_addr().unwrap();
        drop(refused);
        let egress = Egress::required();
        assert!(egress.refusal().unwrap().starts_with("EgressNotEnforced: "));
        check(
            &egress,
            EgressTargets {
                target,
                control: control.local_addr().unwrap(),
            },
        )
        .await;
        assert_eq!(egress.refusal(), None);
    }

    #[tokio::test]
    async fn a_target_that_connects_closes_the_agent() {
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let egress = Egress::new(Verdict::Enforced);
        check(
            &egress,
            EgressTargets {
                target: target.local_addr().unwrap(),
                control: control.local_addr().unwrap(),
            },
        )
        .await;
        assert!(matches!(egress.verdict(), Verdict::Open(_)));
    }

    /// A listener with its queue full answers nobody, until one is taken out.
    #[tokio::test]
    async fn an_answer_after_the_silence_was_taken_for_closed_closes_the_agent() {
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = tokio::net::TcpSocket::new_v4().unwrap();
        target.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let target = target.listen(0).unwrap();
        let address = target.local_addr().unwrap();
        let filling = TcpStream::connect(address).await.unwrap();
        let egress = Egress::required();
        let targets = EgressTargets {
            target: address,
            control: control.local_addr().unwrap(),
        };
        let opened = async {
            while egress.refusal().is_some() {
                sleep(Duration::from_millis(1)).await;
            }
            target.accept().await.unwrap()
        };
        let (_accepted, ()) = tokio::join!(opened, check(&egress, targets));
        assert_eq!(egress.verdict(), Verdict::Open(address));
        drop(filling);
    }

    #[tokio::test]
    async fn without_a_control_nothing_is_proven() {
        let egress = Egress::required();
        check(&egress, targets()).await;
        let expected = Unproven::ControlFailed(targets().control);
        assert_eq!(egress.verdict(), Verdict::Unproven(expected));
    }
}
