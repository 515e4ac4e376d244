//! `DELETE /sessions/{id}`: the end of a session goes on to its audit line, whether or not its client waits for it.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{Extensions, StatusCode};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::allocation::Allocator;
use crate::audit::{Audit, Identity, Record};
use crate::failure::Failure;
use crate::http::error_response;
use crate::session::SessionId;

/// Ends in progress at one time: one that its client no longer waits for is bounded by no connection.
const AT_ONCE: usize = 256;

/// Ends sessions. Clones share their places.
#[derive(Clone)]
pub(crate) struct Ending {
    allocator: Arc<Allocator>,
    audit: Audit,
    running: TaskTracker,
    places: Arc<Semaphore>,
}

impl Ending {
    /// Ends by an allocator. What is begun is tracked by `running`, so that the process can wait for it.
    pub(crate) fn new(allocator: Arc<Allocator>, audit: Audit, running: TaskTracker) -> Self {
        Self {
            allocator,
            audit,
            running,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// The handler: 204 whether or not there was something to delete.
    pub(crate) async fn handle(
        State(ending): State<Self>,
        path: Result<Path<String>, PathRejection>,
        extensions: Extensions,
    ) -> Response {
        let began = Instant::now();
        // What cannot be read is no session id either.
        let id = path.map(|Path(id)| id).unwrap_or_default();
        let session: SessionId = match id.parse() {
            Ok(session) => session,
            Err(error) => return error_response(StatusCode::BAD_REQUEST, &format!("{error}")),
        };
        let caller = Identity::of(&extensions);
        let running = ending.running.clone();
        let place = ending.places.clone().acquire_owned().await;
        // This future ends with its client's connection. An end that stops half-way leaves a session that is neither.
        let ended = running.spawn(async move {
            let _held = place;
            ending.end(session, caller, began).await
        });
        ended.await.unwrap_or_else(|error| {
            tracing::error!(%error, "The end of a session failed");
            error_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the session's sandbox was not deleted: retry",
            )
        })
    }

    async fn end(&self, session: SessionId, caller: Identity, began: Instant) -> Response {
        let mut record = Record::end(caller, &session);
        let ended = self.allocator.end(&session).await;
        match &ended {
            Ok(()) => record.ended(),
            Err(error) => record.failed(&Failure::Cluster(error.to_string())),
        }
        self.audit.write(record, began.elapsed());
        match ended {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(error) => {
                tracing::warn!(%session, %error, "Failed to end a session");
                error_response(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &format!("the session's sandbox was not deleted: {error}; retry"),
                )
            }
        }
    }
}
