//! Everything that is looked at, read once. What cannot be read is a fact too.

use std::collections::BTreeMap;

use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_api::{labels, names};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::error::told;

/// What was read, or why it could not be.
pub(crate) type Seen<T> = Result<T, String>;

/// Contents of a Secret; none when it does not exist.
pub(crate) type SecretData = Option<BTreeMap<String, Vec<u8>>>;

/// Name of the CustomResourceDefinition.
const CRD: &str = "climcpinstances.cli-mcp.redhat.com";

/// Label of the operator's Deployment, in `config/` and in the bundle.
const OPERATOR: &str = "app.kubernetes.io/name=cli-mcp-operator";

/// What is known of the cluster, whatever its instances are.
pub(crate) struct Platform {
    pub(crate) version: Seen<String>,
    pub(crate) crd: Seen<Option<CustomResourceDefinition>>,
    pub(crate) operators: Seen<Vec<Deployment>>,
}

/// What is known of an instance.
pub(crate) struct Facts {
    pub(crate) now: Timestamp,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) platform: Platform,
    pub(crate) instance: Seen<Option<CliMcpInstance>>,
    /// Name of the Secret, if a target needs one.
    pub(crate) kubeconfig_secret: Option<String>,
    pub(crate) kubeconfig: Seen<SecretData>,
    pub(crate) tls: Seen<SecretData>,
    pub(crate) sandbox_policy: Seen<Option<NetworkPolicy>>,
    pub(crate) proxy_policy: Seen<Option<NetworkPolicy>>,
    pub(crate) config_map: Seen<Option<ConfigMap>>,
    pub(crate) proxy: Seen<Option<Deployment>>,
    pub(crate) server: Seen<Option<Deployment>>,
    pub(crate) proxy_slices: Seen<Vec<EndpointSlice>>,
    pub(crate) pods: Seen<Vec<Pod>>,
    pub(crate) delegator: Seen<Option<ClusterRoleBinding>>,
}

/// Reads what needs no instance.
pub(crate) async fn platform(cluster: &Cluster) -> Platform {
    let operators: Api<Deployment> = Api::all(cluster.client.clone());
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    Platform {
        version: seen(cluster.client.apiserver_version().await).map(|info| info.git_version),
        crd: seen(crds.get_opt(CRD).await),
        operators: listed(operators, OPERATOR).await,
    }
}

/// Reads it all.
pub(crate) async fn gather(cluster: &Cluster, name: &str) -> Facts {
    let instance = get::<CliMcpInstance>(cluster, name).await;
    let kubeconfig_secret = match &instance {
        Ok(Some(instance)) => instance.kubeconfig_secret(),
        _ => None,
    };
    let kubeconfig = match &kubeconfig_secret {
        Some(secret) => secret_data(cluster, secret).await,
        None => Ok(None),
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
    let of_proxy = format!("kubernetes.io/service-name={}", names::proxy(name));
    Facts {
        now: Timestamp::now(),
        namespace: cluster.namespace.clone(),
        name: name.to_owned(),
        platform: platform(cluster).await,
        instance,
        kubeconfig_secret,
        kubeconfig,
        tls: secret_data(cluster, &names::tls(name)).await,
        sandbox_policy: get(cluster, &names::sandbox(name)).await,
        proxy_policy: get(cluster, &names::proxy(name)).await,
        config_map: get(cluster, &names::proxy(name)).await,
        proxy: get(cluster, &names::proxy(name)).await,
        server: get(cluster, &names::server(name)).await,
        proxy_slices: listed(cluster.api(), &of_proxy).await,
        pods: listed(cluster.api(), &format!("{}={name}", labels::INSTANCE)).await,
        delegator: seen(bindings.get_opt(names::AUTH_DELEGATOR_BINDING).await),
    }
}

fn seen<T>(result: kube::Result<T>) -> Seen<T> {
    result.map_err(|error| told(&error))
}

async fn get<K>(cluster: &Cluster, name: &str) -> Seen<Option<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    seen(cluster.api::<K>().get_opt(name).await)
}

async fn listed<K>(api: Api<K>, selector: &str) -> Seen<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut items = seen(api.list(&ListParams::default().labels(selector)).await)?.items;
    items.sort_by_key(|item| (item.namespace(), item.name_any()));
    Ok(items)
}

async fn secret_data(cluster: &Cluster, name: &str) -> Seen<SecretData> {
    let secret = get::<Secret>(cluster, name).await?;
    Ok(secret.map(|secret| {
        let data = secret.data.unwrap_or_default();
        data.into_iter().map(|(key, value)| (key, value.0)).collect()
    }))
}
