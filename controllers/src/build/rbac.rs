//! Roles and RoleBindings: what the server may do in its namespace, and what a client of the instance may call.

use cli_mcp_api::labels::Component;
use cli_mcp_api::names;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use super::metadata;
use crate::validate::Validated;

const API_GROUP: &str = "rbac.authorization.k8s.io";

/// The server: sandboxes, and reads of what the gate asks for (contract, section 8). No Secret, no custom resource.
pub(super) fn server(validated: &Validated) -> (Role, RoleBinding) {
    let rules = vec![
        rule("", "pods", &["get", "list", "watch", "create", "patch", "delete"], None),
        rule("discovery.k8s.io", "endpointslices", &["get", "list", "watch"], None),
        rule("networking.k8s.io", "networkpolicies", &["get", "list", "watch"], None),
        rule(
            "",
            "configmaps",
            &["get", "list", "watch"],
            Some(names::proxy(&validated.name)),
        ),
    ];
    pair(
        validated,
        &names::server(&validated.name),
        Some(Component::Server),
        rules,
    )
}

/// A client: the three HTTP methods of this instance's MCP endpoint (contract, section 4).
pub(super) fn client(validated: &Validated) -> (Role, RoleBinding) {
    let rules = vec![rule(
        "cli-mcp.redhat.com",
        "climcpinstances/mcp",
        &["get", "create", "delete"],
        Some(validated.name.clone()),
    )];
    pair(validated, &names::client(&validated.name), None, rules)
}

fn rule(group: &str, resource: &str, verbs: &[&str], name: Option<String>) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        resource_names: name.map(|name| vec![name]),
        non_resource_urls: None,
    }
}

/// Role and RoleBinding of one name, for the ServiceAccount of the same name.
fn pair(
    validated: &Validated,
    name: &str,
    component: Option<Component>,
    rules: Vec<PolicyRule>,
) -> (Role, RoleBinding) {
    let role = Role {
        metadata: metadata(validated, name.to_owned(), component),
        rules: Some(rules),
    };
    let binding = RoleBinding {
        metadata: metadata(validated, name.to_owned(), component),
        role_ref: RoleRef {
            api_group: API_GROUP.to_owned(),
            kind: "Role".to_owned(),
            name: name.to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: None,
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(validated.namespace.clone()),
        }]),
    };
    (role, binding)
}
