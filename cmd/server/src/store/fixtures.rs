//! Pods and sessions for unit tests.

use std::collections::BTreeMap;

use cli_mcp_api::labels;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::session::SessionId;

/// The template that [`pod`] was built from.
pub(crate) const SPEC_HASH: &str = "h";

/// A ready pod.
pub(crate) fn pod(name: &str, uid: &str, version: u64, session: Option<&str>) -> Pod {
    let mut labels = BTreeMap::from([(labels::INSTANCE.to_owned(), "demo".to_owned())]);
    if let Some(session) = session {
        labels.insert(labels::SESSION_ID.to_owned(), session.to_owned());
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            labels: Some(labels),
            annotations: Some(BTreeMap::from([(labels::SPEC_HASH.to_owned(), SPEC_HASH.to_owned())])),
            ..ObjectMeta::default()
        },
        status: Some(PodStatus {
            phase: Some("Running".into()),
            pod_ip: Some("10.0.0.1".into()),
            conditions: Some(vec![PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                ..PodCondition::default()
            }]),
            ..PodStatus::default()
        }),
        ..Pod::default()
    }
}

/// A session of this id.
pub(crate) fn session(id: &str) -> SessionId {
    id.parse().unwrap()
}
