//! The one ClusterRoleBinding that lets the servers of live instances review tokens. It is shared by all operators of
//! a cluster: each keeps the subjects of the namespaces that it does not watch.

use std::collections::BTreeSet;

use cli_mcp_api::names;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const API_GROUP: &str = "rbac.authorization.k8s.io";

/// The binding for these servers, given as (namespace, ServiceAccount), sorted; to which the subjects of `live` that
/// belong to others are added.
#[must_use]
pub fn auth_delegator(
    servers: &BTreeSet<(String, String)>,
    live: Option<&ClusterRoleBinding>,
    watches: impl Fn(&str) -> bool,
) -> ClusterRoleBinding {
    let foreign = live
        .iter()
        .flat_map(|binding| binding.subjects.iter().flatten())
        .filter_map(|subject| Some((subject.namespace.clone()?, subject.name.clone())))
        .filter(|(namespace, _)| !watches(namespace));
    let subjects: BTreeSet<(String, String)> = servers.iter().cloned().chain(foreign).collect();
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(names::AUTH_DELEGATOR_BINDING.to_owned()),
            labels: Some(
                [
                    ("app.kubernetes.io/part-of", "cli-mcp-operator"),
                    ("app.kubernetes.io/managed-by", "cli-mcp-operator"),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ),
            resource_version: live.and_then(|binding| binding.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: API_GROUP.to_owned(),
            kind: "ClusterRole".to_owned(),
            name: names::AUTH_DELEGATOR_ROLE.to_owned(),
        },
        subjects: Some(
            subjects
                .into_iter()
                .map(|(namespace, name)| Subject {
                    api_group: None,
                    kind: "ServiceAccount".to_owned(),
                    name,
                    namespace: Some(namespace),
                })
                .collect(),
        ),
    }
}

/// Whether a live binding refers to the role that it must; any other is somebody else's.
#[must_use]
pub fn is_auth_delegator(binding: &ClusterRoleBinding) -> bool {
    binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == names::AUTH_DELEGATOR_ROLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(list: &[(&str, &str)]) -> BTreeSet<(String, String)> {
        list.iter()
            .map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned()))
            .collect()
    }

    fn subjects(binding: &ClusterRoleBinding) -> Vec<(String, String)> {
        let subjects = binding.subjects.iter().flatten();
        subjects
            .map(|subject| (subject.namespace.clone().unwrap(), subject.name.clone()))
            .collect()
    }

    #[test]
    fn subjects_are_sorted_and_those_of_other_operators_stay() {
        let theirs = auth_delegator(&servers(&[("theirs", "b"), ("mine", "gone")]), None, |_| true);
        let merged = auth_delegator(&servers(&[("mine", "z"), ("mine", "a")]), Some(&theirs), |ns| {
            ns == "mine"
        });
        assert_eq!(
            subjects(&merged),
            [("mine", "a"), ("mine", "z"), ("theirs", "b")].map(|(ns, name)| (ns.to_owned(), name.to_owned()))
        );
    }

    #[test]
    fn another_role_is_not_ours() {
        let mut binding = auth_delegator(&BTreeSet::new(), None, |_| true);
        assert!(is_auth_delegator(&binding));
        binding.role_ref.name = "cluster-admin".to_owned();
        assert!(!is_auth_delegator(&binding));
    }
}
