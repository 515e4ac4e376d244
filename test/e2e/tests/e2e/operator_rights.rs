//! What the operator's ServiceAccount may do on the cluster, asked with its own token: what the committed roles say, and
//! nothing that it does not do.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::cluster;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

const NAMESPACE: &str = "cli-mcp-operator-system";
const ACCOUNT: &str = "cli-mcp-operator-controller-manager";

/// group, resource, verb, resource name.
type Right = (String, String, String, String);

/// A client with the operator's own token.
async fn operator() -> Result<Client> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster::client().await?, NAMESPACE);
    let request: TokenRequest = accounts
        .create_token_request(ACCOUNT, &PostParams::default(), &TokenRequest::default())
        .await?;
    let token = request.status.context("no token was issued")?.token;
    let mut config = Config::infer().await?;
    config.auth_info = serde_json::from_value(json!({"token": token}))?;
    Ok(Client::try_from(config)?)
}

fn rights(rules: &[Value]) -> BTreeSet<Right> {
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in rules {
        let mut names = strings(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    for name in &names {
                        rights.insert((group.clone(), resource.clone(), verb.clone(), name.clone()));
                    }
                }
            }
        }
    }
    rights
}

fn committed(files: &[&str]) -> Result<BTreeSet<Right>> {
    let mut all = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(cluster::repository().join("config").join(file))?;
        let role: Value = serde_yaml::from_str(&text)?;
        all.extend(rights(role["rules"].as_array().context("no rules")?));
    }
    Ok(all)
}

async fn granted(client: &Client, namespace: &str) -> Result<BTreeSet<Right>> {
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let api: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    let status = answer.status.context("no status")?;
    ensure!(!status.incomplete, "{:?}", status.evaluation_error);
    let rules: Vec<Value> = status
        .resource_rules
        .iter()
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    // What every authenticated user may: ask what it may do, and who it is.
    let everybodys = [
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
    ];
    Ok(rights(&rules)
        .into_iter()
        .filter(|(_, resource, ..)| !everybodys.contains(&resource.as_str()))
        .collect())
}

async fn may(client: &Client, right: SelfSubjectAccessReviewSpec) -> Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: right,
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn resource(namespace: &str, verb: &str, group: &str, resource: &str) -> SelfSubjectAccessReviewSpec {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    SelfSubjectAccessReviewSpec {
        resource_attributes: Some(ResourceAttributes {
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()).filter(|subresource| !subresource.is_empty()),
            ..ResourceAttributes::default()
        }),
        non_resource_attributes: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_do_what_its_roles_say_and_no_more() -> Result<()> {
    let client = operator().await?;
    // What `make deploy` installs watches all namespaces.
    let everywhere = committed(&["all-namespaces/cluster_role.yaml", "rbac/cluster_role.yaml"])?;
    let elsewhere = granted(&client, "default").await?;
    ensure!(
        elsewhere == everywhere,
        "more: {:?}\nless: {:?}",
        elsewhere.difference(&everywhere).collect::<Vec<_>>(),
        everywhere.difference(&elsewhere).collect::<Vec<_>>()
    );
    let own: BTreeSet<Right> = everywhere
        .union(&committed(&["rbac/leader_election_role.yaml"])?)
        .cloned()
        .collect();
    let at_home = granted(&client, NAMESPACE).await?;
    ensure!(
        at_home == own,
        "in its own namespace {:?}",
        at_home.symmetric_difference(&own).collect::<Vec<_>>()
    );
    ensure!(
        !at_home
            .iter()
            .any(|(group, resource, verb, _)| [group, resource, verb].contains(&&"*".to_owned())),
        "a wildcard"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_cannot_do_what_it_does_not_do() -> Result<()> {
    let client = operator().await?;
    let rbac = "rbac.authorization.k8s.io";
    let mut allowed = Vec::new();
    for (namespace, verb, group, name) in [
        // Neither into a container, nor to its output, nor past the proxy.
        ("default", "create", "", "pods/exec"),
        ("default", "get", "", "pods/exec"),
        ("default", "create", "", "pods/attach"),
        ("default", "create", "", "pods/portforward"),
        ("default", "get", "", "pods/log"),
        ("default", "get", "", "pods/proxy"),
        ("default", "patch", "", "pods/ephemeralcontainers"),
        ("default", "create", "", "pods/eviction"),
        ("default", "update", "", "pods"),
        ("default", "patch", "", "pods/status"),
        ("default", "deletecollection", "", "pods"),
        // Secrets are created once.
        ("default", "update", "", "secrets"),
        ("default", "patch", "", "secrets"),
        ("default", "delete", "", "secrets"),
        ("default", "deletecollection", "", "secrets"),
        ("default", "create", "", "serviceaccounts/token"),
        ("default", "impersonate", "", "serviceaccounts"),
        ("", "impersonate", "", "users"),
        ("", "impersonate", "", "groups"),
        ("default", "escalate", rbac, "roles"),
        ("default", "bind", rbac, "roles"),
        ("", "escalate", rbac, "clusterroles"),
        ("", "bind", rbac, "clusterroles"),
        ("", "get", rbac, "clusterroles"),
        ("", "create", rbac, "clusterroles"),
        ("", "list", rbac, "clusterrolebindings"),
        ("", "patch", rbac, "clusterrolebindings"),
        ("", "delete", rbac, "clusterrolebindings"),
        ("", "list", "", "nodes"),
        ("", "get", "", "nodes"),
        ("", "get", "", "nodes/proxy"),
        ("", "list", "", "namespaces"),
        ("", "create", "", "namespaces"),
        ("", "list", "", "persistentvolumes"),
        ("", "get", "apiextensions.k8s.io", "customresourcedefinitions"),
        ("", "create", "apiextensions.k8s.io", "customresourcedefinitions"),
        (
            "",
            "create",
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
        ),
        ("", "create", "certificates.k8s.io", "certificatesigningrequests"),
        // They go with their instance, and are never made again.
        ("default", "delete", rbac, "roles"),
        ("default", "delete", "", "serviceaccounts"),
        ("default", "delete", "networking.k8s.io", "networkpolicies"),
        ("default", "get", "cli-mcp.redhat.com", "climcpinstances"),
        ("default", "create", "cli-mcp.redhat.com", "climcpinstances"),
        ("default", "delete", "cli-mcp.redhat.com", "climcpinstances"),
        ("default", "create", "batch", "jobs"),
        ("default", "create", "apps", "daemonsets"),
        ("default", "get", "coordination.k8s.io", "leases"),
        (NAMESPACE, "delete", "coordination.k8s.io", "leases"),
        ("kube-system", "update", "coordination.k8s.io", "leases"),
        ("default", "*", "*", "*"),
    ] {
        if may(&client, resource(namespace, verb, group, name)).await? {
            allowed.push(format!("{verb} {group}/{name} in {namespace:?}"));
        }
    }
    for (path, verb) in [("/metrics", "get"), ("/logs/", "get"), ("/", "post")] {
        let right = SelfSubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(verb.to_owned()),
            }),
            resource_attributes: None,
        };
        if may(&client, right).await? {
            allowed.push(format!("{verb} {path}"));
        }
    }
    ensure!(allowed.is_empty(), "the operator may:\n{}", allowed.join("\n"));
    // That the question was asked as the operator, and that it is answered at all.
    ensure!(
        may(&client, resource("default", "create", "", "pods")).await?,
        "it may not even make sandboxes"
    );
    Ok(())
}
