//! Routes joined with the kubeconfig: what the proxy dials, how it trusts it, and what it presents there.

use rustls_pki_types::CertificateDer;

use crate::authority::Authority;
use crate::kubeconfig::Kubeconfig;
use crate::problems::{Invalid, Problems, quoted};
use crate::routes::{KubernetesRoute, Route, Routes};
use crate::secret::Scrubber;
use crate::user::{Credential, Impersonation};

/// Whom a server's certificate must come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Only these certificates, never the public roots beside them (`proxy_cases.md`, case 68).
    Only(Vec<CertificateDer<'static>>),
    /// The public roots, Mozilla's.
    System,
}

/// A route with everything that it takes to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedRoute {
    /// An API server.
    Kubernetes(Box<ResolvedKubernetes>),
    /// A public server.
    Allowlist {
        /// Its address.
        authority: Authority,
    },
}

/// An API server with everything that it takes to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedKubernetes {
    /// The route.
    pub route: KubernetesRoute,
    /// Its address.
    pub authority: Authority,
    /// The cluster's CA.
    pub trust: Trust,
    /// The cluster's `tls-server-name`.
    pub tls_server_name: Option<String>,
    /// The user's credential.
    pub credential: Credential,
    /// Whom the user acts as.
    pub impersonation: Impersonation,
}

impl Routes {
    /// Joins the routes with the kubeconfig they were built from.
    ///
    /// # Errors
    ///
    /// When the two do not fit: a name is gone, or a cluster has moved. That is so for a moment when the operator has
    /// not yet written routes for a changed kubeconfig.
    pub fn resolve(&self, kubeconfig: Option<&Kubeconfig>) -> Result<Vec<ResolvedRoute>, Invalid> {
        let mut problems = Problems::default();
        let mut resolved = Vec::new();
        for route in self.targets() {
            let outcome = route.authority().and_then(|authority| match route {
                Route::Allowlist { .. } => Ok(ResolvedRoute::Allowlist { authority }),
                Route::Kubernetes(route) => resolve_kubernetes(route, authority, kubeconfig).map_err(Invalid::one),
            });
            match outcome {
                Ok(route) => resolved.push(route),
                Err(invalid) => invalid.problems().for_each(|problem| problems.add(problem)),
            }
        }
        if problems.is_empty() {
            Ok(resolved)
        } else {
            Err(problems.into_invalid(&Scrubber::default()))
        }
    }
}

fn resolve_kubernetes(
    route: &KubernetesRoute,
    authority: Authority,
    kubeconfig: Option<&Kubeconfig>,
) -> Result<ResolvedRoute, String> {
    let kubeconfig = kubeconfig.ok_or("the routes have a kubernetes target, but there is no kubeconfig")?;
    let cluster = kubeconfig.cluster(&route.cluster).ok_or_else(|| {
        format!(
            "the routes name cluster {}, which the kubeconfig does not have",
            quoted(&route.cluster)
        )
    })?;
    let user = kubeconfig.user(&route.user).ok_or_else(|| {
        format!(
            "the routes name user {}, which the kubeconfig does not have",
            quoted(&route.user)
        )
    })?;
    if cluster.server.authority != authority || cluster.server.prefix != route.prefix {
        return Err(format!(
            "cluster {} is at {} in the kubeconfig but at https://{authority}{} in the routes",
            quoted(&route.cluster),
            cluster.server,
            route.prefix
        ));
    }
    let joined = kubeconfig
        .endpoints()
        .iter()
        .any(|endpoint| endpoint.cluster.server == cluster.server && endpoint.user.same_identity(user));
    if !joined {
        return Err(format!(
            "the routes join cluster {} and user {}, but no context of the kubeconfig does",
            quoted(&route.cluster),
            quoted(&route.user)
        ));
    }
    Ok(ResolvedRoute::Kubernetes(Box::new(ResolvedKubernetes {
        route: route.clone(),
        authority,
        trust: cluster.ca.clone().map_or(Trust::System, Trust::Only),
        tls_server_name: cluster.tls_server_name.clone(),
        credential: user.credential.clone(),
        impersonation: user.impersonation.clone(),
    })))
}
