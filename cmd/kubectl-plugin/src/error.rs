//! Why a command of the plugin ends, and with which exit code.

use std::process::ExitCode;

use cli_mcp_client::cause;
use cli_mcp_client::session::SessionError;
use cli_mcp_serving::exit;

use crate::render;

/// Exit code of `run` when the command has none: it did not run, or nothing is known of its end. What `env`, `timeout`
/// and container engines use for a failure of their own.
pub const NO_RESULT: u8 = 125;

/// Exit code where the reader of standard output is gone: what a shell says of kubectl then, which SIGPIPE ends.
const PIPE_CLOSED: u8 = 128 + 13;

/// Why a command of the plugin did not do its work. No text holds a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The invocation cannot be served as it stands.
    #[error("{0}")]
    Invocation(String),
    /// The API server refused or did not answer.
    #[error("cannot {action}: {}", told(source))]
    Api {
        /// What was being done.
        action: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The resource is not served.
    #[error(
        "this cluster has no resource CliMcpInstance: install the operator (docs/install.md), or choose another cluster with --context"
    )]
    NotInstalled,
    /// The MCP server refused or did not answer.
    #[error("{0}")]
    Server(#[from] SessionError),
    /// The tool answered with an error in place of a result: its sentence says what to do.
    #[error("{0}")]
    NoResult(String),
    /// Something is not as it must be; the text says what to do.
    #[error("{0}")]
    Failed(String),
    /// The result cannot be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
}

/// What the API server said, in its own words; where it said nothing, why not, down to the root.
pub(crate) fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Service(cause) => cause::chain(cause.as_ref()),
        other => cause::chain(other),
    }
}

/// Result of a command of the plugin.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Names what was being done when the API server refused.
    pub fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api {
            action,
            source: Box::new(source),
        }
    }

    /// Says the error and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        // Servers quote what pods say.
        let text = || render::visible(&self.to_string());
        match self {
            Self::Invocation(_) => exit::refuse(text()),
            // A reader that closes the pipe, such as head, has read what it wants.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(PIPE_CLOSED),
            _ => exit::fail(text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_failure_is_told() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
        let error = Error::api("list pods")(kube::Error::Service(Box::new(refused)));
        assert_eq!(error.to_string(), "cannot list pods: connection refused");
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden").with_code(403);
        let error = Error::api("list pods")(kube::Error::Api(Box::new(status)));
        assert_eq!(error.to_string(), "cannot list pods: pods is forbidden");
    }
}
