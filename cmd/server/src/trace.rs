//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>) of a caller: taken from the request, carried to the agent,
//! named in the audit line. With an exporter of spans, a call's own spans stand in between.

use cli_mcp_serving::otlp;
use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::Span;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A caller's trace, if it sent a valid one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    parent: Option<HeaderValue>,
    state: Option<HeaderValue>,
}

impl TraceContext {
    /// Takes the header's text; an invalid `traceparent` is ignored together with its `tracestate`.
    #[must_use]
    pub fn new(parent: Option<&str>, state: Option<&str>) -> Self {
        let Some(parent) = parent.filter(|text| is_traceparent(text)) else {
            return Self::default();
        };
        Self {
            parent: HeaderValue::from_str(parent).ok(),
            state: state
                .filter(|text| text.len() <= 512)
                .and_then(|text| HeaderValue::from_str(text).ok()),
        }
    }

    /// Takes the headers of a request.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        Self::new(text(TRACEPARENT), text(TRACESTATE))
    }

    /// Whether the caller sent none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parent.is_none()
    }

    /// Makes a call's span a child of the caller's, and continues from there. Without an exporter the caller's own trace
    /// goes on as it came.
    #[must_use]
    pub fn enter(self, span: &Span) -> Self {
        otlp::adopt(span, text(self.parent.as_ref()), text(self.state.as_ref()));
        self.continued(span)
    }

    /// The trace as who is called within `span` should see it.
    #[must_use]
    pub fn continued(self, span: &Span) -> Self {
        match otlp::context(span) {
            Some((parent, state)) => Self::new(Some(&parent), state.as_deref()),
            None => self,
        }
    }

    /// Adds the headers to a request.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in [(TRACEPARENT, &self.parent), (TRACESTATE, &self.state)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
    }

    /// The trace id, 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.parent.as_ref()?.to_str().ok()?.split('-').nth(1)
    }
}

fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.and_then(|value| value.to_str().ok())
}

fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, length: usize| {
        part.len() == length
            && part
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    let mut parts = text.split('-');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(version), Some(trace), Some(span), Some(flags)) => {
            hex(version, 2)
                && version != "ff"
                && hex(trace, 32)
                && !zero(trace)
                && hex(span, 16)
                && !zero(span)
                && hex(flags, 2)
                && (version != "00" || parts.next().is_none())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn carries_a_valid_one() {
        let trace = TraceContext::new(Some(VALID), Some("a=1"));
        let mut headers = HeaderMap::new();
        trace.apply(&mut headers);
        assert_eq!(headers["traceparent"], VALID);
        assert_eq!(headers["tracestate"], "a=1");
        assert_eq!(trace.trace_id(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(TraceContext::from_headers(&headers), trace);
    }

    #[test]
    fn ignores_what_is_none() {
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(TraceContext::new(Some(bad), Some("a=1")).is_empty(), "{bad}");
        }
    }
}
