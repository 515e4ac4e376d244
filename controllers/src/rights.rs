//! What the operator does in a cluster, as the rights that it needs: one table, from which `make manifests` writes the roles
//! of `config/`. A request of a reconcile that it does not have fails the tests.

mod manifest;

use std::collections::BTreeMap;
use std::fmt;

use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event as CoreEvent, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::ApiResource;
use kube::core::Resource;

pub use manifest::{Manifest, manifests};

use self::Verb::{Create, Delete, Get, List, Patch, Update, Watch};
use crate::build::ChildKind;

/// A verb of the Kubernetes API
/// (<https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads one.
    Get,
    /// Reads all.
    List,
    /// Follows all.
    Watch,
    /// Makes one.
    Create,
    /// Replaces one.
    Update,
    /// Changes one.
    Patch,
    /// Takes one away.
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Get => "get",
            List => "list",
            Watch => "watch",
            Create => "create",
            Update => "update",
            Patch => "patch",
            Delete => "delete",
        })
    }
}

/// A rule of a role, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// What the operator does with it.
    pub purpose: &'static str,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural names, with `/subresource` where it is one.
    pub resources: Vec<String>,
    /// What it does with them.
    pub verbs: Vec<Verb>,
    /// The only object that it is for, if it is for one.
    pub object: Option<&'static str>,
}

/// A cache: its first list and what follows.
const READ: [Verb; 3] = [Get, List, Watch];

fn right<K>(purpose: &'static str, subresource: Option<&str>, verbs: &[Verb]) -> Right
where
    K: Resource,
    K::DynamicType: Default,
{
    let ApiResource { group, plural, .. } = ApiResource::erase::<K>(&K::DynamicType::default());
    Right {
        purpose,
        group,
        resources: vec![match subresource {
            Some(subresource) => format!("{plural}/{subresource}"),
            None => plural,
        }],
        verbs: verbs.to_vec(),
        object: None,
    }
}

/// What it does in each namespace that it watches.
#[must_use]
pub fn in_watched_namespaces() -> Vec<Right> {
    let mut rights = vec![
        right::<CliMcpInstance>(
            "The instances, their status and finalizer.",
            None,
            &[List, Watch, Patch],
        ),
        right::<CliMcpInstance>("", Some("status"), &[Patch]),
        // Where OwnerReferencesPermissionEnforcement is on, who sets blockOwnerDeletion needs it.
        right::<CliMcpInstance>("", Some("finalizers"), &[Update]),
        right::<CliMcpInstance>("Granted to clients.", Some("mcp"), &[Get, Create, Delete]),
    ];
    rights.extend(of_children(
        "Children.",
        |_| true,
        &[&READ[..], &[Create, Update, Patch]].concat(),
    ));
    rights.extend(of_children(
        "Those with fields that cannot be changed, or that are not always wanted. The rest goes with its instance.",
        ChildKind::is_deleted,
        &[Delete],
    ));
    rights.extend([
        right::<Secret>(
            "Secrets are created once, and never changed or deleted.",
            None,
            &[&READ[..], &[Create]].concat(),
        ),
        right::<Pod>(
            "Sandboxes; the stamp on the proxy's pods.",
            None,
            &[&READ[..], &[Create, Patch, Delete]].concat(),
        ),
        right::<EndpointSlice>(
            "Whether the proxy has a ready address; get is granted to servers.",
            None,
            &READ,
        ),
        right::<CoreEvent>("What the kubelet reports of a sandbox's egress check.", None, &[List]),
        right::<Event>("What it tells of the instances.", None, &[Create, Patch]),
    ]);
    rights
}

/// The same verbs for some kinds of children, a right for each API group.
fn of_children(purpose: &'static str, which: impl Fn(ChildKind) -> bool, verbs: &[Verb]) -> Vec<Right> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for kind in ChildKind::ALL.into_iter().filter(|kind| which(*kind)) {
        let ApiResource { group, plural, .. } = kind.api_resource();
        groups.entry(group).or_default().push(plural);
    }
    let rights = groups.into_iter().enumerate();
    rights
        .map(|(number, (group, resources))| Right {
            purpose: if number == 0 { purpose } else { "" },
            group,
            resources,
            verbs: verbs.to_vec(),
            object: None,
        })
        .collect()
}

/// What it does outside namespaces.
#[must_use]
pub fn in_the_cluster() -> Vec<Right> {
    vec![
        // The name of a new object is not known when its creation is authorized.
        right::<ClusterRoleBinding>(
            "The binding of the servers. No name: create cannot be bound to one.",
            None,
            &[Create],
        ),
        Right {
            object: Some(names::AUTH_DELEGATOR_BINDING),
            ..right::<ClusterRoleBinding>("", None, &[&READ[..], &[Patch]].concat())
        },
        right::<TokenReview>(
            "Granted to servers through system:auth-delegator, and used for the operator's own metrics.",
            None,
            &[Create],
        ),
        right::<SubjectAccessReview>("", None, &[Create]),
    ]
}

/// What it does in its own namespace.
#[must_use]
pub fn in_its_own_namespace() -> Vec<Right> {
    vec![
        right::<Lease>("The Lease of the one that leads.", None, &[Create]),
        Right {
            object: Some(names::LEADER_LEASE),
            ..right::<Lease>("", None, &[Get, Update])
        },
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use http::Method;

    use super::*;
    use crate::build::build;
    use crate::validate::fixtures;

    /// What a request asks for.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Asked {
        pub(crate) namespaced: bool,
        pub(crate) group: String,
        pub(crate) resource: String,
        pub(crate) verb: String,
        object: Option<String>,
    }

    impl Asked {
        fn new(namespaced: bool, right: &Right, resource: &str, verb: Verb) -> Self {
            Self {
                namespaced,
                group: right.group.clone(),
                resource: resource.to_owned(),
                verb: verb.to_string(),
                object: None,
            }
        }

        /// The request, whatever object it is for.
        pub(crate) fn of_any(self) -> Self {
            Self { object: None, ..self }
        }
    }

    /// Everything that the operator may ask for in a reconcile.
    pub(crate) fn granted() -> BTreeSet<Asked> {
        let of = |namespaced: bool, rights: Vec<Right>| {
            let each = move |right: &Right| -> Vec<Asked> {
                let verbs = |resource: &String| {
                    right
                        .verbs
                        .iter()
                        .map(|verb| Asked::new(namespaced, right, resource, *verb))
                        .collect::<Vec<_>>()
                };
                right.resources.iter().flat_map(verbs).collect()
            };
            rights.iter().flat_map(each).collect::<Vec<_>>()
        };
        of(true, in_watched_namespaces())
            .into_iter()
            .chain(of(false, in_the_cluster()))
            .collect()
    }

    /// What a request asks for, read as Kubernetes reads it.
    pub(crate) fn asked(method: &Method, path: &str) -> Option<Asked> {
        let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let group = if parts.first() == Some(&"api") { "" } else { parts[1] };
        parts.drain(..if group.is_empty() { 2 } else { 3 });
        let namespaced = parts.first() == Some(&"namespaces");
        if namespaced {
            parts.drain(..2);
        }
        let (resource, object) = match parts[..] {
            [plural] => (plural.to_owned(), None),
            [plural, name] => (plural.to_owned(), Some(name)),
            [plural, name, subresource] => (format!("{plural}/{subresource}"), Some(name)),
            _ => return None,
        };
        let verb = match *method {
            Method::GET if object.is_none() => List,
            Method::GET => Get,
            Method::POST => Create,
            Method::PUT => Update,
            Method::PATCH => Patch,
            _ => Delete,
        };
        Some(Asked {
            namespaced,
            group: group.to_owned(),
            resource,
            verb: verb.to_string(),
            object: object.map(str::to_owned),
        })
    }

    /// Whether a reconcile may send this request.
    pub(crate) fn allows(asked: &Asked) -> bool {
        let rights = if asked.namespaced {
            in_watched_namespaces()
        } else {
            in_the_cluster()
        };
        rights.iter().any(|right| {
            right.group == asked.group
                && right.resources.contains(&asked.resource)
                && right.verbs.iter().any(|verb| verb.to_string() == asked.verb)
                && (right.object.is_none() || right.object == asked.object.as_deref())
        })
    }

    #[test]
    fn a_request_is_judged_as_kubernetes_does() {
        let allows = |method: &Method, path: &str| allows(&asked(method, path).unwrap());
        let pods = "/api/v1/namespaces/ns/pods";
        assert!(allows(&Method::GET, pods) && allows(&Method::DELETE, "/api/v1/namespaces/ns/pods/a"));
        assert!(!allows(&Method::PUT, "/api/v1/namespaces/ns/pods/a"));
        assert!(!allows(&Method::POST, "/api/v1/namespaces/ns/pods/a/exec"));
        assert!(!allows(&Method::PATCH, "/api/v1/namespaces/ns/secrets/a"));
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        assert!(allows(&Method::PATCH, &format!("{bindings}/cli-mcp-auth-delegator")));
        assert!(!allows(&Method::PATCH, &format!("{bindings}/another")));
    }

    #[test]
    fn what_servers_and_clients_are_granted_the_operator_may_do_itself() {
        // Kubernetes refuses to create a role with rules that its creator does not have.
        let children = build(&fixtures::validated(&fixtures::instance(), &fixtures::observed())).unwrap();
        let own = in_watched_namespaces();
        let mut granted = 0;
        for role in children
            .apply
            .iter()
            .filter(|child| child.reference.kind == ChildKind::Role)
        {
            for rule in role.object.data["rules"].as_array().unwrap() {
                let words = |field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
                for verb in words("verbs") {
                    assert!(
                        own.iter().any(|right| right.object.is_none()
                            && words("apiGroups") == [right.group.as_str()]
                            && words("resources")
                                .iter()
                                .all(|resource| right.resources.contains(resource))
                            && right.verbs.iter().any(|own| own.to_string() == verb)),
                        "{verb}: {rule}"
                    );
                    granted += 1;
                }
            }
        }
        assert!(granted > 0);
    }

    #[test]
    fn nothing_is_for_all_and_nothing_escalates() {
        for right in [in_watched_namespaces(), in_the_cluster(), in_its_own_namespace()].concat() {
            assert!(!right.resources.is_empty() && !right.verbs.is_empty(), "{right:?}");
            let text = format!("{right:?}");
            assert!(!text.contains('*'), "{text}");
        }
    }
}
