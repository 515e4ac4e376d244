//! The tool's arguments, checked by hand so that every mistake is a sentence that the model can act on.

use cli_mcp_sandbox::wire::{DEFAULT_TIMEOUT_SECONDS, ExecRequest, MAX_TIMEOUT_SECONDS};
use serde_json::{Map, Value};

use super::definition::NAME;
use crate::failure::Failure;

/// Reads `command` and `timeout`.
pub(super) fn parse(arguments: Map<String, Value>) -> Result<ExecRequest, Failure> {
    let mut command = None;
    let mut timeout = None;
    for (name, value) in arguments {
        match name.as_str() {
            "command" => command = Some(value),
            "timeout" => timeout = Some(value),
            _ => return refuse(format!("{name:?} is no argument of bash: it takes command and timeout")),
        }
    }
    let command = match command {
        Some(Value::String(command)) => command,
        None | Some(Value::Null) => {
            return refuse("command is missing: give the bash command to run as a string".to_owned());
        }
        Some(_) => return refuse("command is not a string: give the bash command to run as a string".to_owned()),
    };
    if command.contains('\0') {
        return refuse("command contains a NUL character, which bash cannot take: remove it".to_owned());
    }
    Ok(ExecRequest {
        command,
        timeout: seconds(timeout)?,
    })
}

fn seconds(value: Option<Value>) -> Result<Option<u32>, Failure> {
    let range = || {
        Failure::Arguments(format!(
            "timeout must be a whole number of seconds from 1 to {MAX_TIMEOUT_SECONDS} (default {DEFAULT_TIMEOUT_SECONDS})"
        ))
    };
    let number = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number,
        Some(_) => return Err(range()),
    };
    // JSON Schema counts 30.0 as an integer.
    let whole = number.as_u64().or_else(|| {
        number
            .as_f64()
            .filter(|seconds| seconds.fract() == 0.0 && (1.0..=1e6).contains(seconds))
            .map(|seconds| seconds as u64)
    });
    match whole.and_then(|seconds| u32::try_from(seconds).ok()) {
        Some(seconds) if (1..=MAX_TIMEOUT_SECONDS).contains(&seconds) => Ok(Some(seconds)),
        _ => Err(range()),
    }
}

/// Why the parameters of a `tools/call` are none: its name and its arguments are looked at first.
pub(super) fn misfit(params: Option<&Value>) -> Failure {
    let empty = Map::new();
    let params = match params {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(params)) => params,
        Some(other) => {
            return Failure::Arguments(format!(
                "params is {}: give an object with name and arguments",
                kind(other)
            ));
        }
    };
    Failure::Arguments(match (params.get("name"), params.get("arguments")) {
        (None, _) => format!("name is missing: give the tool's name, {NAME:?}"),
        (Some(name), _) if !name.is_string() => {
            format!("name is {}: give the tool's name, {NAME:?}, as a string", kind(name))
        }
        (_, Some(arguments)) if !arguments.is_object() && !arguments.is_null() => format!(
            "arguments is {}: give an object such as {{\"command\": \"id\"}}",
            kind(arguments)
        ),
        _ => "a field beside name and arguments is none of tools/call, or of another type: leave it out".to_owned(),
    })
}

/// What a JSON value is.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn refuse<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Arguments(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<ExecRequest, String> {
        let Value::Object(arguments) = value else {
            panic!("an object")
        };
        parse(arguments).map_err(|failure| failure.to_string())
    }

    #[test]
    fn takes_what_the_schema_takes() {
        let request = |timeout| {
            Ok(ExecRequest {
                command: "id".into(),
                timeout,
            })
        };
        assert_eq!(read(json!({"command": "id"})), request(None));
        assert_eq!(read(json!({"command": "id", "timeout": null})), request(None));
        assert_eq!(read(json!({"command": "id", "timeout": 300})), request(Some(300)));
        assert_eq!(read(json!({"command": "id", "timeout": 30.0})), request(Some(30)));
        assert!(read(json!({"command": ""})).is_ok());
    }

    #[test]
    fn names_what_is_wrong() {
        for (arguments, word) in [
            (json!({}), "command is missing"),
            (json!({"command": 3}), "not a string"),
            (json!({"command": "a\u{0}b"}), "NUL"),
            (json!({"command": "id", "cwd": "/"}), "cwd"),
            (json!({"command": "id", "timeout": 0}), "1 to 300"),
            (json!({"command": "id", "timeout": -1}), "1 to 300"),
            (json!({"command": "id", "timeout": 301}), "1 to 300"),
            (json!({"command": "id", "timeout": 1.5}), "1 to 300"),
            (json!({"command": "id", "timeout": "60"}), "1 to 300"),
            (json!({"command": "id", "timeout": 1e300}), "1 to 300"),
        ] {
            let text = read(arguments.clone()).unwrap_err();
            assert!(
                text.contains(word) && text.ends_with("The command was not run."),
                "{arguments}: {text}"
            );
        }
    }

    #[test]
    fn parameters_that_are_none_of_a_call_are_told_with_what_was_found() {
        for (params, expected) in [
            (Value::Null, "name is missing"),
            (json!({"arguments": {"command": "id"}}), "name is missing"),
            (json!({"name": 3}), "name is a number"),
            (
                json!({"name": "bash", "arguments": "{\"command\": \"id\"}"}),
                "arguments is a string",
            ),
            (json!({"name": "bash", "arguments": ["id"]}), "arguments is an array"),
            (json!({"name": "bash", "arguments": true}), "arguments is a boolean"),
            (
                json!({"name": "bash", "arguments": null, "task": 3}),
                "beside name and arguments",
            ),
            (json!("bash"), "params is a string"),
        ] {
            let text = misfit(Some(&params)).to_string();
            assert!(
                text.contains(expected) && text.ends_with("The command was not run."),
                "{params}: {text}"
            );
        }
    }
}
