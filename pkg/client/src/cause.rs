//! Why a call failed, down to the root: what people need is below what HTTP clients and the SDK say of themselves.

use std::error::Error;

use rmcp::ServiceError;
use rmcp::service::ClientInitializeError;
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::session::FailedCall;

/// The error and its causes, outermost first; a cause that the text before it tells already is left out.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = error.source();
    }
    text
}

pub(crate) fn of_connect(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => of_transport(error),
        other => chain(other),
    }
}

pub(crate) fn of_call(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => of_transport(error),
        other => chain(other),
    }
}

pub(crate) fn tells(error: &ServiceError) -> FailedCall {
    match error {
        // Also what the SDK makes of a stream that ended before its result.
        ServiceError::TransportClosed => FailedCall::Unanswered,
        ServiceError::TransportSend(error) => match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            Some(
                StreamableHttpError::Sse(_)
                | StreamableHttpError::Io(_)
                | StreamableHttpError::Client(_)
                | StreamableHttpError::UnexpectedEndOfStream
                | StreamableHttpError::TransportChannelClosed,
            ) => FailedCall::Unanswered,
            Some(StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_)) => {
                FailedCall::Refused
            }
            // The SDK drops the body, and keeps this header, which says that it is worth asking again.
            Some(StreamableHttpError::HttpStatus(status)) if status.retry_after.is_some() => FailedCall::Refused,
            _ => FailedCall::Wrong,
        },
        _ => FailedCall::Wrong,
    }
}

/// The SDK (3.11) names its transport's Rust type, and breaks the chain at the HTTP client's error.
fn of_transport(error: &DynamicTransportError) -> String {
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        // Its own text is the URL again.
        Some(StreamableHttpError::Client(http)) => http.source().map_or_else(|| chain(http), chain),
        // The SDK drops the answer's body, where the server says this itself.
        Some(StreamableHttpError::AuthRequired(_)) => {
            "the server wants another bearer token: this one is missing, unknown, expired or made for another audience: get a new one, for example by kubectl create token".to_owned()
        }
        Some(StreamableHttpError::InsufficientScope(_)) => {
            "the token's user may not call this instance: an administrator binds it to the Role cli-mcp-NAME-client, with the name of the instance".to_owned()
        }
        Some(other) => chain(other),
        None => chain(error.error.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rmcp::model::ErrorData;
    use rmcp::transport::streamable_http_client::{HttpStatusError, StreamableHttpError};
    use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport};
    use rmcp::{RoleClient, ServiceError};

    use crate::session::{Endpoint, FailedCall, SessionError};

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Told(&'static str, #[source] Option<Box<Told>>);

    #[test]
    fn a_cause_is_told_once() {
        let root = Told("connection refused", None);
        let middle = Told("cannot connect: connection refused", Some(Box::new(root)));
        let outer = Told("request failed", Some(Box::new(middle)));
        assert_eq!(
            super::chain(&outer),
            "request failed: cannot connect: connection refused"
        );
    }

    #[test]
    fn a_broken_connection_is_told_from_a_refusal_and_from_a_wrong_answer() {
        let transport = |error: StreamableHttpError<reqwest::Error>| {
            type Http = StreamableHttpClientTransport<reqwest::Client>;
            ServiceError::TransportSend(DynamicTransportError::new::<Http, RoleClient>(error))
        };
        let status = |status, retry_after: Option<&str>| {
            transport(HttpStatusError::new(status, retry_after.map(str::to_owned)).into())
        };
        for (error, expected) in [
            (ServiceError::TransportClosed, FailedCall::Unanswered),
            (
                transport(StreamableHttpError::UnexpectedEndOfStream),
                FailedCall::Unanswered,
            ),
            (status(503, Some("2")), FailedCall::Refused),
            (status(500, None), FailedCall::Wrong),
            (
                transport(StreamableHttpError::UnexpectedServerResponse("HTTP 404: ".into())),
                FailedCall::Wrong,
            ),
            (
                ServiceError::McpError(ErrorData::internal_error("no", None)),
                FailedCall::Wrong,
            ),
        ] {
            let error = SessionError::Call(error);
            assert_eq!(error.tells(), expected, "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_without_the_sdks_types() {
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint = Endpoint {
            base_url: format!("http://{address}"),
            ca_pem: None,
            token: None,
        };
        let error = endpoint.connect("s").await.err().unwrap().to_string();
        assert!(error.contains("refused") && !error.contains("::"), "{error}");
    }
}
