//! The faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::node::processes;
use cli_mcp_e2e::{cluster, kubectl, setup};

use crate::gate::{self, Precondition};
use crate::lease::{self, Clock, Holder};
use crate::load::Client;
use crate::node::{self, OPERATOR};
use crate::order::Order;
use crate::{deletion, invariants, partition};

/// What is done to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of a process of one of the programs, several times.
    Kill(&'static str),
    /// `SIGSTOP` of all processes of one of the programs, and `SIGCONT` some seconds later; of the operator once its Lease is over.
    Pause(&'static str),
    /// `kill -9` of a component of the cluster, which stays away for some seconds.
    Restart(&'static str),
    /// Deletion of one of the instance's objects, by kind and what its name has behind the instance's. While one is gone for
    /// which the gate asks, no session may begin.
    Delete(&'static str, &'static str),
    /// Deletion of the EndpointSlices of the proxy: until they are made again, no session may begin.
    Endpoints,
    /// The network of a proxy is cut, and then that of all.
    Partition,
    /// No connection is judged by any policy, and no sandbox may run a command.
    NoEnforcement,
    /// Every Deployment is rolled.
    Roll,
    /// One sandbox fills its disk. That of the node is never filled: it is the machine's.
    Disk,
    /// The operator's Lease is written by somebody whose clock is wrong.
    Lease(Holder, Clock),
    /// A sandbox is deleted behind everyone's back.
    Pod,
}

/// Each of them once.
pub const ALL: [Fault; 44] = [
    Fault::Kill("operator"),
    Fault::Kill("server"),
    Fault::Kill("proxy"),
    Fault::Kill("agent"),
    Fault::Pause("operator"),
    Fault::Pause("server"),
    Fault::Pause("proxy"),
    Fault::Pause("agent"),
    Fault::Restart("etcd"),
    Fault::Restart("kube-apiserver"),
    Fault::Restart("containerd"),
    Fault::Restart("kubelet"),
    Fault::Restart("kube-controller-manager"),
    Fault::Restart("kube-network-policies"),
    Fault::Restart("kube-proxy"),
    Fault::Delete("deployment", ""),
    Fault::Delete("deployment", "-proxy"),
    Fault::Delete("service", ""),
    Fault::Delete("service", "-proxy"),
    Fault::Delete("serviceaccount", ""),
    Fault::Delete("serviceaccount", "-sandbox"),
    Fault::Delete("serviceaccount", "-proxy"),
    Fault::Delete("serviceaccount", "-client"),
    Fault::Delete("role", ""),
    Fault::Delete("role", "-client"),
    Fault::Delete("rolebinding", ""),
    Fault::Delete("rolebinding", "-client"),
    Fault::Delete("configmap", "-proxy"),
    Fault::Delete("networkpolicy", "-sandbox"),
    Fault::Delete("networkpolicy", "-proxy"),
    Fault::Delete("poddisruptionbudget", "-proxy"),
    Fault::Delete("secret", "-hmac"),
    Fault::Delete("secret", "-proxy-ca"),
    Fault::Delete(deletion::CLUSTER_SCOPED, ""),
    Fault::Endpoints,
    Fault::Partition,
    Fault::NoEnforcement,
    Fault::Roll,
    Fault::Disk,
    Fault::Lease(Holder::Stranger, Clock::Ahead),
    Fault::Lease(Holder::Stranger, Clock::Behind),
    Fault::Lease(Holder::Own, Clock::Ahead),
    Fault::Lease(Holder::Own, Clock::Behind),
    Fault::Pod,
];

/// So often a program is killed, one of its processes at a time.
const KILLS: usize = 3;

impl Fault {
    /// How long the operator may take to say that the instance is Ready once everything else is whole: it hears of what it watches
    /// at once. Longer where it may have to wait for its Lease, or for the kubelet to start it again for the third time.
    #[must_use]
    pub fn ready_within(self) -> Duration {
        let leads_anew = matches!(
            self,
            Self::Kill("operator")
                | Self::Pause("operator")
                | Self::Restart("etcd" | "kube-apiserver" | "containerd" | "kubelet")
                | Self::Roll
                | Self::Lease(..)
        );
        Duration::from_secs(if leads_anew { 90 } else { 30 })
    }

    /// Does it, and undoes what does not mend itself. Returns the sessions whose sandboxes it ended.
    ///
    /// # Errors
    ///
    /// When it could not be done, or the gate was open in it.
    pub async fn strike(
        self,
        instance: &mut Instance,
        clients: &[Client],
        order: &mut Order,
    ) -> Result<BTreeSet<String>> {
        let none = BTreeSet::new();
        match self {
            Self::Kill(program) => kill(program, instance, order).await,
            Self::Pause(program) => {
                let length = match program {
                    // While it is stopped its Lease is over: it must find out before it writes.
                    "operator" => lease::lasts()?,
                    _ => Duration::ZERO,
                };
                let held = node::hold(&processes(program, &[&instance.namespace, OPERATOR])?)?;
                tokio::time::sleep(length + Duration::from_secs(3) + some_time(order)).await;
                held.end().map(|()| none)
            }
            Self::Restart(component) => {
                let away = format!("{}", some_time(order).as_secs_f32());
                tokio::task::spawn_blocking(move || node::restart(component, &away)).await??;
                cluster::eventually("an answer of the API server", async || {
                    kubectl::ok(&["--request-timeout=3s", "get", "--raw", "/readyz"]).map(drop)
                })
                .await
                .map(|()| none)
            }
            Self::Delete(kind, suffix) => {
                deletion::strike(kind, suffix, instance, clients).await?;
                let cuts_off = (kind, suffix) == deletion::HMAC_KEY;
                let ended = clients.iter().filter(|_| cuts_off);
                Ok(ended.map(|client| client.id.clone()).collect())
            }
            Self::Endpoints => {
                let held = node::hold(&[node::component("kube-controller-manager")?])?;
                let proxy = format!("cli-mcp-{}-proxy", instance.name);
                let slices = format!("kubernetes.io/service-name={proxy}");
                kubectl::delete_all(&instance.namespace, "endpointslice", &slices)?;
                gate::stays_shut(instance, Precondition::ProxyEndpoint).await?;
                cluster::eventually("a condition that says so", async || {
                    let ready = setup::condition(&instance.namespace, &instance.name, "Ready")?;
                    ensure!(ready.reason == "NoReadyEndpoint", "{ready:?}");
                    Ok(())
                })
                .await?;
                held.end()?;
                // A controller that was restarted takes the deletion of a slice that it did not write itself for its own.
                let time = format!("looked-at={:?}", SystemTime::UNIX_EPOCH.elapsed()?);
                let look = ["annotate", "service", &proxy, "--overwrite", &time];
                kubectl::ok(&[&["-n", instance.namespace.as_str()], &look[..]].concat()).map(|_| none)
            }
            Self::Partition => partition::strike(instance).await.map(|()| none),
            Self::NoEnforcement => no_enforcement(instance).await.map(|()| none),
            Self::Roll => {
                kubectl::ok(&["-n", &instance.namespace, "rollout", "restart", "deployment"])?;
                kubectl::ok(&["-n", OPERATOR, "rollout", "restart", "deployment"])?;
                for namespace in [&instance.namespace, OPERATOR] {
                    kubectl::ok(&["-n", namespace, "rollout", "status", "deployment", "--timeout=180s"])?;
                }
                Ok(none)
            }
            Self::Disk => {
                let id = random_session(instance, order)?;
                let before = invariants::pods(instance)?.remove(&id);
                let session = instance.session(&id).await?;
                // It may die of it before it answers.
                let _ = session.bash("head -c 600M /dev/zero >/tmp/fill; sync").await;
                cluster::eventually("an eviction", async || {
                    let now = invariants::pods(instance)?.remove(&id);
                    ensure!(now != before, "session {id} keeps its pod");
                    Ok(())
                })
                .await?;
                Ok(BTreeSet::from([id]))
            }
            Self::Lease(holder, clock) => lease::strike(instance, holder, clock).await.map(|()| none),
            Self::Pod => {
                let session = random_session(instance, order)?;
                let label = format!("cli-mcp.redhat.com/session-id={session}");
                kubectl::delete_all(&instance.namespace, "pod", &label)?;
                Ok(BTreeSet::from([session]))
            }
        }
    }
}

/// Half a second to three.
fn some_time(order: &mut Order) -> Duration {
    Duration::from_millis(500 + order.below(2500) as u64)
}

/// Kills processes of a program, one after the other, each as soon as one runs after some time: what is on its way then is not the
/// same each time. Returns the sessions whose sandboxes were among them.
async fn kill(program: &str, instance: &Instance, order: &mut Order) -> Result<BTreeSet<String>> {
    let mut ended = BTreeSet::new();
    for _ in 0..KILLS {
        tokio::time::sleep(some_time(order)).await;
        let pids = cluster::eventually("a process to kill", async || {
            let pids = processes(program, &[&instance.namespace, OPERATOR])?;
            ensure!(!pids.is_empty(), "no process of {program}");
            Ok(pids)
        })
        .await?;
        let victim = pids[order.below(pids.len())].clone();
        let cgroup = node::cgroup(&victim)?;
        ended.extend(session_of(&cgroup, invariants::pods(instance)?));
        node::kill(&[victim])?;
    }
    Ok(ended)
}

/// The session in whose pod a process is: the pod's cgroup is named after its UID.
fn session_of(cgroup: &str, pods: BTreeMap<String, String>) -> Option<String> {
    pods.into_iter()
        .find_map(|(session, uid)| cgroup.contains(&uid).then_some(session))
}

fn random_session(instance: &Instance, order: &mut Order) -> Result<String> {
    let sessions: Vec<_> = invariants::pods(instance)?.into_keys().collect();
    ensure!(!sessions.is_empty(), "no session has a pod");
    Ok(sessions[order.below(sessions.len())].clone())
}

/// As with a network plugin that fails open: the agents find the way to the API server, whatever the policies say. No command
/// runs and no session begins until connections are judged again; then each session goes on where it was.
async fn no_enforcement(instance: &Instance) -> Result<()> {
    let running = instance.endpoint.connect("enforced").await?;
    let fresh = instance.endpoint.connect("unenforced").await?;
    cluster::eventually("a session", async || {
        let result = running.bash("echo kept >/workspace/mark").await?;
        ensure!(result.exit_code == Some(0), "{result:?}");
        Ok(())
    })
    .await?;
    let open = node::pass_by_the_enforcer()?;
    for session in [&running, &fresh] {
        // Each agent looks once a minute.
        cluster::eventually("the agent's refusal", async || {
            let result = session.bash("true").await?;
            ensure!(
                result.exit_code.is_none() && result.text.contains("EgressNotEnforced"),
                "{result:?}"
            );
            Ok(())
        })
        .await?;
    }
    for attempt in 0..5 {
        for session in [&running, &fresh] {
            let result = session.bash("true").await?;
            ensure!(
                result.exit_code.is_none(),
                "attempt {attempt}: a command ran over an open network: {result:?}"
            );
        }
    }
    open.end()?;
    cluster::eventually("the session's next command", async || {
        let result = running.bash("cat /workspace/mark").await?;
        ensure!(
            result.stdout == "kept\n" && result.session_reset.is_none(),
            "{result:?}"
        );
        Ok(())
    })
    .await?;
    running.delete().await?;
    fresh.delete().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_the_sandbox_of_the_session_whose_pod_names_its_cgroup() {
        let pods = BTreeMap::from([
            ("one".to_owned(), "1-a".to_owned()),
            ("two".to_owned(), "2-b".to_owned()),
        ]);
        let of = |cgroup: &str| session_of(cgroup, pods.clone());
        assert_eq!(of("0::/cli-mcp-dev/kubepods/pod2-b/c\n").as_deref(), Some("two"));
        assert_eq!(of("0::/cli-mcp-dev/kubepods/pod3-c/c\n"), None);
    }
}
