//! The kubeconfig that a sandbox sees. It is built from scratch out of allowed fields: what is not copied cannot leak
//! (`proxy_cases.md`, case 74).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_api::names;
use serde::Serialize;

use crate::kubeconfig::Kubeconfig;

/// The token in the sandbox's kubeconfig: not empty, so that kubectl asks for no password, and obviously no secret
/// (`proxy_cases.md`, case 60).
pub const DUMMY_TOKEN: &str = "proxy-managed-token";

/// The URL under which the sandboxes of an instance reach its proxy.
#[must_use]
pub fn proxy_url(instance: &str, namespace: &str) -> String {
    format!(
        "http://{}.{namespace}.svc:{}",
        names::proxy(instance),
        names::PROXY_PORT
    )
}

/// Renders the file. `ca_pem` is the certificate of the proxy's CA. Without a kubeconfig (no kubernetes target) the
/// file is valid and empty.
///
/// `proxy-url` stands in each cluster although `HTTPS_PROXY` is set too: clients honour it also for addresses that
/// their `NO_PROXY` rules except (case 27). `tls-server-name` is left out: the proxy's leaf is for the server's host.
#[must_use]
pub fn render(kubeconfig: Option<&Kubeconfig>, ca_pem: impl AsRef<[u8]>, proxy_url: &str) -> String {
    let ca = STANDARD.encode(ca_pem);
    let config = Config {
        api_version: "v1",
        kind: "Config",
        clusters: kubeconfig
            .iter()
            .flat_map(|kubeconfig| kubeconfig.clusters())
            .map(|cluster| NamedCluster {
                name: &cluster.name,
                cluster: Cluster {
                    server: format!("https://{}{}", cluster.server.authority, cluster.server.prefix),
                    certificate_authority_data: &ca,
                    proxy_url,
                },
            })
            .collect(),
        users: kubeconfig
            .iter()
            .flat_map(|kubeconfig| kubeconfig.users())
            .map(|user| NamedUser {
                name: &user.name,
                user: User { token: DUMMY_TOKEN },
            })
            .collect(),
        contexts: kubeconfig
            .iter()
            .flat_map(|kubeconfig| kubeconfig.contexts())
            .map(|context| NamedContext {
                name: &context.name,
                context: Context {
                    cluster: &context.cluster,
                    user: &context.user,
                    namespace: context.namespace.as_deref(),
                },
            })
            .collect(),
        current_context: kubeconfig.and_then(Kubeconfig::current_context).unwrap_or_default(),
    };
    // Plain structs of strings always serialise.
    serde_yaml::to_string(&config).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Config<'a> {
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    kind: &'a str,
    clusters: Vec<NamedCluster<'a>>,
    users: Vec<NamedUser<'a>>,
    contexts: Vec<NamedContext<'a>>,
    current_context: &'a str,
}

#[derive(Serialize)]
struct NamedCluster<'a> {
    name: &'a str,
    cluster: Cluster<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster<'a> {
    server: String,
    certificate_authority_data: &'a str,
    proxy_url: &'a str,
}

#[derive(Serialize)]
struct NamedUser<'a> {
    name: &'a str,
    user: User<'a>,
}

#[derive(Serialize)]
struct User<'a> {
    token: &'a str,
}

#[derive(Serialize)]
struct NamedContext<'a> {
    name: &'a str,
    context: Context<'a>,
}

#[derive(Serialize)]
struct Context<'a> {
    cluster: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}
