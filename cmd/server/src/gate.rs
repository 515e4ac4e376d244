//! Whether a sandbox may be created or claimed (contract, section 8): a pure decision over a snapshot that watches feed.
//! Sessions that have their sandbox go on whatever it says.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use crate::config::settings::GateNames;

/// What the watches know.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// EndpointSlices of the proxy's Service; none before the first LIST.
    pub endpoint_slices: Option<Vec<Arc<EndpointSlice>>>,
    /// NetworkPolicies of the instance; none before the first LIST.
    pub policies: Option<Vec<Arc<NetworkPolicy>>>,
    /// The ConfigMap with the dummy kubeconfig; none before the first LIST.
    pub config_maps: Option<Vec<Arc<ConfigMap>>>,
}

/// The precondition that fails, as a sentence for the caller: what is missing and who mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// A watch has not delivered its first LIST.
    #[error(
        "the server has not read the {0} of its namespace yet: retry in some seconds; if it stays so, the server's Role or the API server is at fault"
    )]
    NotSynced(&'static str),
    /// No pod of the proxy is ready.
    #[error(
        "the credential proxy has no ready endpoint (EndpointSlice of Service {0}): retry in some seconds; if it stays so, an administrator should look at the Deployment of that name"
    )]
    NoProxy(String),
    /// The sandboxes' policy does not exist.
    #[error(
        "NetworkPolicy {0} does not exist, so a sandbox would not be isolated: the operator creates it again; if it stays so, an administrator should look at the operator"
    )]
    NoSandboxPolicy(String),
    /// The sandboxes' policy leaves egress open.
    #[error(
        "NetworkPolicy {0} does not have Egress in spec.policyTypes, so a sandbox could reach anything: the operator sets it again; if it stays so, an administrator should look at the operator"
    )]
    EgressOpen(String),
    /// The proxy's policy does not exist.
    #[error(
        "NetworkPolicy {0} does not exist, so the credential proxy would take anyone's requests: the operator creates it again; if it stays so, an administrator should look at the operator"
    )]
    NoProxyPolicy(String),
    /// The ConfigMap does not exist.
    #[error(
        "ConfigMap {0} with the sandbox's kubeconfig does not exist: the operator creates it again; if it stays so, an administrator should look at the operator"
    )]
    NoConfigMap(String),
}

impl Closed {
    /// Short name for metrics and logs.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotSynced(_) => "not_synced",
            Self::NoProxy(_) => "no_proxy",
            Self::NoSandboxPolicy(_) => "no_sandbox_policy",
            Self::EgressOpen(_) => "egress_open",
            Self::NoProxyPolicy(_) => "no_proxy_policy",
            Self::NoConfigMap(_) => "no_config_map",
        }
    }
}

/// Checks every precondition, the most telling first.
///
/// # Errors
///
/// The first precondition that does not hold.
pub fn check(names: &GateNames, snapshot: &Snapshot) -> Result<(), Closed> {
    let policies = snapshot.policies.as_ref().ok_or(Closed::NotSynced("NetworkPolicies"))?;
    let slices = snapshot
        .endpoint_slices
        .as_ref()
        .ok_or(Closed::NotSynced("EndpointSlices"))?;
    let config_maps = snapshot.config_maps.as_ref().ok_or(Closed::NotSynced("ConfigMaps"))?;
    let policy = |name: &str| {
        let living = |policy: &&Arc<NetworkPolicy>| policy.metadata.deletion_timestamp.is_none();
        policies
            .iter()
            .filter(living)
            .find(|policy| policy.metadata.name.as_deref() == Some(name))
    };

    let Some(sandbox_policy) = policy(&names.sandbox_policy) else {
        return Err(Closed::NoSandboxPolicy(names.sandbox_policy.clone()));
    };
    if !has_egress(sandbox_policy) {
        return Err(Closed::EgressOpen(names.sandbox_policy.clone()));
    }
    if policy(&names.proxy_policy).is_none() {
        return Err(Closed::NoProxyPolicy(names.proxy_policy.clone()));
    }
    if !config_maps
        .iter()
        .any(|map| map.metadata.name.as_deref() == Some(&names.config_map))
    {
        return Err(Closed::NoConfigMap(names.config_map.clone()));
    }
    if !slices.iter().any(|slice| has_ready_address(slice)) {
        return Err(Closed::NoProxy(names.proxy_service.clone()));
    }
    Ok(())
}

fn has_egress(policy: &NetworkPolicy) -> bool {
    policy.spec.as_ref().is_some_and(|spec| {
        spec.policy_types
            .iter()
            .flatten()
            .any(|policy_type| policy_type == "Egress")
    })
}

/// An endpoint without the ready condition counts as ready
/// (<https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#ready>).
fn has_ready_address(slice: &EndpointSlice) -> bool {
    slice.endpoints.iter().any(|endpoint| {
        !endpoint.addresses.is_empty()
            && endpoint
                .conditions
                .as_ref()
                .is_none_or(|conditions| conditions.ready.unwrap_or(true))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions};
    use k8s_openapi::api::networking::v1::NetworkPolicySpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;

    fn names() -> GateNames {
        GateNames {
            proxy_service: "cli-mcp-demo-proxy".into(),
            sandbox_policy: "cli-mcp-demo-sandbox".into(),
            proxy_policy: "cli-mcp-demo-proxy".into(),
            config_map: "cli-mcp-demo-proxy".into(),
        }
    }

    fn named(name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        }
    }

    fn policy(name: &str, types: &[&str]) -> Arc<NetworkPolicy> {
        Arc::new(NetworkPolicy {
            metadata: named(name),
            spec: Some(NetworkPolicySpec {
                policy_types: Some(types.iter().map(ToString::to_string).collect()),
                ..NetworkPolicySpec::default()
            }),
        })
    }

    fn slice(ready: Option<bool>) -> Arc<EndpointSlice> {
        Arc::new(EndpointSlice {
            endpoints: vec![Endpoint {
                addresses: vec!["10.0.0.9".into()],
                conditions: Some(EndpointConditions {
                    ready,
                    ..EndpointConditions::default()
                }),
                ..Endpoint::default()
            }],
            ..EndpointSlice::default()
        })
    }

    fn open() -> Snapshot {
        Snapshot {
            endpoint_slices: Some(vec![slice(Some(true))]),
            policies: Some(vec![
                policy("cli-mcp-demo-sandbox", &["Ingress", "Egress"]),
                policy("cli-mcp-demo-proxy", &["Ingress"]),
            ]),
            config_maps: Some(vec![Arc::new(ConfigMap {
                metadata: named("cli-mcp-demo-proxy"),
                ..ConfigMap::default()
            })]),
        }
    }

    #[test]
    fn opens_when_everything_is_in_place() {
        assert_eq!(check(&names(), &open()), Ok(()));
        let unknown = Snapshot {
            endpoint_slices: Some(vec![slice(None)]),
            ..open()
        };
        assert_eq!(check(&names(), &unknown), Ok(()));
    }

    #[test]
    fn each_precondition_closes_it_by_name() {
        let sandbox = "cli-mcp-demo-sandbox".to_owned();
        let proxy = "cli-mcp-demo-proxy".to_owned();
        let with_policies = |policies| Snapshot {
            policies: Some(policies),
            ..open()
        };
        let mut deleted = NetworkPolicy::clone(&policy(&sandbox, &["Egress"]));
        deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        for (snapshot, expected) in [
            (
                Snapshot {
                    endpoint_slices: Some(vec![]),
                    ..open()
                },
                Closed::NoProxy(proxy.clone()),
            ),
            (
                Snapshot {
                    endpoint_slices: Some(vec![slice(Some(false))]),
                    ..open()
                },
                Closed::NoProxy(proxy.clone()),
            ),
            (
                Snapshot {
                    config_maps: Some(vec![]),
                    ..open()
                },
                Closed::NoConfigMap(proxy.clone()),
            ),
            (
                with_policies(vec![policy(&proxy, &["Ingress"])]),
                Closed::NoSandboxPolicy(sandbox.clone()),
            ),
            (
                with_policies(vec![Arc::new(deleted), policy(&proxy, &[])]),
                Closed::NoSandboxPolicy(sandbox.clone()),
            ),
            (
                with_policies(vec![policy(&sandbox, &["Ingress"]), policy(&proxy, &[])]),
                Closed::EgressOpen(sandbox.clone()),
            ),
            (
                with_policies(vec![policy(&sandbox, &["Egress"])]),
                Closed::NoProxyPolicy(proxy.clone()),
            ),
            (Snapshot::default(), Closed::NotSynced("NetworkPolicies")),
            (
                Snapshot {
                    config_maps: None,
                    ..open()
                },
                Closed::NotSynced("ConfigMaps"),
            ),
            (
                Snapshot {
                    endpoint_slices: None,
                    ..open()
                },
                Closed::NotSynced("EndpointSlices"),
            ),
        ] {
            let closed = check(&names(), &snapshot).unwrap_err();
            assert_eq!(closed, expected);
            assert!(closed.to_string().contains(": "), "says what to do: {closed}");
        }
    }
}
