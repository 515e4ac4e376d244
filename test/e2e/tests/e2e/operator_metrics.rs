//! The operator's metrics over HTTPS: for those whom Kubernetes lets get them, and a remedy for the others.

use anyhow::{Result, ensure};
use cli_mcp_e2e::{cluster, instance, kubectl, metrics, setup};

const NAME: &str = "e2e-metrics";

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_metrics_are_for_those_who_may_get_them() -> Result<()> {
    let shared = instance::shared()?;
    setup::namespace(NAME)?;
    kubectl::ok(&["-n", NAME, "create", "serviceaccount", "scraper"])?;
    kubectl::ok(&["delete", "clusterrolebinding", NAME, "--ignore-not-found"])?;
    let token = kubectl::ok(&["-n", NAME, "create", "token", "scraper", "--duration=1h"])?;
    let token = token.trim();

    cluster::eventually("a refusal of a stranger", async || {
        let (code, body) = metrics::of_operator(None)?;
        ensure!(code == 401, "{code} {body}");
        Ok(())
    })
    .await?;
    cluster::eventually("a refusal with its remedy", async || {
        let (code, body) = metrics::of_operator(Some(token))?;
        ensure!(
            code == 403
                && body.contains("scraper\\\" may not get the non-resource URL /metrics")
                && body.contains("ClusterRole cli-mcp-operator-metrics-reader")
                && !body.contains("client"),
            "{code} {body}"
        );
        Ok(())
    })
    .await?;

    // What the text says.
    let account = format!("--serviceaccount={NAME}:scraper");
    let role = "--clusterrole=cli-mcp-operator-metrics-reader";
    kubectl::ok(&["create", "clusterrolebinding", NAME, role, &account])?;
    let ready = format!(
        "cli_mcp_operator_instance_condition{{namespace=\"{}\",name=\"{}\",type=\"Ready\",status=\"true\"}} 1",
        shared.namespace, shared.name
    );
    let seen = cluster::eventually("the metrics", async || {
        let (code, body) = metrics::of_operator(Some(token))?;
        ensure!(code == 200 && body.contains(&ready), "{code} {body}");
        Ok(())
    })
    .await;
    kubectl::ok(&["delete", "clusterrolebinding", NAME])?;
    kubectl::ok(&["delete", "namespace", NAME, "--wait=false"])?;
    seen
}
