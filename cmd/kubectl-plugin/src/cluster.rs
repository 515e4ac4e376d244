//! The cluster that the flags name: a client, the namespace, and the instance that is meant.

use cli_mcp_api::v1alpha1::CliMcpInstance;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};

use crate::cli::Place;
use crate::error::{Error, Result};

/// A client, and the namespace that is meant.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// As kubectl chooses them: flags, then KUBECONFIG, then the file of the home directory.
    pub(crate) async fn of(place: &Place) -> Result<Self> {
        let options = KubeConfigOptions {
            context: place.context.clone(),
            ..KubeConfigOptions::default()
        };
        let invocation = |error: &dyn std::fmt::Display| {
            Error::Invocation(format!(
                "no usable kubeconfig: {error}: set KUBECONFIG, --kubeconfig or --context (kubectl config get-contexts lists them)"
            ))
        };
        let config = match &place.kubeconfig {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| invocation(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let config = match config {
            Ok(config) => config,
            // In a pod without a kubeconfig.
            Err(error) if place.context.is_none() && place.kubeconfig.is_none() => {
                Config::incluster().map_err(|_| invocation(&error))?
            }
            Err(error) => return Err(invocation(&error)),
        };
        let namespace = place
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self {
            client: Client::try_from(config).map_err(Error::api("make a client"))?,
            namespace,
        })
    }

    /// A namespaced API in the namespace that is meant.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Fails when it is certain that there is no instance of this name, here or in any namespace. Who may not read instances
    /// gets no complaint about them.
    pub(crate) async fn expect_instance(&self, name: &str, anywhere: bool) -> Result<()> {
        let instances: Api<CliMcpInstance> = if anywhere {
            Api::all(self.client.clone())
        } else {
            self.api()
        };
        let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
        match instances.list(&by_name).await {
            Ok(list) if list.items.is_empty() => Err(absent((!anywhere).then_some(&self.namespace), name)),
            _ => Ok(()),
        }
    }

    /// Name of the instance: the one that is named, else the only one.
    pub(crate) async fn instance(&self, named: Option<&str>) -> Result<String> {
        if let Some(name) = named {
            return Ok(name.to_owned());
        }
        let list = self
            .api::<CliMcpInstance>()
            .list(&ListParams::default())
            .await
            .map_err(|error| match error {
                // The path itself is unknown, which is not how a namespace without instances answers.
                kube::Error::Api(status) if status.code == 404 => Error::NotInstalled,
                other => Error::api(format!("list CliMcpInstances in namespace {}", self.namespace))(other),
            })?;
        only(&self.namespace, list.iter().map(ResourceExt::name_any).collect())
    }
}

fn absent(namespace: Option<&String>, name: &str) -> Error {
    Error::Failed(match namespace {
        Some(namespace) => format!(
            "namespace {namespace} has no CliMcpInstance {name}: kubectl get climcpinstances -A shows what there is"
        ),
        None => format!("no namespace has a CliMcpInstance {name}: kubectl get climcpinstances -A shows what there is"),
    })
}

fn only(namespace: &str, names: Vec<String>) -> Result<String> {
    match names.as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(Error::Failed(format!(
            "namespace {namespace} has no CliMcpInstance: name another with --namespace, or create one"
        ))),
        _ => Err(Error::Invocation(format!(
            "namespace {namespace} has several CliMcpInstances: name one with --instance: {}",
            names.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_instance_is_meant() {
        let name = |names: &[&str]| only("ns", names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(name(&["a"]).unwrap(), "a");
        assert!(name(&[]).unwrap_err().to_string().contains("--namespace"));
        let several = name(&["a", "b"]).unwrap_err().to_string();
        assert!(several.contains("--instance") && several.contains("a, b"), "{several}");
    }
}
