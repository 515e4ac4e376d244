//! `WATCH_NAMESPACE`: own, one or several, each with no more rights than OLM grants for it.

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::setup::{apply, secrets};
use cli_mcp_e2e::{cluster, instance, kubectl};
use serde_json::Value;

use super::process::{Alone, Operator, Run};

/// A kubeconfig with the rights of `config/rbac` in these namespaces, as OLM grants them.
pub(crate) fn restricted(folder: &std::path::Path, own: &str, watched: &[&str]) -> Result<std::path::PathBuf> {
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
async fn it_watches_own_one_or_several_namespaces_with_the_rights_of_each() -> Result<()> {
    let all = ["e2e-watch-a", "e2e-watch-b", "e2e-watch-c"];
    let _alone = Alone::take(&all)?;
    for name in all {
        secrets(name, "watched", None)?;
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
