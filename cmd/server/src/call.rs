//! One command from session to result: find the sandbox, wait for it by events, send the command once, watch over it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_api::labels;
use cli_mcp_sandbox::token::HmacKey;
use cli_mcp_sandbox::wire::{self, ExecResult};
use http::StatusCode;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

use crate::activity::{self, Activity};
use crate::agent::dial::DialError;
use crate::agent::{AgentClient, AgentError, Flight, OutputSink};
use crate::allocation::{Allocated, Allocator, OTHER_DECIDES, TakenOver};
use crate::backoff::Backoff;
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::session::SessionId;
use crate::store::cache::SandboxCache;
use crate::store::{Phase, Sandbox};
use crate::telemetry::{Stage, Telemetry};

/// How long a call waits for its sandbox to take the command. Under the 60 s after which common clients give up.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(50);

/// How long a dead sandbox's connection may still bring the result.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long the watch may take to tell that a sandbox died after its connection broke.
const OBITUARY: Duration = Duration::from_millis(1500);

/// The longest wait for an agent that answers nothing: its whole queue at the longest timeout.
const AGENT_LIMIT: Duration = Duration::from_secs(17 * wire::MAX_TIMEOUT_SECONDS as u64 + 60);

const DELETED: &str = "its pod was deleted";

/// What a call touched, for its audit line.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    /// The sandbox that was used last.
    pub sandbox: Option<Arc<Sandbox>>,
}

/// Runs commands.
pub struct Runner {
    allocator: Arc<Allocator>,
    cluster: Cluster,
    cache: Arc<SandboxCache>,
    agent: AgentClient,
    key: HmacKey,
    activity: Activity,
    telemetry: Telemetry,
}

/// What came of one sandbox.
enum Attempt {
    Done(ExecResult),
    /// It went away before the command was sent.
    Gone(Gone),
}

/// How a sandbox went away before it took a command.
enum Gone {
    /// It ended by itself.
    Died(String),
    /// Somebody deleted it.
    Deleted,
}

impl Runner {
    /// A runner over an allocator and the store that it uses.
    #[must_use]
    pub fn new(
        allocator: Arc<Allocator>,
        cluster: Cluster,
        cache: Arc<SandboxCache>,
        agent: AgentClient,
        key: HmacKey,
        activity: Activity,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            allocator,
            cluster,
            cache,
            agent,
            key,
            activity,
            telemetry,
        }
    }

    /// Runs one command in a session's sandbox. Dropping the future stops the command.
    ///
    /// # Errors
    ///
    /// A [`Failure`] that says whether the command may have run.
    pub async fn run(
        &self,
        session: &SessionId,
        flight: &Flight,
        mut output: Option<&mut impl OutputSink>,
        trail: &mut Trail,
    ) -> Result<ExecResult, Failure> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let stage = self.telemetry.begin(Stage::Lookup);
            let lookup = self
                .allocator
                .allocate(session, deadline)
                .instrument(info_span!("lookup"));
            let allocated = lookup.await;
            drop(stage);
            let allocated = allocated?;
            if allocated.fresh {
                self.activity.made(&allocated.sandbox);
            }
            trail.sandbox = Some(allocated.sandbox.clone());
            match self
                .attempt(session, &allocated, flight, &mut output, deadline, trail)
                .await?
            {
                Attempt::Done(mut result) => {
                    if let Some(used) = &trail.sandbox {
                        self.allocator.end_beside(used, session);
                        self.unmark(used);
                    }
                    if let Some(reason) = self.tell_loss(trail) {
                        result.session_reset = Some(format!(
                            "The session's sandbox was replaced ({reason}): files, variables and jobs of earlier commands are gone."
                        ));
                    }
                    return Ok(result);
                }
                // Another one would do the same.
                Attempt::Gone(Gone::Died(reason)) if allocated.fresh => return Err(Failure::CannotStart(reason)),
                // Where there is no more time, the search says so.
                Attempt::Gone(_) => {}
            }
        }
    }

    /// Takes the mark of an open network off a sandbox that has just run a command: its agent would not have. Left there, it
    /// would say so again when the sandbox is not ready for any other reason.
    fn unmark(&self, used: &Sandbox) {
        let marked = self.cache.read(|store| {
            store
                .get(&used.name)
                .filter(|now| now.uid == used.uid && now.egress_open)
                .cloned()
        });
        let Some(sandbox) = marked else { return };
        let cluster = self.cluster.clone();
        tokio::spawn(async move {
            if let Err(error) = cluster.closed(&sandbox).await {
                tracing::warn!(pod = %sandbox.name, %error, "Failed to note that a sandbox's network is closed again");
            }
        });
    }

    /// Why the sandbox that just answered replaces another, if no result has told that yet. This one does.
    fn tell_loss(&self, trail: &Trail) -> Option<String> {
        let sandbox = trail.sandbox.clone()?;
        let reason = self.cache.read(|store| {
            let now = store.get(&sandbox.name).filter(|now| now.uid == sandbox.uid)?;
            now.replaces.clone()
        })?;
        let cluster = self.cluster.clone();
        self.cache.write(|store| store.told(&sandbox));
        tokio::spawn(async move {
            if let Err(error) = cluster.told(&sandbox).await {
                tracing::warn!(pod = %sandbox.name, %error, "Failed to note that a client was told of its session's reset");
            }
        });
        Some(reason)
    }

    async fn attempt(
        &self,
        session: &SessionId,
        allocated: &Allocated,
        flight: &Flight,
        output: &mut Option<&mut impl OutputSink>,
        deadline: Instant,
        trail: &mut Trail,
    ) -> Result<Attempt, Failure> {
        let mut stages = AttemptStages::new(&self.telemetry, flight);
        let token = self.key.session_token(session.as_str());
        let mut backoff = Backoff::default();
        // A pod that starts slowly has as long for what comes after its start.
        let mut first_answer = None;
        loop {
            let ready = self
                .startable(&allocated.sandbox, deadline)
                .instrument(info_span!("ready"));
            let sandbox = match ready.await? {
                Ok(sandbox) => sandbox,
                Err(gone) => return Ok(Attempt::Gone(gone)),
            };
            trail.sandbox = Some(sandbox.clone());
            stages.send();
            let exec = self
                .agent
                .exec(&sandbox, &token, flight, output.as_deref_mut())
                .instrument(info_span!("exec", otel.kind = "client", pod = %sandbox.name));
            let outcome = self.watch_over(&sandbox, flight, exec).await?;
            let retry = match outcome {
                Ok(result) => return Ok(Attempt::Done(result)),
                Err(AgentError::Lost(reason)) => return Err(self.fate(&sandbox, reason).await),
                Err(AgentError::NotReached(error)) => error.to_string(),
                Err(AgentError::Refused {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    message,
                }) => {
                    let since = *first_answer.get_or_insert_with(Instant::now);
                    let patience = patience(allocated, &sandbox, &message, since, deadline);
                    if Instant::now() >= patience
                        && self.give_up_waiting(session, &sandbox, &message).await? == TakenOver::GivenUp
                    {
                        return Ok(Attempt::Gone(Gone::Deleted));
                    }
                    message
                }
                Err(AgentError::Refused { status, message }) => return Err(refusal(status, message)),
            };
            if Instant::now() >= deadline {
                return Err(Failure::NotReady(retry));
            }
            let changed = self
                .cache
                .wait_for(|store| sandbox.changed(store.get(&sandbox.name)).then_some(()));
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = changed => {}
            }
        }
    }

    /// Waits until the sandbox has an address. The inner error: it is gone, and why.
    async fn startable(&self, wanted: &Arc<Sandbox>, deadline: Instant) -> Result<Result<Arc<Sandbox>, Gone>, Failure> {
        let mut why = None;
        let found = self.cache.wait_for(|store| {
            let Some(now) = store.get(&wanted.name).filter(|now| now.uid == wanted.uid) else {
                return Some(Ok(Err(Gone::Deleted)));
            };
            match &now.phase {
                Phase::Dead(reason) => Some(Ok(Err(Gone::Died(reason.clone())))),
                _ if now.ended => Some(Ok(Err(Gone::Deleted))),
                Phase::Terminating(_) => Some(Ok(Err(Gone::Deleted))),
                Phase::Starting(Some(reason)) if is_hopeless(reason) => Some(Err(Failure::CannotStart(reason.clone()))),
                Phase::Starting(_) | Phase::Running if now.address.is_some() => Some(Ok(Ok(now.clone()))),
                Phase::Starting(reason) => {
                    why.clone_from(reason);
                    None
                }
                Phase::Running => None,
            }
        });
        match tokio::time::timeout_at(deadline, found).await {
            Ok(found) => found,
            Err(_) => Err(Failure::NotReady(match why {
                Some(reason) => format!("pod {} is still starting ({reason})", wanted.name),
                None => format!("pod {} is still starting", wanted.name),
            })),
        }
    }

    /// Lets a command run to its end, writes activity along the way, and does not wait for a sandbox that died.
    async fn watch_over<T>(
        &self,
        sandbox: &Arc<Sandbox>,
        flight: &Flight,
        exec: impl Future<Output = Result<T, AgentError>>,
    ) -> Result<Result<T, AgentError>, Failure> {
        let death = async {
            let reason = self
                .cache
                .wait_for(|store| death(store.get(&sandbox.name), &sandbox.uid))
                .await;
            tokio::time::sleep(LAST_WORDS).await;
            reason
        };
        let limit = tokio::time::sleep(AGENT_LIMIT);
        tokio::pin!(exec, death, limit);
        self.activity.touch(sandbox);
        let mut beat = tokio::time::interval_at(Instant::now() + activity::BEAT, activity::BEAT);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut exec => break Ok(outcome),
                reason = &mut death => break if flight.may_have_started() {
                    Err(Failure::Died(reason))
                } else {
                    Ok(Err(AgentError::NotReached(DialError::new(reason))))
                },
                () = &mut limit => break Err(Failure::Lost("the agent does not answer".to_owned())),
                _ = beat.tick() => self.activity.touch(sandbox),
            }
        };
        self.activity.touch(sandbox);
        outcome
    }

    /// After a connection broke: did the sandbox die, or only the connection?
    async fn fate(&self, sandbox: &Sandbox, reason: String) -> Failure {
        let death = self
            .cache
            .wait_for(|store| death(store.get(&sandbox.name), &sandbox.uid));
        match tokio::time::timeout(OBITUARY, death).await {
            Ok(death) => Failure::Died(death),
            Err(_) => {
                let going = self
                    .cache
                    .read(|store| store.get(&sandbox.name).is_none_or(|now| !now.usable()));
                if going {
                    Failure::Died(DELETED.to_owned())
                } else {
                    Failure::Lost(reason)
                }
            }
        }
    }

    /// The patience with a 503 is at its end: report it, or do what another replica left undone.
    async fn give_up_waiting(
        &self,
        session: &SessionId,
        sandbox: &Sandbox,
        message: &str,
    ) -> Result<TakenOver, Failure> {
        if message.contains(wire::EGRESS_NOT_ENFORCED) {
            // What is only not proven yet says nothing of the cluster's network.
            if message.contains(wire::EGRESS_OPEN) {
                let told = BTreeMap::from([(labels::EGRESS, labels::EGRESS_NOT_ENFORCED.to_owned())]);
                if let Err(error) = self.cluster.annotate(sandbox, &told).await {
                    tracing::warn!(pod = %sandbox.name, %error, "Failed to tell the operator that egress is not enforced");
                }
            }
            return Err(Failure::EgressNotEnforced(message.to_owned()));
        }
        if sandbox.claimed {
            return self.allocator.take_over(sandbox, session).await;
        }
        Err(Failure::NotReady(message.to_owned()))
    }
}

/// Counts the stages of an attempt when it is over: a sandbox that does not take its command is waited for until then.
struct AttemptStages<'a> {
    telemetry: &'a Telemetry,
    flight: &'a Flight,
    began: Instant,
    sent: Instant,
}

impl<'a> AttemptStages<'a> {
    fn new(telemetry: &'a Telemetry, flight: &'a Flight) -> Self {
        let began = Instant::now();
        Self {
            telemetry,
            flight,
            began,
            sent: began,
        }
    }

    /// The command is sent, maybe not for the first time.
    fn send(&mut self) {
        self.sent = Instant::now();
    }
}

impl Drop for AttemptStages<'_> {
    fn drop(&mut self) {
        if self.flight.may_have_started() {
            self.telemetry.stage(Stage::Ready, self.sent.duration_since(self.began));
            self.telemetry.stage(Stage::Exec, self.sent.elapsed());
        } else {
            self.telemetry.stage(Stage::Ready, self.began.elapsed());
        }
    }
}

/// Until when a 503 is waited out that the sandbox has answered since then.
fn patience(allocated: &Allocated, sandbox: &Sandbox, message: &str, since: Instant, deadline: Instant) -> Instant {
    if message.contains(wire::EGRESS_NOT_ENFORCED) {
        let settling = allocated.fresh || !sandbox.ready;
        if settling {
            (since + wire::POLICY_SETTLES).min(deadline)
        } else {
            since
        }
    } else if sandbox.claimed {
        (since + OTHER_DECIDES).min(deadline)
    } else {
        deadline
    }
}

fn refusal(status: StatusCode, message: String) -> Failure {
    match status {
        StatusCode::CONFLICT => Failure::Busy(message),
        StatusCode::UNAUTHORIZED => Failure::Refused(format!(
            "{message}; its token was derived from another key: end the session (DELETE /sessions/<id>) and begin anew"
        )),
        _ => Failure::Refused(message),
    }
}

fn death(now: Option<&Arc<Sandbox>>, uid: &str) -> Option<String> {
    match now.filter(|now| now.uid == uid) {
        None => Some(DELETED.to_owned()),
        Some(now) => match &now.phase {
            Phase::Dead(reason) => Some(reason.clone()),
            Phase::Starting(_) | Phase::Running | Phase::Terminating(_) => None,
        },
    }
}

/// Reasons of the kubelet that waiting does not mend
/// (<https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff> and the kubelet's image manager).
fn is_hopeless(reason: &str) -> bool {
    const HOPELESS: [&str; 7] = [
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImagePullBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    ];
    HOPELESS.iter().any(|hopeless| reason.starts_with(hopeless))
}

#[cfg(test)]
mod tests;
