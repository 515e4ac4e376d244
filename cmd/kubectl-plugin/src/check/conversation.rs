//! The whole way once: a session, a command, its end.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Finding;
use crate::cli::{Connection, Place};
use crate::connect::Server;
use crate::error::Result;

const PART: &str = "A call";

/// Holds it.
pub(super) async fn hold(place: &Place, connection: &Connection) -> Finding {
    match talk(place, connection).await {
        Ok(finding) => finding,
        Err(error) => Finding::problem(
            PART,
            error.to_string(),
            "look that text up in docs/troubleshoot.md, and at the server's log",
        ),
    }
}

async fn talk(place: &Place, connection: &Connection) -> Result<Finding> {
    let server = Server::of(place, connection).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("check-{}-{}", std::process::id(), now.as_secs());
    let session = server.session(&id).await?;
    let started = Instant::now();
    let result = session.call(serde_json::json!({"command": "echo well"})).await?;
    let took = started.elapsed().as_millis();
    let (status, text) = server.end(&id).await?;
    Ok(if result.exit_code != Some(0) || result.stdout != "well\n" {
        Finding::problem(
            PART,
            format!("the command did not run: {}", result.text),
            "do what the text says; docs/troubleshoot.md explains it",
        )
    } else if status != 204 {
        Finding::warning(
            PART,
            format!("the session could not be ended: HTTP {status} {text}"),
            format!("end it with kubectl cli-mcp delete {id}"),
        )
    } else {
        Finding::ok(PART, format!("a new session ran a command after {took} ms"))
    })
}
