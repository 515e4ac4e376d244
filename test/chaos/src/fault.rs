//! The faults.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::node::processes;
use cli_mcp_e2e::{cluster, kubectl};

use crate::gate::{self, Precondition};
use crate::load::Client;
use crate::node::{self, OPERATOR};
use crate::order::Order;
use crate::{deletion, invariants, partition};

/// What is done to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9` of a process of one of the programs.
    Kill(&'static str),
    /// `SIGSTOP` of all processes of one of the programs, and `SIGCONT` some seconds later.
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
    /// One sandbox fills its disk.
    Disk,
    /// The operator's Lease is held by a stranger whose clock is an hour ahead.
    Lease,
    /// A sandbox is deleted behind everyone's back.
    Pod,
}

/// Each of them once.
pub const ALL: [Fault; 41] = [
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
    Fault::Lease,
    Fault::Pod,
];

impl Fault {
    /// Whether it may cost a session its sandbox.
    #[must_use]
    pub fn may_end_sandboxes(self) -> bool {
        matches!(
            self,
            Self::Kill("agent") | Self::Disk | Self::Pod | Self::Delete("secret", "-hmac")
        )
    }

    /// Does it, and undoes what does not mend itself.
    ///
    /// # Errors
    ///
    /// When it could not be done, or the gate was open in it.
    pub async fn strike(self, instance: &mut Instance, clients: &[Client], order: &mut Order) -> Result<()> {
        let pause = Duration::from_millis(500 + order.below(2500) as u64);
        match self {
            Self::Kill(program) => {
                let pids = processes(program, &[&instance.namespace, OPERATOR])?;
                ensure!(!pids.is_empty(), "no process of {program}");
                let victim = pids[order.below(pids.len())].clone();
                node::kill(&[victim])
            }
            Self::Pause(program) => {
                let held = node::hold(&processes(program, &[&instance.namespace, OPERATOR])?)?;
                tokio::time::sleep(Duration::from_secs(3) + pause).await;
                held.end()
            }
            Self::Restart(component) => {
                let away = format!("{}", pause.as_secs_f32());
                tokio::task::spawn_blocking(move || node::restart(component, &away)).await??;
                cluster::eventually("an answer of the API server", async || {
                    kubectl::ok(&["--request-timeout=3s", "get", "--raw", "/readyz"]).map(drop)
                })
                .await
            }
            Self::Delete(kind, suffix) => deletion::strike(kind, suffix, instance, clients).await,
            Self::Endpoints => {
                let held = node::hold(&[node::component("kube-controller-manager")?])?;
                kubectl::delete_all(
                    &instance.namespace,
                    "endpointslice",
                    &format!("kubernetes.io/service-name=cli-mcp-{}-proxy", instance.name),
                )?;
                gate::stays_shut(instance, Precondition::ProxyEndpoint).await?;
                held.end()
            }
            Self::Partition => partition::strike(instance).await,
            Self::NoEnforcement => no_enforcement(instance).await,
            Self::Roll => {
                kubectl::ok(&["-n", &instance.namespace, "rollout", "restart", "deployment"])?;
                kubectl::ok(&["-n", OPERATOR, "rollout", "restart", "deployment"])?;
                for namespace in [&instance.namespace, OPERATOR] {
                    kubectl::ok(&["-n", namespace, "rollout", "status", "deployment", "--timeout=180s"])?;
                }
                Ok(())
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
                .await
            }
            Self::Lease => lease(instance).await,
            Self::Pod => {
                let session = random_session(instance, order)?;
                kubectl::delete_all(
                    &instance.namespace,
                    "pod",
                    &format!("cli-mcp.redhat.com/session-id={session}"),
                )
            }
        }
    }
}

fn random_session(instance: &Instance, order: &mut Order) -> Result<String> {
    let sessions: Vec<_> = invariants::pods(instance)?.into_keys().collect();
    ensure!(!sessions.is_empty(), "no session has a pod");
    Ok(sessions[order.below(sessions.len())].clone())
}

/// A stranger takes the Lease with a time far in the future, and falls silent. The operator must lead again.
async fn lease(instance: &Instance) -> Result<()> {
    let lease = kubectl::ok(&["-n", OPERATOR, "get", "lease", "-o", "name"])?;
    let lease = lease.lines().next().context("the operator has no Lease")?;
    let patch = r#"{"spec":{"holderIdentity":"a-stranger","renewTime":"2099-01-01T00:00:00.000000Z","acquireTime":"2099-01-01T00:00:00.000000Z"}}"#;
    kubectl::ok(&["-n", OPERATOR, "patch", lease, "--type=merge", "-p", patch])?;
    cluster::eventually("an operator that leads", async || {
        let holder = kubectl::ok(&["-n", OPERATOR, "get", lease, "-o", "jsonpath={.spec.holderIdentity}"])?;
        ensure!(holder != "a-stranger", "{holder}");
        Ok(())
    })
    .await?;
    kubectl::ok(&[
        "-n",
        &instance.namespace,
        "delete",
        "networkpolicy",
        &format!("cli-mcp-{}-proxy", instance.name),
    ])
    .map(drop)
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
