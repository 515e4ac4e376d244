//! Everything that a reconcile reads, read once: caches, and the Secrets' contents when their version changed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_sandbox::pod::{egress_control, is_owned_by};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use crate::build::{ChildKind, ChildRef, cluster_ip};
use crate::caches::Caches;
use crate::context::Context;
use crate::error::{Error, Result};

/// A Secret as it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretContent {
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// UID of the object that controls it, if there is one.
    pub controller: Option<String>,
    /// Its data.
    pub data: BTreeMap<String, Vec<u8>>,
}

impl std::fmt::Debug for SecretContent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<_> = self.data.keys().collect();
        formatter
            .debug_struct("SecretContent")
            .field("uid", &self.uid)
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}

/// A Secret that is there and could not be read.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What the API server said.
    pub cause: Arc<kube::Error>,
}

impl Unread {
    /// The failure, which is tried again.
    #[must_use]
    pub fn error(&self) -> Error {
        Error::Api {
            action: format!("read Secret {}/{}", self.namespace, self.name),
            source: self.cause.clone(),
        }
    }
}

/// Where sandboxes look for the proxy while its Service has no address.
#[derive(Clone, Debug, Default)]
pub enum AwaitedProxy {
    /// The Service has its address, or no sandbox looks for the proxy by one.
    #[default]
    Nowhere,
    /// Here.
    At(IpAddr),
    /// A sandbox that knows it could not be read.
    Unknown {
        /// The sandbox, as `namespace/name`.
        pod: String,
        /// What the API server said.
        cause: Arc<kube::Error>,
    },
}

impl AwaitedProxy {
    /// Why it is not known, which is tried again. `instance` is whose proxy it is.
    #[must_use]
    pub fn error(&self, instance: &str) -> Option<Error> {
        let Self::Unknown { pod, cause } = self else {
            return None;
        };
        let service = names::proxy(instance);
        Some(Error::Api {
            action: format!("read pod {pod}, which knows the address at which Service {service} must be made again"),
            source: cause.clone(),
        })
    }
}

/// What was read for one instance.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The investigation kubeconfig, if the instance needs one and it exists.
    pub kubeconfig: Option<SecretContent>,
    /// The server's certificate.
    pub tls: Option<SecretContent>,
    /// The proxy's CA.
    pub ca: Option<SecretContent>,
    /// The HMAC key.
    pub hmac: Option<SecretContent>,
    /// Secrets of these that are there and could not be read.
    pub unread: Vec<Unread>,
    /// `address:port` of the proxy's Service, once it has one.
    pub proxy_address: Option<String>,
    /// Where sandboxes look for the proxy while its Service has no address.
    pub awaited_proxy: AwaitedProxy,
    /// Whether a proxy pod is ready behind its Service.
    pub proxy_ready: bool,
    /// Children as they are.
    pub children: BTreeMap<ChildRef, Arc<DynamicObject>>,
    /// Pods of the server.
    pub server_pods: Vec<Arc<Pod>>,
    /// Pods of the proxy.
    pub proxy_pods: Vec<Arc<Pod>>,
    /// Sandboxes.
    pub sandboxes: Vec<Arc<Pod>>,
}

impl Observed {
    /// Whether a Secret is there and could not be read: nothing is known of it.
    #[must_use]
    pub fn is_unread(&self, secret: &str) -> bool {
        self.unread.iter().any(|unread| unread.name == secret)
    }
}

/// Reads everything about an instance. A Secret or a sandbox that cannot be read holds up nothing that does without it.
///
/// # Errors
///
/// When the API server sent an instance without a namespace.
pub async fn dereference(context: &Context, caches: &Caches, instance: &CliMcpInstance) -> Result<Observed> {
    let namespace = instance.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let name = instance.name_any();
    let mut unread = Vec::new();
    let mut secret = async |secret_name: String| match secret(context, caches, &namespace, &secret_name).await {
        Ok(content) => content,
        Err(cause) => {
            unread.push(Unread {
                namespace: namespace.clone(),
                name: secret_name,
                cause: Arc::new(cause),
            });
            None
        }
    };
    let kubeconfig = match instance.kubeconfig_secret() {
        Some(secret_name) => secret(secret_name).await,
        None => None,
    };
    let (tls, ca, hmac) = (
        secret(names::tls(&name)).await,
        secret(names::proxy_ca(&name)).await,
        secret(names::hmac(&name)).await,
    );
    let children = children(caches, &namespace, &name);
    let mut pods = caches.pods_of(&namespace, &name);
    pods.sort_by_key(|pod| pod.name_any());
    let uid = instance.uid().unwrap_or_default();
    // Anybody may write labels: whose a pod is its owner reference says.
    let of = |component: Component, is_ours: &dyn Fn(&Pod) -> bool| {
        let is_of = |pod: &&Arc<Pod>| {
            let found = pod.labels().get(labels::COMPONENT);
            found.is_some_and(|found| found == component.as_str()) && is_ours(pod)
        };
        pods.iter().filter(is_of).cloned().collect()
    };
    let sandboxes: Vec<Arc<Pod>> = of(Component::Sandbox, &|pod| is_owned_by(pod, &uid));
    let proxy_address = proxy_address(&children, &name);
    let awaited_proxy = match proxy_address {
        Some(_) => AwaitedProxy::Nowhere,
        None => awaited_proxy(context, &namespace, &sandboxes).await,
    };
    Ok(Observed {
        kubeconfig,
        tls,
        ca,
        hmac,
        unread,
        proxy_address,
        awaited_proxy,
        proxy_ready: proxy_ready(caches, &namespace, &name),
        server_pods: of(Component::Server, &|pod| {
            is_pod_of_deployment(pod, &names::server(&name))
        }),
        proxy_pods: of(Component::Proxy, &|pod| is_pod_of_deployment(pod, &names::proxy(&name))),
        sandboxes,
        children,
    })
}

/// Whether a pod is of a Deployment: its ReplicaSet is called as the Deployment and the pod's own `pod-template-hash`
/// (<https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template-hash-label>).
#[must_use]
pub fn is_pod_of_deployment(pod: &Pod, deployment: &str) -> bool {
    let Some(hash) = pod.labels().get("pod-template-hash") else {
        return false;
    };
    pod.owner_references().iter().any(|owner| {
        owner.controller == Some(true) && owner.kind == "ReplicaSet" && owner.name == format!("{deployment}-{hash}")
    })
}

/// A Secret's content: from memory while its version is the watched one.
async fn secret(
    context: &Context,
    caches: &Caches,
    namespace: &str,
    name: &str,
) -> kube::Result<Option<SecretContent>> {
    let Some(known) = caches.secrets.get(&ObjectRef::new(name).within(namespace)) else {
        return Ok(None);
    };
    let key = (namespace.to_owned(), name.to_owned());
    if let Some(content) = context.memory().secrets.get(&key)
        && known.metadata.resource_version.as_deref() == Some(&content.resource_version)
    {
        return Ok(Some((**content).clone()));
    }
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let Some(secret) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let content = SecretContent {
        uid: secret.uid().unwrap_or_default(),
        resource_version: secret.resource_version().unwrap_or_default(),
        controller: secret
            .owner_references()
            .iter()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone()),
        data: secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, value.0))
            .collect(),
    };
    context.memory().secrets.insert(key, Arc::new(content.clone()));
    Ok(Some(content))
}

fn children(caches: &Caches, namespace: &str, instance: &str) -> BTreeMap<ChildRef, Arc<DynamicObject>> {
    let mut found = BTreeMap::new();
    for (kind, store) in &caches.children {
        let resource = kind.api_resource();
        for name in [
            names::server(instance),
            names::proxy(instance),
            names::sandbox(instance),
            names::client(instance),
        ] {
            let key = ObjectRef::new_with(&name, resource.clone()).within(namespace);
            if let Some(child) = store.get(&key) {
                found.insert(ChildRef { kind: *kind, name }, child);
            }
        }
    }
    found
}

fn proxy_address(children: &BTreeMap<ChildRef, Arc<DynamicObject>>, instance: &str) -> Option<String> {
    let service = children.get(&ChildRef {
        kind: ChildKind::Service,
        name: names::proxy(instance),
    })?;
    let port = u16::try_from(names::PROXY_PORT).ok()?;
    Some(SocketAddr::new(cluster_ip(service)?, port).to_string())
}

/// How many sandboxes are asked where they look for the proxy: those without the check do not.
const LOOKED_AT: usize = 8;

/// Where the newest sandbox that looks for the proxy by its address does: an agent keeps the one that it was started with. The
/// caches hold pods without their spec, and a Service is seldom missing.
async fn awaited_proxy(context: &Context, namespace: &str, sandboxes: &[Arc<Pod>]) -> AwaitedProxy {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let mut newest_first: Vec<&Arc<Pod>> = sandboxes.iter().collect();
    newest_first.sort_by_key(|pod| std::cmp::Reverse(pod.creation_timestamp()));
    for sandbox in newest_first.into_iter().take(LOOKED_AT) {
        let name = sandbox.name_any();
        let read = match api.get_opt(&name).await {
            Ok(read) => read,
            Err(cause) => {
                return AwaitedProxy::Unknown {
                    pod: format!("{namespace}/{name}"),
                    cause: Arc::new(cause),
                };
            }
        };
        let control = read.as_ref().and_then(egress_control);
        if let Some(address) = control.and_then(|control| control.parse::<SocketAddr>().ok()) {
            return AwaitedProxy::At(address.ip());
        }
    }
    AwaitedProxy::Nowhere
}

/// The gate of contract, section 8: the proxy's EndpointSlice has a ready address.
fn proxy_ready(caches: &Caches, namespace: &str, instance: &str) -> bool {
    let service = names::proxy(instance);
    caches.endpoint_slices.state().iter().any(|slice| {
        slice.metadata.namespace.as_deref() == Some(namespace)
            && slice.labels().get("kubernetes.io/service-name") == Some(&service)
            && slice.endpoints.iter().any(|endpoint| {
                endpoint
                    .conditions
                    .as_ref()
                    .is_some_and(|conditions| conditions.ready == Some(true))
            })
    })
}
