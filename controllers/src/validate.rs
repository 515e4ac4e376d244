//! What of an instance can be built, decided from what was read. Pure: no client, no clock.

mod secrets;

use std::net::{Ipv6Addr, SocketAddr};

use cli_mcp_api::conditions::reasons;
use cli_mcp_api::duration::GoDuration;
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::{CliMcpInstance, CliMcpInstanceSpec, EgressCheck};
use cli_mcp_kubeconfig::{Kubeconfig, Routes, dummy};
use cli_mcp_sandbox::pod::{ClusterAccess, Egress, SandboxTemplate, default_resources, is_reserved_env, proxy_url};
use cli_mcp_sandbox::token::HmacKey;
use cli_mcp_sandbox::wire::AGENT_PORT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::Resource;
use sha2::{Digest, Sha256};

use crate::dereference::{AwaitedProxy, Observed, SecretContent};
use crate::error::{Error, Result};
use crate::settings::Settings;
use secrets::{
    ca_certificate, fill_kubeconfig, fill_tls, key, keys, make_again, missing_kubeconfig, missing_tls, unread,
};

/// Something that the admin must mend. The first one is the reason of `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of the condition.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

/// What the proxy and the sandboxes are configured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `proxy-config.json`.
    pub routes: String,
    /// The dummy kubeconfig.
    pub kubeconfig: String,
}

/// An instance whose inputs were read and judged.
#[derive(Clone, Debug)]
pub struct Validated {
    /// Name of the instance.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its generation.
    pub generation: Option<i64>,
    /// Its spec.
    pub spec: CliMcpInstanceSpec,
    /// Owner reference of children: controller, blocks deletion.
    pub controller: OwnerReference,
    /// Owner reference of sandboxes: neither, so that the server can set it too.
    pub owner: OwnerReference,
    /// Image of the server.
    pub server_image: String,
    /// Image of the proxy.
    pub proxy_image: String,
    /// Image of new sandboxes.
    pub sandbox_image: String,
    /// Whether the Service asks OpenShift for its certificate.
    pub openshift: bool,
    /// Whether a pod's first address is IPv6.
    pub ipv6_first: bool,
    /// Name of the Secret with the investigation kubeconfig, if there is a kubernetes target.
    pub kubeconfig_secret: Option<String>,
    /// Routes and dummy kubeconfig, when they can be made.
    pub proxy_config: Option<ProxyConfig>,
    /// What sandboxes are built from, when all of it is known.
    pub template: Option<SandboxTemplate>,
    /// Where sandboxes look for the proxy while its Service has no address.
    pub awaited_proxy: AwaitedProxy,
    /// The key that tokens are derived from.
    pub hmac_key: Option<HmacKey>,
    /// Changes with the HMAC key, and tells nothing of it.
    pub hmac_hash: Option<String>,
    /// Changes with what a sandbox mounts and does not follow: kubeconfig, CA, key.
    pub mounts_hash: String,
    /// Changes with what the proxy reads and does follow: routes, kubeconfig, CA. None while one of them cannot be read.
    pub proxy_inputs_hash: Option<String>,
    /// Idle limit of a session.
    pub idle_timeout: GoDuration,
    /// Age limit of a session.
    pub max_lifetime: Option<GoDuration>,
    /// The CA Secret must be generated.
    pub needs_ca: bool,
    /// The HMAC Secret must be generated.
    pub needs_hmac: bool,
    /// Names in `spec.sandbox.env` that are ignored.
    pub reserved_env: Vec<String>,
    /// What the admin must mend, most important first.
    pub problems: Vec<Problem>,
    kubeconfig_found: bool,
    tls_found: bool,
}

impl Validated {
    /// Whether everything that the proxy mounts exists.
    #[must_use]
    pub fn proxy_can_run(&self) -> bool {
        self.proxy_config.is_some() && self.kubeconfig_found && !self.needs_ca
    }

    /// Whether everything that the server mounts exists.
    #[must_use]
    pub fn server_can_run(&self) -> bool {
        self.tls_found && self.hmac_key.is_some()
    }
}

/// Judges what was read.
///
/// # Errors
///
/// When the API server sent an instance without name, namespace or UID.
pub fn validate(instance: &CliMcpInstance, observed: &Observed, settings: &Settings) -> Result<Validated> {
    let name = instance.metadata.name.clone().ok_or(Error::Incomplete("a name"))?;
    let namespace = instance
        .metadata
        .namespace
        .clone()
        .ok_or(Error::Incomplete("a namespace"))?;
    let owner = instance.owner_ref(&()).ok_or(Error::Incomplete("a UID"))?;
    let controller = OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..owner.clone()
    };
    let spec = instance.spec.clone();
    let kubeconfig_secret = instance.kubeconfig_secret();
    let mut problems: Vec<Problem> = observed.unread.iter().map(unread).collect();

    let ca_pem = ca_certificate(
        &observed.ca,
        (&namespace, &names::proxy_ca(&name)),
        &owner.uid,
        &mut problems,
    );
    let hmac = key(
        &observed.hmac,
        (&namespace, &names::hmac(&name)),
        &[names::HMAC_KEY],
        &owner.uid,
        &mut problems,
    )
    .and_then(|found| {
        let bytes = found.get(names::HMAC_KEY)?;
        HmacKey::new(bytes)
            .map_err(|error| {
                problems.push(Problem {
                    reason: reasons::SECRET_KEYS_INVALID,
                    message: format!(
                        "Secret {}, key {}: {error}. {}",
                        names::hmac(&name),
                        names::HMAC_KEY,
                        make_again(&namespace, &names::hmac(&name))
                    ),
                });
            })
            .ok()
            .map(|key| (key, stamp(&[b"hmac", bytes])))
    });
    let kubeconfig = kubeconfig_secret.as_ref().map(|secret| {
        let Some(content) = &observed.kubeconfig else {
            if !observed.is_unread(secret) {
                problems.push(missing_kubeconfig(&namespace, secret));
            }
            return Err(());
        };
        let data = keys(content, secret, &[names::KUBECONFIG_KEY], &mut problems, || {
            fill_kubeconfig(&namespace, secret)
        })
        .ok_or(())?;
        Kubeconfig::parse(data.get(names::KUBECONFIG_KEY).ok_or(())?).map_err(|invalid| {
            problems.push(Problem {
                reason: reasons::KUBECONFIG_INVALID,
                message: format!(
                    "Secret {secret}, key {}: {} (check it with: operator kubeconfig check FILE)",
                    names::KUBECONFIG_KEY,
                    invalid.problems().collect::<Vec<_>>().join("; ")
                ),
            });
        })
    });
    let tls_found = match &observed.tls {
        Some(content) => {
            let secret = names::tls(&name);
            keys(content, &secret, &["tls.crt", "tls.key"], &mut problems, || {
                fill_tls(&namespace, &secret)
            })
            .is_some()
        }
        None if observed.is_unread(&names::tls(&name)) => false,
        None => {
            problems.push(missing_tls(&namespace, &name, settings.openshift));
            false
        }
    };

    let kubeconfig_found = !matches!(kubeconfig, Some(Err(())));
    let kubeconfig = kubeconfig.and_then(std::result::Result::ok);
    let proxy_config = match (ca_pem, kubeconfig_found) {
        (Some(ca_pem), true) => match Routes::build(&spec.proxy.targets, kubeconfig.as_ref()) {
            Ok(routes) => Some(ProxyConfig {
                routes: routes.to_json(),
                kubeconfig: dummy::render(
                    kubeconfig.as_ref(),
                    ca_pem,
                    &proxy_url(&names::proxy(&name), &namespace),
                ),
            }),
            Err(invalid) => {
                problems.push(Problem {
                    reason: reasons::KUBECONFIG_INVALID,
                    message: invalid.problems().collect::<Vec<_>>().join("; "),
                });
                None
            }
        },
        _ => None,
    };

    let sandbox_image = if spec.sandbox.image.is_empty() {
        settings.sandbox_image.clone()
    } else {
        spec.sandbox.image.clone()
    };
    let (hmac_key, hmac_hash) = hmac.unzip();
    let mounts_hash = stamp(&[
        proxy_config
            .as_ref()
            .map(|config| config.kubeconfig.as_bytes())
            .unwrap_or_default(),
        hmac_hash.as_deref().unwrap_or_default().as_bytes(),
    ]);
    // Of the kubeconfig its version and never its content: the hash of a credential is a way to test guesses of it.
    let inputs_known = observed
        .unread
        .iter()
        .all(|unread| Some(&unread.name) != kubeconfig_secret.as_ref() && unread.name != names::proxy_ca(&name));
    let proxy_inputs_hash = inputs_known.then(|| {
        stamp(&[
            proxy_config
                .as_ref()
                .map(|config| config.routes.as_bytes())
                .unwrap_or_default(),
            version(&observed.kubeconfig).as_bytes(),
            version(&observed.ca).as_bytes(),
        ])
    });
    let idle_timeout = spec.sandbox.idle_timeout.parse::<GoDuration>();
    let max_lifetime = Some(&spec.sandbox.max_lifetime)
        .filter(|text| !text.is_empty())
        .map(|text| text.parse::<GoDuration>());
    // Admission refuses both; an instance that is older than the rule must not be collected by a guess.
    let durations = [
        ("idleTimeout", idle_timeout.as_ref().err()),
        (
            "maxLifetime",
            max_lifetime.as_ref().and_then(|parsed| parsed.as_ref().err()),
        ),
    ];
    for (field, error) in durations.into_iter().filter_map(|(field, error)| Some((field, error?))) {
        problems.push(Problem {
            reason: reasons::CHILDREN_NOT_READY,
            message: format!("spec.sandbox.{field}: {error}"),
        });
    }
    let template = observed
        .proxy_address
        .as_ref()
        .map(|address| template(&spec, &name, &namespace, &sandbox_image, settings, address));
    problems.sort_by_key(|problem| rank(problem.reason));
    Ok(Validated {
        reserved_env: spec
            .sandbox
            .env
            .iter()
            .filter(|variable| is_reserved_env(&variable.name))
            .map(|variable| variable.name.clone())
            .collect(),
        generation: instance.metadata.generation,
        controller,
        owner,
        server_image: settings.server_image.clone(),
        proxy_image: settings.proxy_image.clone(),
        sandbox_image,
        openshift: settings.openshift,
        ipv6_first: settings.ipv6_first(),
        kubeconfig_secret,
        proxy_config,
        template,
        awaited_proxy: observed.awaited_proxy.clone(),
        hmac_key,
        hmac_hash,
        mounts_hash,
        proxy_inputs_hash,
        idle_timeout: idle_timeout.unwrap_or(GoDuration(std::time::Duration::MAX)),
        max_lifetime: max_lifetime.and_then(std::result::Result::ok),
        needs_ca: observed.ca.is_none() && !observed.is_unread(&names::proxy_ca(&name)),
        needs_hmac: observed.hmac.is_none() && !observed.is_unread(&names::hmac(&name)),
        problems,
        kubeconfig_found,
        tls_found,
        name,
        namespace,
        spec,
    })
}

/// What sandboxes of the instance are built from; the server builds the same from its flags.
fn template(
    spec: &CliMcpInstanceSpec,
    name: &str,
    namespace: &str,
    image: &str,
    settings: &Settings,
    proxy_address: &str,
) -> SandboxTemplate {
    let sandbox = &spec.sandbox;
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let required = sandbox.egress_check == EgressCheck::Required;
    SandboxTemplate {
        instance: name.to_owned(),
        namespace: namespace.to_owned(),
        image: image.to_owned(),
        image_pull_policy: sandbox.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        image_pull_secrets: sandbox
            .image_pull_secrets
            .iter()
            .map(|secret| secret.name.clone())
            .collect(),
        service_account: names::sandbox(name),
        resources: sandbox
            .resources
            .clone()
            .filter(|resources| resources.limits.is_some() || resources.requests.is_some())
            .unwrap_or_else(default_resources),
        workspace_size_limit: some(&sandbox.workspace_size_limit),
        env: sandbox.env.clone(),
        runtime_class_name: some(&sandbox.runtime_class_name),
        node_selector: sandbox.node_selector.clone(),
        tolerations: sandbox.tolerations.clone(),
        access: ClusterAccess::Proxy {
            url: proxy_url(&names::proxy(name), namespace),
            ca_secret: names::proxy_ca(name),
            kubeconfig_config_map: names::proxy(name),
        },
        egress: Egress {
            check: sandbox.egress_check,
            target: required.then(|| settings.api_server.to_string()),
            control: required.then(|| proxy_address.to_owned()),
        },
        listen: settings
            .ipv6_first()
            .then_some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), AGENT_PORT)),
    }
}

/// Missing first, then incomplete, then invalid: the order in which an admin mends them.
fn rank(reason: &str) -> usize {
    const ORDER: [&str; 3] = [
        reasons::SECRETS_NOT_FOUND,
        reasons::SECRET_KEYS_INVALID,
        reasons::KUBECONFIG_INVALID,
    ];
    ORDER.iter().position(|ranked| *ranked == reason).unwrap_or(ORDER.len())
}

fn version(secret: &Option<SecretContent>) -> String {
    secret
        .as_ref()
        .map(|secret| format!("{}/{}", secret.uid, secret.resource_version))
        .unwrap_or_default()
}

/// 16 hexadecimal digits that change with any of the parts.
fn stamp(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    hex::encode(digest.finalize())[..16].to_owned()
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
