//! The gate (contract, section 8): while a precondition is broken no sandbox is made or claimed, and no command starts in a
//! new session.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_demo::session::BashResult;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

use crate::invariants;

/// Within this everybody knows that a precondition has ended. Each server, and the operator, hears of it by a watch of its own
/// in milliseconds, on a machine that others use too in seconds. From then on nothing is excused.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
/// So many attempts are made after that: connections go to the servers in turn.
const ATTEMPTS: u32 = 10;
/// So many refusals judge the gate where the precondition is mended in between.
const ENOUGH: u32 = 4;

/// What must hold before a session begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The sandboxes' policy exists.
    SandboxPolicy,
    /// The proxy's policy exists.
    ProxyPolicy,
    /// The ConfigMap with the dummy kubeconfig exists.
    ConfigMap,
    /// A proxy is ready.
    ProxyEndpoint,
}

impl Precondition {
    /// That a child of an instance exists, by its kind and what its name has behind the instance's; none when the gate does not
    /// ask for it.
    #[must_use]
    pub fn of(kind: &str, suffix: &str) -> Option<Self> {
        match (kind, suffix) {
            ("networkpolicy", "-sandbox") => Some(Self::SandboxPolicy),
            ("networkpolicy", "-proxy") => Some(Self::ProxyPolicy),
            ("configmap", "-proxy") => Some(Self::ConfigMap),
            _ => None,
        }
    }

    /// Whether it is broken at this moment.
    ///
    /// # Errors
    ///
    /// When the cluster cannot be asked.
    pub fn is_broken(self, instance: &Instance) -> Result<bool> {
        let absent = |kind: &str, suffix: &str| {
            let name = format!("cli-mcp-{}{suffix}", instance.name);
            let found = kubectl::ok(&[
                "-n",
                &instance.namespace,
                "get",
                kind,
                &name,
                "--ignore-not-found",
                "-o",
                "name",
            ])?;
            Ok(found.is_empty())
        };
        match self {
            Self::SandboxPolicy => absent("networkpolicy", "-sandbox"),
            Self::ProxyPolicy => absent("networkpolicy", "-proxy"),
            Self::ConfigMap => absent("configmap", "-proxy"),
            Self::ProxyEndpoint => Ok(ready_proxies(instance)?.is_empty()),
        }
    }

    /// What the refusal says is missing.
    fn reason(self, name: &str) -> String {
        match self {
            Self::SandboxPolicy => format!("NetworkPolicy cli-mcp-{name}-sandbox does not exist"),
            Self::ProxyPolicy => format!("NetworkPolicy cli-mcp-{name}-proxy does not exist"),
            Self::ConfigMap => format!("ConfigMap cli-mcp-{name}-proxy with the sandbox's kubeconfig does not exist"),
            Self::ProxyEndpoint => format!("no ready endpoint (EndpointSlice of Service cli-mcp-{name}-proxy)"),
        }
    }
}

/// Addresses of the proxies that are ready, as the EndpointSlices say.
///
/// # Errors
///
/// When they cannot be listed.
pub fn ready_proxies(instance: &Instance) -> Result<Vec<String>> {
    let list = kubectl::ok(&[
        "-n",
        &instance.namespace,
        "get",
        "endpointslices",
        "-l",
        &format!("kubernetes.io/service-name=cli-mcp-{}-proxy", instance.name),
        "-o",
        "jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]}{\"\\n\"}{end}",
    ])?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// What an attempt to begin a session shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was refused for the reason that holds.
    Refused,
    /// Its command ran.
    Opened,
    /// The precondition was not broken all the while.
    NotJudged,
}

/// Judges an attempt between two looks at the precondition.
fn judge(broken_before: bool, answer: &BashResult, broken_after: bool, reason: &str) -> Result<Verdict> {
    if !(broken_before && broken_after) {
        return Ok(Verdict::NotJudged);
    }
    if answer.exit_code.is_some() {
        return Ok(Verdict::Opened);
    }
    ensure!(
        answer.is_error && answer.text.contains(reason) && answer.text.contains("The command was not run"),
        "refused for another reason than {reason:?}: {answer:?}"
    );
    Ok(Verdict::Refused)
}

/// What follows from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing: not everybody needs to know yet.
    TooEarly,
    /// One more refusal.
    Refused,
    /// No more attempts: the precondition was mended.
    Mended,
}

/// What follows from an attempt that began so long after the end of a precondition, after so many refusals that counted.
///
/// # Errors
///
/// When the gate was open and must not be, or the precondition was mended before the gate was judged.
fn step(since: Duration, verdict: Verdict, refused: u32) -> Result<Step> {
    if since < SETTLES_WITHIN {
        return Ok(Step::TooEarly);
    }
    match verdict {
        Verdict::Refused => Ok(Step::Refused),
        Verdict::Opened => bail!("a session began {since:?} after the precondition's end"),
        Verdict::NotJudged => {
            ensure!(
                refused >= ENOUGH,
                "the precondition was mended after {refused} refusals, before the gate was judged"
            );
            Ok(Step::Mended)
        }
    }
}

/// Asks for one session after the other while the precondition is broken: as soon as everybody must know, each is refused for
/// that reason and has no pod, and no sandbox is made for the pool, which is emptied. Whoever could mend it should stand still,
/// since what is mended is not judged.
///
/// # Errors
///
/// When a session began or a sandbox was made, or a session was refused for another reason.
pub async fn stays_shut(instance: &Instance, precondition: Precondition) -> Result<()> {
    cluster::eventually("the end of a precondition", async || {
        ensure!(precondition.is_broken(instance)?, "{precondition:?} holds");
        Ok(())
    })
    .await?;
    let ended = Instant::now();
    let mut sandboxes = None;
    let mut refused = 0;
    for number in 1.. {
        let since = ended.elapsed();
        if since >= SETTLES_WITHIN && sandboxes.is_none() {
            empty_pool(instance)?;
            sandboxes = Some(invariants::component(instance, "sandbox")?);
        }
        let verdict = match attempt(instance, precondition, number).await {
            // Of a sandbox that was on its way, it may say something else.
            Err(_) if since < SETTLES_WITHIN => continue,
            verdict => verdict.with_context(|| format!("attempt {number}"))?,
        };
        match step(since, verdict, refused).with_context(|| format!("{precondition:?}, attempt {number}"))? {
            Step::TooEarly => {}
            Step::Refused => refused += 1,
            Step::Mended => return Ok(()),
        }
        if refused == ATTEMPTS {
            break;
        }
    }
    let now = invariants::component(instance, "sandbox")?;
    if precondition.is_broken(instance)? {
        let made: Vec<_> = now.difference(&sandboxes.unwrap_or_default()).cloned().collect();
        ensure!(
            made.is_empty(),
            "{precondition:?} does not hold, and {made:?} were made"
        );
    }
    Ok(())
}

/// Deletes the sandboxes of the pool, and waits until they are gone: the operator wants others at once.
fn empty_pool(instance: &Instance) -> Result<()> {
    let pool = "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id";
    kubectl::ok(&["-n", &instance.namespace, "delete", "pod", "-l", pool, "--timeout=60s"]).map(drop)
}

/// One new session on a connection of its own. What it made, if anything, does not stay.
async fn attempt(instance: &Instance, precondition: Precondition, number: u32) -> Result<Verdict> {
    let id = format!("gate-{number}");
    let broken_before = precondition.is_broken(instance)?;
    let session = instance.endpoint.connect(&id).await?;
    let seen = async {
        let answer = session.bash("true").await?;
        let broken_after = precondition.is_broken(instance)?;
        let label = format!("cli-mcp.redhat.com/session-id={id}");
        anyhow::Ok((
            answer,
            broken_after,
            kubectl::names(&instance.namespace, "pods", &label)?,
        ))
    }
    .await;
    let ended = session.delete().await?;
    ensure!(ended == 204, "session {id} was not ended: {ended}");
    let (answer, broken_after, pods) = seen?;
    let verdict = judge(
        broken_before,
        &answer,
        broken_after,
        &precondition.reason(&instance.name),
    )?;
    ensure!(
        verdict != Verdict::Refused || pods.is_empty(),
        "{precondition:?}: a sandbox was made or claimed for a session that was refused: {pods:?}"
    );
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_judged_by_what_held_all_the_while() {
        let reason = Precondition::ConfigMap.reason("chaos");
        let served = BashResult {
            exit_code: Some(0),
            ..BashResult::default()
        };
        let refused = |text: &str| BashResult {
            is_error: true,
            text: text.to_owned(),
            ..BashResult::default()
        };
        let proper = refused(&format!("Not ready: {reason}: wait. The command was not run."));
        let verdict = |before, answer, after| judge(before, answer, after, &reason).unwrap();
        assert_eq!(verdict(true, &proper, true), Verdict::Refused);
        assert_eq!(verdict(true, &served, true), Verdict::Opened);
        for answer in [&proper, &served] {
            assert_eq!(verdict(false, answer, true), Verdict::NotJudged);
            assert_eq!(verdict(true, answer, false), Verdict::NotJudged);
        }
        let other = refused("The sandbox is not ready: wait. The command was not run.");
        assert!(judge(true, &other, true, &reason).is_err());
        assert!(
            judge(true, &refused(&reason), true, &reason).is_err(),
            "it may have run"
        );
    }

    #[test]
    fn a_gate_that_is_open_is_excused_for_as_long_as_news_take() {
        let early = SETTLES_WITHIN - Duration::from_millis(1);
        for verdict in [Verdict::Refused, Verdict::Opened, Verdict::NotJudged] {
            assert_eq!(step(early, verdict, 0).unwrap(), Step::TooEarly);
        }
        assert_eq!(step(SETTLES_WITHIN, Verdict::Refused, 0).unwrap(), Step::Refused);
        assert!(step(SETTLES_WITHIN, Verdict::Opened, ATTEMPTS - 1).is_err());
        assert!(step(SETTLES_WITHIN, Verdict::NotJudged, ENOUGH - 1).is_err());
        assert_eq!(step(SETTLES_WITHIN, Verdict::NotJudged, ENOUGH).unwrap(), Step::Mended);
    }
}
