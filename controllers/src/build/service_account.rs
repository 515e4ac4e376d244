//! ServiceAccounts: server, proxy, sandbox and client. Only the server's pods mount a token.

use cli_mcp_api::labels::Component;
use cli_mcp_api::names;
use k8s_openapi::api::core::v1::ServiceAccount;

use super::metadata;
use crate::validate::Validated;

/// All four.
pub(super) fn all(validated: &Validated) -> [ServiceAccount; 4] {
    let account = |name: String, component: Option<Component>, automount: bool| ServiceAccount {
        metadata: metadata(validated, name, component),
        automount_service_account_token: Some(automount),
        ..ServiceAccount::default()
    };
    let name = &validated.name;
    [
        account(names::server(name), Some(Component::Server), true),
        account(names::proxy(name), Some(Component::Proxy), false),
        account(names::sandbox(name), Some(Component::Sandbox), false),
        account(names::client(name), None, false),
    ]
}
