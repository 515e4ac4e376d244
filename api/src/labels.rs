//! Labels and annotations (contract, section 3).

use std::collections::BTreeMap;

/// The instance an object belongs to.
pub const INSTANCE: &str = "cli-mcp.redhat.com/instance";
/// What part of the instance an object is: see [`Component`].
pub const COMPONENT: &str = "cli-mcp.redhat.com/component";
/// The session of an assigned sandbox; absent on a pod of the warm pool.
pub const SESSION_ID: &str = "cli-mcp.redhat.com/session-id";
/// Annotation: when the sandbox got its session, or was created (RFC 3339).
pub const CREATED_AT: &str = "cli-mcp.redhat.com/created-at";
/// Annotation: start or end of the session's latest command (RFC 3339).
pub const LAST_ACTIVITY: &str = "cli-mcp.redhat.com/last-activity";
/// Annotation: hash of what a sandbox was built from.
pub const SPEC_HASH: &str = "cli-mcp.redhat.com/spec-hash";
/// Annotation of a child: hash of what the operator applied, so that a field it no longer sets is seen to be gone.
pub const APPLIED_HASH: &str = "cli-mcp.redhat.com/applied-hash";
/// Annotation of a sandbox of the warm pool: hash of the files it mounts and does not follow.
pub const MOUNTS_HASH: &str = "cli-mcp.redhat.com/mounts-hash";
/// Annotation of a proxy's pod: changes with the files it mounts, so that the kubelet refreshes them at once.
pub const INPUTS_HASH: &str = "cli-mcp.redhat.com/inputs-hash";
/// Annotation of the template of pods that mount a token: the UID of the ServiceAccount that the token is for.
pub const ACCOUNT_UID: &str = "cli-mcp.redhat.com/account-uid";
/// Annotation of a sandbox that the server found with an open network: [`EGRESS_NOT_ENFORCED`].
pub const EGRESS: &str = "cli-mcp.redhat.com/egress";
/// Value of [`EGRESS`].
pub const EGRESS_NOT_ENFORCED: &str = "NotEnforced";

/// The parts of an instance that run as pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The MCP server.
    Server,
    /// A sandbox, assigned or in the warm pool.
    Sandbox,
    /// The credential proxy.
    Proxy,
}

impl Component {
    /// The value of the component label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Sandbox => "sandbox",
            Self::Proxy => "proxy",
        }
    }
}

/// The two labels that select the pods of a component of an instance.
#[must_use]
pub fn selector(instance: &str, component: Component) -> BTreeMap<String, String> {
    BTreeMap::from([
        (INSTANCE.to_owned(), instance.to_owned()),
        (COMPONENT.to_owned(), component.as_str().to_owned()),
    ])
}

/// The same as a label selector string for list and watch.
#[must_use]
pub fn selector_string(instance: &str, component: Component) -> String {
    format!("{INSTANCE}={instance},{COMPONENT}={}", component.as_str())
}

/// Every label of an object of a component: the selector's and the recommended ones
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>).
#[must_use]
pub fn component(instance: &str, component: Component) -> BTreeMap<String, String> {
    let mut labels = instance_wide(instance);
    labels.extend(selector(instance, component));
    labels.insert("app.kubernetes.io/component".to_owned(), component.as_str().to_owned());
    labels
}

/// Labels of an object that belongs to the instance as a whole.
#[must_use]
pub fn instance_wide(instance: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (INSTANCE.to_owned(), instance.to_owned()),
        ("app.kubernetes.io/name".to_owned(), "cli-mcp".to_owned()),
        ("app.kubernetes.io/instance".to_owned(), instance.to_owned()),
        ("app.kubernetes.io/part-of".to_owned(), "cli-mcp-operator".to_owned()),
        ("app.kubernetes.io/managed-by".to_owned(), "cli-mcp-operator".to_owned()),
    ])
}
