//! ConfigMap of the proxy: its routes, and the dummy kubeconfig that sandboxes mount.

use std::collections::BTreeMap;

use cli_mcp_api::labels::Component;
use cli_mcp_api::names;
use k8s_openapi::api::core::v1::ConfigMap;

use super::metadata;
use crate::validate::{ProxyConfig, Validated};

/// `cli-mcp-<name>-proxy`.
pub(super) fn proxy(validated: &Validated, config: &ProxyConfig) -> ConfigMap {
    ConfigMap {
        metadata: metadata(validated, names::proxy(&validated.name), Some(Component::Proxy)),
        data: Some(BTreeMap::from([
            (names::ROUTES_KEY.to_owned(), config.routes.clone()),
            (names::KUBECONFIG_KEY.to_owned(), config.kubeconfig.clone()),
        ])),
        ..ConfigMap::default()
    }
}
