//! What must hold after every fault.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::{self, Instance};
use cli_mcp_e2e::{cluster, kubectl};

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

    /// Compares: the instance becomes Ready, every session is served again, no pod of one is lost unless the fault ends
    /// sandboxes, none whose pod survived has lost anything, no call was wrong, every object is there, and no pod is too
    /// many.
    ///
    /// # Errors
    ///
    /// What does not hold.
    pub async fn compare(
        &self,
        instance: &Instance,
        clients: &[Client],
        pool: usize,
        may_end_sandboxes: bool,
    ) -> Result<()> {
        cluster::eventually("Ready", async || {
            instance::wait_ready(&instance.namespace, &instance.name)
        })
        .await?;
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
        for (client, resets) in clients.iter().zip(&self.resets) {
            client.verdict()?;
            let (was, is) = (self.pods.get(&client.id), after.get(&client.id));
            ensure!(
                was == is || may_end_sandboxes,
                "session {} lost its pod to a fault that ends none",
                client.id
            );
            ensure!(
                was != is || client.resets() == *resets,
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
        cluster::eventually("a pod for each session and the pool", async || {
            no_orphans(instance, clients, pool)
        })
        .await
    }
}

/// Every sandbox is that of a known session or of the pool, and runs.
fn no_orphans(instance: &Instance, clients: &[Client], pool: usize) -> Result<()> {
    let list = kubectl::ok(&[
        "-n",
        &instance.namespace,
        "get",
        "pods",
        "-l",
        "cli-mcp.redhat.com/component=sandbox",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name} {.status.phase} [{.metadata.deletionTimestamp}] [{.metadata.labels.cli-mcp\\.redhat\\.com/session-id}]{\"\\n\"}{end}",
    ])?;
    let mut unassigned = 0;
    for line in list.lines() {
        let mut words = line.split(' ').skip(1);
        ensure!(words.next() == Some("Running") && words.next() == Some("[]"), "{list}");
        let session = words.next().context("no session")?.trim_matches(['[', ']']);
        if session.is_empty() {
            unassigned += 1;
        } else {
            ensure!(
                clients.iter().any(|client| client.id == session),
                "a sandbox of session {session}, which is nobody's:\n{list}"
            );
        }
    }
    ensure!(unassigned == pool, "{unassigned} unassigned, not {pool}:\n{list}");
    let sessions = list.lines().filter(|line| !line.ends_with("[]")).count();
    ensure!(
        sessions == clients.len(),
        "{sessions} sandboxes of {} sessions:\n{list}",
        clients.len()
    );
    Ok(())
}
