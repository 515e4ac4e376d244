//! Everything that a reload swaps at once: the targets with their credentials and connections, and the CA.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use cli_mcp_kubeconfig::{
    Authority, Credential, Host, Invalid, Kubeconfig, ResolvedKubernetes, ResolvedRoute, Routes, RoutesError,
};
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use time::OffsetDateTime;

use crate::dial::{AddressRule, Dialer, Resolve};
use crate::mint::{CaError, Minter};
use crate::path::Target;
use crate::policy::Rules;
use crate::pool::Pool;
use crate::strip;
use crate::tls::{self, TlsError};

/// Why a set of inputs cannot be served. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// `proxy-config.json`.
    #[error(transparent)]
    Routes(#[from] RoutesError),
    /// The kubeconfig.
    #[error("kubeconfig: {}", .0.problems().collect::<Vec<_>>().join("; "))]
    Kubeconfig(Invalid),
    /// Routes and kubeconfig do not fit together.
    #[error("{}", .0.problems().collect::<Vec<_>>().join("; "))]
    Mismatch(Invalid),
    /// The CA.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// Trust in an upstream.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A name that no certificate can be checked against.
    #[error("target {0}: the host cannot stand in a certificate")]
    ServerName(Authority),
}

/// The contents of the input files.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Inputs {
    /// `proxy-config.json`.
    pub routes: Vec<u8>,
    /// The investigation kubeconfig, when there is one.
    pub kubeconfig: Option<Vec<u8>>,
    /// `ca.crt`.
    pub ca_certificate: Vec<u8>,
    /// `ca.key`.
    pub ca_key: Vec<u8>,
    /// The roots that replace the public ones, when there are such.
    pub public_roots: Option<Vec<u8>>,
}

/// One server behind a target, with what is presented to it.
pub struct Upstream {
    /// How it is dialled.
    pub dialer: Dialer,
    /// Its kept connections.
    pub pool: Pool,
    /// Value of the `Host` field.
    pub host_header: String,
}

/// An API server and the one identity that it sees.
pub struct KubernetesUpstream {
    /// The server.
    pub upstream: Upstream,
    /// What passes.
    pub rules: Rules,
    /// The header lines that are injected: `Authorization` and `Impersonate-*`.
    pub injected: Vec<u8>,
    /// The token, to recognise it in an answer.
    pub token: Option<Vec<u8>>,
}

/// What stands behind one `host:port`.
pub enum Backend {
    /// API servers.
    Kubernetes(ApiServers),
    /// A public server.
    Allowlist(Arc<Upstream>),
}

/// The API servers of one `host:port`, at least one, each with a path prefix of its own.
pub struct ApiServers {
    first: Arc<KubernetesUpstream>,
    others: Vec<Arc<KubernetesUpstream>>,
}

impl ApiServers {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<KubernetesUpstream>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The server with the longest prefix that the path is under; the first one when it is under none, so that its rules
    /// refuse it.
    #[must_use]
    pub fn for_target(&self, target: &Target) -> &Arc<KubernetesUpstream> {
        self.iter()
            .filter(|server| server.rules.below_prefix(target).is_some())
            .max_by_key(|server| server.rules.prefix.len())
            .unwrap_or(&self.first)
    }
}

/// A `host:port` that tunnels may lead to.
pub struct Destination {
    /// Its address.
    pub authority: Authority,
    /// `host:port`, for messages, metrics and the audit.
    pub label: String,
    /// Names that may stand in SNI beside the host: `tls-server-name` of its clusters.
    pub server_names: Vec<String>,
    /// What stands there.
    pub target: Backend,
}

impl Destination {
    /// Whether the client that sent this SNI means this destination (`proxy_cases.md`, case 21).
    #[must_use]
    pub fn accepts_sni(&self, sni: &str) -> bool {
        let sni = sni.to_ascii_lowercase();
        self.authority.host.to_string() == sni || self.server_names.contains(&sni)
    }

    /// Whether refusals are for Kubernetes clients.
    #[must_use]
    pub const fn is_kubernetes(&self) -> bool {
        matches!(self.target, Backend::Kubernetes(_))
    }
}

/// One consistent set of everything.
pub struct State {
    destinations: HashMap<Authority, Arc<Destination>>,
    /// Signs the leaves.
    pub minter: Minter,
}

impl State {
    /// Builds the state from the files' contents. What it says of them depends on `now` alone beside them.
    ///
    /// # Errors
    ///
    /// The first input that cannot be served, with all that is wrong in it.
    pub fn build(inputs: &Inputs, resolver: &Arc<dyn Resolve>, now: OffsetDateTime) -> Result<Self, StateError> {
        let routes = Routes::from_json(&inputs.routes)?;
        let kubeconfig = inputs
            .kubeconfig
            .as_deref()
            .map(Kubeconfig::parse)
            .transpose()
            .map_err(StateError::Kubeconfig)?;
        let resolved = routes.resolve(kubeconfig.as_ref()).map_err(StateError::Mismatch)?;
        let minter = Minter::new(&inputs.ca_certificate, &inputs.ca_key, now)?;
        let public = tls::public_roots(inputs.public_roots.as_deref())?;

        let mut kubernetes: HashMap<Authority, (ApiServers, Vec<String>)> = HashMap::new();
        let mut destinations = HashMap::new();
        for route in resolved {
            match route {
                ResolvedRoute::Allowlist { authority } => {
                    let target = Backend::Allowlist(Arc::new(public_server(&authority, resolver, &public)?));
                    destinations.insert(authority.clone(), destination(authority, Vec::new(), target));
                }
                ResolvedRoute::Kubernetes(resolved) => {
                    let (authority, name) = (resolved.authority.clone(), resolved.tls_server_name.clone());
                    let server = Arc::new(api_server(*resolved, resolver, &public)?);
                    match kubernetes.entry(authority) {
                        Entry::Vacant(place) => {
                            let (first, others) = (server, Vec::new());
                            place.insert((ApiServers { first, others }, name.into_iter().collect()));
                        }
                        Entry::Occupied(place) => {
                            let (servers, names) = place.into_mut();
                            servers.others.push(server);
                            names.extend(name);
                        }
                    }
                }
            }
        }
        for (authority, (servers, names)) in kubernetes {
            let target = Backend::Kubernetes(servers);
            destinations.insert(authority.clone(), destination(authority, names, target));
        }
        Ok(Self { destinations, minter })
    }

    /// What stands at exactly this `host:port`.
    #[must_use]
    pub fn destination(&self, authority: &Authority) -> Option<&Arc<Destination>> {
        self.destinations.get(authority)
    }

    /// Lets every pool drop what is too old.
    pub fn sweep(&self) {
        for destination in self.destinations.values() {
            match &destination.target {
                Backend::Allowlist(upstream) => upstream.pool.sweep(),
                Backend::Kubernetes(servers) => servers.iter().for_each(|server| server.upstream.pool.sweep()),
            }
        }
    }
}

fn destination(authority: Authority, server_names: Vec<String>, target: Backend) -> Arc<Destination> {
    Arc::new(Destination {
        label: authority.to_string(),
        authority,
        server_names,
        target,
    })
}

fn public_server(
    authority: &Authority,
    resolver: &Arc<dyn Resolve>,
    public: &Arc<RootCertStore>,
) -> Result<Upstream, StateError> {
    let rule = match authority.host {
        Host::Address(_) => AddressRule::Literal,
        Host::Name(_) => AddressRule::Public,
    };
    let config = Arc::new(tls::allowlist(public)?);
    upstream(authority.clone(), rule, resolver, config, None)
}

fn api_server(
    resolved: ResolvedKubernetes,
    resolver: &Arc<dyn Resolve>,
    public: &Arc<RootCertStore>,
) -> Result<KubernetesUpstream, StateError> {
    let ResolvedKubernetes {
        route,
        authority,
        trust,
        tls_server_name,
        credential,
        impersonation,
    } = resolved;
    let config = Arc::new(tls::kubernetes(&route.cluster, &trust, &credential, public)?);
    let name = tls_server_name.as_deref();
    let token = match &credential {
        Credential::Token(token) => Some(token.expose().to_vec()),
        Credential::ClientCertificate { .. } => None,
    };
    let mut injected = Vec::new();
    if let Some(token) = &token {
        injected.extend_from_slice(b"Authorization: Bearer ");
        injected.extend_from_slice(token);
        injected.extend_from_slice(b"\r\n");
    }
    for (name, value) in impersonation.headers() {
        strip::write_field(name.as_bytes(), value.as_bytes(), &mut injected);
    }
    Ok(KubernetesUpstream {
        upstream: upstream(authority, AddressRule::Kubernetes, resolver, config, name)?,
        rules: Rules {
            prefix: route.prefix,
            access: route.access,
            denied_resources: route.denied_resources,
            identity_by_connection: token.is_none(),
        },
        injected,
        token,
    })
}

fn upstream(
    authority: Authority,
    rule: AddressRule,
    resolver: &Arc<dyn Resolve>,
    tls: Arc<rustls::ClientConfig>,
    tls_server_name: Option<&str>,
) -> Result<Upstream, StateError> {
    let name = tls_server_name.map_or_else(
        || match &authority.host {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        },
        str::to_owned,
    );
    let server_name = ServerName::try_from(name).map_err(|_| StateError::ServerName(authority.clone()))?;
    Ok(Upstream {
        host_header: authority.host_header(),
        dialer: Dialer {
            authority,
            rule,
            resolver: resolver.clone(),
            tls,
            server_name,
        },
        pool: Pool::default(),
    })
}
