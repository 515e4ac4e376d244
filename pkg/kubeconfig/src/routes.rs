//! What the proxy may reach: the `proxy-config.json` of the ConfigMap. It holds no secret, only the names under which
//! the proxy finds credentials in its own copy of the kubeconfig.

use std::collections::BTreeSet;

use cli_mcp_api::v1alpha1::{Access, DeniedResource, Target, TargetType};
use serde::{Deserialize, Serialize};

use crate::authority::Authority;
use crate::kubeconfig::Kubeconfig;
use crate::problems::{Invalid, Problems, quoted};
use crate::secret::Scrubber;

/// Version of the format. A proxy refuses a version that it does not know, and keeps what it has.
const VERSION: u32 = 1;

/// Why a `proxy-config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// Not the JSON of this format.
    #[error("proxy-config.json is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by another version of the operator.
    #[error(
        "proxy-config.json has version {0}, this proxy reads version {VERSION}: run operator and proxy of one release"
    )]
    Version(u32),
    /// An entry is no exact host and port.
    #[error("proxy-config.json: {0}")]
    Invalid(#[from] Invalid),
}

/// The routes of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Routes {
    version: u32,
    targets: Vec<Route>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "type",
    deny_unknown_fields
)]
pub enum Route {
    /// An API server.
    Kubernetes(KubernetesRoute),
    /// A public server that gets no credential.
    Allowlist {
        /// Host, canonical; IPv6 in brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// How an API server is reached, and what of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KubernetesRoute {
    /// Host, canonical; IPv6 in brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path under which the API is served; empty for most servers.
    #[serde(default)]
    pub prefix: String,
    /// Name of the cluster in the kubeconfig: its CA and `tls-server-name` apply.
    pub cluster: String,
    /// Name of the user in the kubeconfig: its credential is injected.
    pub user: String,
    /// What passes.
    #[serde(default)]
    pub access: Access,
    /// Refused whatever the credential may do.
    #[serde(default)]
    pub denied_resources: Vec<DeniedResource>,
}

impl Route {
    /// The route's `host:port`.
    ///
    /// # Errors
    ///
    /// When the host is not in the strict grammar.
    pub fn authority(&self) -> Result<Authority, Invalid> {
        let (host, port) = match self {
            Self::Kubernetes(route) => (&route.host, route.port),
            Self::Allowlist { host, port } => (host, *port),
        };
        let text = format!("{host}:{port}");
        Authority::parse(&text).map_err(|error| Invalid::one(format!("target {}: {error}", quoted(&text))))
    }
}

impl Routes {
    /// The routes of an instance's targets. `kubeconfig` is needed when one of them is a kubernetes target.
    ///
    /// # Errors
    ///
    /// Every target that cannot be served, with its remedy.
    pub fn build(targets: &[Target], kubeconfig: Option<&Kubeconfig>) -> Result<Self, Invalid> {
        let mut problems = Problems::default();
        let mut routes = Vec::new();
        let mut kubernetes = BTreeSet::new();
        let of_type = |wanted: TargetType| {
            targets
                .iter()
                .enumerate()
                .filter(move |(_, target)| target.target_type == wanted)
        };
        if targets.is_empty() {
            problems.add("spec.proxy.targets is empty: name at least one target");
        }
        for (index, target) in of_type(TargetType::Kubernetes) {
            if !kubernetes.is_empty() {
                problems.add(format!(
                    "spec.proxy.targets[{index}]: a second kubernetes target: keep one"
                ));
                continue;
            }
            let Some(kubeconfig) = kubeconfig else {
                problems.add(format!(
                    "spec.proxy.targets[{index}]: a kubernetes target needs an investigation kubeconfig"
                ));
                continue;
            };
            for endpoint in kubeconfig.endpoints() {
                let server = &endpoint.cluster.server;
                kubernetes.insert(server.authority.clone());
                routes.push(Route::Kubernetes(KubernetesRoute {
                    host: server.authority.host.to_string(),
                    port: server.authority.port,
                    prefix: server.prefix.clone(),
                    cluster: endpoint.cluster.name.clone(),
                    user: endpoint.user.name.clone(),
                    access: target.access.unwrap_or_default(),
                    denied_resources: target.denied_resources.clone(),
                }));
            }
        }
        let mut domains = BTreeSet::new();
        for (index, target) in of_type(TargetType::Allowlist) {
            if target.domains.is_empty() {
                problems.add(format!(
                    "spec.proxy.targets[{index}].domains is empty: list the hosts of the allowlist target"
                ));
            }
            for (at, domain) in target.domains.iter().enumerate() {
                let field = format!("spec.proxy.targets[{index}].domains[{at}]");
                match Authority::parse_with_default(domain, 443) {
                    Err(error) => problems.add(format!(
                        "{field}: {} is not a literal host or host:port: {error}",
                        quoted(domain)
                    )),
                    Ok(authority) if kubernetes.contains(&authority) => problems.add(format!(
                        "{field}: {authority} is also a server of the kubeconfig: a request could go with and without the \
                         credential: remove it from the domains"
                    )),
                    Ok(authority) => {
                        domains.insert(authority);
                    }
                }
            }
        }
        routes.extend(domains.into_iter().map(|Authority { host, port }| Route::Allowlist {
            host: host.to_string(),
            port,
        }));
        if problems.is_empty() {
            Ok(Self {
                version: VERSION,
                targets: routes,
            })
        } else {
            Err(problems.into_invalid(&Scrubber::default()))
        }
    }

    /// The entries: API servers by address, then public servers by address.
    #[must_use]
    pub fn targets(&self) -> &[Route] {
        &self.targets
    }

    /// The JSON of the ConfigMap: the same routes always give the same bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain structs of strings and numbers always serialise.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Reads what [`Self::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// When it is not this format, another version of it, or holds an entry that is no exact host and port.
    pub fn from_json(json: &[u8]) -> Result<Self, RoutesError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(RoutesError::Version(version));
        }
        let routes: Self = serde_json::from_slice(json)?;
        for route in &routes.targets {
            route.authority()?;
        }
        Ok(routes)
    }
}
