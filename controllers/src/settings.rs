//! What the operator knows before it reads any instance: its images and the cluster it runs in.

/// Settings of the whole operator, the same for every instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the MCP server (`RELATED_IMAGE_SERVER`).
    pub server_image: String,
    /// Image of the credential proxy (`RELATED_IMAGE_PROXY`).
    pub proxy_image: String,
    /// Image of sandboxes whose instance names none (`RELATED_IMAGE_SANDBOX`).
    pub sandbox_image: String,
    /// `address:port` of the API server's Service: what no sandbox may reach.
    pub api_server: String,
    /// Whether the cluster is OpenShift, where the Service asks for its serving certificate.
    pub openshift: bool,
}
