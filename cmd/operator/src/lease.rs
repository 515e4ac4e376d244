//! Leader election, the reads and writes: keeps a Lease, opens and closes the fence, gives the Lease back.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::election::{Candidate, LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD, Record, Step};
use crate::fence::Fence;

/// The longest a read or write of the Lease may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A candidate with its Lease.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    candidate: Candidate,
    fence: Fence,
    /// The Lease as this replica wrote it last: renewed without being read again.
    held: Option<Lease>,
}

/// Another replica has the Lease, or it could not be renewed in time.
#[derive(Debug, thiserror::Error)]
#[error("the Lease {0} was lost: another replica leads, or the API server did not answer in time")]
pub struct Lost(String);

impl Elector {
    /// A candidate for the Lease of this name. The client must not be fenced.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, identity: String, fence: Fence) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            candidate: Candidate::new(identity),
            fence,
            held: None,
        }
    }

    /// Waits until this replica leads; false when `shutdown` came first.
    pub async fn acquire(&mut self, shutdown: &CancellationToken) -> bool {
        tracing::info!(
            lease = self.name,
            identity = self.candidate.identity(),
            "Waiting to lead"
        );
        loop {
            if self.attempt().await {
                tracing::info!(lease = self.name, "Leading");
                return true;
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_PERIOD) => {}
                () = shutdown.cancelled() => return false,
            }
        }
    }

    /// Renews until `stop`.
    ///
    /// # Errors
    ///
    /// When the Lease is lost; the fence has closed by then.
    pub async fn keep(&mut self, stop: &CancellationToken) -> Result<(), Lost> {
        loop {
            tokio::select! {
                () = tokio::time::sleep(RETRY_PERIOD) => {}
                () = stop.cancelled() => return Ok(()),
            }
            if !self.attempt().await && !self.fence.holds_at(Instant::now()) {
                self.fence.close();
                return Err(Lost(self.name.clone()));
            }
        }
    }

    /// Gives the Lease back, so that another replica leads at once. Call it after the last write.
    pub async fn release(self) {
        self.fence.close();
        let release = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(self.candidate.identity()) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.api
                .replace(&self.name, &PostParams::default(), &lease)
                .await
                .map(|_| ())
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, release).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, "Released the Lease"),
            Ok(Err(error)) => tracing::warn!(lease = self.name, %error, "Failed to release the Lease"),
            Err(_) => tracing::warn!(lease = self.name, "Failed to release the Lease in time"),
        }
    }

    /// One read and, where the decision says so, one write. True when this replica leads.
    async fn attempt(&mut self) -> bool {
        // From before the request: the API server may count from the moment it came in.
        let before = Instant::now();
        match tokio::time::timeout(REQUEST_TIMEOUT, self.step(before)).await {
            Ok(Ok(true)) => {
                self.fence.open_until(before + RENEW_DEADLINE);
                true
            }
            Ok(Ok(false)) => false,
            Ok(Err(error)) => {
                tracing::warn!(lease = self.name, %error, "Failed to read or write the Lease");
                false
            }
            Err(_) => {
                tracing::warn!(lease = self.name, "The Lease could not be read or written in time");
                false
            }
        }
    }

    async fn step(&mut self, now: Instant) -> kube::Result<bool> {
        let lease = match self.held.take() {
            Some(held) => Some(held),
            None => self.api.get_opt(&self.name).await?,
        };
        let step = self.candidate.decide(lease.as_ref().map(record), now);
        let spec = |before: Option<LeaseSpec>, transitions: Option<i32>| {
            let time = MicroTime(Timestamp::now());
            let before = before.unwrap_or_default();
            LeaseSpec {
                holder_identity: Some(self.candidate.identity().to_owned()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if transitions.is_some() {
                    Some(time.clone())
                } else {
                    before.acquire_time.clone()
                },
                renew_time: Some(time),
                lease_transitions: transitions.or(before.lease_transitions),
                ..before
            }
        };
        let written = match (step, lease) {
            (Step::Wait, _) => {
                // It is another's: whatever is left of our own time is void.
                self.fence.close();
                return Ok(false);
            }
            (Step::Acquire { transitions }, None) => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(spec(None, Some(transitions))),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
            (Step::Acquire { transitions }, Some(lease)) => {
                let next = Lease {
                    spec: Some(spec(lease.spec.clone(), Some(transitions))),
                    ..lease
                };
                self.api.replace(&self.name, &PostParams::default(), &next).await
            }
            (Step::Renew, Some(lease)) => {
                let next = Lease {
                    spec: Some(spec(lease.spec.clone(), None)),
                    ..lease
                };
                self.api.replace(&self.name, &PostParams::default(), &next).await
            }
            (Step::Renew, None) => return Ok(false),
        };
        match written {
            Ok(lease) => {
                self.held = Some(lease);
                Ok(true)
            }
            // Somebody else wrote it: the next attempt reads it.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        renewal: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        duration: Duration::from_secs(
            spec.lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or_default(),
        ),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that has one Lease and checks its version, or does not answer well at all.
    #[derive(Clone, Default)]
    struct Server {
        lease: Arc<Mutex<Value>>,
        broken: Arc<Mutex<bool>>,
    }

    impl Server {
        fn elector(&self, identity: &str) -> Elector {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    let (code, answer) =
                        server.answer(&parts.method, serde_json::from_slice(&body).unwrap_or_default());
                    let body = Body::from(serde_json::to_vec(&answer).unwrap());
                    Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
                }
            });
            Elector::new(
                Client::new(service, "ns"),
                "ns",
                "lease",
                identity.to_owned(),
                Fence::default(),
            )
        }

        fn answer(&self, method: &Method, mut body: Value) -> (StatusCode, Value) {
            let refused = |code: StatusCode, reason: &str| {
                (
                    code,
                    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16()}),
                )
            };
            let mut lease = self.lease.lock().unwrap();
            if *self.broken.lock().unwrap() {
                return refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
            if *method == Method::GET {
                return if lease.is_null() {
                    refused(StatusCode::NOT_FOUND, "NotFound")
                } else {
                    (StatusCode::OK, lease.clone())
                };
            }
            if *method == Method::PUT && body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                return refused(StatusCode::CONFLICT, "Conflict");
            }
            let version = lease["metadata"]["resourceVersion"]
                .as_str()
                .and_then(|text| text.parse::<u32>().ok());
            body["metadata"]["resourceVersion"] = json!((version.unwrap_or_default() + 1).to_string());
            *lease = body.clone();
            (StatusCode::OK, body)
        }

        fn holder(&self) -> String {
            self.lease.lock().unwrap()["spec"]["holderIdentity"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        }
    }

    fn leads(elector: &Elector) -> bool {
        elector.fence.holds_at(Instant::now())
    }

    #[tokio::test]
    async fn one_of_two_leads_and_a_release_hands_over_at_once() {
        let server = Server::default();
        let (mut one, mut two) = (server.elector("one"), server.elector("two"));
        assert!(one.attempt().await && leads(&one));
        assert!(!two.attempt().await && !leads(&two));
        assert!(one.attempt().await, "a renewal");
        let fence = one.fence.clone();
        one.release().await;
        assert!(!fence.holds_at(Instant::now()));
        assert!(two.attempt().await && leads(&two));
        assert_eq!(server.holder(), "two");
        assert_eq!(server.lease.lock().unwrap()["spec"]["leaseTransitions"], 1);
    }

    #[tokio::test]
    async fn a_lease_that_another_took_closes_the_fence() {
        let server = Server::default();
        let mut one = server.elector("one");
        assert!(one.attempt().await);
        {
            let mut lease = server.lease.lock().unwrap();
            lease["spec"]["holderIdentity"] = json!("thief");
            lease["metadata"]["resourceVersion"] = json!("77");
        }
        assert!(!one.attempt().await, "its renewal conflicts");
        assert!(!one.attempt().await && !leads(&one), "it has read whose the Lease is");
        one.release().await;
        assert_eq!(server.holder(), "thief", "what is another's is not released");
    }

    #[tokio::test]
    async fn a_failure_of_the_api_server_leaves_the_time_that_was_promised() {
        let server = Server::default();
        let mut one = server.elector("one");
        assert!(one.attempt().await);
        *server.broken.lock().unwrap() = true;
        assert!(!one.attempt().await);
        assert!(leads(&one), "until the deadline");
        assert!(!one.fence.holds_at(Instant::now() + RENEW_DEADLINE));
        *server.broken.lock().unwrap() = false;
        assert!(one.attempt().await);
    }
}
