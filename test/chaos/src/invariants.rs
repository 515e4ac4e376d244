//! What must hold after every fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cli_mcp_api::labels;
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl, setup};
use serde_json::{Value, json};

use crate::load::Client;

/// UID of each session's pod, of those that run and are not being deleted: a session whose pod is on its way out may have
/// the next one already.
///
/// # Errors
///
/// When pods cannot be listed.
pub fn pods(instance: &Instance) -> Result<BTreeMap<String, String>> {
    let list = kubectl::ok(&[
        "-n",
        &instance.namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/component=sandbox,cli-mcp.redhat.com/session-id",
        "-o",
        "jsonpath={range .items[?(@.status.phase==\"Running\")]}{.metadata.labels.cli-mcp\\.redhat\\.com/session-id} {.metadata.uid} {.metadata.deletionTimestamp}{\"\\n\"}{end}",
    ])?;
    Ok(list
        .lines()
        // With a time of deletion the line ends otherwise.
        .filter_map(|line| line.strip_suffix(' ')?.split_once(' '))
        .map(|(session, uid)| (session.to_owned(), uid.to_owned()))
        .collect())
}

/// UIDs of the pods of a component.
///
/// # Errors
///
/// When pods cannot be listed.
pub fn component(instance: &Instance, component: &str) -> Result<BTreeSet<String>> {
    let label = format!("cli-mcp.redhat.com/component={component}");
    let path = "jsonpath={.items[*].metadata.uid}";
    let uids = kubectl::ok(&["-n", &instance.namespace, "get", "pods", "-l", &label, "-o", path])?;
    Ok(uids.split_whitespace().map(str::to_owned).collect())
}

/// Kinds of what an instance has in its namespace besides pods.
pub const KINDS: &str =
    "deployment,service,serviceaccount,role,rolebinding,configmap,secret,networkpolicy,poddisruptionbudget";

/// Names of everything of these kinds in the namespace.
///
/// # Errors
///
/// When it cannot be listed.
pub fn objects(instance: &Instance) -> Result<Vec<String>> {
    let names = kubectl::ok(&["-n", &instance.namespace, "get", KINDS, "-o", "name"])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// The state before a fault, to compare with.
pub struct Before {
    pods: BTreeMap<String, String>,
    resets: Vec<u64>,
    served: Vec<u64>,
    objects: Vec<String>,
}

impl Before {
    /// Looks.
    ///
    /// # Errors
    ///
    /// When the cluster cannot be asked.
    pub fn look(instance: &Instance, clients: &[Client]) -> Result<Self> {
        Ok(Self {
            pods: pods(instance)?,
            resets: clients.iter().map(Client::resets).collect(),
            served: clients.iter().map(Client::served).collect(),
            objects: objects(instance)?,
        })
    }

    /// Compares: every session is served again, none has lost its pod but those that the fault ended, none whose pod survived
    /// has lost anything, no call was wrong, every object is there, no pod is too many, and then the instance becomes Ready
    /// within the time that the fault is given.
    ///
    /// # Errors
    ///
    /// What does not hold.
    pub async fn compare(
        &self,
        instance: &Instance,
        clients: &[Client],
        pool: usize,
        ended: &BTreeSet<String>,
        ready_within: Duration,
    ) -> Result<()> {
        let during: Vec<_> = clients.iter().map(Client::served).collect();
        for (client, (before, during)) in clients.iter().zip(self.served.iter().zip(&during)) {
            cluster::eventually("every session's next result", async || {
                client.verdict()?;
                ensure!(
                    client.served() > *during,
                    "session {} is not served ({before} results before, {during} since)",
                    client.id
                );
                Ok(())
            })
            .await?;
        }
        let after = pods(instance)?;
        only_these_lost_theirs(&self.pods, &after, ended)?;
        for (client, resets) in clients.iter().zip(&self.resets) {
            client.verdict()?;
            ensure!(
                self.pods.get(&client.id) != after.get(&client.id) || client.resets() == *resets,
                "session {} was reset, and its pod survived",
                client.id
            );
        }
        cluster::eventually("the objects of before", async || {
            let now = objects(instance)?;
            ensure!(now == self.objects, "before {:#?}\nnow {now:#?}", self.objects);
            Ok(())
        })
        .await?;
        let sessions: Vec<_> = clients.iter().map(|client| client.id.as_str()).collect();
        cluster::eventually("a pod for each session and the pool", async || {
            let list = kubectl::ok(&["-n", &instance.namespace, "get", "pods", "-o", "json"])?;
            no_orphans(&serde_json::from_str(&list)?, &sessions, pool)
        })
        .await?;
        becomes_ready(instance, ready_within).await
    }
}

/// No session but these has another pod than before, or none.
fn only_these_lost_theirs(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    ended: &BTreeSet<String>,
) -> Result<()> {
    for (session, pod) in before {
        ensure!(
            after.get(session) == Some(pod) || ended.contains(session),
            "session {session} lost its pod to a fault that does not end it"
        );
    }
    Ok(())
}

/// Every pod of the namespace is one of a Deployment's, or a sandbox that runs, of a known session or of the pool. One that has
/// lost its labels is nobody's: the operator and the servers look for their own by these.
fn no_orphans(list: &Value, sessions: &[&str], pool: usize) -> Result<()> {
    let mut unassigned = 0;
    let mut assigned = BTreeSet::new();
    for pod in list["items"].as_array().context("no list of pods")? {
        let metadata = &pod["metadata"];
        let name = &metadata["name"];
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        if owners.clone().any(|owner| owner["kind"] == "ReplicaSet") {
            continue;
        }
        ensure!(
            metadata["labels"][labels::COMPONENT] == "sandbox",
            "pod {name} is nobody's: {metadata}"
        );
        ensure!(
            owners.clone().any(|owner| owner["kind"] == "CliMcpInstance"),
            "sandbox {name} has no owner: {metadata}"
        );
        ensure!(
            pod["status"]["phase"] == "Running" && metadata["deletionTimestamp"].is_null(),
            "sandbox {name} does not run: {metadata}"
        );
        match metadata["labels"][labels::SESSION_ID].as_str() {
            None => unassigned += 1,
            Some(session) => ensure!(
                sessions.contains(&session) && assigned.insert(session.to_owned()),
                "sandbox {name} is of session {session}, which has another or is nobody's"
            ),
        }
    }
    ensure!(unassigned == pool, "{unassigned} unassigned sandboxes, not {pool}");
    ensure!(
        assigned.len() == sessions.len(),
        "sandboxes of {assigned:?} only, of {sessions:?}"
    );
    Ok(())
}

/// What is said of the instance before may be what it was like before the fault. So its spec is changed, in a field that rolls
/// nothing, and the operator must say that it is Ready as it is then.
async fn becomes_ready(instance: &Instance, within: Duration) -> Result<()> {
    let reference = format!("climcpinstance/{}", instance.name);
    let read = || -> Result<Value> {
        let text = kubectl::ok(&["-n", &instance.namespace, "get", &reference, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    };
    let before = read()?;
    let lifetime = if before["spec"]["sandbox"]["maxLifetime"] == "48h" {
        "47h"
    } else {
        "48h"
    };
    let patch = json!({"spec": {"sandbox": {"maxLifetime": lifetime}}});
    setup::patch(&instance.namespace, &instance.name, &patch.to_string())?;
    let generation = before["metadata"]["generation"].as_i64().context("no generation")? + 1;
    cluster::within(within, "Ready, as the instance is now", async || {
        is_ready(&read()?, generation)
    })
    .await
}

/// The instance is Ready as it is from this generation on.
fn is_ready(instance: &Value, generation: i64) -> Result<()> {
    let status = &instance["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions
        .into_iter()
        .find(|condition| condition["type"] == "Ready")
        .context("no condition Ready")?;
    let observed = |value: &Value| {
        value["observedGeneration"]
            .as_i64()
            .is_some_and(|seen| seen >= generation)
    };
    ensure!(
        ready["status"] == "True" && observed(ready) && observed(status),
        "generation {generation}: {status}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(name: &str, session: Option<&str>) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {labels::COMPONENT: "sandbox"},
                "ownerReferences": [{"kind": "CliMcpInstance"}]},
            "status": {"phase": "Running"},
        });
        if let Some(session) = session {
            pod["metadata"]["labels"][labels::SESSION_ID] = json!(session);
        }
        pod
    }

    #[test]
    fn a_pod_that_is_nobodys_is_found() {
        let server = json!({"metadata": {"name": "server", "ownerReferences": [{"kind": "ReplicaSet"}]}, "status": {"phase": "Failed"}});
        let whole = [sandbox("a", Some("one")), sandbox("b", None), server];
        let judge = |pods: &[Value]| no_orphans(&json!({"items": pods}), &["one"], 1);
        judge(&whole).unwrap();
        assert!(judge(&whole[..1]).is_err(), "the pool is empty");
        assert!(judge(&whole[1..]).is_err(), "a session has none");
        let one_more = |pod: Value| judge(&[&whole[..], &[pod]].concat());
        for session in [None, Some("one"), Some("two")] {
            assert!(one_more(sandbox("c", session)).is_err(), "{session:?}");
        }
        for (pointer, value) in [
            ("/metadata/labels", json!({})),
            ("/metadata/ownerReferences", json!([])),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/status/phase", json!("Failed")),
        ] {
            let mut pods = whole.to_vec();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            pods[0].pointer_mut(parent).unwrap()[key] = value;
            assert!(judge(&pods).is_err(), "{pointer}");
        }
    }

    #[test]
    fn only_the_sessions_that_a_fault_ends_may_have_another_pod() {
        let pods = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter()
                .map(|(session, uid)| ((*session).to_owned(), (*uid).to_owned()))
                .collect()
        };
        let ended = BTreeSet::from(["one".to_owned()]);
        let before = pods(&[("one", "a"), ("two", "b")]);
        for after in [&before, &pods(&[("one", "c"), ("two", "b")]), &pods(&[("two", "b")])] {
            only_these_lost_theirs(&before, after, &ended).unwrap();
        }
        for after in [pods(&[("one", "a"), ("two", "c")]), pods(&[("one", "a")])] {
            assert!(only_these_lost_theirs(&before, &after, &ended).is_err(), "{after:?}");
        }
    }

    #[test]
    fn ready_is_what_is_said_of_the_instance_as_it_is_now() {
        let instance = |status: &str, of_condition: i64, of_status: i64| {
            json!({"status": {"observedGeneration": of_status,
                "conditions": [{"type": "Ready", "status": status, "observedGeneration": of_condition}]}})
        };
        is_ready(&instance("True", 3, 3), 3).unwrap();
        for stale in [
            instance("True", 2, 3),
            instance("True", 3, 2),
            instance("False", 3, 3),
            json!({}),
        ] {
            assert!(is_ready(&stale, 3).is_err(), "{stale}");
        }
    }
}
