//! What a real API server says to good and bad instances: the table that the unit tests evaluate offline.

use anyhow::{Context, Result, ensure};
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_e2e::{cluster, kubectl};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::CustomResourceExt;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn every_object_of_the_table_is_admitted_or_refused_with_its_message() -> Result<()> {
    let table = std::fs::read_to_string(cluster::repository().join("api/tests/admission.yaml"))?;
    let cases: Vec<Value> = serde_yaml::from_str(&table)?;
    ensure!(cases.len() > 40, "the table has only {} cases", cases.len());
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster::client().await?, "default", &CliMcpInstance::api_resource());
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut wrong = Vec::new();
    for case in cases {
        let title = case["case"].as_str().context("a case without title")?;
        let mut spec = case["spec"].clone();
        if spec["proxy"]["targets"].is_null() {
            if spec["proxy"].is_null() {
                spec["proxy"] = json!({});
            }
            spec["proxy"]["targets"] = json!([{"type": "kubernetes"}]);
        }
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "cli-mcp.redhat.com/v1alpha1",
            "kind": "CliMcpInstance",
            "metadata": {"name": case["name"].as_str().unwrap_or("demo"), "namespace": "default"},
            "spec": spec,
        }))?;
        match (case["refused"].as_str(), api.create(&parameters, &object).await) {
            (None, Ok(_)) => {}
            (None, Err(error)) => wrong.push(format!("{title}: refused: {error}")),
            (Some(message), Ok(_)) => wrong.push(format!("{title}: admitted, expected {message:?}")),
            (Some(message), Err(error)) => {
                let said = match &error {
                    kube::Error::Api(status) => status.message.clone(),
                    other => other.to_string(),
                };
                if !said.contains(message) {
                    wrong.push(format!("{title}: expected {message:?}, got {said:?}"));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_describes_every_field_and_get_has_the_columns() -> Result<()> {
    let explained = kubectl::ok(&["explain", "climcpinstances", "--recursive"])?;
    for field in [
        "warmPoolSize",
        "deniedResources",
        "egressCheck",
        "resolvedSandboxImage",
        "clientServiceAccount",
    ] {
        ensure!(explained.contains(field), "{field} is not explained:\n{explained}");
    }
    for field in [
        "climcpinstances.spec",
        "climcpinstances.spec.sandbox",
        "climcpinstances.spec.proxy",
        "climcpinstances.spec.proxy.targets",
        "climcpinstances.status",
    ] {
        let text = kubectl::ok(&["explain", field])?;
        let (_, fields) = text
            .split_once("FIELDS:")
            .with_context(|| format!("{field} has no fields:\n{text}"))?;
        ensure!(!fields.contains("<no description>"), "{field}:\n{text}");
    }
    let categories = kubectl::ok(&["api-resources", "--categories=cli-mcp", "-o", "name"])?;
    ensure!(
        categories.trim() == "climcpinstances.cli-mcp.redhat.com",
        "{categories}"
    );
    let definition = kubectl::ok(&[
        "get",
        "crd",
        "climcpinstances.cli-mcp.redhat.com",
        "-o",
        "jsonpath={range .spec.versions[0].additionalPrinterColumns[*]}{.name}:{.priority} {end}",
    ])?;
    ensure!(
        definition.split_whitespace().collect::<Vec<_>>() == ["Ready:", "Reason:1", "Sessions:", "Pool:", "Age:"],
        "{definition}"
    );
    Ok(())
}
