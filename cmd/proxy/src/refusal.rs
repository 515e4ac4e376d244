//! What a client gets instead of an answer from upstream: a `metav1.Status` on kubernetes targets, so that kubectl
//! prints the reason (`proxy.md`, step 7; `proxy_cases.md`, case 55), text everywhere else.

use axum::http::StatusCode;
use serde::Serialize;

/// A response that the proxy itself gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status code.
    pub status: u16,
    /// What is wrong and what to do. Holds no secret.
    pub message: String,
}

impl Refusal {
    /// A refusal with this status and message.
    #[must_use]
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// The whole response. `close` says that the connection ends with it.
    #[must_use]
    pub fn to_response(&self, kubernetes: bool, head_only: bool, close: bool) -> Vec<u8> {
        let (content_type, body) = if kubernetes {
            ("application/json", self.to_status())
        } else {
            ("text/plain; charset=utf-8", format!("{}\n", self.message))
        };
        let connection = if close { "Connection: close\r\n" } else { "" };
        let allow = if self.status == 405 {
            "Allow: GET, HEAD, POST, PUT, PATCH, DELETE\r\n"
        } else {
            ""
        };
        // Whoever holds most is told to hold less, not to go away.
        let retry = if self.status == 503 { "Retry-After: 1\r\n" } else { "" };
        let mut out = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{allow}{retry}{connection}\r\n",
            self.status,
            phrase(self.status),
            body.len(),
        )
        .into_bytes();
        if !head_only {
            out.extend_from_slice(body.as_bytes());
        }
        out
    }

    fn to_status(&self) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Status<'a> {
            kind: &'a str,
            api_version: &'a str,
            metadata: serde_json::Map<String, serde_json::Value>,
            status: &'a str,
            message: &'a str,
            reason: &'a str,
            code: u16,
        }
        let status = Status {
            kind: "Status",
            api_version: "v1",
            metadata: serde_json::Map::new(),
            status: "Failure",
            message: &self.message,
            reason: reason(self.status),
            code: self.status,
        };
        // A plain struct of strings always serialises.
        serde_json::to_string(&status).unwrap_or_default()
    }
}

/// `metav1.StatusReason` of the status codes that the proxy gives.
const fn reason(status: u16) -> &'static str {
    match status {
        403 => "Forbidden",
        405 => "MethodNotAllowed",
        414 | 431 => "RequestEntityTooLarge",
        502 | 503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "BadRequest",
    }
}

/// Reason phrase of a status code. It may be empty (RFC 9112, section 4).
#[must_use]
pub fn phrase(status: u16) -> &'static str {
    StatusCode::from_u16(status)
        .ok()
        .and_then(|code| code.canonical_reason())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_55_kubernetes_clients_get_a_status() {
        let response = String::from_utf8(Refusal::new(403, "no \"exec\"").to_response(true, false, false)).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
        assert!(head.contains("Content-Type: application/json"), "{head}");
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], "Forbidden");
        assert_eq!(status["code"], 403);
        assert_eq!(status["message"], "no \"exec\"");
    }

    #[test]
    fn case_55_each_status_has_its_phrase_and_a_reason_that_kubernetes_knows() {
        for (status, phrase, reason) in [
            (400, "Bad Request", "BadRequest"),
            (403, "Forbidden", "Forbidden"),
            (405, "Method Not Allowed", "MethodNotAllowed"),
            (414, "URI Too Long", "RequestEntityTooLarge"),
            (417, "Expectation Failed", "BadRequest"),
            (421, "Misdirected Request", "BadRequest"),
            (431, "Request Header Fields Too Large", "RequestEntityTooLarge"),
            (502, "Bad Gateway", "ServiceUnavailable"),
            (503, "Service Unavailable", "ServiceUnavailable"),
            (504, "Gateway Timeout", "Timeout"),
            (505, "HTTP Version Not Supported", "BadRequest"),
        ] {
            let response = String::from_utf8(Refusal::new(status, "x").to_response(true, false, false)).unwrap();
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status} {phrase}\r\n")),
                "{response}"
            );
            assert!(response.contains(&format!("\"reason\":\"{reason}\"")), "{response}");
            assert_eq!(response.contains("\r\nRetry-After: 1\r\n"), status == 503, "{response}");
        }
    }

    #[test]
    fn a_head_request_gets_no_body() {
        let response = Refusal::new(400, "x").to_response(true, true, true);
        assert!(response.ends_with(b"Connection: close\r\n\r\n"));
    }
}
