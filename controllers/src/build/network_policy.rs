//! NetworkPolicies (contract, section 11): the wall around the sandboxes, and the door of the proxy.

use std::collections::BTreeMap;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_sandbox::wire::AGENT_PORT;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use crate::validate::Validated;

/// Address of NodeLocal DNSCache
/// (<https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/>).
const NODE_LOCAL_DNS: &str = "169.254.20.10/32";

/// Ports of DNS: the Service's, and the one that OpenShift's DNS pods listen on.
const DNS_PORTS: [i32; 2] = [53, 5353];

/// `cli-mcp-<name>-sandbox`.
pub(super) fn sandbox(validated: &Validated) -> NetworkPolicy {
    let name = &validated.name;
    policy(
        validated,
        names::sandbox(name),
        Component::Sandbox,
        NetworkPolicyIngressRule {
            from: Some(vec![pods_of(name, Component::Server)]),
            ports: Some(vec![port("TCP", i32::from(AGENT_PORT))]),
        },
        Some(vec![
            NetworkPolicyEgressRule {
                to: Some(vec![pods_of(name, Component::Proxy)]),
                ports: Some(vec![port("TCP", names::PROXY_PORT)]),
            },
            NetworkPolicyEgressRule {
                to: Some(dns_servers()),
                ports: Some(dns_ports()),
            },
        ]),
    )
}

/// `cli-mcp-<name>-proxy`. Egress is not restricted: which hosts are reached is the proxy's own job.
pub(super) fn proxy(validated: &Validated) -> NetworkPolicy {
    let name = &validated.name;
    policy(
        validated,
        names::proxy(name),
        Component::Proxy,
        NetworkPolicyIngressRule {
            from: Some(vec![pods_of(name, Component::Sandbox)]),
            ports: Some(vec![port("TCP", names::PROXY_PORT)]),
        },
        None,
    )
}

fn policy(
    validated: &Validated,
    name: String,
    component: Component,
    ingress: NetworkPolicyIngressRule,
    egress: Option<Vec<NetworkPolicyEgressRule>>,
) -> NetworkPolicy {
    let mut policy_types = vec!["Ingress".to_owned()];
    if egress.is_some() {
        policy_types.push("Egress".to_owned());
    }
    NetworkPolicy {
        metadata: metadata(validated, name, Some(component)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selecting(labels::selector(&validated.name, component))),
            policy_types: Some(policy_types),
            ingress: Some(vec![ingress]),
            egress,
        }),
    }
}

fn selecting(match_labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(match_labels),
        match_expressions: None,
    }
}

fn pods_of(instance: &str, component: Component) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        pod_selector: Some(selecting(labels::selector(instance, component))),
        ..NetworkPolicyPeer::default()
    }
}

fn port(protocol: &str, number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(number)),
        end_port: None,
    }
}

fn dns_ports() -> Vec<NetworkPolicyPort> {
    DNS_PORTS
        .into_iter()
        .flat_map(|number| [port("UDP", number), port("TCP", number)])
        .collect()
}

fn dns_servers() -> Vec<NetworkPolicyPeer> {
    let pods = |namespace: &str, label: (&str, &str)| NetworkPolicyPeer {
        namespace_selector: Some(selecting(
            [("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())].into(),
        )),
        pod_selector: Some(selecting([(label.0.to_owned(), label.1.to_owned())].into())),
        ip_block: None,
    };
    vec![
        pods("kube-system", ("k8s-app", "kube-dns")),
        pods("openshift-dns", ("dns.operator.openshift.io/daemonset-dns", "default")),
        NetworkPolicyPeer {
            ip_block: Some(IPBlock {
                cidr: NODE_LOCAL_DNS.to_owned(),
                except: None,
            }),
            ..NetworkPolicyPeer::default()
        },
    ]
}
