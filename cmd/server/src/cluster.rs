//! The server's writes to the cluster: create, claim, end and touch a sandbox. Every answer goes into the store, which
//! may otherwise learn of it some milliseconds later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::v1alpha1::EgressCheck;
use cli_mcp_sandbox::pod::{Assignment, SandboxTemplate, session_pod_name};
use cli_mcp_sandbox::token::HmacKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, VersionMatch};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::session::SessionId;
use crate::store::cache::SandboxCache;
use crate::store::{ENDED_ANNOTATION, REPLACES_ANNOTATION, Sandbox};

/// No request of the server takes longer; a hanging API server must not hang a call.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// The most of a reason that is kept on a pod; a kubelet's message may be long.
const MAX_REASON_CHARS: usize = 256;

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Another writer was first.
    #[error("another server was first")]
    Conflict,
    /// A pod of this name is there which is not this instance's.
    #[error("pod {0} exists and does not belong to this instance: delete it")]
    Foreign(String),
    /// The object is gone.
    #[error("the pod is gone")]
    NotFound,
    /// The API server refused: RBAC, quota, admission.
    #[error("the API server refused: {0}")]
    Refused(String),
    /// The API server did not answer.
    #[error("the API server does not answer: {0}")]
    Unreachable(String),
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::NotFound,
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            // A patch that names the UID of a pod that is gone, where another has its name by now.
            kube::Error::Api(status) if status.code == 422 && status.message.contains("metadata.uid") => Self::Conflict,
            kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
                Self::Refused(status.message)
            }
            kube::Error::Api(status) => Self::Unreachable(status.message),
            other => Self::Unreachable(other.to_string()),
        }
    }
}

async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ClusterError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(ClusterError::Unreachable(format!(
            "no answer within {} s",
            REQUEST_TIMEOUT.as_secs()
        ))),
    }
}

fn bounded_reason(reason: &str) -> String {
    reason.chars().take(MAX_REASON_CHARS).collect()
}

/// Writes to the sandboxes of one instance.
#[derive(Clone)]
pub struct Cluster {
    pods: Api<Pod>,
    cache: Arc<SandboxCache>,
    template: Arc<SandboxTemplate>,
    spec_hash: String,
    owner: Option<OwnerReference>,
    key: HmacKey,
}

impl Cluster {
    /// A writer with the client's rights.
    #[must_use]
    pub fn new(
        client: kube::Client,
        cache: Arc<SandboxCache>,
        template: SandboxTemplate,
        owner: Option<OwnerReference>,
        key: HmacKey,
    ) -> Self {
        Self {
            pods: Api::namespaced(client, &template.namespace),
            cache,
            spec_hash: template.spec_hash(),
            template: Arc::new(template),
            owner,
            key,
        }
    }

    /// Where the sandboxes are.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.template.namespace
    }

    /// Whether new sandboxes must prove that their network is closed.
    #[must_use]
    pub fn asks_for_proof(&self) -> bool {
        self.template.egress.check == EgressCheck::Required
    }

    /// The pods, for port-forwarding.
    #[must_use]
    pub fn pods(&self) -> &Api<Pod> {
        &self.pods
    }

    /// Selector of this instance's sandboxes.
    #[must_use]
    pub fn selector(&self) -> String {
        labels::selector_string(&self.template.instance, Component::Sandbox)
    }

    /// Hash of what this server builds.
    #[must_use]
    pub fn spec_hash(&self) -> &str {
        &self.spec_hash
    }

    /// Name of the pod that is created for a session.
    #[must_use]
    pub fn pod_name(&self, session: &SessionId) -> String {
        session_pod_name(&self.template.instance, session.as_str())
    }

    /// When this sandbox's session was last active, as far as the store knows what replicas wrote.
    #[must_use]
    pub fn last_activity(&self, sandbox: &Sandbox) -> Option<Timestamp> {
        self.cache.read(|store| {
            let now = store.get(&sandbox.name).filter(|now| now.uid == sandbox.uid)?;
            now.last_activity
        })
    }

    /// Creates the session's pod, which may replace a lost one. Its name is the same from every replica, so only one create
    /// succeeds. What comes of it is in the store also when another's did.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Conflict`] when a pod of that name exists, [`ClusterError::Foreign`] when that is none of this
    /// instance's.
    pub async fn create(&self, session: &SessionId, replaces: Option<&str>) -> Result<Sandbox, ClusterError> {
        let assignment = Assignment::Session {
            id: session.to_string(),
            token: self.key.session_token(session.as_str()).digest(),
        };
        let (name, now) = (self.pod_name(session), Timestamp::now().to_string());
        let mut pod = self.template.build(&name, &assignment, &now, self.owner.clone());
        if let Some(reason) = replaces {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(REPLACES_ANNOTATION.to_owned(), bounded_reason(reason));
        }
        match bounded(self.pods.create(&PostParams::default(), &pod)).await {
            Ok(created) => self.took(&created),
            Err(ClusterError::Conflict) => match self.look_up(&name).await? {
                // The client library sent the create again, and found its own pod in the way.
                Some(there) if there.annotations().get(labels::CREATED_AT) == Some(&now) => self.took(&there),
                Some(there) if !self.is_ours(&there) => Err(ClusterError::Foreign(name)),
                _ => Err(ClusterError::Conflict),
            },
            Err(error) => Err(error),
        }
    }

    /// Labels an unassigned pod with the session, unless anything about the pod changed since it was seen.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Conflict`] when something did.
    pub async fn claim(
        &self,
        sandbox: &Sandbox,
        session: &SessionId,
        replaces: Option<&str>,
    ) -> Result<Sandbox, ClusterError> {
        let now = Timestamp::now().to_string();
        let patch = json!({"metadata": {
            "resourceVersion": sandbox.resource_version,
            "uid": sandbox.uid,
            "labels": {labels::SESSION_ID: session.as_str()},
            "annotations": {labels::CREATED_AT: now, labels::LAST_ACTIVITY: now, REPLACES_ANNOTATION: replaces.map(bounded_reason)},
        }});
        let claimed = bounded(
            self.pods
                .patch(&sandbox.name, &PatchParams::default(), &Patch::Merge(&patch)),
        )
        .await?;
        self.took(&claimed)
    }

    /// The session's sandboxes as the API server has them now, not as the watch saw them.
    ///
    /// # Errors
    ///
    /// When the API server does not answer.
    pub async fn list(&self, session: &SessionId) -> Result<Vec<Sandbox>, ClusterError> {
        self.list_as(session, ListParams::default()).await
    }

    /// The session's sandboxes as they were when this one was written, or later. The API server has that at hand; for the
    /// state of now it would have to ask etcd first how far it is behind, up to 100 ms
    /// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list>).
    ///
    /// # Errors
    ///
    /// When the API server does not answer.
    pub async fn list_since(&self, session: &SessionId, written: &Sandbox) -> Result<Vec<Sandbox>, ClusterError> {
        let since = ListParams::default()
            .at(&written.resource_version)
            .matching(VersionMatch::NotOlderThan);
        self.list_as(session, since).await
    }

    async fn list_as(&self, session: &SessionId, params: ListParams) -> Result<Vec<Sandbox>, ClusterError> {
        let selector = format!("{},{}={session}", self.selector(), labels::SESSION_ID);
        let list = bounded(self.pods.list(&params.labels(&selector))).await?;
        for pod in &list.items {
            self.cache.observe(pod);
        }
        let ours = self
            .cache
            .read(|store| list.items.iter().filter_map(|pod| store.read(pod)).collect());
        Ok(ours)
    }

    /// Looks up one pod by its name, for the store: a GET tells the state of now without the wait of a LIST.
    ///
    /// # Errors
    ///
    /// When the API server does not answer; a pod that is gone is no error.
    pub async fn look_up(&self, name: &str) -> Result<Option<Pod>, ClusterError> {
        let found = bounded(self.pods.get_opt(name)).await?;
        if let Some(pod) = found.as_ref().filter(|pod| self.is_ours(pod)) {
            self.cache.observe(pod);
        }
        Ok(found)
    }

    /// Whether the watch would bring this pod and the store take it.
    fn is_ours(&self, pod: &Pod) -> bool {
        let selected = labels::selector(&self.template.instance, Component::Sandbox)
            .iter()
            .all(|(label, value)| pod.labels().get(label) == Some(value));
        selected && self.cache.read(|store| store.read(pod)).is_some()
    }

    /// Whether the server can do its work: it asks for one pod of its namespace.
    ///
    /// # Errors
    ///
    /// When the API server refuses or does not answer.
    pub async fn probe(&self) -> Result<(), ClusterError> {
        let params = ListParams::default().labels(&self.selector()).limit(1);
        bounded(self.pods.list(&params)).await.map(|_| ())
    }

    /// Deletes a sandbox on purpose: first it is marked, so that no replica reports its end as a loss.
    ///
    /// # Errors
    ///
    /// When the API server refuses or does not answer; a pod that is gone already is no error.
    pub async fn end(&self, sandbox: &Sandbox, why: &str) -> Result<(), ClusterError> {
        match self
            .annotate(sandbox, &BTreeMap::from([(ENDED_ANNOTATION, why.to_owned())]))
            .await
        {
            Ok(()) => {
                self.cache.write(|store| store.mark_ended(sandbox));
                self.delete(sandbox, None).await
            }
            Err(error) => self.unless_gone(sandbox, error).await,
        }
    }

    /// Deletes a sandbox, that very one. With a grace of 0 even where its node is lost.
    ///
    /// # Errors
    ///
    /// When the API server refuses or does not answer; a pod that is gone already is no error.
    pub async fn delete(&self, sandbox: &Sandbox, grace_seconds: Option<u32>) -> Result<(), ClusterError> {
        let same = Preconditions {
            resource_version: None,
            uid: Some(sandbox.uid.clone()),
        };
        let mut params = DeleteParams::background().preconditions(same);
        params.grace_period_seconds = grace_seconds;
        match bounded(self.pods.delete(&sandbox.name, &params)).await {
            Ok(answer) => {
                if let Some(pod) = answer.left() {
                    self.cache.observe(&pod);
                }
                Ok(())
            }
            Err(error) => self.unless_gone(sandbox, error).await,
        }
    }

    /// The error, but for a sandbox that is gone. A conflict may mean that another pod has its name, or only that another
    /// writer was faster: the text of neither is part of the API.
    async fn unless_gone(&self, sandbox: &Sandbox, error: ClusterError) -> Result<(), ClusterError> {
        match error {
            ClusterError::NotFound => Ok(()),
            ClusterError::Conflict => {
                let now = bounded(self.pods.get_opt(&sandbox.name)).await?;
                match now.filter(|pod| pod.metadata.uid.as_ref() == Some(&sandbox.uid)) {
                    None => Ok(()),
                    Some(still) => {
                        self.cache.observe(&still);
                        Err(error)
                    }
                }
            }
            error => Err(error),
        }
    }

    /// Sets annotations on that very sandbox.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotFound`] or [`ClusterError::Conflict`] when it is not there any more.
    pub async fn annotate(&self, sandbox: &Sandbox, annotations: &BTreeMap<&str, String>) -> Result<(), ClusterError> {
        self.patch_annotations(sandbox, json!(annotations)).await
    }

    /// A client has been told what this sandbox replaces: no other replica tells it again.
    ///
    /// # Errors
    ///
    /// As [`Self::annotate`].
    pub async fn told(&self, sandbox: &Sandbox) -> Result<(), ClusterError> {
        self.patch_annotations(sandbox, json!({REPLACES_ANNOTATION: null}))
            .await
    }

    /// A command has run in it: its network is closed again, if it was open.
    ///
    /// # Errors
    ///
    /// As [`Self::annotate`].
    pub async fn closed(&self, sandbox: &Sandbox) -> Result<(), ClusterError> {
        self.patch_annotations(sandbox, json!({labels::EGRESS: null})).await
    }

    async fn patch_annotations(&self, sandbox: &Sandbox, annotations: serde_json::Value) -> Result<(), ClusterError> {
        // A uid that does not match is a conflict: the API server refuses to change it.
        let patch = json!({"metadata": {"uid": sandbox.uid, "annotations": annotations}});
        bounded(
            self.pods
                .patch_metadata(&sandbox.name, &PatchParams::default(), &Patch::Merge(&patch)),
        )
        .await
        .map(|_| ())
    }

    fn took(&self, pod: &Pod) -> Result<Sandbox, ClusterError> {
        self.cache.observe(pod);
        Sandbox::from_pod(pod)
            .ok_or_else(|| ClusterError::Refused("it answered with a pod without name or UID".to_owned()))
    }
}

#[cfg(test)]
mod tests;
