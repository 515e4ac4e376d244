//! What the operator knows before it reads any instance: its images and the cluster it runs in.

use std::net::SocketAddr;

/// Settings of the whole operator, the same for every instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the MCP server (`RELATED_IMAGE_SERVER`).
    pub server_image: String,
    /// Image of the credential proxy (`RELATED_IMAGE_PROXY`).
    pub proxy_image: String,
    /// Image of sandboxes whose instance names none (`RELATED_IMAGE_SANDBOX`).
    pub sandbox_image: String,
    /// Address of the API server's Service: what no sandbox may reach.
    pub api_server: SocketAddr,
    /// Whether the cluster is OpenShift, where the Service asks for its serving certificate.
    pub openshift: bool,
}

impl Settings {
    /// Whether a pod's first address, which probes and endpoints go to, is IPv6: the API server's Service is of the cluster's
    /// first family (<https://kubernetes.io/docs/concepts/services-networking/dual-stack/>).
    #[must_use]
    pub fn ipv6_first(&self) -> bool {
        self.api_server.is_ipv6()
    }
}
