//! One call of the tool: what is asked, what is answered, and the end of one that nobody waits for.

use rmcp::model::{CallToolRequestParams, CallToolResult, CancelledNotificationParam, JsonObject, RequestId};
use rmcp::service::{Peer, RequestHandle, RoleClient};
use serde::{Deserialize, Serialize};

use crate::session::SessionError;

/// What `bash` returned.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct BashResult {
    /// Standard output of the command.
    #[serde(default)]
    pub stdout: String,
    /// Standard error of the command.
    #[serde(default)]
    pub stderr: String,
    /// Exit status; absent when the command never ran.
    pub exit_code: Option<i32>,
    /// Milliseconds the command took.
    #[serde(default)]
    pub duration_ms: u64,
    /// The command was ended by its timeout.
    #[serde(default)]
    pub timed_out: bool,
    /// Output was cut.
    #[serde(default)]
    pub truncated: bool,
    /// The session was reset since the last call.
    pub session_reset: Option<String>,
    /// Text content of the tool result.
    #[serde(skip)]
    pub text: String,
    /// The tool result is an error.
    #[serde(skip)]
    pub is_error: bool,
}

/// A call that nobody waits for any more is cancelled, as the SDK (3.11) does with those that it hands out no token of; its own guard is
/// private.
pub(crate) struct Unanswered(Option<(Peer<RoleClient>, RequestId)>);

impl Unanswered {
    pub(crate) fn new(handle: &RequestHandle<RoleClient>) -> Self {
        Self(Some((handle.peer.clone(), handle.id.clone())))
    }

    /// There is nothing to cancel any more.
    pub(crate) fn is_answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some((peer, id)) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let reason = Some("nobody waits for the result".to_owned());
                // Without a connection there is nobody to tell.
                let _ = peer
                    .notify_cancelled(CancelledNotificationParam::new(Some(id), reason))
                    .await;
            });
        }
    }
}

/// The call of `bash` with these arguments.
pub(crate) fn request(arguments: serde_json::Value) -> Result<CallToolRequestParams, SessionError> {
    let arguments: JsonObject =
        serde_json::from_value(arguments).map_err(|error| SessionError::Result(error.to_string()))?;
    let mut request = CallToolRequestParams::new("bash");
    request.arguments = Some(arguments);
    Ok(request)
}

/// What it answered.
pub(crate) fn result_of(reply: CallToolResult) -> Result<BashResult, SessionError> {
    let text = reply
        .content
        .iter()
        .filter_map(|block| block.as_text())
        .map(|text| text.text.as_str())
        .collect();
    let structured = match reply.structured_content {
        Some(value) => serde_json::from_value(value).map_err(|error| SessionError::Result(error.to_string()))?,
        None => BashResult::default(),
    };
    Ok(BashResult {
        text,
        is_error: reply.is_error.unwrap_or(false),
        ..structured
    })
}
