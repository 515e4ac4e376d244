//! Requests: the headers that decide, and a body within its bounds.

use std::time::Duration;

use bytes::Bytes;
use cli_mcp_sandbox::token::TokenDigest;
use cli_mcp_sandbox::wire::NDJSON;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, EXPECT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;

use super::answer::{Refused, error, refused};
use crate::request::MAX_BODY_BYTES;

/// How long a client may take to send a body.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// How long a client may take to send one that is only read to be forgotten.
const FORGET_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a body over the limit that are read and forgotten, so that a client hears why before it finds the door shut.
const FORGIVEN_BYTES: usize = 16 << 20;

/// The bearer token of a request: none, or one that is well formed.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    value
        .split(';')
        .next()
        .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

pub(super) fn wants_lines(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            parts
                .next()
                .is_some_and(|media_type| media_type.eq_ignore_ascii_case(NDJSON))
                && !parts.any(is_no_weight)
        })
}

/// Whether a parameter says that its media type is not acceptable (RFC 9110, 12.4.2).
fn is_no_weight(parameter: &str) -> bool {
    let weight = parameter
        .strip_prefix(['q', 'Q'])
        .and_then(|rest| rest.strip_prefix('='));
    weight.is_some_and(|weight| weight.parse() == Ok(0.0))
}

pub(super) fn one_authorization(headers: &HeaderMap) -> Result<(), Refused> {
    if headers.get_all(AUTHORIZATION).iter().count() > 1 {
        return Err(refused(StatusCode::BAD_REQUEST, "more than one Authorization header"));
    }
    Ok(())
}

/// Whether a request has a bearer token at all.
pub(super) fn has_token(headers: &HeaderMap) -> bool {
    bearer(headers).is_some()
}

pub(super) fn authenticate(headers: &HeaderMap, expected: &TokenDigest) -> Result<(), Refused> {
    // An absent token is compared as well: the time says nothing.
    if expected.matches(bearer(headers).unwrap_or_default()) {
        return Ok(());
    }
    Err(unauthorized())
}

pub(super) fn unauthorized() -> Refused {
    let mut answer = error(StatusCode::UNAUTHORIZED, "wrong or missing bearer token");
    answer
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Box::new(answer)
}

/// Reads a body of JSON. Before that `admit` is asked, with the most bytes that it may have; what it gives comes with the body.
pub(super) async fn json_body<B: Body<Data = Bytes> + Unpin, P>(
    request: &mut Request<B>,
    admit: impl FnOnce(usize) -> Result<P, Refused>,
) -> Result<(Vec<u8>, P), Refused> {
    if !is_json(request.headers()) {
        return Err(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must have Content-Type: application/json",
        ));
    }
    let body = request.body_mut();
    let least = body.size_hint().lower();
    if least > MAX_BODY_BYTES as u64 {
        return Err(forget_too_large(body).await);
    }
    let most = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let admitted = admit(most.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES))?;
    let mut bytes = Vec::with_capacity(usize::try_from(least).unwrap_or(0));
    read_body(body, |piece| bytes.extend_from_slice(piece)).await?;
    Ok((bytes, admitted))
}

/// Reads what is left of the body of a request that is refused, so that the client hears why before it finds the door shut. One
/// that asks whether to send it at all is spared that, and what was too large or too slow was waited for already.
pub(super) async fn forget_body<B: Body<Data = Bytes> + Unpin>(request: &mut Request<B>, status: StatusCode) {
    let waited_for = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::REQUEST_TIMEOUT].contains(&status);
    if status.is_success() || waited_for || request.headers().contains_key(EXPECT) || !may_be_read(request.body()) {
        return;
    }
    let body = request.body_mut();
    let read = async {
        let mut left = MAX_BODY_BYTES + FORGIVEN_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    // Who sends no more by then has stopped to hear the answer.
    let _ = tokio::time::timeout(FORGET_WAIT, read).await;
}

/// Whether a body is no longer than what is read of any.
fn may_be_read<B: Body>(body: &B) -> bool {
    body.size_hint().lower() <= (MAX_BODY_BYTES + FORGIVEN_BYTES) as u64
}

fn too_large() -> Refused {
    refused(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is over {MAX_BODY_BYTES} bytes; write long input to a file in pieces"),
    )
}

/// Reads a body over the limit, and keeps nothing of it.
async fn forget_too_large<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Refused {
    read_body(body, |_| {}).await.err().unwrap_or_else(too_large)
}

/// Reads a body, hands its pieces up to the limit to `keep`, and says how many bytes it had.
pub(super) async fn read_body<B: Body<Data = Bytes> + Unpin>(
    body: &mut B,
    mut keep: impl FnMut(&[u8]),
) -> Result<usize, Refused> {
    if !may_be_read(body) {
        return Err(too_large());
    }
    let read = async {
        let mut total = 0_usize;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(refused(StatusCode::BAD_REQUEST, "the body ended early"));
            };
            let Ok(data) = frame.into_data() else { continue };
            total += data.len();
            if total > MAX_BODY_BYTES + FORGIVEN_BYTES {
                return Err(too_large());
            }
            if total <= MAX_BODY_BYTES {
                keep(&data);
            }
        }
        if total > MAX_BODY_BYTES {
            Err(too_large())
        } else {
            Ok(total)
        }
    };
    match tokio::time::timeout(BODY_WAIT, read).await {
        Ok(read) => read,
        Err(_) => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}
