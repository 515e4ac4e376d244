//! Deletion of what an instance is made of, object by object. The operator makes each again, and what is documented of it in
//! the meantime holds.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl, node};

use crate::gate::{self, Precondition};
use crate::invariants;
use crate::load::Client;
use crate::node::{OPERATOR, hold};
use crate::partition::reaches_the_api;

/// The kind of the one object outside the namespace, which all instances share.
pub const CLUSTER_SCOPED: &str = "clusterrolebinding";

/// The Secret without whose former content no session goes on: kind, and what its name has behind the instance's.
pub const HMAC_KEY: (&str, &str) = ("secret", "-hmac");

/// Name of the one object outside the namespace.
const AUTH_DELEGATOR: &str = "cli-mcp-auth-delegator";

/// Deletes a child of the instance, by its kind and what its name has behind `cli-mcp-<instance>`, and checks what holds
/// because of it.
///
/// # Errors
///
/// What does not hold.
pub async fn strike(kind: &str, suffix: &str, instance: &mut Instance, clients: &[Client]) -> Result<()> {
    if let Some(precondition) = Precondition::of(kind, suffix) {
        let operator = hold(&node::processes("operator", &[OPERATOR])?)?;
        remove(instance, kind, suffix)?;
        gate::stays_shut(instance, precondition).await?;
        return operator.end();
    }
    match (kind, suffix) {
        (CLUSTER_SCOPED, _) => auth_delegator(instance).await,
        ("serviceaccount", "-client") => client_account(instance, clients).await,
        HMAC_KEY => hmac_key(instance, clients).await,
        ("secret", "-proxy-ca") => proxy_ca(instance).await,
        _ => remove(instance, kind, suffix),
    }
}

/// Every object that the operator labels as the instance's is among those that are deleted.
///
/// # Errors
///
/// Those that are not, or that do not exist.
pub fn nothing_is_left_out<'a>(instance: &Instance, deleted: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    let label = format!("cli-mcp.redhat.com/instance={}", instance.name);
    let found: BTreeSet<_> = kubectl::names(&instance.namespace, invariants::KINDS, &label)?
        .iter()
        .filter_map(|reference| {
            // Kinds of a group are printed with it: deployment.apps/name.
            let (kind, name) = reference.split_once('/')?;
            Some(format!("{}/{name}", kind.split('.').next().unwrap_or(kind)))
        })
        .collect();
    let deleted: BTreeSet<_> = deleted
        .filter(|(kind, _)| *kind != CLUSTER_SCOPED)
        .map(|(kind, suffix)| format!("{kind}/{}", name(instance, suffix)))
        .collect();
    ensure!(
        found == deleted,
        "the instance has {found:#?}, and the faults delete {deleted:#?}"
    );
    Ok(())
}

fn name(instance: &Instance, suffix: &str) -> String {
    format!("cli-mcp-{}{suffix}", instance.name)
}

fn remove(instance: &Instance, kind: &str, suffix: &str) -> Result<()> {
    let name = name(instance, suffix);
    kubectl::ok(&["-n", &instance.namespace, "delete", kind, &name, "--wait=false"]).map(drop)
}

/// Without it no server may have a token reviewed. It comes back with this instance's server among its subjects.
async fn auth_delegator(instance: &Instance) -> Result<()> {
    let binding = || {
        let path = "jsonpath={.metadata.uid} {.roleRef.name} {range .subjects[*]}{.namespace}/{.name} {end}";
        kubectl::ok(&["get", CLUSTER_SCOPED, AUTH_DELEGATOR, "--ignore-not-found", "-o", path])
    };
    let before = binding()?;
    let uid = before.split(' ').next().context("no UID")?;
    kubectl::ok(&["delete", CLUSTER_SCOPED, AUTH_DELEGATOR, "--wait=false"])?;
    let server = format!("{}/cli-mcp-{}", instance.namespace, instance.name);
    cluster::eventually("the binding of the servers", async || {
        let now = binding()?;
        let mut words = now.split(' ');
        ensure!(
            words.next().is_some_and(|now| !now.is_empty() && now != uid)
                && words.next() == Some("system:auth-delegator")
                && words.any(|subject| subject == server),
            "{now:?}"
        );
        Ok(())
    })
    .await
}

/// With the client's ServiceAccount its tokens are taken back: the endpoint refuses them, and every session goes on with a
/// token of the new account.
async fn client_account(instance: &mut Instance, clients: &[Client]) -> Result<()> {
    let former = instance.endpoint.clone();
    let account = name(instance, "-client");
    let namespace = instance.namespace.clone();
    let uid = || {
        let path = "jsonpath={.metadata.uid}";
        kubectl::ok(&[
            "-n",
            &namespace,
            "get",
            "serviceaccount",
            &account,
            "--ignore-not-found",
            "-o",
            path,
        ])
    };
    let before = uid()?;
    remove(instance, "serviceaccount", "-client")?;
    cluster::eventually("another ServiceAccount", async || {
        let now = uid()?;
        ensure!(!now.is_empty() && now != before, "{now:?}");
        Ok(())
    })
    .await?;
    let http = former.http_client(None)?;
    cluster::eventually("the refusal of the former token", async || {
        let url = format!("{}/sessions/nobody", former.base_url);
        let status = http.delete(url).send().await?.status();
        ensure!(status == 401, "{status}");
        Ok(())
    })
    .await?;
    instance.renew_token()?;
    for client in clients {
        client.renew(&instance.endpoint);
    }
    Ok(())
}

/// With the key every session is cut off (docs/rotation.md): the servers are rolled, each call says to end the session, the
/// sandboxes stay until somebody does, and then the session begins anew.
async fn hmac_key(instance: &Instance, clients: &[Client]) -> Result<()> {
    let sandboxes = invariants::pods(instance)?;
    let servers = invariants::component(instance, "server")?;
    remove(instance, "secret", "-hmac")?;
    cluster::eventually("servers with another key", async || {
        let now = invariants::component(instance, "server")?;
        ensure!(!now.is_empty() && now.is_disjoint(&servers), "{now:?}");
        Ok(())
    })
    .await?;
    for client in clients {
        cluster::eventually("the refusal of a session of the former key", async || {
            let session = instance.endpoint.connect(&client.id).await?;
            let answer = session.bash("true").await?;
            ensure!(
                answer.exit_code.is_none()
                    && answer.text.contains("end the session")
                    && answer.text.contains("The command was not run"),
                "session {}: {answer:?}",
                client.id
            );
            Ok(())
        })
        .await?;
    }
    let now = invariants::pods(instance)?;
    ensure!(now == sandboxes, "before {sandboxes:?}, with another key {now:?}");
    for client in clients {
        client.begin_anew().await?;
    }
    Ok(())
}

/// With the proxy's CA a running session loses the network and nothing else, and a new one trusts the new CA
/// (docs/rotation.md).
async fn proxy_ca(instance: &Instance) -> Result<()> {
    let former = instance.session("former-ca").await?;
    former.bash("kept=yes").await?;
    reaches_the_api(&former).await.context("the control")?;
    remove(instance, "secret", "-proxy-ca")?;
    cluster::eventually("a proxy with another CA", async || {
        let result = former.bash("kubectl get --raw /version").await?;
        ensure!(
            result.exit_code.is_some_and(|code| code != 0) && result.stderr.contains("x509"),
            "{result:?}"
        );
        Ok(())
    })
    .await?;
    let kept = former.bash("echo $kept").await?;
    ensure!(kept.stdout == "yes\n" && kept.session_reset.is_none(), "{kept:?}");
    ensure!(former.delete().await? == 204);
    cluster::eventually("a session that trusts the new CA", async || {
        let session = instance.endpoint.connect("new-ca").await?;
        let reaches = reaches_the_api(&session).await;
        // One of the former pool may have been claimed just before it was replaced.
        ensure!(session.delete().await? == 204);
        reaches
    })
    .await
}
