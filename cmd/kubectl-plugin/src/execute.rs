//! `run`: one command in a session, its output as it comes, its exit code as ours.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use cli_mcp_api::duration::GoDuration;
use cli_mcp_client::stream::Stream;
use serde_json::{Value, json};

use crate::cli::{Format, Place, RunArguments};
use crate::connect::Server;
use crate::error::{Error, Result};
use crate::render;

/// Runs the command and returns its exit code.
pub(crate) async fn run(place: &Place, arguments: &RunArguments) -> Result<u8> {
    let command = match &arguments.file {
        Some(file) => read(file)?,
        None => script(&arguments.command),
    };
    let call = call(command, arguments.timeout)?;
    // Kept until the end: its port-forward carries the call.
    let server = Server::of(place, &arguments.connection).await?;
    let session = server.session(&arguments.session).await?;
    let json = arguments.output.output == Format::Json;
    // Where nobody reads any more, this returns at once, and the server stops a command whose client has left.
    let result = session
        .follow(call, |stream, text| {
            if json {
                return Ok(());
            }
            show(stream, text).map_err(Error::Output)
        })
        .await?;
    let Some(code) = result.exit_code else {
        return Err(Error::NoResult(result.text));
    };
    if json {
        render::print_json(&result)?;
    } else if let Some(reset) = &result.session_reset {
        show(Stream::Stderr, &format!("note: {reset}\n"))?;
    }
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}

fn show(stream: Stream, text: &str) -> std::io::Result<()> {
    match stream {
        Stream::Stdout => render::print(text),
        Stream::Stderr => std::io::stderr().lock().write_all(text.as_bytes()),
    }
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    let done = if file == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(file).map(|read| text = read)
    };
    match done {
        Ok(()) => Ok(text),
        Err(error) => Err(Error::Invocation(format!("--file {}: {error}", file.display()))),
    }
}

/// One word is a script. Several are a command and its arguments: quoted, so that bash hands them on as they stand.
fn script(words: &[String]) -> String {
    match words {
        [script] => script.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Arguments of the tool.
fn call(command: String, timeout: Option<GoDuration>) -> Result<Value> {
    let Some(GoDuration(timeout)) = timeout else {
        return Ok(json!({ "command": command }));
    };
    let allowed = Duration::from_secs(1)..=Duration::from_secs(300);
    if !allowed.contains(&timeout) || timeout.subsec_nanos() != 0 {
        return Err(Error::Invocation(format!(
            "--timeout is {}: write whole seconds from 1s to 5m; longer work goes into the background of the session (COMMAND &)",
            GoDuration(timeout)
        )));
    }
    Ok(json!({ "command": command, "timeout": timeout.as_secs() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> String {
        script(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn one_word_is_a_script_and_several_are_arguments() {
        assert_eq!(of(&["cd /tmp && ls"]), "cd /tmp && ls");
        assert_eq!(
            of(&["echo", "a  b", "it's", "", "$HOME"]),
            r"echo 'a  b' 'it'\''s' '' '$HOME'"
        );
        assert_eq!(of(&["kubectl", "get", "pods", "-A"]), "kubectl get pods -A");
    }

    #[test]
    fn the_timeout_is_whole_seconds_that_the_tool_takes() {
        let timeout = |text: &str| call("id".to_owned(), Some(text.parse().unwrap()));
        assert_eq!(timeout("5m").unwrap(), json!({"command": "id", "timeout": 300}));
        for bad in ["500ms", "6m", "1.5s"] {
            assert!(timeout(bad).unwrap_err().to_string().contains("--timeout"), "{bad}");
        }
    }
}
