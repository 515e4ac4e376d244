//! Names of everything that belongs to an instance (contract, section 3). The CRD bounds the instance's name at
//! 44 characters so that the longest of these stays within the 63 of a label.

/// The longest name of an instance, in characters.
pub const MAX_INSTANCE_NAME: usize = 44;

/// Field manager of every server-side apply of the operator.
pub const FIELD_MANAGER: &str = "cli-mcp-operator";

/// Finalizer on an instance.
pub const FINALIZER: &str = "cli-mcp.redhat.com/finalizer";

/// Lease of the operator's leader election.
pub const LEADER_LEASE: &str = "cli-mcp-operator-leader";

/// ClusterRoleBinding that lets the servers of live instances review tokens; shared by the install.
pub const AUTH_DELEGATOR_BINDING: &str = "cli-mcp-auth-delegator";

/// ClusterRole that [`AUTH_DELEGATOR_BINDING`] refers to.
pub const AUTH_DELEGATOR_ROLE: &str = "system:auth-delegator";

/// Key of the investigation kubeconfig in its Secret, and of the dummy kubeconfig in the proxy's ConfigMap.
pub const KUBECONFIG_KEY: &str = "kubeconfig";

/// Key of the proxy's routes in its ConfigMap.
pub const ROUTES_KEY: &str = "proxy-config.json";

/// Keys of the proxy's CA Secret.
pub const CA_CERT_KEY: &str = "ca.crt";
/// Key of the CA's private key in the proxy's CA Secret.
pub const CA_KEY_KEY: &str = "ca.key";

/// Key of the HMAC key in its Secret.
pub const HMAC_KEY: &str = "key";

/// Port of the MCP server's HTTPS listener, in the pod and on the Service.
pub const SERVER_PORT: i32 = 8443;

/// Port of the proxy's listener, in the pod and on the Service.
pub const PROXY_PORT: i32 = 8080;

/// Port of the proxy's probes and metrics.
pub const PROXY_HEALTH_PORT: i32 = 8081;

/// Deployment, Service, ServiceAccount, Role and RoleBinding of the server.
#[must_use]
pub fn server(instance: &str) -> String {
    format!("cli-mcp-{instance}")
}

/// ServiceAccount and NetworkPolicy of the sandboxes.
#[must_use]
pub fn sandbox(instance: &str) -> String {
    format!("cli-mcp-{instance}-sandbox")
}

/// Deployment, Service, ServiceAccount, ConfigMap, NetworkPolicy and PodDisruptionBudget of the proxy.
#[must_use]
pub fn proxy(instance: &str) -> String {
    format!("cli-mcp-{instance}-proxy")
}

/// Secret of the proxy's CA, generated once.
#[must_use]
pub fn proxy_ca(instance: &str) -> String {
    format!("cli-mcp-{instance}-proxy-ca")
}

/// Secret of the HMAC key, generated once.
#[must_use]
pub fn hmac(instance: &str) -> String {
    format!("cli-mcp-{instance}-hmac")
}

/// ServiceAccount, Role and RoleBinding of an MCP client.
#[must_use]
pub fn client(instance: &str) -> String {
    format!("cli-mcp-{instance}-client")
}

/// The admin's Secret with the investigation kubeconfig, unless the target names another.
#[must_use]
pub fn kubeconfig(instance: &str) -> String {
    format!("cli-mcp-{instance}-kubeconfig")
}

/// The Secret with the server's TLS certificate: the admin's, or OpenShift's serving certificate.
#[must_use]
pub fn tls(instance: &str) -> String {
    format!("cli-mcp-{instance}-tls")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_fits_a_label() {
        let longest = "x".repeat(MAX_INSTANCE_NAME);
        for name in [server, sandbox, proxy, proxy_ca, hmac, client, kubeconfig, tls].map(|name| name(longest.as_str()))
        {
            assert!(name.len() <= 63, "{name}");
        }
    }
}
