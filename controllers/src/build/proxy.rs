//! Deployment of the credential proxy. It reads everything again when it changes: no annotation rolls it.

use std::collections::BTreeMap;

use cli_mcp_api::labels::Component;
use cli_mcp_api::names;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;

use super::deployment::{self, Workload, config_map_volume, every_address, folder, port, probe, secret_volume};
use crate::validate::Validated;
use cli_mcp_sandbox::pod::resources;

/// `cli-mcp-<name>-proxy`.
pub(super) fn deployment(validated: &Validated) -> Deployment {
    let name = &validated.name;
    let mut volumes = vec![
        config_map_volume("routes", names::proxy(name), &[names::ROUTES_KEY]),
        secret_volume("ca", names::proxy_ca(name), &[names::CA_CERT_KEY, names::CA_KEY_KEY]),
    ];
    let mut mounts = vec![folder("routes", "/etc/cli-mcp/routes"), folder("ca", "/etc/cli-mcp/ca")];
    if let Some(secret) = &validated.kubeconfig_secret {
        volumes.push(secret_volume("kubeconfig", secret.clone(), &[names::KUBECONFIG_KEY]));
        mounts.push(folder("kubeconfig", "/etc/cli-mcp/kubeconfig"));
    }
    deployment::deployment(
        validated,
        Workload {
            name: names::proxy(name),
            component: Component::Proxy,
            replicas: validated.spec.proxy.replicas,
            mounts_token: false,
            pod_annotations: BTreeMap::new(),
            container: Container {
                name: "proxy".to_owned(),
                image: Some(validated.proxy_image.clone()),
                args: validated.ipv6_first.then(|| listen_everywhere(validated)),
                ports: Some(vec![
                    port("proxy", names::PROXY_PORT),
                    port("health", names::PROXY_HEALTH_PORT),
                ]),
                liveness_probe: Some(probe("/healthz", 20, 3)),
                readiness_probe: Some(probe("/readyz", 5, 2)),
                resources: Some(resources("50m", "1", "32Mi", "1Gi")),
                volume_mounts: Some(mounts),
                ..Container::default()
            },
            volumes,
        },
    )
}

/// What the proxy's defaults, which are IPv4's, do not do.
fn listen_everywhere(validated: &Validated) -> Vec<String> {
    vec![
        format!("--listen={}", every_address(validated, names::PROXY_PORT)),
        format!("--health-listen={}", every_address(validated, names::PROXY_HEALTH_PORT)),
    ]
}
