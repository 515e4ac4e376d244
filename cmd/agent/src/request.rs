//! Bodies of requests, checked: what is wrong is said in one sentence that names the field and the remedy (cases 13, 78, 99).

use cli_mcp_sandbox::wire::{AssignRequest, DEFAULT_TIMEOUT_SECONDS, ExecRequest, MAX_TIMEOUT_SECONDS};
use serde::Deserialize;
use serde_json::Value;

/// Bytes of a body at most.
pub const MAX_BODY_BYTES: usize = 4 << 20;

/// Characters of a session token at most.
const MAX_TOKEN_CHARACTERS: usize = 4096;

/// `/exec` as sent, so that a wrong value is told apart from a wrong shape.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExecRequest {
    #[serde(default)]
    command: Option<Value>,
    #[serde(default)]
    timeout: Option<Value>,
}

/// Reads and checks the body of `/exec`. `timeout` is always given in what comes back.
///
/// # Errors
///
/// The sentence for the caller.
pub fn exec_request(body: &[u8]) -> Result<ExecRequest, String> {
    // The parser would take a list for a request with its fields in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("the body is not a valid request: give a JSON object".to_owned());
    }
    let raw: RawExecRequest =
        serde_json::from_slice(body).map_err(|error| format!("the body is not a valid request: {error}"))?;
    let command = match raw.command {
        Some(Value::String(command)) => command,
        Some(other) => return Err(format!("command must be a string, not {}", kind_of(&other))),
        None => return Err("command is missing: give the command to run as a string".to_owned()),
    };
    if command.contains('\0') {
        return Err("command holds a NUL byte (\\u0000), which bash cannot take; nothing was run".to_owned());
    }
    let timeout = match raw.timeout {
        None | Some(Value::Null) => DEFAULT_TIMEOUT_SECONDS,
        Some(value) => value
            .as_u64()
            .and_then(|seconds| u32::try_from(seconds).ok())
            .filter(|seconds| (1..=MAX_TIMEOUT_SECONDS).contains(seconds))
            .ok_or_else(|| {
                format!(
                    "timeout must be a whole number of seconds from 1 to {MAX_TIMEOUT_SECONDS}, not {}",
                    shown(&value)
                )
            })?,
    };
    Ok(ExecRequest {
        command,
        timeout: Some(timeout),
    })
}

/// Reads and checks the body of `/assign`.
///
/// # Errors
///
/// The sentence for the caller, without the token.
pub fn assign_request(body: &[u8]) -> Result<AssignRequest, String> {
    // A parser's message may quote the value, which is a secret here.
    let wrong = || "the body must be {\"token\":\"…\"} and nothing else".to_owned();
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong());
    }
    let request: AssignRequest = serde_json::from_slice(body).map_err(|_| wrong())?;
    if request.token.is_empty()
        || request.token.len() > MAX_TOKEN_CHARACTERS
        || !request.token.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!(
            "token must be 1 to {MAX_TOKEN_CHARACTERS} visible ASCII characters"
        ));
    }
    Ok(request)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.len() <= 20 => format!("the string {text:?}"),
        other => kind_of(other).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_stands_for_absent_and_null() {
        for body in [r#"{"command":"id"}"#, r#"{"command":"id","timeout":null}"#] {
            assert_eq!(exec_request(body.as_bytes()).unwrap().timeout, Some(60));
        }
        assert_eq!(
            exec_request(br#"{"command":"","timeout":300}"#).unwrap().timeout,
            Some(300)
        );
    }

    #[test]
    fn a_bad_timeout_names_the_range() {
        for timeout in [
            "0",
            "-5",
            "301",
            "1.5",
            "\"5\"",
            "1e9",
            "1e400",
            "true",
            "[]",
            "99999999999999999999",
        ] {
            let error = exec_request(format!(r#"{{"command":"id","timeout":{timeout}}}"#).as_bytes()).unwrap_err();
            assert!(
                error.contains("from 1 to 300") || timeout == "1e400",
                "{timeout}: {error}"
            );
        }
    }

    #[test]
    fn each_wrong_body_is_named() {
        for (body, word) in [
            ("{\"command\":\"a\\u0000b\"}", "NUL"),
            ("{\"command\":7}", "a number"),
            ("{}", "missing"),
            ("{\"command\":\"x\",\"cwd\":\"/\"}", "cwd"),
            ("{\"command\":\"\\ud800\"}", "not a valid request"),
            ("[1]", "not a valid request"),
            ("", "not a valid request"),
            ("{\"command\":\"a\",\"command\":\"b\"}", "duplicate field"),
        ] {
            let error = exec_request(body.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{body}: {error}");
        }
    }

    #[test]
    fn a_bad_token_is_never_repeated() {
        for body in [
            r#"{"token":"se cret"}"#,
            r#"{"token":""}"#,
            r#"{"token":["secret"]}"#,
            r#"{"token":"secret","x":1}"#,
            r#"["secret"]"#,
        ] {
            let error = assign_request(body.as_bytes()).unwrap_err();
            assert!(!error.contains("secret") && !error.contains("se cret"), "{error}");
        }
    }
}
