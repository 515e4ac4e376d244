//! Tests in which this machine runs the operator, and kills it, cuts it off, or lets another lead: alone on the cluster, so
//! they are ignored unless `make test-operator` asks for them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cli_mcp_e2e::{cluster, instance, kubectl};
use serde_json::Value;

use crate::operator_faults::{FaultyServer, Plan};
use crate::operator_process::{Alone, Operator, Run, apply, namespace, say, secrets};

/// How long nothing is written once an instance is as it should be.
const QUIET: Duration = Duration::from_secs(4);

/// More deaths than an instance has writes.
const DEATHS: usize = 80;

/// Children and Secrets by kind and name.
fn children(namespace: &str) -> Result<BTreeSet<String>> {
    let kinds = "deployment,service,serviceaccount,role,rolebinding,configmap,secret,networkpolicy,poddisruptionbudget";
    let label = "app.kubernetes.io/managed-by=cli-mcp-operator";
    let names = kubectl::ok(&["-n", namespace, "get", kinds, "-l", label, "-o", "name"])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// UIDs of the generated Secrets.
fn generated(namespace: &str, instance: &str) -> Result<Vec<String>> {
    let names = [
        format!("cli-mcp-{instance}-hmac"),
        format!("cli-mcp-{instance}-proxy-ca"),
    ];
    let mut uids = Vec::new();
    for name in names {
        let path = "jsonpath={.metadata.uid}";
        uids.push(kubectl::ok(&[
            "-n",
            namespace,
            "get",
            "secret",
            &name,
            "--ignore-not-found",
            "-o",
            path,
        ])?);
    }
    Ok(uids)
}

fn pool(namespace: &str) -> Result<Vec<Value>> {
    let unassigned = "cli-mcp.redhat.com/component=sandbox,!cli-mcp.redhat.com/session-id";
    let list: Value = serde_json::from_str(&kubectl::ok(&[
        "-n", namespace, "get", "pod", "-l", unassigned, "-o", "json",
    ])?)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn is_ready(namespace: &str, instance: &str) -> Result<bool> {
    let path = "jsonpath={.metadata.generation} {.status.conditions[?(@.type==\"Ready\")].observedGeneration} {.status.conditions[?(@.type==\"Ready\")].status}";
    let status = kubectl::ok(&["-n", namespace, "get", "climcpinstance", instance, "-o", path])?;
    let words: Vec<&str> = status.split(' ').collect();
    Ok(matches!(words[..], [generation, observed, "True"] if generation == observed))
}

fn servers_in_binding(namespace: &str) -> Result<usize> {
    let path = "jsonpath={range .subjects[*]}{.namespace}{\"\\n\"}{end}";
    let subjects = kubectl::ok(&["get", "clusterrolebinding", "cli-mcp-auth-delegator", "-o", path])?;
    Ok(subjects.lines().filter(|subject| *subject == namespace).count())
}

fn is_gone(namespace: &str, instance: &str) -> Result<bool> {
    let left = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "climcpinstance",
        instance,
        "--ignore-not-found",
        "-o",
        "name",
    ])?;
    Ok(left.is_empty())
}

/// Runs operators one after the other, each killed right after its first write was done and before it heard of it, until
/// one has nothing to write and `done` holds. Returns the number of deaths.
async fn die_at_every_write(
    folder: &std::path::Path,
    namespace: &str,
    faulty: &FaultyServer,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<usize> {
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, faulty.kubeconfig())?;
    let run = Run {
        watch: namespace,
        namespace,
        leader: None,
        kubeconfig: Some(&kubeconfig),
    };
    let end = Instant::now() + 2 * cluster::PATIENCE;
    let mut deaths = 0;
    let mut last = Vec::new();
    while deaths < DEATHS && Instant::now() < end {
        faulty.set(Plan::SilentAfter(1));
        let operator = Operator::start(folder, &format!("operator-{deaths}.log"), &run)?;
        operator.ready().await?;
        let died = loop {
            tokio::select! {
                () = faulty.silent() => break true,
                () = tokio::time::sleep(QUIET) => {
                    if done()? {
                        break false;
                    }
                    ensure!(Instant::now() < end, "it does not converge; its last writes: {last:?}\n{}", operator.log()?);
                }
            }
        };
        last = faulty.take_writes();
        operator.kill()?;
        if !died {
            return Ok(deaths);
        }
        deaths += 1;
    }
    bail!("it does not converge after {deaths} deaths; its last writes: {last:?}")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn operator_alone_it_converges_when_killed_at_every_write() -> Result<()> {
    let _alone = Alone::take()?;
    let (name, instance) = ("e2e-killed", "killed");
    namespace(name)?;
    secrets(name, instance)?;
    let folder = tempfile::tempdir()?;
    let faulty = FaultyServer::start(1).await?;
    let targets = "targets: [{type: kubernetes}]";

    apply(
        name,
        instance,
        &format!("{{sandbox: {{warmPoolSize: 2}}, proxy: {{{targets}}}}}"),
    )?;
    let mut secret_uids: Option<Vec<String>> = None;
    let mut same_secrets = || -> Result<()> {
        let now = generated(name, instance)?;
        if now.iter().all(|uid| !uid.is_empty()) {
            let first = secret_uids.get_or_insert_with(|| now.clone());
            ensure!(*first == now, "a Secret was generated twice");
        }
        Ok(())
    };
    let created = die_at_every_write(folder.path(), name, &faulty, || {
        same_secrets()?;
        ensure!(pool(name)?.len() <= 2, "there are more sandboxes than asked for");
        is_ready(name, instance)
    })
    .await?;
    // 17 children and Secrets, the finalizer, the shared binding, two sandboxes, a status.
    ensure!(
        created >= 22,
        "only {created} deaths: were there writes that nobody saw?"
    );
    ensure!(
        children(name)?.len() == 17 && pool(name)?.len() == 2,
        "{:?}",
        children(name)?
    );
    ensure!(servers_in_binding(name)? == 1);

    let env = "env: [{name: A, value: b}]";
    apply(
        name,
        instance,
        &format!("{{sandbox: {{warmPoolSize: 1, {env}}}, proxy: {{replicas: 2, {targets}}}}}"),
    )?;
    let updated = die_at_every_write(folder.path(), name, &faulty, || {
        same_secrets()?;
        Ok(is_ready(name, instance)? && pool(name)?.len() == 1)
    })
    .await?;
    ensure!(updated >= 5, "only {updated} deaths");
    ensure!(children(name)?.len() == 18, "{:?}", children(name)?);

    kubectl::ok(&["-n", name, "delete", "climcpinstance", instance, "--wait=false"])?;
    let deleted = die_at_every_write(folder.path(), name, &faulty, || is_gone(name, instance)).await?;
    ensure!(deleted >= 3, "only {deleted} deaths");
    nothing_is_left(name).await?;
    say(&format!(
        "killed at {created} writes of a creation, {updated} of a change, {deleted} of a deletion"
    ))?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}

async fn nothing_is_left(namespace: &str) -> Result<()> {
    ensure!(
        servers_in_binding(namespace)? == 0,
        "the shared binding still names the server"
    );
    cluster::eventually("the collection of the children", async || {
        let left = children(namespace)?;
        let pods = kubectl::ok(&["-n", namespace, "get", "pod", "-o", "name"])?;
        ensure!(left.is_empty() && pods.is_empty(), "{left:?} {pods}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn operator_alone_it_converges_while_requests_fail() -> Result<()> {
    let _alone = Alone::take()?;
    let (name, instance) = ("e2e-faults", "faults");
    let seed: u64 = std::env::var("E2E_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_129);
    say(&format!("faults of E2E_SEED={seed}"))?;
    namespace(name)?;
    secrets(name, instance)?;
    let folder = tempfile::tempdir()?;
    let faulty = FaultyServer::start(seed).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, faulty.kubeconfig())?;
    let run = Run {
        watch: name,
        namespace: name,
        leader: None,
        kubeconfig: Some(&kubeconfig),
    };
    let operator = Operator::start(folder.path(), "operator.log", &run)?;
    operator.ready().await?;
    faulty.set(Plan::Faulty(25));
    apply(
        name,
        instance,
        "{sandbox: {warmPoolSize: 2}, proxy: {targets: [{type: kubernetes}]}}",
    )?;
    cluster::eventually("a Ready instance in spite of the faults", async || {
        ensure!(pool(name)?.len() <= 2, "there are more sandboxes than asked for");
        ensure!(is_ready(name, instance)?, "{}", operator.log()?);
        Ok(())
    })
    .await?;
    let complete = children(name)?;
    ensure!(complete.len() == 17, "{complete:?}");
    let before = generated(name, instance)?;

    // The API server is away for longer than any pause, and comes back.
    faulty.set(Plan::Down);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for child in complete.iter().filter(|child| !child.starts_with("secret/")) {
        kubectl::ok(&["-n", name, "delete", child, "--wait=false"])?;
    }
    faulty.set(Plan::Faulty(25));
    cluster::eventually("every child again in spite of the faults", async || {
        ensure!(
            children(name)? == complete && is_ready(name, instance)?,
            "{}",
            operator.log()?
        );
        Ok(())
    })
    .await?;
    ensure!(generated(name, instance)? == before, "a Secret was generated again");
    ensure!(pool(name)?.len() == 2, "{:?}", pool(name)?.len());

    kubectl::ok(&["-n", name, "delete", "climcpinstance", instance, "--wait=false"])?;
    cluster::eventually("the deletion in spite of the faults", async || {
        ensure!(is_gone(name, instance)?, "{}", operator.log()?);
        Ok(())
    })
    .await?;
    nothing_is_left(name).await?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}

fn holder(namespace: &str) -> Result<String> {
    let path = "jsonpath={.spec.holderIdentity}";
    kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "lease",
        "cli-mcp-operator-leader",
        "--ignore-not-found",
        "-o",
        path,
    ])
}

async fn leads(namespace: &str, identity: &str) -> Result<()> {
    cluster::eventually(&format!("the lead of {identity}"), async || {
        let holder = holder(namespace)?;
        ensure!(holder == identity, "{holder:?} leads");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn operator_alone_replicas_hand_over_and_a_lost_lease_stops_all_writes() -> Result<()> {
    let _alone = Alone::take()?;
    let name = "e2e-leader";
    namespace(name)?;
    let folder = tempfile::tempdir()?;
    let start = |identity: &'static str| {
        let run = Run {
            watch: name,
            namespace: name,
            leader: Some(identity),
            kubeconfig: None,
        };
        Operator::start(folder.path(), identity, &run)
    };
    let mut first = start("first")?;
    leads(name, "first").await?;
    let second = start("second")?;
    // A replica that does not lead is ready, and writes nothing.
    second.ready().await?;
    ensure!(!second.log()?.contains("Leading"), "two lead");

    // SIGTERM: the Lease is given back, and the other leads without waiting for it to run out.
    let began = Instant::now();
    first.signal("TERM")?;
    let status = first.ended().await?;
    ensure!(status.success(), "{status}");
    ensure!(first.log()?.contains("Released the Lease"), "{}", first.log()?);
    leads(name, "second").await?;
    say(&format!(
        "handed over {:.1} s after SIGTERM",
        began.elapsed().as_secs_f64()
    ))?;
    let third = start("third")?;
    third.ready().await?;

    // A leader that is stopped for longer than its Lease lasts wakes up when another leads: it ends without a write.
    let mut second = second;
    second.signal("STOP")?;
    leads(name, "third").await?;
    apply(name, "fenced", "{proxy: {targets: [{type: kubernetes}]}}")?;
    second.signal("CONT")?;
    let status = second.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    let log = second.log()?;
    ensure!(log.contains("was lost") && !log.contains("Applied child"), "{log}");
    let managers = "jsonpath={.metadata.finalizers}";
    cluster::eventually("the work of the new leader", async || {
        let finalizers = kubectl::ok(&["-n", name, "get", "climcpinstance", "fenced", "-o", managers])?;
        ensure!(finalizers.contains("cli-mcp.redhat.com/finalizer"), "{finalizers}");
        Ok(())
    })
    .await?;

    // SIGKILL: the Lease runs out.
    let began = Instant::now();
    third.kill()?;
    let fourth = start("fourth")?;
    leads(name, "fourth").await?;
    say(&format!(
        "taken over {:.1} s after SIGKILL",
        began.elapsed().as_secs_f64()
    ))?;
    let transitions = "jsonpath={.spec.leaseTransitions}";
    let transitions = kubectl::ok(&["-n", name, "get", "lease", "cli-mcp-operator-leader", "-o", transitions])?;
    ensure!(transitions == "3", "{transitions} transitions");
    kubectl::ok(&["-n", name, "delete", "climcpinstance", "fenced", "--timeout=120s"])?;
    drop(fourth);
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    Ok(())
}

/// A kubeconfig with the rights of `config/rbac` in these namespaces, as OLM grants them.
fn restricted(folder: &std::path::Path, own: &str, watched: &[&str]) -> Result<std::path::PathBuf> {
    let rules = |file: &str| -> Result<Value> {
        let text = std::fs::read_to_string(cluster::repository().join("config/rbac").join(file))?;
        let role: Value = serde_yaml::from_str(&text)?;
        Ok(role["rules"].clone())
    };
    let api = "rbac.authorization.k8s.io";
    let subject = serde_json::json!([{"kind": "ServiceAccount", "name": "watcher", "namespace": own}]);
    let mut objects = vec![
        serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "watcher", "namespace": own}}),
        serde_json::json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": {"name": "e2e-watcher"},
            "rules": rules("cluster_role.yaml")?}),
        serde_json::json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "e2e-watcher"},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "e2e-watcher"}, "subjects": subject}),
    ];
    for namespace in watched {
        objects.push(serde_json::json!({"apiVersion": format!("{api}/v1"), "kind": "Role",
            "metadata": {"name": "watcher", "namespace": namespace}, "rules": rules("role.yaml")?}));
        objects.push(
            serde_json::json!({"apiVersion": format!("{api}/v1"), "kind": "RoleBinding",
            "metadata": {"name": "watcher", "namespace": namespace}, "subjects": subject,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "watcher"}}),
        );
    }
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl::apply(&list.to_string())?;
    let token = kubectl::ok(&["-n", own, "create", "token", "watcher", "--duration=1h"])?;
    let mut kubeconfig: Value =
        serde_json::from_str(&kubectl::ok(&["config", "view", "--raw", "--minify", "-o", "json"])?)?;
    kubeconfig["users"][0]["user"] = serde_json::json!({"token": token.trim()});
    let path = folder.join("restricted");
    std::fs::write(&path, kubeconfig.to_string())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn operator_alone_it_watches_own_one_or_several_namespaces_with_the_rights_of_each() -> Result<()> {
    let _alone = Alone::take()?;
    let all = ["e2e-watch-a", "e2e-watch-b", "e2e-watch-c"];
    for name in all {
        namespace(name)?;
        secrets(name, "watched")?;
    }
    let folder = tempfile::tempdir()?;
    let kubeconfig = restricted(folder.path(), all[0], &all[..2])?;
    // What WATCH_NAMESPACE says, and which of the three are looked after.
    for (number, (watch, seen)) in [
        ("", &all[..1]),
        (all[1], &all[1..2]),
        ("e2e-watch-a,e2e-watch-b", &all[..2]),
    ]
    .into_iter()
    .enumerate()
    {
        let run = Run {
            watch,
            namespace: all[0],
            leader: None,
            kubeconfig: Some(&kubeconfig),
        };
        let log = format!("operator-{number}.log");
        let mut operator = Operator::start(folder.path(), &log, &run)?;
        operator.ready().await?;
        for name in all {
            apply(name, "watched", "{proxy: {targets: [{type: kubernetes}]}}")?;
        }
        for name in seen {
            instance::wait_ready(name, "watched").with_context(|| operator.log().unwrap_or_default())?;
        }
        for name in all.iter().filter(|name| !seen.contains(name)) {
            let status = kubectl::ok(&[
                "-n",
                name,
                "get",
                "climcpinstance",
                "watched",
                "-o",
                "jsonpath={.status}",
            ])?;
            ensure!(status.is_empty(), "WATCH_NAMESPACE={watch:?} reaches {name}: {status}");
        }
        for name in all {
            kubectl::ok(&["-n", name, "delete", "climcpinstance", "watched", "--timeout=120s"])?;
        }
        let log = operator.log()?;
        ensure!(!log.to_lowercase().contains("forbidden"), "it lacks a right:\n{log}");
        operator.signal("TERM")?;
        ensure!(operator.ended().await?.success());
    }
    kubectl::ok(&["delete", "clusterrolebinding,clusterrole", "e2e-watcher"])?;
    for name in all {
        kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn operator_alone_on_openshift_the_service_asks_for_its_certificate() -> Result<()> {
    let _alone = Alone::take()?;
    // What makes a cluster OpenShift for the operator is this API group.
    let group = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: e2etests.config.openshift.io}\n\
        spec:\n  group: config.openshift.io\n  scope: Cluster\n  names: {plural: e2etests, kind: E2ETest}\n\
        \x20 versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n";
    kubectl::apply(group)?;
    kubectl::ok(&[
        "wait",
        "--for=condition=Established",
        "crd/e2etests.config.openshift.io",
        "--timeout=60s",
    ])?;
    let name = "e2e-serving";
    namespace(name)?;
    let folder = tempfile::tempdir()?;
    let run = Run {
        watch: name,
        namespace: name,
        leader: None,
        kubeconfig: None,
    };
    let operator = Operator::start(folder.path(), "operator.log", &run)?;
    operator.ready().await?;
    apply(
        name,
        "serving",
        "{proxy: {targets: [{type: allowlist, domains: [example.com]}]}}",
    )?;
    let checked = cluster::eventually("the annotation", async || {
        let path = "jsonpath={.metadata.annotations.service\\.beta\\.openshift\\.io/serving-cert-secret-name}";
        let secret = kubectl::ok(&["-n", name, "get", "service", "cli-mcp-serving", "-o", path])?;
        ensure!(secret == "cli-mcp-serving-tls", "{secret:?}");
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}";
        let message = kubectl::ok(&["-n", name, "get", "climcpinstance", "serving", "-o", path])?;
        ensure!(message.contains("OpenShift's service CA creates it"), "{message}");
        Ok(())
    })
    .await;
    kubectl::ok(&["-n", name, "delete", "climcpinstance", "serving", "--timeout=120s"])?;
    kubectl::ok(&["delete", "crd", "e2etests.config.openshift.io"])?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    checked
}
