//! `delete`: ends sessions through the server, as a client does.

use serde::Serialize;

use crate::cli::{DeleteArguments, Format, Place};
use crate::connect::Server;
use crate::error::{Error, Result};
use crate::render;

#[derive(Serialize)]
struct Ended<'a> {
    session: &'a str,
    ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Ends the sessions; each is tried.
pub(crate) async fn run(place: &Place, arguments: &DeleteArguments) -> Result<()> {
    let server = Server::of(place, &arguments.connection).await?;
    let mut all = Vec::new();
    for session in &arguments.sessions {
        all.push(match server.end(session).await {
            Ok((status, text)) => outcome(session, status, &text),
            // What is wrong with the invocation is wrong for all of them.
            Err(error @ Error::Invocation(_)) => return Err(error),
            Err(error) => failed(session, error.to_string()),
        });
    }
    match arguments.output.output {
        Format::Json => render::print_json(&serde_json::json!({ "sessions": all }))?,
        Format::Text => {
            for ended in all.iter().filter(|ended| ended.ended) {
                render::print(&format!("session {} ended\n", ended.session))?;
            }
        }
    }
    let left: Vec<String> = all
        .iter()
        .filter_map(|ended| {
            Some(format!(
                "session {} was not ended: {}",
                ended.session,
                ended.error.as_ref()?
            ))
        })
        .collect();
    if left.is_empty() {
        Ok(())
    } else {
        Err(Error::Failed(left.join("; ")))
    }
}

/// 204 whether or not there was something to end; anything else is `{"error": …}`.
fn outcome<'a>(session: &'a str, status: u16, body: &str) -> Ended<'a> {
    if status == 204 {
        return Ended {
            session,
            ended: true,
            error: None,
        };
    }
    let said = serde_json::from_str::<serde_json::Value>(body)
        .ok()
        .and_then(|body| Some(body.get("error")?.as_str()?.to_owned()));
    failed(
        session,
        said.unwrap_or_else(|| format!("the server answered HTTP {status}")),
    )
}

fn failed(session: &str, error: String) -> Ended<'_> {
    Ended {
        session,
        ended: false,
        error: Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_are_the_reason() {
        assert!(outcome("s", 204, "").ended);
        let said = outcome("s", 400, r#"{"error":"the session id must be"}"#);
        assert_eq!(said.error.as_deref(), Some("the session id must be"));
        assert!(outcome("s", 502, "<html>").error.unwrap().contains("502"));
    }
}
