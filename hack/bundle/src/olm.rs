//! What the Operator Lifecycle Manager makes of a bundle for an operator group, as objects: so that each install mode can be
//! tried, or a bundle installed, where there is no OLM.
//!
//! The rules are those of OLM v0: <https://olm.operatorframework.io/docs/advanced-tasks/operator-scoping-with-operatorgroups/>.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::BundleError;
use crate::stream::title;

/// An operator group and the namespace that it is in.
#[derive(Clone, Debug)]
pub struct Group {
    /// Namespace of the operator.
    pub namespace: String,
    /// Namespaces that it is for; none: all.
    pub targets: BTreeSet<String>,
}

impl Group {
    /// The install mode that the group asks for.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        match self.targets.len() {
            0 => "AllNamespaces",
            1 if self.targets.contains(&self.namespace) => "OwnNamespace",
            1 => "SingleNamespace",
            _ => "MultiNamespace",
        }
    }

    /// The annotation `olm.targetNamespaces`; empty for all.
    fn target_namespaces(&self) -> String {
        self.targets.iter().cloned().collect::<Vec<_>>().join(",")
    }
}

/// The objects, in the order in which they can be applied. `beside` are the bundle's other manifests.
///
/// # Errors
///
/// When the bundle does not support the group's install mode.
pub fn objects(csv: &Value, beside: &[Value], group: &Group) -> Result<Vec<Value>, BundleError> {
    let mode = group.mode();
    let modes = csv["spec"]["installModes"].as_array();
    if !modes
        .into_iter()
        .flatten()
        .any(|entry| entry["type"] == mode && entry["supported"] == true)
    {
        return Err(BundleError::Object {
            object: title(csv),
            what: format!("the install mode {mode} is not supported"),
        });
    }
    let mut objects: Vec<Value> = beside
        .iter()
        .map(|object| match object["kind"].as_str() {
            Some("CustomResourceDefinition" | "ClusterRole") => object.clone(),
            _ => in_namespace(object.clone(), &group.namespace),
        })
        .collect();
    let install = &csv["spec"]["install"]["spec"];
    let prefix = format!(
        "{}-{}",
        csv["metadata"]["name"].as_str().unwrap_or_default(),
        group.namespace
    );
    let of = |permission: &Value, kind: &str, suffix: &str| {
        let account = permission["serviceAccountName"].as_str().unwrap_or_default();
        bound(
            kind,
            &format!("{prefix}-{suffix}"),
            &permission["rules"],
            account,
            &group.namespace,
        )
    };
    for permission in install["permissions"].as_array().into_iter().flatten() {
        objects.push(in_namespace(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": permission["serviceAccountName"]}}),
            &group.namespace,
        ));
        // The operator's own namespace is always among them: that is where its Lease is.
        for namespace in group.targets.iter().chain([&group.namespace]).collect::<BTreeSet<_>>() {
            objects.extend(of(permission, "Role", "role").map(|object| in_namespace(object, namespace)));
        }
        if group.targets.is_empty() {
            objects.extend(of(permission, "ClusterRole", "all-namespaces"));
        }
    }
    for permission in install["clusterPermissions"].as_array().into_iter().flatten() {
        objects.extend(of(permission, "ClusterRole", "cluster"));
    }
    for deployment in install["deployments"].as_array().into_iter().flatten() {
        objects.push(self::deployment(csv, deployment, group));
    }
    Ok(objects)
}

/// A role with these rules, and its binding to the account.
fn bound(kind: &str, name: &str, rules: &Value, account: &str, namespace: &str) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    [
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "rules": rules}),
        json!({
            "apiVersion": version,
            "kind": format!("{kind}Binding"),
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }),
    ]
}

fn in_namespace(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = namespace.into();
    object
}

/// The operator's Deployment: its pods get the annotations of the ClusterServiceVersion and of the group, its containers the
/// name of the operator's condition.
fn deployment(csv: &Value, entry: &Value, group: &Group) -> Value {
    let mut spec = entry["spec"].clone();
    let template = &mut spec["template"];
    let mut annotations = Map::new();
    for source in [&csv["metadata"]["annotations"], &template["metadata"]["annotations"]] {
        annotations.extend(source.as_object().cloned().unwrap_or_default());
    }
    annotations.insert("olm.operatorGroup".to_owned(), "group".into());
    annotations.insert("olm.operatorNamespace".to_owned(), group.namespace.clone().into());
    annotations.insert("olm.targetNamespaces".to_owned(), group.target_namespaces().into());
    template["metadata"]["annotations"] = annotations.into();
    for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
        if let Some(variables) = container["env"].as_array_mut() {
            variables.push(json!({"name": "OPERATOR_CONDITION_NAME", "value": csv["metadata"]["name"]}));
        }
    }
    in_namespace(
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": entry["name"], "labels": entry["label"]},
            "spec": spec,
        }),
        &group.namespace,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(namespace: &str, targets: &[&str]) -> Group {
        Group {
            namespace: namespace.to_owned(),
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        }
    }

    fn csv() -> Value {
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        json!({
            "kind": "ClusterServiceVersion",
            "metadata": {"name": "op.v1.0.0", "annotations": {"support": "us"}},
            "spec": {
                "installModes": [
                    {"type": "AllNamespaces", "supported": true},
                    {"type": "SingleNamespace", "supported": true},
                    {"type": "MultiNamespace", "supported": false},
                ],
                "install": {"spec": {
                    "permissions": [{"serviceAccountName": "sa", "rules": rules}],
                    "clusterPermissions": [{"serviceAccountName": "sa", "rules": rules}],
                    "deployments": [{"name": "d", "spec": {"template": {"metadata": {}, "spec": {"containers": [{"env": []}]}}}}],
                }},
            },
        })
    }

    fn places(objects: &[Value], kind: &str) -> Vec<String> {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind);
        of_kind
            .map(|object| object["metadata"]["namespace"].as_str().unwrap_or("*").to_owned())
            .collect()
    }

    #[test]
    fn the_mode_is_what_the_group_asks_for() {
        assert_eq!(group("a", &[]).mode(), "AllNamespaces");
        assert_eq!(group("a", &["a"]).mode(), "OwnNamespace");
        assert_eq!(group("a", &["b"]).mode(), "SingleNamespace");
        assert_eq!(group("a", &["a", "b"]).mode(), "MultiNamespace");
        let refused = objects(&csv(), &[], &group("a", &["b", "c"])).unwrap_err();
        assert!(refused.to_string().contains("MultiNamespace"), "{refused}");
    }

    #[test]
    fn rules_hold_in_the_own_and_the_target_namespace_or_everywhere() {
        let single = objects(&csv(), &[], &group("a", &["b"])).unwrap();
        assert_eq!(places(&single, "Role"), ["a", "b"]);
        assert_eq!(places(&single, "RoleBinding"), ["a", "b"]);
        assert_eq!(places(&single, "ClusterRole"), ["*"]);
        let all = objects(&csv(), &[], &group("a", &[])).unwrap();
        assert_eq!(places(&all, "ClusterRole"), ["*", "*"]);
    }

    #[test]
    fn the_pods_are_told_what_they_are_for() {
        let single = objects(&csv(), &[], &group("a", &["b"])).unwrap();
        let deployment = single.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let template = &deployment["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"]["olm.targetNamespaces"], "b");
        assert_eq!(template["metadata"]["annotations"]["support"], "us");
        assert_eq!(template["spec"]["containers"][0]["env"][0]["value"], "op.v1.0.0");
    }
}
