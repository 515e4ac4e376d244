//! What OLM installs: the operator's Deployment, and the rules of the roles that are bound to its ServiceAccount.

use serde_json::{Value, json};

use crate::BundleError;
use crate::stream::{Stream, title};

/// `spec.install` of the ClusterServiceVersion.
///
/// # Errors
///
/// When there is not one Deployment, or a role is bound that the manifests do not have.
pub fn strategy(stream: &Stream) -> Result<Value, BundleError> {
    let deployment = stream.only("Deployment")?;
    let account = &deployment["spec"]["template"]["spec"]["serviceAccountName"];
    Ok(json!({
        "strategy": "deployment",
        "spec": {
            "deployments": [{
                "name": deployment["metadata"]["name"],
                "label": deployment["metadata"]["labels"],
                "spec": deployment["spec"],
            }],
            // OLM makes these in the operator's own and in each target namespace, or cluster-wide where the target is all.
            "permissions": permissions(stream, account, "RoleBinding")?,
            "clusterPermissions": permissions(stream, account, "ClusterRoleBinding")?,
        },
    }))
}

fn permissions(stream: &Stream, account: &Value, binding_kind: &str) -> Result<Value, BundleError> {
    let mut rules = Vec::new();
    for binding in stream.of(binding_kind) {
        let bound = binding["subjects"].as_array().into_iter().flatten();
        if !bound.into_iter().any(|subject| subject["name"] == *account) {
            continue;
        }
        let role = &binding["roleRef"];
        let found = stream
            .0
            .iter()
            .find(|object| object["kind"] == role["kind"] && object["metadata"]["name"] == role["name"])
            .ok_or_else(|| BundleError::Object {
                object: title(binding),
                what: format!("there is no {} {}", role["kind"], role["name"]),
            })?;
        rules.extend(found["rules"].as_array().into_iter().flatten().cloned());
    }
    Ok(json!([{"serviceAccountName": account, "rules": rules}]))
}
