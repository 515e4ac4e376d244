//! `investigation-kubeconfig`: a read-only identity, its token, and the Secret that a proxy takes it from.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine;
use cli_mcp_api::names;
use cli_mcp_kubeconfig::Kubeconfig;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::{Format, InvestigationArguments, Place};
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::render;

const FIELD_MANAGER: &str = "investigation-kubeconfig";

/// How long the token controller may take.
const TOKEN_WAIT: Duration = Duration::from_secs(30);

/// What the objects are made from.
struct Plan<'a> {
    namespace: &'a str,
    account: &'a str,
    role: &'a str,
    in_namespaces: &'a [String],
}

impl Plan<'_> {
    fn token_secret(&self) -> String {
        format!("{}-token", self.account)
    }

    fn binding(&self) -> String {
        format!("{}-{}-{}", self.account, self.namespace, self.role)
    }

    fn service_account(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": self.account, "namespace": self.namespace}})
    }

    /// A token that lives as long as the ServiceAccount
    /// (<https://kubernetes.io/docs/concepts/configuration/secret/#serviceaccount-token-secrets>).
    fn token(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": self.token_secret(), "namespace": self.namespace,
                "annotations": {"kubernetes.io/service-account.name": self.account}}})
    }

    /// A binding in a namespace, or in the whole cluster.
    fn grant(&self, namespace: Option<&str>) -> Value {
        let kind = if namespace.is_some() {
            "RoleBinding"
        } else {
            "ClusterRoleBinding"
        };
        let mut binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": self.binding()},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role},
            "subjects": [{"kind": "ServiceAccount", "name": self.account, "namespace": self.namespace}]});
        if let Some(namespace) = namespace {
            binding["metadata"]["namespace"] = namespace.into();
        }
        binding
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    service_account: String,
    role: String,
    granted_in: Vec<String>,
    secret: String,
}

/// Makes the identity and the Secret.
pub(crate) async fn run(place: &Place, arguments: &InvestigationArguments) -> Result<()> {
    // Before anything is made.
    kubeconfig(&arguments.server, "-", None)?;
    let cluster = Cluster::of(place).await?;
    let plan = Plan {
        namespace: &cluster.namespace,
        account: &arguments.service_account,
        role: &arguments.cluster_role,
        in_namespaces: &arguments.in_namespaces,
    };
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    // A binding to a role that does not exist grants nothing, and says so to nobody.
    if matches!(roles.get_opt(plan.role).await, Ok(None)) {
        return Err(Error::Invocation(format!(
            "--cluster-role {}: there is no such ClusterRole: kubectl get clusterroles lists them",
            plan.role
        )));
    }
    if !plan.in_namespaces.is_empty() {
        let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
        if let Ok(Some(_)) = bindings.get_opt(&plan.binding()).await {
            return Err(Error::Failed(format!(
                "ClusterRoleBinding {0} grants the role in the whole cluster already: to narrow it, first kubectl delete clusterrolebinding {0}",
                plan.binding()
            )));
        }
    }
    apply(
        cluster.api::<ServiceAccount>(),
        &plan.service_account(),
        arguments.force,
    )
    .await?;
    apply(cluster.api::<Secret>(), &plan.token(), arguments.force).await?;
    for namespace in plan.in_namespaces {
        let bindings: Api<RoleBinding> = Api::namespaced(cluster.client.clone(), namespace);
        apply(bindings, &plan.grant(Some(namespace)), arguments.force).await?;
    }
    if plan.in_namespaces.is_empty() {
        apply(
            Api::<ClusterRoleBinding>::all(cluster.client.clone()),
            &plan.grant(None),
            arguments.force,
        )
        .await?;
    }
    let (token, ca) = token(&cluster, &plan.token_secret()).await?;
    let kubeconfig = kubeconfig(&arguments.server, &token, Some(&ca))?;
    if arguments.print {
        return Ok(render::print(&kubeconfig)?);
    }
    let secret = names::kubeconfig(&arguments.instance);
    let stored = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": secret, "namespace": cluster.namespace},
        "data": {names::KUBECONFIG_KEY: base64::engine::general_purpose::STANDARD.encode(kubeconfig)}});
    apply(cluster.api::<Secret>(), &stored, arguments.force).await?;
    tell(
        &Made {
            service_account: format!("{}/{}", cluster.namespace, plan.account),
            role: plan.role.to_owned(),
            granted_in: plan.in_namespaces.to_vec(),
            secret: format!("{}/{secret}", cluster.namespace),
        },
        arguments.output.output,
    )
}

fn tell(made: &Made, format: Format) -> Result<()> {
    if format == Format::Json {
        return Ok(render::print_json(made)?);
    }
    let wherein = if made.granted_in.is_empty() {
        "in the whole cluster".to_owned()
    } else {
        format!("in {}", made.granted_in.join(", "))
    };
    let text = format!(
        "ServiceAccount {} has ClusterRole {} {wherein}\nSecret {} holds its kubeconfig; a running proxy takes it within seconds\n",
        made.service_account, made.role, made.secret
    );
    Ok(render::print(&text)?)
}

async fn apply<K>(api: Api<K>, object: &Value, force: bool) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let parameters = PatchParams {
        force,
        ..PatchParams::apply(FIELD_MANAGER)
    };
    let what = format!("{} {name}", K::kind(&()));
    match api.patch(name, &parameters, &Patch::Apply(object)).await {
        Ok(_) => Ok(()),
        // <https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts>
        Err(kube::Error::Api(status)) if !force && status.code == 409 => Err(taken(&what, &status.message)),
        Err(error) => Err(Error::api(format!("apply {what}"))(error)),
    }
}

/// What to do about an object that something else has made.
fn taken(what: &str, told: &str) -> Error {
    Error::Failed(format!(
        "{what} holds what something else has put there, and it was left as it is ({told}): --force replaces it"
    ))
}

/// The token and the CA, once the token controller has filled the Secret in.
async fn token(cluster: &Cluster, name: &str) -> Result<(String, Vec<u8>)> {
    let secrets = cluster.api::<Secret>();
    let end = Instant::now() + TOKEN_WAIT;
    loop {
        let secret = secrets
            .get(name)
            .await
            .map_err(Error::api(format!("read Secret {}/{name}", cluster.namespace)))?;
        if let Some(found) = filled(
            secret
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(key, value)| (key, value.0))
                .collect(),
        ) {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(Error::Failed(format!(
                "no token appeared in Secret {}/{name} within {} s: is kube-controller-manager running?",
                cluster.namespace,
                TOKEN_WAIT.as_secs()
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn filled(mut data: BTreeMap<String, Vec<u8>>) -> Option<(String, Vec<u8>)> {
    let token = data.remove("token").filter(|token| !token.is_empty())?;
    Some((String::from_utf8(token).ok()?, data.remove("ca.crt")?))
}

/// The kubeconfig as the Secret holds it. The operator and the proxy read it with the same code as this checks it with.
fn kubeconfig(server: &str, token: &str, ca: Option<&[u8]>) -> Result<String> {
    let mut cluster = json!({"server": server});
    if let Some(ca) = ca {
        cluster["certificate-authority-data"] = base64::engine::general_purpose::STANDARD.encode(ca).into();
    }
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "investigated", "cluster": cluster}],
        "users": [{"name": "investigator", "user": {"token": token}}],
        "contexts": [{"name": "investigated", "context": {
            "cluster": "investigated", "user": "investigator", "namespace": "default"}}],
        "current-context": "investigated",
    });
    let text = serde_yaml::to_string(&document)
        .map_err(|_| Error::Failed("the kubeconfig cannot be written as YAML".to_owned()))?;
    Kubeconfig::parse(text.as_bytes()).map_err(|invalid| {
        Error::Invocation(format!(
            "--server {server}: {}",
            invalid.problems().collect::<Vec<_>>().join("; ")
        ))
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan<'_> = Plan {
        namespace: "ns",
        account: "reader",
        role: "view",
        in_namespaces: &[],
    };

    #[test]
    fn the_grant_is_one_role_and_no_wider_than_asked() {
        let everywhere = PLAN.grant(None);
        assert_eq!(everywhere["kind"], "ClusterRoleBinding");
        let one = PLAN.grant(Some("a"));
        assert_eq!(
            (one["kind"].as_str(), one["metadata"]["namespace"].as_str()),
            (Some("RoleBinding"), Some("a"))
        );
        for grant in [everywhere, one] {
            assert_eq!(grant["roleRef"]["name"], "view");
            assert_eq!(
                grant["subjects"],
                json!([{"kind": "ServiceAccount", "name": "reader", "namespace": "ns"}])
            );
        }
    }

    #[test]
    fn a_half_filled_secret_is_waited_for() {
        let data = |keys: &[(&str, &str)]| {
            keys.iter()
                .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
                .collect()
        };
        assert_eq!(filled(data(&[("ca.crt", "C")])), None);
        assert_eq!(filled(data(&[("ca.crt", "C"), ("token", "")])), None);
        assert_eq!(
            filled(data(&[("ca.crt", "C"), ("token", "t")])),
            Some(("t".to_owned(), b"C".to_vec()))
        );
    }

    #[test]
    fn a_server_without_tls_is_refused_with_the_remedy() {
        let error = kubeconfig("http://api.example.com", "s3cret", None)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("--server http://api.example.com: ") && error.contains("https"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn what_is_told_holds_no_token() {
        let text = kubeconfig("https://kubernetes.default.svc", "s3cret", None).unwrap();
        assert!(text.contains("s3cret") && text.contains("current-context: investigated"));
        let made = Made {
            service_account: "ns/reader".into(),
            role: "view".into(),
            granted_in: vec![],
            secret: "ns/s".into(),
        };
        assert!(!serde_json::to_string(&made).unwrap().contains("s3cret"));
    }
}
