//! What clients and models read about the tool: name, description, schemas, annotations.

use std::sync::Arc;

use cli_mcp_sandbox::wire::{DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS};
use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

/// Name of the tool.
pub const NAME: &str = "bash";

/// The server's instructions for clients.
pub(super) const INSTRUCTIONS: &str = "One tool, bash, runs commands in a sandbox of the session, with kubectl set up for the clusters that the \
administrator chose. The shell persists: cwd, variables and files are there in the next call of the same session. Name the session in the \
header X-Session-ID, or in _meta \"cli-mcp.redhat.com/session-id\".";

const DESCRIPTION: &str = "Runs a bash command in the session's sandbox and returns stdout, stderr and the exit code. The shell persists between \
calls: working directory, variables, functions, background jobs and files are kept. kubectl works without a login: credentials are added \
outside the sandbox. There is no terminal and stdin is empty. Only the clusters and hosts that the administrator allowed can be reached. Output over \
256 KiB a stream is cut in the middle; the full text is then in a file that the cut names.";

/// The tool as `tools/list` shows it.
pub(super) fn tool() -> Tool {
    Tool::new(NAME, DESCRIPTION, object(input_schema()))
        .with_title("Bash in a sandbox")
        .with_raw_output_schema(object(output_schema()))
        .with_annotations(ToolAnnotations::from_raw(
            Some("Bash in a sandbox".to_owned()),
            Some(false),
            Some(true),
            Some(false),
            Some(true),
        ))
}

fn object(schema: Value) -> Arc<Map<String, Value>> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

fn input_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "description": "The bash command or script to run."
            },
            "timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_TIMEOUT_SECONDS,
                "default": DEFAULT_TIMEOUT_SECONDS,
                "description": "Seconds after which the command is ended; the shell and its state stay."
            }
        },
        "required": ["command"],
        "additionalProperties": false
    })
}

fn output_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "stdout": {"type": "string", "description": "What the command wrote to stdout."},
            "stderr": {"type": "string", "description": "What the command wrote to stderr."},
            "exit_code": {
                "type": "integer",
                "minimum": 0,
                "maximum": 255,
                "description": "Exit status; 124 after a timeout, 130 after a cancel."
            },
            "duration_ms": {"type": "integer", "minimum": 0, "description": "Milliseconds that the command ran."},
            "timed_out": {"type": "boolean", "description": "Present when the command was ended because its time was up."},
            "truncated": {"type": "boolean", "description": "Present when output was cut."},
            "session_reset": {
                "type": "string",
                "description": "Present when the shell or the sandbox was replaced since the last call: what was lost."
            }
        },
        "required": ["stdout", "stderr", "exit_code", "duration_ms"],
        "additionalProperties": false
    })
}

#[cfg(test)]
mod tests {
    use cli_mcp_sandbox::wire::ExecResult;

    use super::*;

    #[test]
    fn every_field_of_a_result_is_in_the_schema_and_the_constant_ones_are_required() {
        let schema = output_schema();
        let keys = |result: &ExecResult| -> Vec<String> {
            serde_json::to_value(result)
                .unwrap()
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect()
        };
        let full = ExecResult {
            timed_out: true,
            truncated: true,
            session_reset: Some("x".into()),
            ..ExecResult::default()
        };
        let mut described: Vec<String> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        let mut written = keys(&full);
        described.sort();
        written.sort();
        assert_eq!(written, described);
        let mut required: Vec<String> = schema["required"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        let mut always = keys(&ExecResult::default());
        required.sort();
        always.sort();
        assert_eq!(always, required);
    }
}
