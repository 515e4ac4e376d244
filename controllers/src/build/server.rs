//! Deployment of the MCP server: the flags that make it build the same sandboxes as the operator does.

use std::collections::BTreeMap;

use cli_mcp_api::labels::Component;
use cli_mcp_api::names;
use cli_mcp_sandbox::pod::{ClusterAccess, SandboxTemplate, resources};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;

use super::deployment::{self, Workload, every_address, folder, port, probe, secret_volume};
use crate::validate::Validated;

/// Annotation of the server's pods: they read the HMAC key at start, so that another key needs other pods.
const HMAC_HASH: &str = "cli-mcp.redhat.com/hmac-hash";

const HEALTH_PORT: i32 = 8081;
const TLS_DIR: &str = "/etc/cli-mcp/tls";
const HMAC_DIR: &str = "/etc/cli-mcp/hmac";

/// `cli-mcp-<name>`.
///
/// # Errors
///
/// When a part of the template cannot be turned into JSON.
pub(super) fn deployment(validated: &Validated, template: &SandboxTemplate) -> Result<Deployment, serde_json::Error> {
    let name = names::server(&validated.name);
    let container = Container {
        name: "server".to_owned(),
        image: Some(validated.server_image.clone()),
        image_pull_policy: validated
            .spec
            .server_container
            .image_pull_policy
            .map(|policy| policy.as_str().to_owned()),
        args: Some(args(validated, template)?),
        ports: Some(vec![port("https", names::SERVER_PORT), port("health", HEALTH_PORT)]),
        liveness_probe: Some(probe("/live", 20, 3)),
        readiness_probe: Some(probe("/health", 5, 2)),
        resources: Some(
            validated
                .spec
                .server_container
                .resources
                .clone()
                .filter(|resources| resources.limits.is_some() || resources.requests.is_some())
                .unwrap_or_else(|| resources("50m", "500m", "64Mi", "256Mi")),
        ),
        volume_mounts: Some(vec![folder("tls", TLS_DIR), folder("hmac", HMAC_DIR)]),
        ..Container::default()
    };
    let pod_annotations = validated
        .hmac_hash
        .iter()
        .map(|hash| (HMAC_HASH.to_owned(), hash.clone()))
        .collect::<BTreeMap<_, _>>();
    Ok(deployment::deployment(
        validated,
        Workload {
            name,
            component: Component::Server,
            replicas: validated.spec.replicas,
            mounts_token: true,
            pod_annotations,
            container,
            volumes: vec![
                secret_volume("tls", names::tls(&validated.name), &["tls.crt", "tls.key"]),
                secret_volume("hmac", names::hmac(&validated.name), &[names::HMAC_KEY]),
            ],
        },
    ))
}

/// The flags (contract, section 4). What the server ignores (idle timeout, warm pool) is left out, so that a change of
/// it rolls nothing.
fn args(validated: &Validated, template: &SandboxTemplate) -> Result<Vec<String>, serde_json::Error> {
    let mut args = vec![
        "--transport=http".to_owned(),
        "--stateless".to_owned(),
        format!("--address={}", every_address(validated, names::SERVER_PORT)),
        format!("--health-address={}", every_address(validated, HEALTH_PORT)),
        format!("--tls-cert-file={TLS_DIR}/tls.crt"),
        format!("--tls-private-key-file={TLS_DIR}/tls.key"),
        "--authorization=kubernetes".to_owned(),
        format!("--namespace={}", template.namespace),
        format!("--instance-name={}", template.instance),
        format!("--hmac-key-file={HMAC_DIR}/{}", names::HMAC_KEY),
        "--sandbox-connection=direct".to_owned(),
        format!("--sandbox-image={}", template.image),
        format!("--sandbox-service-account={}", template.service_account),
        format!("--sandbox-resources={}", serde_json::to_string(&template.resources)?),
        format!("--egress-check={}", template.egress.check.as_str()),
        format!("--sandbox-owner={}", serde_json::to_string(&validated.owner)?),
    ];
    let mut set = |flag: &str, value: Option<&String>| {
        args.extend(
            value
                .filter(|value| !value.is_empty())
                .map(|value| format!("--{flag}={value}")),
        );
    };
    set("sandbox-image-pull-policy", template.image_pull_policy.as_ref());
    set(
        "sandbox-image-pull-secrets",
        Some(&template.image_pull_secrets.join(",")),
    );
    set("sandbox-workspace-size-limit", template.workspace_size_limit.as_ref());
    set("sandbox-runtime-class", template.runtime_class_name.as_ref());
    set("egress-target", template.egress.target.as_ref());
    set("egress-control", template.egress.control.as_ref());
    set(
        "sandbox-listen",
        template.listen.map(|listen| listen.to_string()).as_ref(),
    );
    if let ClusterAccess::Proxy {
        ca_secret,
        kubeconfig_config_map,
        ..
    } = &template.access
    {
        set("proxy-service", Some(&names::proxy(&validated.name)));
        set("proxy-ca-secret", Some(ca_secret));
        set("dummy-kubeconfig-configmap", Some(kubeconfig_config_map));
    }
    if !template.node_selector.is_empty() {
        set(
            "sandbox-node-selector",
            Some(&serde_json::to_string(&template.node_selector)?),
        );
    }
    if !template.tolerations.is_empty() {
        set(
            "sandbox-tolerations",
            Some(&serde_json::to_string(&template.tolerations)?),
        );
    }
    if !template.env.is_empty() {
        set("sandbox-env", Some(&serde_json::to_string(&template.env)?));
    }
    if validated.spec.sandbox.max_sessions > 0 {
        set("max-sessions", Some(&validated.spec.sandbox.max_sessions.to_string()));
    }
    Ok(args)
}
