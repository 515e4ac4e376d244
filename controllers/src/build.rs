//! Children of an instance, made from what was validated. No client and no clock: the same input gives the same
//! children. One file a child kind.

mod cluster_role_binding;
mod config_map;
mod deployment;
mod network_policy;
mod pod_disruption_budget;
mod proxy;
mod rbac;
mod server;
mod service;
mod service_account;

use std::net::IpAddr;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use kube::core::Resource;
use serde::Serialize;
use sha2::{Digest, Sha256};

pub use cluster_role_binding::{auth_delegator, is_auth_delegator};
pub(crate) use service::cluster_ip;

use crate::dereference::AwaitedProxy;
use crate::validate::Validated;

/// Kinds of namespaced children, in the order they are applied: policies before anything that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// `networking.k8s.io/v1`.
    NetworkPolicy,
    /// `v1`.
    ServiceAccount,
    /// `rbac.authorization.k8s.io/v1`.
    Role,
    /// `rbac.authorization.k8s.io/v1`.
    RoleBinding,
    /// `v1`.
    Service,
    /// `v1`.
    ConfigMap,
    /// `apps/v1`.
    Deployment,
    /// `policy/v1`.
    PodDisruptionBudget,
}

impl ChildKind {
    /// Every kind, in order.
    pub const ALL: [Self; 8] = [
        Self::NetworkPolicy,
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::Service,
        Self::ConfigMap,
        Self::Deployment,
        Self::PodDisruptionBudget,
    ];

    /// Whether the operator deletes one while its instance lives: because a field of it can only be set when it is made
    /// (a roleRef, a cluster IP, the data of a ConfigMap that somebody made immutable, a selector), or because it is not
    /// always wanted.
    #[must_use]
    pub const fn is_deleted(self) -> bool {
        match self {
            Self::RoleBinding | Self::Service | Self::ConfigMap | Self::Deployment | Self::PodDisruptionBudget => true,
            Self::NetworkPolicy | Self::ServiceAccount | Self::Role => false,
        }
    }

    /// Group, version and plural.
    #[must_use]
    pub fn api_resource(self) -> ApiResource {
        match self {
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::Role => ApiResource::erase::<Role>(&()),
            Self::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Deployment => ApiResource::erase::<Deployment>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
        }
    }
}

/// What names a child of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildRef {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for ChildRef {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?} {}", self.kind, self.name)
    }
}

/// A child as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind and name.
    pub reference: ChildRef,
    /// The object, with apiVersion and kind.
    pub object: DynamicObject,
    /// The cluster IP that it asks for when it is made. Never compared: it cannot be changed later.
    pub address: Option<IpAddr>,
}

/// Everything that an instance should have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Children {
    /// To apply, in order.
    pub apply: Vec<Child>,
    /// To remove if it is ours.
    pub remove: Vec<ChildRef>,
}

/// Builds the children that the validated instance can have now. A Deployment whose Secrets are missing is left out, and a
/// Service whose address cannot be told: an existing one goes on as it is.
///
/// # Errors
///
/// When an object cannot be turned into JSON.
pub fn build(validated: &Validated) -> Result<Children, serde_json::Error> {
    let mut children = Collector {
        validated,
        children: Children::default(),
    };
    children.add(ChildKind::NetworkPolicy, network_policy::sandbox(validated))?;
    children.add(ChildKind::NetworkPolicy, network_policy::proxy(validated))?;
    for account in service_account::all(validated) {
        children.add(ChildKind::ServiceAccount, account)?;
    }
    for (role, binding) in [rbac::server(validated), rbac::client(validated)] {
        children.add(ChildKind::Role, role)?;
        children.add(ChildKind::RoleBinding, binding)?;
    }
    children.add(ChildKind::Service, service::server(validated))?;
    match &validated.awaited_proxy {
        AwaitedProxy::Nowhere => {
            children.add(ChildKind::Service, service::proxy(validated))?;
        }
        AwaitedProxy::At(address) => {
            children.add(ChildKind::Service, service::proxy(validated))?.address = Some(*address);
        }
        // It would get another address than the one that it had.
        AwaitedProxy::Unknown { .. } => {}
    }
    if let Some(config) = &validated.proxy_config {
        children.add(ChildKind::ConfigMap, config_map::proxy(validated, config))?;
    }
    if validated.proxy_can_run() {
        children.add(ChildKind::Deployment, proxy::deployment(validated))?;
    }
    if let Some(template) = &validated.template
        && validated.server_can_run()
    {
        children.add(ChildKind::Deployment, server::deployment(validated, template)?)?;
    }
    if validated.spec.proxy.replicas > 1 {
        children.add(ChildKind::PodDisruptionBudget, pod_disruption_budget::proxy(validated))?;
    } else {
        children.remove(ChildKind::PodDisruptionBudget, names::proxy(&validated.name));
    }
    Ok(children.children)
}

struct Collector<'a> {
    validated: &'a Validated,
    children: Children,
}

impl Collector<'_> {
    fn add<K>(&mut self, kind: ChildKind, mut object: K) -> Result<&mut Child, serde_json::Error>
    where
        K: Resource<DynamicType = ()> + ResourceExt + Serialize,
    {
        let metadata = object.meta_mut();
        metadata.namespace = Some(self.validated.namespace.clone());
        metadata.owner_references = Some(vec![self.validated.controller.clone()]);
        let name = object.name_any();
        let object = serde_json::to_value(object)?;
        let hash = hex::encode(Sha256::digest(object.to_string()))[..16].to_owned();
        let mut object: DynamicObject = serde_json::from_value(object)?;
        object.annotations_mut().insert(labels::APPLIED_HASH.to_owned(), hash);
        let resource = kind.api_resource();
        object.types = Some(kube::core::TypeMeta {
            api_version: resource.api_version,
            kind: resource.kind,
        });
        Ok(self.children.apply.push_mut(Child {
            reference: ChildRef { kind, name },
            object,
            address: None,
        }))
    }

    fn remove(&mut self, kind: ChildKind, name: String) {
        self.children.remove.push(ChildRef { kind, name });
    }
}

/// Who controls an object.
pub(crate) fn controller(object: &DynamicObject) -> Option<&OwnerReference> {
    object
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
}

/// Metadata of a child of a component.
fn metadata(validated: &Validated, name: String, component: Option<Component>) -> ObjectMeta {
    let labels = match component {
        Some(component) => labels::component(&validated.name, component),
        None => labels::instance_wide(&validated.name),
    };
    ObjectMeta {
        name: Some(name),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
