//! The whole way once: a session, a command, its end.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cli_mcp_client::session::BashResult;

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
    let called = session.call(serde_json::json!({"command": "echo well"})).await;
    let took = started.elapsed();
    // Whatever became of the call: it may have made a sandbox.
    let ended = server.end(&id).await;
    Ok(verdict(&id, took, called?, ended))
}

fn verdict(id: &str, took: Duration, result: BashResult, ended: Result<(u16, String)>) -> Finding {
    if result.exit_code != Some(0) || result.stdout != "well\n" {
        return Finding::problem(
            PART,
            format!("the command did not run: {}", result.text),
            "do what the text says; docs/troubleshoot.md explains it",
        );
    }
    let left = match ended {
        Ok((204, _)) => {
            return Finding::ok(
                PART,
                format!("a new session ran a command after {} ms", took.as_millis()),
            );
        }
        Ok((status, text)) => format!("HTTP {status} {text}"),
        Err(error) => error.to_string(),
    };
    Finding::warning(
        PART,
        format!("the session could not be ended: {left}"),
        format!("end it with kubectl cli-mcp delete {id}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Level;
    use crate::error::Error;

    fn level(exit_code: Option<i32>, ended: Result<(u16, String)>) -> Level {
        let result = BashResult {
            stdout: "well\n".to_owned(),
            exit_code,
            ..BashResult::default()
        };
        verdict("check-1", Duration::from_millis(5), result, ended).level
    }

    #[test]
    fn a_session_that_stays_is_a_warning_and_a_command_that_did_not_run_a_problem() {
        let gone = || Ok((204, String::new()));
        assert_eq!(level(Some(0), gone()), Level::Ok);
        assert_eq!(level(Some(0), Ok((503, String::new()))), Level::Warning);
        assert_eq!(
            level(Some(0), Err(Error::Failed("no answer".to_owned()))),
            Level::Warning
        );
        assert_eq!(level(None, gone()), Level::Problem);
    }
}
