//! Investigation kubeconfigs, shared by the operator and the credential proxy: the operator refuses what the proxy
//! could not serve, because both read the file with the same code.
//!
//! * [`Kubeconfig::parse`] reads and validates the admin's file and names every mistake at once.
//! * [`Routes`] is what the proxy may reach, without any secret: the `proxy-config.json` of the ConfigMap.
//! * [`dummy::render`] builds the file that a sandbox sees, from scratch.
//! * [`Routes::resolve`] joins routes and kubeconfig into upstreams with their credentials.
//! * [`SigningCa`] is the proxy's CA, whose certificate stands in that file.
//! * [`offline`] answers an admin's questions without a cluster.

mod address;
mod authority;
mod cluster;
mod document;
pub mod dummy;
mod kubeconfig;
pub mod offline;
mod problems;
mod routes;
mod secret;
mod signing;
mod upstream;
mod user;

pub use address::{refused_for_allowlist, refused_for_kubernetes};
pub use authority::{Authority, AuthorityError, Host};
pub use cluster::{Cluster, Server};
pub use kubeconfig::{Context, Endpoint, Kubeconfig, MAX_BYTES};
pub use problems::Invalid;
pub use routes::{KubernetesRoute, Route, Routes, RoutesError};
pub use secret::Secret;
pub use signing::{SigningCa, SigningCaError};
pub use upstream::{ResolvedKubernetes, ResolvedRoute, Trust};
pub use user::{Credential, Impersonation, User};
