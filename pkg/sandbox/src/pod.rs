//! The one builder of a sandbox pod (contract, section 6): the operator fills the warm pool with it and the server
//! creates sandboxes on demand with it, so that a session cannot tell where its pod came from.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::EgressCheck;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, ExecAction, KeyToPath,
    LocalObjectReference, Pod, PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::token::TokenDigest;
use crate::wire::AGENT_PORT;

/// Name of the sandbox's only container.
pub const CONTAINER: &str = "sandbox";

const CONFIG_DIR: &str = "/config";
const EGRESS_CONTROL: &str = "SANDBOX_EGRESS_CONTROL";
const WORKSPACE: &str = "/workspace";
const DEFAULT_CPU_REQUEST: &str = "100m";
const DEFAULT_CPU_LIMIT: &str = "500m";
const DEFAULT_MEMORY_REQUEST: &str = "128Mi";
const DEFAULT_MEMORY_LIMIT: &str = "512Mi";
/// Every writable place has a limit, or one session could fill the node's disk and have others evicted
/// (<https://kubernetes.io/docs/concepts/storage/volumes/#emptydir>).
const DEFAULT_WORKSPACE_LIMIT: &str = "2Gi";
const TMP_LIMIT: &str = "1Gi";

/// What all sandboxes of an instance have in common. Its hash is the `spec-hash` annotation: a pool pod whose hash is
/// no longer the instance's is rebuilt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SandboxTemplate {
    /// Name of the instance.
    pub instance: String,
    /// Namespace of the instance and of its sandboxes.
    pub namespace: String,
    /// Image of the sandbox.
    pub image: String,
    /// `Always`, `IfNotPresent`, `Never`, or none for Kubernetes' default.
    pub image_pull_policy: Option<String>,
    /// Names of the Secrets to pull with.
    pub image_pull_secrets: Vec<String>,
    /// ServiceAccount without any binding.
    pub service_account: String,
    /// Compute resources; see [`default_resources`].
    pub resources: ResourceRequirements,
    /// Size limit of `/workspace`; none for 2Gi.
    pub workspace_size_limit: Option<String>,
    /// The user's environment variables; reserved names among them are left out, see [`is_reserved_env`].
    pub env: Vec<EnvVar>,
    /// RuntimeClass of the pod.
    pub runtime_class_name: Option<String>,
    /// Node labels the pod wants.
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pod tolerates.
    pub tolerations: Vec<Toleration>,
    /// How Kubernetes is reached.
    pub access: ClusterAccess,
    /// The proof that the network is closed.
    pub egress: Egress,
    /// Where the agent listens; none for its default, every IPv4 address. A hash has none of it then, so that an update
    /// rebuilds no pool of those who need nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
}

/// How a sandbox reaches Kubernetes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ClusterAccess {
    /// Through the credential proxy, with a dummy kubeconfig.
    Proxy {
        /// `http://host:port` of the proxy's Service.
        url: String,
        /// Secret that holds the proxy's CA certificate under `ca.crt`. Only that key is mounted.
        ca_secret: String,
        /// ConfigMap that holds the dummy kubeconfig under `kubeconfig`.
        kubeconfig_config_map: String,
    },
    /// Local use without the operator: the named Secret's kubeconfig is mounted as it is.
    Secret {
        /// Secret that holds a kubeconfig under `kubeconfig`.
        name: String,
    },
}

/// The agent's egress check (contract, section 8). Addresses, never names: the check needs no DNS.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Egress {
    /// Whether the proof is required.
    pub check: EgressCheck,
    /// `address:port` that must not connect: the API server's service address.
    pub target: Option<String>,
    /// `address:port` that must connect: the proxy's service address.
    pub control: Option<String>,
}

/// Whose sandbox a pod is.
#[derive(Clone, Debug)]
pub enum Assignment {
    /// A pod of the warm pool, waiting for `/assign`.
    Unassigned {
        /// Digest of the pod's assign token.
        assign_token: TokenDigest,
    },
    /// A pod created for a session.
    Session {
        /// The session.
        id: String,
        /// Digest of the session's token.
        token: TokenDigest,
    },
}

/// Requests and limits of a sandbox whose instance names none.
#[must_use]
pub fn default_resources() -> ResourceRequirements {
    resources(
        DEFAULT_CPU_REQUEST,
        DEFAULT_CPU_LIMIT,
        DEFAULT_MEMORY_REQUEST,
        DEFAULT_MEMORY_LIMIT,
    )
}

/// Requests and limits from their four quantities.
#[must_use]
pub fn resources(cpu_request: &str, cpu_limit: &str, memory_request: &str, memory_limit: &str) -> ResourceRequirements {
    let quantities = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements {
        claims: None,
        limits: quantities(cpu_limit, memory_limit),
        requests: quantities(cpu_request, memory_request),
    }
}

/// Whether the sandbox sets this variable itself, so that a user's value is ignored.
#[must_use]
pub fn is_reserved_env(name: &str) -> bool {
    const RESERVED: [&str; 8] = [
        "HOME",
        "KUBECONFIG",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    ];
    name.starts_with("SANDBOX_")
        || RESERVED.contains(&name)
        || matches!(name, "http_proxy" | "https_proxy" | "no_proxy")
}

/// Where sandboxes reach the proxy: `http://<service>.<namespace>.svc:8080`.
#[must_use]
pub fn proxy_url(service: &str, namespace: &str) -> String {
    format!("http://{service}.{namespace}.svc:{}", names::PROXY_PORT)
}

/// Name of the pod that is created for a session on demand: the same for every replica, so that create is idempotent;
/// different for the same session id in two instances; at most 63 characters.
#[must_use]
pub fn session_pod_name(instance: &str, session_id: &str) -> String {
    let digest = Sha256::new()
        .chain_update(instance)
        .chain_update([0])
        .chain_update(session_id)
        .finalize();
    // 128 bits of the digest, so that no client can search for a session id that meets another's pod.
    pool_pod_name(instance, &hex::encode(digest)[..32])
}

/// Name of a pod of the warm pool: at most 63 characters with a suffix of up to 32.
#[must_use]
pub fn pool_pod_name(instance: &str, suffix: &str) -> String {
    let readable: String = instance.chars().take(20).collect();
    format!("cli-mcp-{}-{suffix}", readable.trim_end_matches('-'))
}

/// Whether operator or server could have given a sandbox of this instance this name, which nobody can change.
#[must_use]
pub fn is_sandbox_name(instance: &str, name: &str) -> bool {
    name.strip_prefix(&pool_pod_name(instance, "")).is_some_and(|suffix| {
        matches!(suffix.len(), 16 | 32) && suffix.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Whether a pod belongs to the object with this UID. Anybody may write labels; operator and server set this reference on
/// each sandbox that they create, and look at nothing else to know their own.
#[must_use]
pub fn is_owned_by(pod: &Pod, uid: &str) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.uid == uid)
}

/// `address:port` at which the agent of a sandbox looks for the proxy, to prove its network closed.
#[must_use]
pub fn egress_control(sandbox: &Pod) -> Option<&str> {
    let containers = &sandbox.spec.as_ref()?.containers;
    let mut variables = containers.iter().flat_map(|container| container.env.iter().flatten());
    variables
        .find(|variable| variable.name == EGRESS_CONTROL)?
        .value
        .as_deref()
}

impl SandboxTemplate {
    /// Hash of the template, for the `spec-hash` annotation: 16 hexadecimal digits.
    #[must_use]
    pub fn spec_hash(&self) -> String {
        // Serializing a plain struct of strings and maps does not fail; an empty text would only rebuild the pool.
        let text = serde_json::to_string(self).unwrap_or_default();
        hex::encode(Sha256::digest(text))[..16].to_owned()
    }

    /// The pod. `created_at` is an RFC 3339 time, written to the `created-at` annotation.
    #[must_use]
    pub fn build(&self, name: &str, assignment: &Assignment, created_at: &str, owner: Option<OwnerReference>) -> Pod {
        let mut labels = labels::component(&self.instance, Component::Sandbox);
        if let Assignment::Session { id, .. } = assignment {
            labels.insert(labels::SESSION_ID.to_owned(), id.clone());
        }
        let annotations = BTreeMap::from([
            (labels::CREATED_AT.to_owned(), created_at.to_owned()),
            (labels::SPEC_HASH.to_owned(), self.spec_hash()),
        ]);
        Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels),
                annotations: Some(annotations),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(self.pod_spec(assignment)),
            status: None,
        }
    }

    fn pod_spec(&self, assignment: &Assignment) -> PodSpec {
        PodSpec {
            automount_service_account_token: Some(false),
            containers: vec![self.container(assignment)],
            enable_service_links: Some(false),
            image_pull_secrets: none_if_empty(
                self.image_pull_secrets
                    .iter()
                    .map(|name| LocalObjectReference { name: name.clone() })
                    .collect(),
            ),
            node_selector: (!self.node_selector.is_empty()).then(|| self.node_selector.clone()),
            restart_policy: Some("Never".to_owned()),
            runtime_class_name: self.runtime_class_name.clone(),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            service_account_name: Some(self.service_account.clone()),
            termination_grace_period_seconds: Some(5),
            tolerations: none_if_empty(self.tolerations.clone()),
            volumes: Some(self.volumes()),
            ..PodSpec::default()
        }
    }

    fn container(&self, assignment: &Assignment) -> Container {
        Container {
            name: CONTAINER.to_owned(),
            image: Some(self.image.clone()),
            image_pull_policy: self.image_pull_policy.clone(),
            env: Some(self.env(assignment)),
            ports: Some(vec![ContainerPort {
                name: Some("agent".to_owned()),
                container_port: i32::from(AGENT_PORT),
                protocol: Some("TCP".to_owned()),
                ..ContainerPort::default()
            }]),
            resources: Some(self.resources.clone()),
            startup_probe: Some(self_probe(1, 120)),
            readiness_probe: Some(self_probe(10, 3)),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    add: None,
                    drop: Some(vec!["ALL".to_owned()]),
                }),
                read_only_root_filesystem: Some(true),
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(self.volume_mounts()),
            working_dir: Some(WORKSPACE.to_owned()),
            ..Container::default()
        }
    }

    fn env(&self, assignment: &Assignment) -> Vec<EnvVar> {
        let mut env: Vec<EnvVar> = self
            .env
            .iter()
            .filter(|variable| !is_reserved_env(&variable.name))
            .cloned()
            .collect();
        let mut set = |name: &str, value: &str| {
            env.push(EnvVar {
                name: name.to_owned(),
                value: Some(value.to_owned()),
                value_from: None,
            });
        };
        set("HOME", WORKSPACE);
        set("KUBECONFIG", &format!("{CONFIG_DIR}/{}", names::KUBECONFIG_KEY));
        if let ClusterAccess::Proxy { url, .. } = &self.access {
            for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
                set(name, url);
            }
            for name in ["NO_PROXY", "no_proxy"] {
                set(name, "127.0.0.1,localhost,::1");
            }
            for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
                set(name, &format!("{CONFIG_DIR}/{}", names::CA_CERT_KEY));
            }
        }
        match assignment {
            Assignment::Unassigned { assign_token } => set("SANDBOX_ASSIGN_TOKEN_SHA256", &assign_token.to_hex()),
            Assignment::Session { token, .. } => set("SANDBOX_AUTH_TOKEN_SHA256", &token.to_hex()),
        }
        set("SANDBOX_EGRESS_CHECK", self.egress.check.as_str());
        if let Some(target) = &self.egress.target {
            set("SANDBOX_EGRESS_TARGET", target);
        }
        if let Some(control) = &self.egress.control {
            set(EGRESS_CONTROL, control);
        }
        if let Some(listen) = &self.listen {
            set("SANDBOX_LISTEN", &listen.to_string());
        }
        env
    }

    fn volumes(&self) -> Vec<Volume> {
        let only = |key: &str| {
            Some(vec![KeyToPath {
                key: key.to_owned(),
                path: key.to_owned(),
                mode: None,
            }])
        };
        let secret = |volume: &str, name: &str, key: &str| Volume {
            name: volume.to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(name.to_owned()),
                items: only(key),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        };
        let empty_dir = |name: &str, size_limit: &str| Volume {
            name: name.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: None,
                size_limit: Some(Quantity(size_limit.to_owned())),
            }),
            ..Volume::default()
        };
        let mut volumes = vec![
            empty_dir(
                "workspace",
                self.workspace_size_limit.as_deref().unwrap_or(DEFAULT_WORKSPACE_LIMIT),
            ),
            empty_dir("tmp", TMP_LIMIT),
        ];
        match &self.access {
            ClusterAccess::Proxy {
                ca_secret,
                kubeconfig_config_map,
                ..
            } => {
                volumes.push(Volume {
                    name: "kubeconfig".to_owned(),
                    config_map: Some(ConfigMapVolumeSource {
                        name: kubeconfig_config_map.clone(),
                        items: only(names::KUBECONFIG_KEY),
                        ..ConfigMapVolumeSource::default()
                    }),
                    ..Volume::default()
                });
                // Of the CA's Secret only the certificate: its key must never be in a sandbox.
                volumes.push(secret("proxy-ca", ca_secret, names::CA_CERT_KEY));
            }
            ClusterAccess::Secret { name } => volumes.push(secret("kubeconfig", name, names::KUBECONFIG_KEY)),
        }
        volumes
    }

    fn volume_mounts(&self) -> Vec<VolumeMount> {
        let mount = |name: &str, path: &str| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        };
        // subPath, so that a running session never sees the file change.
        let file = |name: &str, key: &str| VolumeMount {
            mount_path: format!("{CONFIG_DIR}/{key}"),
            sub_path: Some(key.to_owned()),
            read_only: Some(true),
            ..mount(name, "")
        };
        let mut mounts = vec![
            mount("workspace", WORKSPACE),
            mount("tmp", "/tmp"),
            file("kubeconfig", names::KUBECONFIG_KEY),
        ];
        if let ClusterAccess::Proxy { .. } = self.access {
            mounts.push(file("proxy-ca", names::CA_CERT_KEY));
        }
        mounts
    }
}

/// The agent asks itself, so that the image needs no curl.
fn self_probe(period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        exec: Some(ExecAction {
            command: Some(vec!["agent".to_owned(), "probe".to_owned()]),
        }),
        failure_threshold: Some(failure_threshold),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

fn none_if_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests;
