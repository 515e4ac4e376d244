//! Why a call has no result, as the sentence that the model reads: what is wrong, whether the command ran, what to do.

use crate::cluster::ClusterError;
use crate::gate::Closed;
use crate::session::InvalidSessionId;

/// A tool error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments do not fit the tool's schema.
    #[error("{0}. The command was not run.")]
    Arguments(String),
    /// The request names no session.
    #[error(
        "No session: send the header X-Session-ID (or _meta {meta:?}) with an id of your own choice, 1 to 63 of a-z, 0-9 and -. The command was not run.",
        meta = crate::session::SESSION_META
    )]
    NoSession,
    /// The request names an invalid session.
    #[error("{0}: correct the header X-Session-ID. The command was not run.")]
    InvalidSession(#[from] InvalidSessionId),
    /// The request names two sessions.
    #[error("The request names two different sessions: send one X-Session-ID. The command was not run.")]
    TwoSessions,
    /// The instance is full.
    #[error(
        "At capacity: this instance serves at most {limit} sessions at one time. End a session (DELETE /sessions/<id>) or retry in some minutes, when idle ones have ended. The command was not run."
    )]
    AtCapacity {
        /// `maxSessions`.
        limit: u32,
    },
    /// A precondition of section 8 fails.
    #[error("Not ready: {0}. The command was not run.")]
    GateClosed(Closed),
    /// The sandbox has no proof that its network is closed.
    #[error(
        "EgressNotEnforced: the sandbox's network is not proven to be closed, so no command may run: {reason}. An administrator must see that the cluster's network plugin enforces NetworkPolicy and that the credential proxy is reachable, or set spec.sandbox.egressCheck to Disabled. The command was not run.",
        reason = .0.trim_start_matches("EgressNotEnforced: ")
    )]
    EgressNotEnforced(String),
    /// The sandbox is not there yet.
    #[error("The sandbox is not ready: {0}. Retry in some seconds. The command was not run.")]
    NotReady(String),
    /// The sandbox cannot start.
    #[error(
        "The sandbox cannot start: {0}. An administrator must mend that; the next call tries again. The command was not run."
    )]
    CannotStart(String),
    /// The session's queue is full.
    #[error("The session is busy: {0}. Wait for its other commands, or use another session. The command was not run.")]
    Busy(String),
    /// The agent refused the request itself.
    #[error("The sandbox refused the command: {0}. The command was not run.")]
    Refused(String),
    /// The API server refused or did not answer.
    #[error(
        "The cluster did not provide a sandbox: {0}. Retry; if it stays so, an administrator must look. The command was not run."
    )]
    Cluster(String),
    /// The connection broke while the command may have been running.
    #[error(
        "The connection to the sandbox broke while the command was running ({0}). It may have run wholly, in part or not at all, and is not sent again: look at its effects before you repeat it. The session can be used."
    )]
    Lost(String),
    /// The sandbox died while the command may have been running.
    #[error(
        "The sandbox died while the command was running ({0}). It may have run wholly or in part; files, variables and jobs of the session are gone. The next call gets a new sandbox."
    )]
    Died(String),
    /// The client cancelled a command that may have started.
    #[error("Cancelled: the command was stopped. It may have run in part: look at its effects before you repeat it.")]
    Cancelled,
    /// The client cancelled while the command had not been sent.
    #[error("Cancelled before the sandbox took the command. The command was not run.")]
    CancelledUnsent,
    /// The server is going down.
    #[error("The server is shutting down: retry, another replica answers. The command was not run.")]
    ShuttingDown,
    /// The server is going down and has no more time for a command that runs.
    #[error(
        "The server is shutting down, and the command, which was running, was stopped: it ran in part. Look at its effects before you repeat it. The session can be used."
    )]
    Stopped,
}

impl Failure {
    /// Short name for metrics and the audit line.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Arguments(_) => "bad_arguments",
            Self::NoSession | Self::InvalidSession(_) | Self::TwoSessions => "bad_session",
            Self::AtCapacity { .. } => "at_capacity",
            Self::GateClosed(_) => "gate_closed",
            Self::EgressNotEnforced(_) => "egress_not_enforced",
            Self::NotReady(_) => "not_ready",
            Self::CannotStart(_) => "cannot_start",
            Self::Busy(_) => "busy",
            Self::Refused(_) => "refused",
            Self::Cluster(_) => "cluster_error",
            Self::Lost(_) => "lost",
            Self::Died(_) => "sandbox_died",
            Self::Cancelled | Self::CancelledUnsent => "cancelled",
            Self::ShuttingDown | Self::Stopped => "shutting_down",
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Self::Cluster(error.to_string())
    }
}
