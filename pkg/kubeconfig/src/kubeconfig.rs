//! The whole file: which clusters and users its contexts join, and that the joins can be served.

use std::collections::{BTreeMap, BTreeSet};

use serde_yaml::{Mapping, Value};

use crate::cluster::{self, Cluster, Server};
use crate::document::{self, Named};
use crate::problems::{Invalid, Problems, quoted};
use crate::secret::Scrubber;
use crate::user::{self, User};

/// The largest file that is read, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;

const TOP_KEYS: [&str; 8] = [
    "apiVersion",
    "kind",
    "preferences",
    "clusters",
    "users",
    "contexts",
    "current-context",
    "extensions",
];
const CONTEXT_KEYS: [&str; 4] = ["cluster", "user", "namespace", "extensions"];

/// A context: which user acts on which cluster, and in which namespace by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Its name in the file.
    pub name: String,
    /// Name of its cluster.
    pub cluster: String,
    /// Name of its user.
    pub user: String,
    /// Its default namespace.
    pub namespace: Option<String>,
}

/// One server and the one credential it is served with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The user.
    pub user: &'a User,
}

/// A valid investigation kubeconfig: every context in it can be served.
///
/// Clusters and users that no context names are left out, but their secrets were looked for in everything that a
/// sandbox will see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    clusters: Vec<Cluster>,
    users: Vec<User>,
    contexts: Vec<Context>,
    current_context: Option<String>,
    warnings: Vec<String>,
}

impl Kubeconfig {
    /// Reads and validates a file.
    ///
    /// # Errors
    ///
    /// Every mistake in it, one message each, naming user or cluster and the remedy. No message holds a secret.
    pub fn parse(bytes: &[u8]) -> Result<Self, Invalid> {
        let top = document::read(bytes).map_err(Invalid::one)?;
        let mut scrubber = Scrubber::default();
        collect_secrets(&top, &mut scrubber);
        let mut problems = Problems::default();
        let parsed = read(&top, &mut problems);
        if let Some(parsed) = &parsed
            && problems.is_empty()
        {
            check_visible(parsed, &scrubber, &mut problems);
        }
        match parsed {
            Some(mut parsed) if problems.is_empty() => {
                parsed.warnings = parsed.warnings.iter().map(|warning| scrubber.scrub(warning)).collect();
                Ok(parsed)
            }
            _ => Err(problems.into_invalid(&scrubber)),
        }
    }

    /// The clusters that contexts name, in the file's order.
    #[must_use]
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// The users that contexts name, in the file's order.
    #[must_use]
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// The contexts, in the file's order.
    #[must_use]
    pub fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    /// The context that clients use unless told otherwise. The only one, when the file names none.
    #[must_use]
    pub fn current_context(&self) -> Option<&str> {
        self.current_context.as_deref()
    }

    /// What is accepted but looks like a mistake.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Each server once, with its credential, ordered by server.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint<'_>> {
        let mut endpoints: BTreeMap<&Server, Endpoint<'_>> = BTreeMap::new();
        for context in &self.contexts {
            if let (Some(cluster), Some(user)) = (self.cluster(&context.cluster), self.user(&context.user)) {
                endpoints.entry(&cluster.server).or_insert(Endpoint { cluster, user });
            }
        }
        endpoints.into_values().collect()
    }

    /// The cluster of this name.
    #[must_use]
    pub fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.name == name)
    }

    /// The user of this name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }
}

fn collect_secrets(top: &Mapping, scrubber: &mut Scrubber) {
    let bodies = |list: &str, inner: &'static str| -> Vec<&Mapping> {
        top.get(list)
            .and_then(Value::as_sequence)
            .into_iter()
            .flatten()
            .filter_map(|item| item.get(inner)?.as_mapping())
            .collect()
    };
    for body in bodies("users", "user") {
        user::collect_secrets(body, scrubber);
    }
    for body in bodies("clusters", "cluster") {
        for key in ["server", "proxy-url"] {
            if let Some(password) = body.get(key).and_then(Value::as_str).and_then(url_password) {
                scrubber.add(password.as_bytes());
            }
        }
    }
}

fn url_password(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let userinfo = authority.rsplit_once('@')?.0;
    Some(userinfo.split_once(':').map_or(userinfo, |(_, password)| password))
}

/// Reads everything, and goes on after mistakes so that all of them are told at once.
fn read(top: &Mapping, problems: &mut Problems) -> Option<Kubeconfig> {
    let mut warnings: Vec<String> = document::unknown_keys(top, &TOP_KEYS)
        .map(|key| format!("top-level key {} is unknown and ignored", quoted(key)))
        .collect();
    for (key, expected) in [("kind", "Config"), ("apiVersion", "v1")] {
        match document::text(top, key) {
            Ok(Some(found)) if found != expected => problems.add(format!(
                "`{key}` is {}: a kubeconfig has `{key}: {expected}`, or none",
                quoted(found)
            )),
            Ok(_) => {}
            Err(problem) => problems.add(problem),
        }
    }
    let mut list = |name: &str, inner: &str| {
        document::named(top, name, inner).unwrap_or_else(|found| {
            found.into_iter().for_each(|problem| problems.add(problem));
            Vec::new()
        })
    };
    let (clusters, users, contexts) = (
        list("clusters", "cluster"),
        list("users", "user"),
        list("contexts", "context"),
    );
    if !problems.is_empty() {
        return None;
    }
    if clusters.is_empty() {
        problems.add("the kubeconfig has no `clusters`: add the cluster to investigate");
    }
    if contexts.is_empty() {
        problems.add("the kubeconfig has no `contexts`: add one that joins a cluster and a user");
    }
    let contexts: Vec<Context> = contexts
        .iter()
        .filter_map(|context| read_context(context, &clusters, &users, &mut warnings, problems))
        .collect();
    let current_context = read_current(top, &contexts, &mut warnings, problems);

    let partners = |pick: fn(&Context) -> (&str, &str), name: &str| -> String {
        let names: BTreeSet<&str> = contexts
            .iter()
            .map(pick)
            .filter(|(own, _)| *own == name)
            .map(|(_, other)| other)
            .collect();
        names.into_iter().map(quoted).collect::<Vec<_>>().join(", ")
    };
    let mut good_clusters = Vec::new();
    for Named { name, body } in &clusters {
        let users_of = partners(|context| (&context.cluster, &context.user), name);
        if users_of.is_empty() {
            warnings.push(format!("cluster {} is in no context and is ignored", quoted(name)));
            continue;
        }
        let empty = Mapping::new();
        let body = body.unwrap_or(&empty);
        for key in document::unknown_keys(body, &cluster::KEYS) {
            warnings.push(format!(
                "cluster {}: key {} is unknown and ignored",
                quoted(name),
                quoted(key)
            ));
        }
        match cluster::read(name, body) {
            Ok(cluster) => {
                if cluster.ca.is_none() {
                    warnings.push(format!(
                        "cluster {} has no `certificate-authority-data`: its server is checked against the public roots",
                        quoted(name)
                    ));
                }
                good_clusters.push(cluster);
            }
            Err(found) => found
                .into_iter()
                .for_each(|problem| problems.add(format!("cluster {} (user {users_of}): {problem}", quoted(name)))),
        }
    }
    let mut good_users = Vec::new();
    for Named { name, body } in &users {
        let clusters_of = partners(|context| (&context.user, &context.cluster), name);
        if clusters_of.is_empty() {
            warnings.push(format!("user {} is in no context and is ignored", quoted(name)));
            continue;
        }
        let empty = Mapping::new();
        let body = body.unwrap_or(&empty);
        for key in document::unknown_keys(body, &user::KEYS) {
            warnings.push(format!(
                "user {}: key {} is unknown and ignored",
                quoted(name),
                quoted(key)
            ));
        }
        match user::read(name, body) {
            Ok(user) => good_users.push(user),
            Err(found) => found
                .into_iter()
                .for_each(|problem| problems.add(format!("user {} (cluster {clusters_of}): {problem}", quoted(name)))),
        }
    }
    let kubeconfig = Kubeconfig {
        clusters: good_clusters,
        users: good_users,
        contexts,
        current_context,
        warnings,
    };
    check_conflicts(&kubeconfig, problems);
    Some(kubeconfig)
}

fn read_context(
    entry: &Named<'_>,
    clusters: &[Named<'_>],
    users: &[Named<'_>],
    warnings: &mut Vec<String>,
    problems: &mut Problems,
) -> Option<Context> {
    let name = quoted(entry.name);
    let Some(body) = entry.body else {
        problems.add(format!("context {name} is empty: give it a `cluster` and a `user`"));
        return None;
    };
    for key in document::unknown_keys(body, &CONTEXT_KEYS) {
        warnings.push(format!("context {name}: key {} is unknown and ignored", quoted(key)));
    }
    let mut reference = |key: &str, entries: &[Named<'_>]| match document::text(body, key) {
        Ok(Some(found)) if entries.iter().any(|entry| entry.name == found) => Some(found.to_owned()),
        Ok(Some(found)) => {
            problems.add(format!(
                "context {name} names {key} {}, which is not in `{key}s`: add or correct it",
                quoted(found)
            ));
            None
        }
        Ok(None) => {
            problems.add(format!("context {name} names no `{key}`: add it"));
            None
        }
        Err(problem) => {
            problems.add(format!("context {name}: {problem}"));
            None
        }
    };
    let cluster = reference("cluster", clusters);
    let user = reference("user", users);
    let namespace = document::text(body, "namespace")
        .map_err(|problem| problems.add(format!("context {name}: {problem}")))
        .ok()?
        .map(str::to_owned);
    Some(Context {
        name: entry.name.to_owned(),
        cluster: cluster?,
        user: user?,
        namespace,
    })
}

fn read_current(
    top: &Mapping,
    contexts: &[Context],
    warnings: &mut Vec<String>,
    problems: &mut Problems,
) -> Option<String> {
    match document::text(top, "current-context") {
        Err(problem) => {
            problems.add(problem);
            None
        }
        Ok(Some(current)) => {
            let named = top.get("contexts").and_then(Value::as_sequence).is_some_and(|all| {
                all.iter()
                    .any(|entry| entry.get("name").and_then(Value::as_str) == Some(current))
            });
            if !named {
                problems.add(format!(
                    "`current-context` names {}, which is not in `contexts`: correct or remove it",
                    quoted(current)
                ));
            }
            Some(current.to_owned())
        }
        Ok(None) => match contexts {
            [only] => Some(only.name.clone()),
            _ => {
                warnings.push("`current-context` is not set: commands in the sandbox will need --context".into());
                None
            }
        },
    }
}

/// One server and path prefix is reached with one credential and one trust, else a request would not say which.
fn check_conflicts(kubeconfig: &Kubeconfig, problems: &mut Problems) {
    let mut first: BTreeMap<&Server, (&Cluster, &User)> = BTreeMap::new();
    let mut told = BTreeSet::new();
    for context in &kubeconfig.contexts {
        let (Some(cluster), Some(user)) = (kubeconfig.cluster(&context.cluster), kubeconfig.user(&context.user)) else {
            continue;
        };
        let (other_cluster, other_user) = *first.entry(&cluster.server).or_insert((cluster, user));
        if !user.same_identity(other_user) && told.insert((&other_user.name, &user.name, &cluster.name)) {
            problems.add(format!(
                "users {} and {} (cluster {}) are two credentials for one server, {}: keep one of them, remove the \
                 other's context",
                quoted(&other_user.name),
                quoted(&user.name),
                quoted(&cluster.name),
                cluster.server,
            ));
        }
        let trust_differs = cluster.ca != other_cluster.ca || cluster.tls_server_name != other_cluster.tls_server_name;
        if trust_differs && told.insert((&other_cluster.name, &cluster.name, &user.name)) {
            problems.add(format!(
                "clusters {} and {} (user {}) are one server, {}, with different `certificate-authority-data` or \
                 `tls-server-name`: make them equal or remove one",
                quoted(&other_cluster.name),
                quoted(&cluster.name),
                quoted(&user.name),
                cluster.server,
            ));
        }
    }
}

/// What the sandbox will see of this file must not touch a secret of it.
fn check_visible(kubeconfig: &Kubeconfig, scrubber: &Scrubber, problems: &mut Problems) {
    let mut check = |what: &str, index: usize, texts: &[&str]| {
        if texts.iter().any(|text| scrubber.touches(text)) {
            problems.add(format!(
                "{what} number {} has eight or more characters of a secret in its name or address: rename it, the sandbox \
                 sees it",
                index + 1
            ));
        }
    };
    for (index, cluster) in kubeconfig.clusters.iter().enumerate() {
        let server_name = cluster.tls_server_name.as_deref().unwrap_or_default();
        check(
            "cluster",
            index,
            &[&cluster.name, &cluster.server.to_string(), server_name],
        );
    }
    for (index, user) in kubeconfig.users.iter().enumerate() {
        check("user", index, &[&user.name]);
    }
    for (index, context) in kubeconfig.contexts.iter().enumerate() {
        check(
            "context",
            index,
            &[&context.name, context.namespace.as_deref().unwrap_or_default()],
        );
    }
}
