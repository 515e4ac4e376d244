//! The operator's Lease, written by somebody whose clock is not that of the others.

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};
use serde_json::{Value, json};

use crate::node::OPERATOR;

/// Who writes the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Somebody else, who takes it and falls silent.
    Stranger,
    /// The operator itself, as far as its clock goes.
    Own,
}

/// What the clock of the writer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Years ahead.
    Ahead,
    /// Years behind.
    Behind,
}

impl Clock {
    fn time(self) -> &'static str {
        match self {
            Self::Ahead => "2099-01-01T00:00:00.000000Z",
            Self::Behind => "1999-01-01T00:00:00.000000Z",
        }
    }
}

const STRANGER: &str = "a-stranger";

/// The part of a Lease that is written.
fn written(holder: Holder, clock: Clock) -> Value {
    let time = clock.time();
    match holder {
        Holder::Stranger => json!({"holderIdentity": STRANGER, "renewTime": time, "acquireTime": time}),
        Holder::Own => json!({"renewTime": time}),
    }
}

/// Whether the operator leads again, and whether it led on where the Lease was its own.
///
/// # Errors
///
/// When it does not.
fn led_on(before: &Value, now: &Value, holder: Holder, clock: Clock) -> Result<()> {
    ensure!(now["renewTime"] != clock.time(), "nobody has renewed it: {now}");
    match holder {
        Holder::Stranger => ensure!(now["holderIdentity"] != STRANGER, "{now}"),
        Holder::Own => ensure!(
            now["holderIdentity"] == before["holderIdentity"] && now["leaseTransitions"] == before["leaseTransitions"],
            "the Lease changed hands: before {before}, now {now}"
        ),
    }
    Ok(())
}

fn read() -> Result<(String, Value)> {
    let lease = kubectl::ok(&["-n", OPERATOR, "get", "lease", "-o", "name"])?;
    let lease = lease.lines().next().context("the operator has no Lease")?.to_owned();
    let text = kubectl::ok(&["-n", OPERATOR, "get", &lease, "-o", "json"])?;
    let live: Value = serde_json::from_str(&text)?;
    Ok((lease, live["spec"].clone()))
}

/// How long a leader that falls silent keeps others waiting, as the Lease says.
///
/// # Errors
///
/// When there is no Lease, or it does not say.
pub fn lasts() -> Result<std::time::Duration> {
    let (_, spec) = read()?;
    let seconds = spec["leaseDurationSeconds"].as_u64();
    Ok(std::time::Duration::from_secs(
        seconds.context("a Lease without duration")?,
    ))
}

/// The Lease is written with such a time. The operator leads again, and where nobody else has taken the Lease it leads on: times
/// of other clocks are never compared. What is deleted then comes back.
///
/// # Errors
///
/// What does not hold.
pub async fn strike(instance: &Instance, holder: Holder, clock: Clock) -> Result<()> {
    // A leader that began just now may not have written itself in yet.
    let (lease, before) = cluster::eventually("a leader", async || {
        let (lease, spec) = read()?;
        ensure!(
            spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()),
            "{spec}"
        );
        Ok((lease, spec))
    })
    .await?;
    let patch = json!({"spec": written(holder, clock)}).to_string();
    kubectl::ok(&["-n", OPERATOR, "patch", &lease, "--type=merge", "-p", &patch])?;
    cluster::eventually("an operator that leads", async || {
        led_on(&before, &read()?.1, holder, clock)
    })
    .await?;
    let policy = format!("cli-mcp-{}-proxy", instance.name);
    kubectl::ok(&["-n", &instance.namespace, "delete", "networkpolicy", &policy]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_ones_own_with_another_time_must_not_change_hands() {
        let lease = |holder: &str, time: &str, transitions: u32| json!({"holderIdentity": holder, "renewTime": time, "leaseTransitions": transitions});
        let before = lease("a", "2026-01-01T00:00:00.000000Z", 1);
        let now = "2026-01-01T00:00:02.000000Z";
        for clock in [Clock::Ahead, Clock::Behind] {
            let led_on = |after: &Value, holder| led_on(&before, after, holder, clock);
            led_on(&lease("a", now, 1), Holder::Own).unwrap();
            led_on(&lease("b", now, 2), Holder::Stranger).unwrap();
            for other in [lease("b", now, 2), lease("a", now, 2), lease("a", clock.time(), 1)] {
                assert!(led_on(&other, Holder::Own).is_err(), "{other}");
            }
            for other in [lease(STRANGER, now, 1), lease("a", clock.time(), 1)] {
                assert!(led_on(&other, Holder::Stranger).is_err(), "{other}");
            }
        }
    }
}
