//! What an invocation means: the flags checked against each other and turned into types. Contradictions end here, with
//! one line that names the flag, what was found and what to do.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::EgressCheck;
use cli_mcp_sandbox::pod::{self, ClusterAccess, Egress, SandboxTemplate};
use cli_mcp_sandbox::token::HmacKey;
use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::values::{
    json, json_or_default, non_empty_list, none_if_empty, pull_policy, quantity, quantity_or_none, read_key,
    require_name, require_readable, require_text, socket_address,
};
use super::{AuditCommands, Authorization, Cli, EgressCheckFlag, SandboxConnection, TransportKind};
use crate::session::SessionId;

/// Why an invocation cannot run: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// An error with this sentence.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

pub(super) fn refuse<T>(text: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError(text.into()))
}

/// A checked invocation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How clients come in.
    pub transport: Transport,
    /// What sandboxes are made of.
    pub template: SandboxTemplate,
    /// What must be in place before a sandbox is created or claimed; none for local use.
    pub gate: Option<GateNames>,
    /// Owner of created pods.
    pub owner: Option<OwnerReference>,
    /// Key of session and assign tokens.
    pub key: HmacKey,
    /// The most sessions, if there is a limit.
    pub max_sessions: Option<NonZeroU32>,
    /// Kubeconfig of the server's own client.
    pub kubeconfig: Option<PathBuf>,
    /// How agents are reached.
    pub connection: SandboxConnection,
    /// How commands are audited.
    pub audit_commands: AuditCommands,
    /// Plain listener of probes and metrics.
    pub health_address: Option<SocketAddr>,
    /// How long calls may go on after SIGTERM.
    pub drain_timeout: Duration,
}

/// Names of the objects that the gate of section 8 looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateNames {
    /// Service of the proxy.
    pub proxy_service: String,
    /// NetworkPolicy of the sandboxes.
    pub sandbox_policy: String,
    /// NetworkPolicy of the proxy.
    pub proxy_policy: String,
    /// ConfigMap of routes and dummy kubeconfig.
    pub config_map: String,
}

/// How clients come in.
#[derive(Clone, Debug)]
pub enum Transport {
    /// One client on standard input and output.
    Stdio {
        /// The session of requests that name none.
        session: Option<SessionId>,
    },
    /// Many clients over HTTP.
    Http(HttpSettings),
}

/// The HTTP listener.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Addresses that `--address` stands for, the first that can be bound is used.
    pub addresses: Vec<SocketAddr>,
    /// Certificate and key.
    pub tls: Option<TlsFiles>,
    /// Whether callers are checked.
    pub authorization: Authorization,
    /// Further `Host` values.
    pub allowed_hosts: Vec<String>,
    /// Further `Origin` values.
    pub allowed_origins: Vec<String>,
    /// The most connections of one client address.
    pub connections_per_client: usize,
}

/// Files of the listener's certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

impl TryFrom<Cli> for Settings {
    type Error = ConfigError;

    fn try_from(cli: Cli) -> Result<Self, ConfigError> {
        require_name("--namespace", &cli.namespace, 63)?;
        require_name("--instance-name", &cli.instance_name, names::MAX_INSTANCE_NAME)?;
        if cli.sandbox_image.trim().is_empty() {
            return refuse("--sandbox-image is empty: name the sandbox's image");
        }
        require_text("--sandbox-service-account", &cli.sandbox_service_account)?;
        let key = read_key(&cli.hmac_key_file)?;
        let (access, gate) = cluster_access(&cli)?;
        let egress = egress(&cli, &access)?;
        let template = SandboxTemplate {
            instance: cli.instance_name.clone(),
            namespace: cli.namespace.clone(),
            image: cli.sandbox_image.clone(),
            image_pull_policy: pull_policy(&cli.sandbox_image_pull_policy)?,
            image_pull_secrets: non_empty_list(&cli.sandbox_image_pull_secrets),
            service_account: cli.sandbox_service_account.clone(),
            resources: resources(&cli)?,
            workspace_size_limit: quantity_or_none(
                "--sandbox-workspace-size-limit",
                &cli.sandbox_workspace_size_limit,
            )?,
            env: json_or_default::<Vec<EnvVar>>("--sandbox-env", &cli.sandbox_env, "a list of EnvVar")?,
            runtime_class_name: none_if_empty(&cli.sandbox_runtime_class),
            node_selector: json_or_default::<BTreeMap<String, String>>(
                "--sandbox-node-selector",
                &cli.sandbox_node_selector,
                "an object of strings",
            )?,
            tolerations: json_or_default::<Vec<Toleration>>(
                "--sandbox-tolerations",
                &cli.sandbox_tolerations,
                "a list of Toleration",
            )?,
            access,
            egress,
            listen: socket_address("--sandbox-listen", &cli.sandbox_listen, "[::]:8090")?,
        };
        let owner = match cli.sandbox_owner.as_deref().map(str::trim) {
            None | Some("") => None,
            Some(text) => Some(owner(text)?),
        };
        let transport = transport(&cli)?;
        if let Some(file) = &cli.kubeconfig {
            require_readable("--kubeconfig", file)?;
        }
        let health_address = cli.health_address.as_deref().unwrap_or_default();
        let health_address = socket_address("--health-address", health_address, "0.0.0.0:8081")?;
        Ok(Self {
            transport,
            template,
            gate,
            owner,
            key,
            max_sessions: NonZeroU32::new(cli.max_sessions),
            kubeconfig: cli.kubeconfig,
            connection: cli.sandbox_connection,
            audit_commands: cli.audit_commands,
            health_address,
            drain_timeout: cli.drain_timeout.0,
        })
    }
}

fn transport(cli: &Cli) -> Result<Transport, ConfigError> {
    match cli.transport {
        TransportKind::Stdio => {
            for (given, flag) in [
                (cli.tls_cert_file.is_some(), "--tls-cert-file"),
                (cli.tls_private_key_file.is_some(), "--tls-private-key-file"),
                (
                    cli.authorization == Authorization::Kubernetes,
                    "--authorization=kubernetes",
                ),
            ] {
                if given {
                    return refuse(format!(
                        "{flag} has no meaning over stdio: add --transport=http --stateless, or drop it"
                    ));
                }
            }
            let session = match &cli.session_id {
                None => None,
                Some(text) => Some(
                    text.parse()
                        .map_err(|error| ConfigError(format!("--session-id: {error}")))?,
                ),
            };
            Ok(Transport::Stdio { session })
        }
        TransportKind::Http => http(cli).map(Transport::Http),
    }
}

fn http(cli: &Cli) -> Result<HttpSettings, ConfigError> {
    if !cli.stateless {
        return refuse("--transport=http needs --stateless: the server keeps no state of a client between requests");
    }
    if cli.session_id.is_some() {
        return refuse("--session-id is for stdio: over http each request names its session in X-Session-ID");
    }
    let tls = match (&cli.tls_cert_file, &cli.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            require_readable("--tls-cert-file", certificate)?;
            require_readable("--tls-private-key-file", key)?;
            Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            })
        }
        (None, None) => None,
        (Some(_), None) => {
            return refuse("--tls-cert-file is given without --tls-private-key-file: give both or neither");
        }
        (None, Some(_)) => {
            return refuse("--tls-private-key-file is given without --tls-cert-file: give both or neither");
        }
    };
    let addresses: Vec<SocketAddr> = match cli.address.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            return refuse(format!(
                "--address {:?} is not host:port of this machine ({error}): write for example localhost:8080",
                cli.address
            ));
        }
    };
    let loopback = !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback());
    let guarded = tls.is_some() && cli.authorization == Authorization::Kubernetes;
    if !loopback && !guarded {
        return refuse(format!(
            "--address {} is not loopback: add --tls-cert-file, --tls-private-key-file and --authorization=kubernetes, or listen on localhost",
            cli.address
        ));
    }
    Ok(HttpSettings {
        addresses,
        tls,
        authorization: cli.authorization,
        allowed_hosts: non_empty_list(&cli.allowed_hosts),
        allowed_origins: non_empty_list(&cli.allowed_origins),
        connections_per_client: cli.max_connections_per_client as usize,
    })
}

fn cluster_access(cli: &Cli) -> Result<(ClusterAccess, Option<GateNames>), ConfigError> {
    let given = |value: &Option<String>| {
        value
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let proxy = (
        given(&cli.proxy_service),
        given(&cli.proxy_ca_secret),
        given(&cli.dummy_kubeconfig_configmap),
    );
    match (proxy, given(&cli.kubeconfig_secret)) {
        ((Some(service), Some(ca_secret), Some(config_map)), None) => {
            let url = pod::proxy_url(&service, &cli.namespace);
            let gate = GateNames {
                proxy_service: service,
                sandbox_policy: names::sandbox(&cli.instance_name),
                proxy_policy: names::proxy(&cli.instance_name),
                config_map: config_map.clone(),
            };
            Ok((
                ClusterAccess::Proxy {
                    url,
                    ca_secret,
                    kubeconfig_config_map: config_map,
                },
                Some(gate),
            ))
        }
        ((None, None, None), Some(name)) => Ok((ClusterAccess::Secret { name }, None)),
        ((None, None, None), None) => refuse(
            "--kubeconfig-secret is missing: name the Secret with the sandbox's kubeconfig, or give --proxy-service, --proxy-ca-secret and --dummy-kubeconfig-configmap",
        ),
        ((Some(_), Some(_), Some(_)), Some(_)) => refuse(
            "--kubeconfig-secret and the proxy flags exclude each other: with the proxy no credential is mounted",
        ),
        _ => refuse(
            "--proxy-service, --proxy-ca-secret and --dummy-kubeconfig-configmap go together: give all three or none",
        ),
    }
}

fn egress(cli: &Cli, access: &ClusterAccess) -> Result<Egress, ConfigError> {
    let check = match (cli.egress_check, access) {
        (Some(EgressCheckFlag::Required), _) | (None, ClusterAccess::Proxy { .. }) => EgressCheck::Required,
        (Some(EgressCheckFlag::Disabled), _) | (None, ClusterAccess::Secret { .. }) => EgressCheck::Disabled,
    };
    let address = |flag: &str, value: &Option<String>| match value.as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => match text.parse::<SocketAddr>() {
            Ok(_) => Ok(Some(text.to_owned())),
            Err(_) => refuse(format!(
                "{flag} {text:?} is not address:port: write for example 10.96.0.1:443, names are not resolved"
            )),
        },
    };
    let target = address("--egress-target", &cli.egress_target)?;
    let control = address("--egress-control", &cli.egress_control)?;
    if check == EgressCheck::Required {
        for (flag, value) in [("--egress-target", &target), ("--egress-control", &control)] {
            if value.is_none() {
                return refuse(format!(
                    "{flag} is missing: the egress check is Required and needs it (or set --egress-check=Disabled)"
                ));
            }
        }
    }
    Ok(Egress { check, target, control })
}

fn resources(cli: &Cli) -> Result<ResourceRequirements, ConfigError> {
    if let Some(text) = cli
        .sandbox_resources
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        return json("--sandbox-resources", text, "a ResourceRequirements");
    }
    for (flag, value) in [
        ("--sandbox-cpu-request", &cli.sandbox_cpu_request),
        ("--sandbox-cpu-limit", &cli.sandbox_cpu_limit),
        ("--sandbox-memory-request", &cli.sandbox_memory_request),
        ("--sandbox-memory-limit", &cli.sandbox_memory_limit),
    ] {
        quantity(flag, value)?;
    }
    Ok(pod::resources(
        &cli.sandbox_cpu_request,
        &cli.sandbox_cpu_limit,
        &cli.sandbox_memory_request,
        &cli.sandbox_memory_limit,
    ))
}

fn owner(text: &str) -> Result<OwnerReference, ConfigError> {
    let owner: OwnerReference = json("--sandbox-owner", text, "an OwnerReference")?;
    if [&owner.api_version, &owner.kind, &owner.name, &owner.uid]
        .iter()
        .any(|field| field.is_empty())
    {
        return refuse("--sandbox-owner is incomplete: an OwnerReference needs apiVersion, kind, name and uid");
    }
    Ok(owner)
}
