//! Condition types and reasons of an instance (contract, section 9). Polarity is positive: True is well.

/// Everything is as declared, and the instance serves sessions.
pub const READY: &str = "Ready";
/// The credential proxy has a ready pod that its Service leads to.
pub const PROXY_READY: &str = "ProxyReady";
/// The warm pool was filled for this spec, or none is asked for; what sessions take of it is replaced.
pub const WARM_POOL_READY: &str = "WarmPoolReady";
/// The network of the sandboxes was proven closed.
pub const EGRESS_ENFORCED: &str = "EgressEnforced";

/// Reasons of conditions. CamelCase, never empty.
pub mod reasons {
    /// Everything the condition speaks of is as declared.
    pub const AVAILABLE: &str = "Available";
    /// A Secret that the admin provides does not exist.
    pub const SECRETS_NOT_FOUND: &str = "SecretsNotFound";
    /// A Secret exists and lacks a key, or a key is empty.
    pub const SECRET_KEYS_INVALID: &str = "SecretKeysInvalid";
    /// The investigation kubeconfig cannot be served.
    pub const KUBECONFIG_INVALID: &str = "KubeconfigInvalid";
    /// A Deployment has fewer available pods than it should.
    pub const DEPLOYMENT_UNAVAILABLE: &str = "DeploymentUnavailable";
    /// No EndpointSlice of the proxy's Service has a ready address, though its Deployment has a pod.
    pub const NO_READY_ENDPOINT: &str = "NoReadyEndpoint";
    /// A child object could not be applied or is not ours, or a Secret could not be read.
    pub const CHILDREN_NOT_READY: &str = "ChildrenNotReady";
    /// The warm pool is being filled.
    pub const WARM_POOL_NOT_READY: &str = "WarmPoolNotReady";
    /// Pods of the warm pool fail.
    pub const WARM_POOL_UNHEALTHY: &str = "WarmPoolUnhealthy";
    /// A sandbox reached what its policies should block.
    pub const EGRESS_NOT_ENFORCED: &str = "EgressNotEnforced";
    /// The egress check is switched off for this instance.
    pub const EGRESS_CHECK_DISABLED: &str = "EgressCheckDisabled";
    /// No sandbox has reported yet.
    pub const NO_SANDBOX_YET: &str = "NoSandboxYet";
    /// Changes are being rolled out.
    pub const RECONCILING: &str = "Reconciling";
}
