//! Why a reconcile failed and is tried again. What an admin must mend is a condition, not an error.

use std::sync::Arc;

/// A reconcile that must be repeated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("failed to {action}: {}", text(source))]
    Api {
        /// What was being done.
        action: String,
        /// Why it failed.
        source: Arc<kube::Error>,
    },
    /// A watched object came without a name or namespace, which the API server never sends.
    #[error("the API server sent an object without {0}")]
    Incomplete(&'static str),
    /// The CA of the proxy could not be generated.
    #[error("failed to generate the CA of the proxy: {0}")]
    Generate(#[from] rcgen::Error),
    /// An object could not be turned into JSON, which does not happen for the types of Kubernetes.
    #[error("failed to serialize an object: {0}")]
    Serialize(#[from] serde_json::Error),
}

impl Error {
    /// Names what was being done when the API server refused.
    pub fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api {
            action,
            source: Arc::new(source),
        }
    }

    /// Whether the object was changed by another since it was read.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.is_conflict()))
    }

    /// A label of few values for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            _ if self.is_conflict() => "conflict",
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.is_forbidden() => "forbidden",
                kube::Error::Api(_) => "api",
                _ => "transport",
            },
            Self::Incomplete(_) => "incomplete",
            Self::Generate(_) => "generate",
            Self::Serialize(_) => "serialize",
        }
    }
}

/// What the API server said, in its own words; another failure as it stands.
#[must_use]
pub fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Fails with the first of what was refused, which is tried again with back-off. The others are logged.
///
/// # Errors
///
/// When anything was refused.
pub fn first_of(refused: Vec<Error>) -> Result<()> {
    let mut refused = refused.into_iter();
    let first = refused.next();
    for error in refused {
        tracing::warn!(%error, "Reconcile failed at more than one thing");
    }
    first.map_or(Ok(()), Err)
}

/// Result of a stage.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_api_server() {
        let refused = kube::Error::Api(Box::new(
            Status::failure("pods is forbidden: exceeded quota", "Forbidden").with_code(403),
        ));
        let error = Error::api("create pod ns/p")(refused);
        assert_eq!(
            error.to_string(),
            "failed to create pod ns/p: pods is forbidden: exceeded quota"
        );
        assert_eq!(error.label(), "forbidden");
    }
}
