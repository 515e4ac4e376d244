//! `kubectl cli-mcp check` and `investigation-kubeconfig` against real instances: well, and broken.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::{cluster, instance, kubectl};
use serde_json::Value;

fn plugin(arguments: &[&str]) -> Result<(i32, String, String)> {
    let program = std::path::Path::new(&cluster::setting("E2E_BIN_DIR")?).join("kubectl-cli_mcp");
    let output = Command::new(program)
        .args(arguments)
        .output()
        .context("cannot start the plugin")?;
    Ok((
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

/// The findings that are problems.
fn problems(namespace: &str) -> Result<Vec<Value>> {
    let (code, stdout, stderr) = plugin(&["check", "-n", namespace, "-o", "json"])?;
    let report: Value = serde_json::from_str(&stdout).with_context(|| stderr.clone())?;
    let problems: Vec<Value> = report["findings"]
        .as_array()
        .context("no findings")?
        .iter()
        .filter(|finding| finding["level"] == "problem")
        .cloned()
        .collect();
    ensure!(
        (code == 1) != problems.is_empty() && (report["ok"] == problems.is_empty()),
        "{code} {report}"
    );
    Ok(problems)
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_finds_nothing_wrong_with_an_instance_that_is_well() -> Result<()> {
    let shared = instance::shared()?;
    cluster::eventually("a clean check", async || {
        let (code, stdout, stderr) = plugin(&["check", "-n", &shared.namespace, "-i", &shared.name, "--call"])?;
        ensure!(
            code == 0 && stdout.contains("a new session ran a command"),
            "{stdout}{stderr}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_names_what_is_missing_and_makes_it() -> Result<()> {
    let namespace = "e2e-plugin-check";
    kubectl::ok(&["delete", "namespace", namespace, "--ignore-not-found", "--timeout=180s"])?;
    kubectl::apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n---\n\
         apiVersion: cli-mcp.redhat.com/v1alpha1\nkind: CliMcpInstance\nmetadata: {{name: broken, namespace: {namespace}}}\n\
         spec: {{proxy: {{targets: [{{type: kubernetes}}]}}}}\n"
    ))?;
    cluster::eventually("the operator's look", async || {
        let found = problems(namespace)?;
        let parts: Vec<&str> = found.iter().filter_map(|finding| finding["part"].as_str()).collect();
        ensure!(
            parts.first() == Some(&"Kubeconfig") && parts.contains(&"Certificate") && parts.contains(&"Ready"),
            "{parts:?}"
        );
        Ok(())
    })
    .await?;

    let make = [
        "investigation-kubeconfig",
        "-n",
        namespace,
        "-i",
        "broken",
        "--in-namespaces",
        namespace,
    ];
    let by_hand = [
        "create",
        "secret",
        "generic",
        "cli-mcp-broken-kubeconfig",
        "--from-literal=kubeconfig=by hand",
    ];
    kubectl::ok(&[&["-n", namespace], &by_hand[..]].concat())?;
    let refused = plugin(&make)?;
    ensure!(
        refused.0 == 1 && refused.2.contains("Secret cli-mcp-broken-kubeconfig") && refused.2.contains("--force"),
        "{refused:?}"
    );
    let kept = [
        "get",
        "secret",
        "cli-mcp-broken-kubeconfig",
        "-o",
        "jsonpath={.data.kubeconfig}",
    ];
    ensure!(kubectl::ok(&[&["-n", namespace], &kept[..]].concat())? == "YnkgaGFuZA==");
    let made = plugin(&[&make[..], &["--force"]].concat())?;
    ensure!(made.0 == 0, "{made:?}");
    let again = plugin(&make)?;
    ensure!(again.0 == 0, "{again:?}");
    let token = kubectl::ok(&[
        "-n",
        namespace,
        "get",
        "secret",
        "cli-mcp-investigator-token",
        "-o",
        "jsonpath={.data.token}",
    ])?;
    ensure!(
        !token.is_empty() && !made.1.contains(&token),
        "the output shows the token"
    );
    let may = |verb: &str, resource: &str, wherein: &str| {
        let user = format!("system:serviceaccount:{namespace}:cli-mcp-investigator");
        kubectl::run(&["auth", "can-i", verb, resource, "-n", wherein, "--as", &user])
            .map(|answer| answer.stdout.trim() == "yes")
    };
    ensure!(may("list", "pods", namespace)?, "it may not look");
    for (verb, resource, wherein) in [
        ("list", "pods", "kube-system"),
        ("get", "secrets", namespace),
        ("delete", "pods", namespace),
    ] {
        ensure!(!may(verb, resource, wherein)?, "it may {verb} {resource} in {wherein}");
    }
    cluster::eventually("the kubeconfig's acceptance", async || {
        let found = problems(namespace)?;
        ensure!(found.iter().all(|finding| finding["part"] != "Kubeconfig"), "{found:?}");
        Ok(())
    })
    .await?;

    let absent = plugin(&["check", "-n", namespace, "-i", "absent"])?;
    ensure!(absent.0 == 1 && absent.1.contains("does not exist"), "{absent:?}");
    kubectl::ok(&["delete", "namespace", namespace, "--wait=false"])?;
    Ok(())
}
