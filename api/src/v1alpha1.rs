//! `cli-mcp.redhat.com/v1alpha1`, kind `CliMcpInstance` (contract, section 2). The doc comments are what
//! `kubectl explain` prints; the rules are what `kubectl apply` refuses with.
#![allow(
    unreachable_pub,
    reason = "KubeSchema copies each struct into the body of a function, where `pub` reaches nobody"
)]

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// CliMcpInstance is one class of sandboxes: an MCP server, a credential proxy, the network policies between them and,
/// if wanted, a pool of warm sandboxes.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "cli-mcp.redhat.com",
    version = "v1alpha1",
    kind = "CliMcpInstance",
    plural = "climcpinstances",
    singular = "climcpinstance",
    shortname = "cmi",
    category = "cli-mcp",
    namespaced,
    status = "CliMcpInstanceStatus",
    derive = "PartialEq",
    doc = "CliMcpInstance is one class of sandboxes: an MCP server with one tool, bash, whose commands run in hardened pods that reach Kubernetes only through a credential proxy.",
    validation = Rule::new("self.metadata.name.size() <= 44").message("metadata.name: at most 44 characters, so that the names of the children fit"),
    validation = Rule::new("!self.metadata.name.contains('.')").message("metadata.name: no dots, the names of Services are built from it"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
    printcolumn(name = "Sessions", type_ = "integer", json_path = ".status.sessions"),
    printcolumn(name = "Pool", type_ = "integer", json_path = ".status.warmPoolReady"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
pub struct CliMcpInstanceSpec {
    /// Number of MCP server pods. Any of them serves any session.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: i32,
    /// The pods that commands run in.
    #[serde(default)]
    pub sandbox: SandboxSpec,
    /// The container of the MCP server.
    #[serde(default)]
    pub server_container: ServerContainerSpec,
    /// The credential proxy, the only way out of a sandbox.
    pub proxy: ProxySpec,
}

fn one() -> i32 {
    1
}

fn idle_timeout() -> String {
    "30m".to_owned()
}

/// The pods that commands run in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// Image of the sandbox; any image that carries the agent and bash. Empty: the operator's own default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub image: String,
    /// Pull policy of the image: Always, IfNotPresent or Never. Unset: Kubernetes' own default for the tag.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pull_policy_schema")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secrets of this namespace to pull the image with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// A session that runs no command for this long ends: a duration such as 30m or 1h30m, more than zero.
    #[serde(default = "idle_timeout")]
    #[schemars(length(min = 2, max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) > duration('0s')").message("must be a duration of more than zero, such as 30m, 1h30m or 45s"))]
    pub idle_timeout: String,
    /// The longest life of a session: a duration such as 8h. When it is over, the session ends as soon as no command has run
    /// for 30 seconds, and after another 5m30s in any case: a command that still runs then is cut off. Empty: no limit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self == '' || (self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) > duration('0s'))").message("must be empty or a duration of more than zero, such as 8h"))]
    pub max_lifetime: String,
    /// Number of ready sandboxes kept waiting for a session. Changing it rolls nothing.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub warm_pool_size: i32,
    /// The most sessions at one time; 0: no limit. A new session beyond it is told that the instance is at capacity. Several
    /// servers may exceed it by the sessions that begin at one moment.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_sessions: i32,
    /// Compute resources of a sandbox. Empty: requests 100m CPU and 128Mi memory, limits 500m CPU and 512Mi memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("!has(self.claims) || self.claims.size() == 0").message("claims are not supported: use requests and limits"))]
    pub resources: Option<ResourceRequirements>,
    /// Size limit of /workspace, such as 1Gi. Empty: 2Gi. /tmp has 1Gi. A sandbox that writes more is evicted, alone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self == '' || (isQuantity(self) && !self.startsWith('-'))").message("must be empty or a quantity, such as 512Mi or 1Gi, and not negative"))]
    pub workspace_size_limit: String,
    /// More environment variables of the sandbox. Names that the sandbox needs itself (HOME, KUBECONFIG, the proxy and
    /// certificate variables, SANDBOX_*) are ignored and reported as an event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<EnvVar>,
    /// RuntimeClass of the sandboxes, such as gVisor's or Kata's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: String,
    /// Labels of the nodes that sandboxes may run on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that sandboxes tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,
    /// Required: a sandbox runs commands only while it is proven that its network policies hold. Disabled: no proof.
    #[serde(default)]
    pub egress_check: EgressCheck,
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            image: String::new(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            idle_timeout: idle_timeout(),
            max_lifetime: String::new(),
            warm_pool_size: 0,
            max_sessions: 0,
            resources: None,
            workspace_size_limit: String::new(),
            env: Vec::new(),
            runtime_class_name: String::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            egress_check: EgressCheck::default(),
        }
    }
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Never: the node has it, or the pod fails.
    Never,
}

impl PullPolicy {
    /// The value of a container's `imagePullPolicy`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

fn empty_is_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PullPolicy>, D::Error> {
    // An empty policy is what Kubernetes' own manifests write for "the default of the tag".
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    PullPolicy::deserialize(text.into_deserializer()).map(Some)
}

fn pull_policy_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["", "Always", "IfNotPresent", "Never"]})
}

/// Whether a sandbox must prove that its network is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum EgressCheck {
    /// It must, before it runs a command and ever after.
    #[default]
    Required,
    /// It need not.
    Disabled,
}

impl EgressCheck {
    /// The value of the field, of the flag and of the agent's environment variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "Required",
            Self::Disabled => "Disabled",
        }
    }
}

/// The container of the MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerContainerSpec {
    /// Compute resources of the server. Empty: requests 50m CPU and 64Mi memory, limits 500m CPU and 256Mi memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("!has(self.claims) || self.claims.size() == 0").message("claims are not supported: use requests and limits"))]
    pub resources: Option<ResourceRequirements>,
    /// Pull policy of the server's image. Unset: Kubernetes' own default for its tag.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pull_policy_schema")]
    pub image_pull_policy: Option<PullPolicy>,
}

/// The credential proxy, the only way out of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxySpec {
    /// Number of proxy pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: i32,
    /// What sandboxes may reach. At most one target of type kubernetes.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(validation = Rule::new("self.filter(t, t.type == 'kubernetes').size() <= 1").message("at most one target of type kubernetes; put several clusters into its kubeconfig"))]
    pub targets: Vec<Target>,
}

/// Something that sandboxes may reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == 'allowlist' || !has(self.domains) || self.domains.size() == 0").message("domains belongs to targets of type allowlist"))]
#[x_kube(validation = Rule::new("self.type == 'kubernetes' || (has(self.domains) && self.domains.size() > 0)").message("domains is required for a target of type allowlist"))]
#[x_kube(validation = Rule::new("self.type == 'kubernetes' || !has(self.secretName) || self.secretName == ''").message("secretName belongs to targets of type kubernetes"))]
#[x_kube(validation = Rule::new("self.type == 'kubernetes' || !has(self.access)").message("access belongs to targets of type kubernetes"))]
#[x_kube(validation = Rule::new("self.type == 'kubernetes' || !has(self.deniedResources) || self.deniedResources.size() == 0").message("deniedResources belongs to targets of type kubernetes"))]
pub struct Target {
    /// kubernetes: the clusters of the investigation kubeconfig, with its credential injected. allowlist: the hosts in
    /// domains, with nothing injected.
    #[serde(rename = "type")]
    pub target_type: TargetType,
    /// Secret of this namespace with the investigation kubeconfig under the key kubeconfig. Empty:
    /// cli-mcp-NAME-kubeconfig, with the name of the instance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub secret_name: String,
    /// ReadWrite: whatever the credential may do, less what the proxy always refuses. ReadOnly: only get, list, watch
    /// and the self-review APIs pass. Unset: ReadWrite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "access_schema")]
    pub access: Option<Access>,
    /// Resources refused whatever the credential may do, subresources included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub denied_resources: Vec<DeniedResource>,
    /// Literal hosts, each with or without a port: api.example.com, registry.example.com:8443, or an IPv6 address in
    /// brackets. Without a port, 443. A name must lead to public addresses only; an address that is listed itself may be
    /// private.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 261)))]
    #[x_kube(validation = Rule::new(r"self.all(d, !d.contains('*'))").message("domains: no wildcards, list each host"))]
    #[x_kube(validation = Rule::new(r"self.all(d, d.matches('^([A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*|\\[[0-9A-Fa-f:.]+\\])(:[1-9][0-9]{0,4})?$'))").message("domains: each entry is a literal host, host:port or [ipv6]:port, without scheme, path or leading dot"))]
    #[x_kube(validation = Rule::new(IPV6_RULE).message("domains: what stands in brackets is an IPv6 address, in hexadecimal groups"))]
    #[x_kube(validation = Rule::new(r"self.all(d, !d.matches(':[0-9]+$') || d.matches('\\]$') || int(d.substring(d.lastIndexOf(':') + 1)) <= 65535)").message("domains: the port is 1 to 65535"))]
    pub domains: Vec<String>,
}

/// Every place that `::` can have, as RFC 4291 has it. CEL's own `isIP` came after the oldest Kubernetes that is supported.
const IPV6_RULE: &str = concat!(
    r"self.all(d, !d.startsWith('[') || d.matches('^\\[(",
    "([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,7}:",
    "|([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}",
    "|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}",
    "|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}",
    "|[0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}",
    "|:((:[0-9A-Fa-f]{1,4}){1,7}|:)",
    r")\\](:[0-9]+)?$'))"
);

/// The kinds of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TargetType {
    /// The clusters of the investigation kubeconfig.
    Kubernetes,
    /// Literal hosts.
    Allowlist,
}

/// What the investigation credential may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Access {
    /// Everything that its own rights allow, less what the proxy always refuses.
    #[default]
    ReadWrite,
    /// get, list, watch, discovery and the self-review APIs.
    ReadOnly,
}

// An optional enum would be explained by the words of its type in place of the field's.
fn access_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["ReadWrite", "ReadOnly"]})
}

/// A resource that is refused whatever the credential may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeniedResource {
    /// API group; empty is the core group.
    #[serde(default)]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')").message("group: an API group such as apps, or empty for the core group"))]
    pub group: String,
    /// Plural name of the resource, such as secrets; its subresources are refused with it.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')").message("resource: a plain plural name such as secrets, without a slash"))]
    pub resource: String,
}

/// What the operator observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CliMcpInstanceStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, ProxyReady, WarmPoolReady and EgressEnforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Unassigned sandboxes that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool_ready: Option<i32>,
    /// Unassigned sandboxes that the spec asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_pool_desired: Option<i32>,
    /// Assigned sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<i32>,
    /// The image that new sandboxes run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub resolved_sandbox_image: Option<String>,
    /// ServiceAccount whose tokens may call this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub client_service_account: Option<String>,
    /// Address of the MCP endpoint inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub url: Option<String>,
}

impl CliMcpInstance {
    /// The target of type kubernetes, if there is one.
    #[must_use]
    pub fn kubernetes_target(&self) -> Option<&Target> {
        self.spec
            .proxy
            .targets
            .iter()
            .find(|target| target.target_type == TargetType::Kubernetes)
    }

    /// Name of the Secret with the investigation kubeconfig, if a target of type kubernetes needs one.
    #[must_use]
    pub fn kubeconfig_secret(&self) -> Option<String> {
        let target = self.kubernetes_target()?;
        Some(if target.secret_name.is_empty() {
            crate::names::kubeconfig(self.metadata.name.as_deref().unwrap_or_default())
        } else {
            target.secret_name.clone()
        })
    }
}
