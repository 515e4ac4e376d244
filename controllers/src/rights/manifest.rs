//! The roles of `config/` as text, from the table of rights.

use super::{Right, in_its_own_namespace, in_the_cluster, in_watched_namespaces};

/// A file of `config/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its path below `config/`.
    pub path: &'static str,
    /// All of it.
    pub text: String,
}

struct Role<'a> {
    about: &'a str,
    kind: &'a str,
    name: &'a str,
    /// Kustomize names the namespace.
    namespaced: bool,
    rights: Vec<Right>,
}

/// Every role of the operator.
#[must_use]
pub fn manifests() -> Vec<Manifest> {
    let manifest = |path, role: &Role<'_>| Manifest {
        path,
        text: role.text(),
    };
    vec![
        manifest(
            "rbac/role.yaml",
            &Role {
                about: "What the operator does in each namespace that it watches. Kubernetes lets it grant only what it may do itself: the\n\
                        rules of the roles that it makes for servers and clients are among these.",
                kind: "Role",
                name: "manager-role",
                namespaced: true,
                rights: in_watched_namespaces(),
            },
        ),
        manifest(
            "all-namespaces/cluster_role.yaml",
            &Role {
                about: "The rules of ../rbac/role.yaml, for every namespace.",
                kind: "ClusterRole",
                name: "cli-mcp-operator-manager-namespaces-role",
                namespaced: false,
                rights: in_watched_namespaces(),
            },
        ),
        manifest(
            "rbac/cluster_role.yaml",
            &Role {
                about: "What the operator does outside namespaces: the one binding that lets MCP servers check their callers' tokens.",
                kind: "ClusterRole",
                name: "manager-cluster-role",
                namespaced: false,
                rights: in_the_cluster(),
            },
        ),
        manifest(
            "rbac/leader_election_role.yaml",
            &Role {
                about: "What the operator does in its own namespace.",
                kind: "Role",
                name: "leader-election-role",
                namespaced: true,
                rights: in_its_own_namespace(),
            },
        ),
    ]
}

impl Role<'_> {
    fn text(&self) -> String {
        let mut text = "# Generated from controllers/src/rights.rs by `make manifests`. Do not edit.\n".to_owned();
        for line in self.about.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        let namespace = if self.namespaced { "  namespace: system\n" } else { "" };
        text.push_str(&format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {}\nmetadata:\n  name: {}\n{namespace}  labels:\n    \
             app.kubernetes.io/name: cli-mcp-operator\n    app.kubernetes.io/managed-by: kustomize\nrules:\n",
            self.kind, self.name
        ));
        for right in &self.rights {
            if !right.purpose.is_empty() {
                text.push_str(&format!("  # {}\n", right.purpose));
            }
            text.push_str(&format!("  - apiGroups: {}\n", list([&right.group])));
            text.push_str(&format!("    resources: {}\n", list(&right.resources)));
            if let Some(object) = right.object {
                text.push_str(&format!("    resourceNames: {}\n", list([object])));
            }
            text.push_str(&format!("    verbs: {}\n", list(&right.verbs)));
        }
        text
    }
}

fn list<T: ToString>(words: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = words
        .into_iter()
        .map(|word| format!("\"{}\"", word.to_string()))
        .collect();
    format!("[{}]", words.join(", "))
}
