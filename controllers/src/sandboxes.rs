//! Sandboxes as decisions see them, and what decisions ask for: reads past the cache, and writes, each guarded by a fresh
//! read and by the version that was read, so that a claim or a command that came in between wins.

use std::sync::Arc;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_sandbox::pod::{Assignment, SandboxTemplate, is_owned_by, pool_pod_name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use crate::trouble;
use crate::validate::Validated;

/// What a decision needs of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Its session, if it is assigned.
    pub session: Option<String>,
    /// When the pod was created.
    pub created: Timestamp,
    /// When the session began, or the pod was created.
    pub created_at: Timestamp,
    /// Start or end of its latest command.
    pub last_activity: Option<Timestamp>,
    /// Hash of the template it was built from.
    pub spec_hash: String,
    /// Hash of the files it mounts.
    pub mounts_hash: String,
    /// It has a node.
    pub scheduled: bool,
    /// Its container has started.
    pub running: bool,
    /// The agent answers.
    pub ready: bool,
    /// Since when it is not ready; of one that is being deleted, when it should be gone.
    pub unready_since: Timestamp,
    /// It is being deleted.
    pub terminating: bool,
    /// It has ended for good.
    pub ended: bool,
    /// Why it does not run.
    pub trouble: Option<String>,
    /// The server found its network open.
    pub egress_open: bool,
}

impl Sandbox {
    /// Reads a pod. A time that is not there, or is no time, is the pod's creation: nothing is collected early by it.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let annotation = |key: &str| pod.annotations().get(key);
        let time = |key: &str| annotation(key).and_then(|text| text.parse::<Timestamp>().ok());
        let created = pod
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let due = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            session: pod.labels().get(labels::SESSION_ID).cloned(),
            created,
            created_at: time(labels::CREATED_AT).unwrap_or(created),
            last_activity: time(labels::LAST_ACTIVITY),
            spec_hash: annotation(labels::SPEC_HASH).cloned().unwrap_or_default(),
            mounts_hash: annotation(labels::MOUNTS_HASH).cloned().unwrap_or_default(),
            scheduled: trouble::is_scheduled(pod),
            running: trouble::phase(pod) == "Running",
            ready: trouble::is_ready(pod),
            unready_since: due.or_else(|| trouble::unready_since(pod)).unwrap_or(created),
            terminating: due.is_some(),
            ended: trouble::has_ended(pod),
            trouble: trouble::of(pod),
            egress_open: annotation(labels::EGRESS).is_some_and(|value| value == labels::EGRESS_NOT_ENFORCED),
        }
    }

    /// Reads pods.
    #[must_use]
    pub fn all(pods: &[Arc<Pod>]) -> Vec<Self> {
        pods.iter().map(|pod| Self::of(pod)).collect()
    }
}

/// The sandboxes of an instance as the API server has them now, not as the watch saw them.
///
/// # Errors
///
/// When the API server refuses or does not answer.
pub async fn list(client: &Client, validated: &Validated) -> kube::Result<Vec<Sandbox>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &validated.namespace);
    let selector = labels::selector_string(&validated.name, Component::Sandbox);
    let pods = api.list(&ListParams::default().labels(&selector)).await?;
    let ours = pods.items.iter().filter(|pod| is_owned_by(pod, &validated.owner.uid));
    Ok(ours.map(Sandbox::of).collect())
}

/// The latest warning about a sandbox, see [`trouble::latest_warning`].
///
/// # Errors
///
/// As [`list`].
pub async fn latest_warning(client: &Client, namespace: &str, sandbox: &Sandbox) -> kube::Result<Option<String>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.uid={},type=Warning", sandbox.uid);
    let events = api.list(&ListParams::default().fields(&fields).limit(100)).await?;
    Ok(trouble::latest_warning(&events.items))
}

/// Deletes a sandbox if a fresh read still shows what the decision was made from. `still` judges that read.
///
/// Returns whether it was deleted by this call.
///
/// # Errors
///
/// When the API server refuses for another reason than that the pod changed or is gone.
pub async fn delete_if(
    client: &Client,
    namespace: &str,
    sandbox: &Sandbox,
    still: impl Fn(&Sandbox) -> bool,
) -> kube::Result<bool> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let Some(fresh) = api.get_opt(&sandbox.name).await? else {
        return Ok(false);
    };
    let now = Sandbox::of(&fresh);
    if now.uid != sandbox.uid || now.terminating || !still(&now) {
        return Ok(false);
    }
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: fresh.uid(),
        resource_version: fresh.resource_version(),
    });
    match api.delete(&sandbox.name, &parameters).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates one sandbox of the warm pool and returns its name.
///
/// # Errors
///
/// When the API server refuses: a quota, a policy.
pub async fn create(
    client: &Client,
    validated: &Validated,
    template: &SandboxTemplate,
    key: &cli_mcp_sandbox::token::HmacKey,
) -> kube::Result<String> {
    let suffix: u64 = rand::random();
    let name = pool_pod_name(&validated.name, &format!("{suffix:016x}"));
    let assignment = Assignment::Unassigned {
        assign_token: key.assign_token(&name).digest(),
    };
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut pod = template.build(&name, &assignment, &now, Some(validated.owner.clone()));
    pod.annotations_mut()
        .insert(labels::MOUNTS_HASH.to_owned(), validated.mounts_hash.clone());
    let api: Api<Pod> = Api::namespaced(client.clone(), &validated.namespace);
    let parameters = PostParams {
        field_manager: Some(cli_mcp_api::names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    api.create(&parameters, &pod).await?;
    Ok(name)
}
