//! What the operator does where the cluster is OpenShift.

use anyhow::{Result, ensure};
use cli_mcp_e2e::setup::{self, apply};
use cli_mcp_e2e::{cluster, kubectl};

use super::process::{Alone, Operator, Run};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes the installed operator away: run by make test-operator"]
async fn on_openshift_the_service_asks_for_its_certificate() -> Result<()> {
    let name = "e2e-serving";
    let _alone = Alone::take(&[name])?;
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
    let folder = tempfile::tempdir()?;
    let run = Run::of_one(name);
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
        let ready = setup::condition(name, "serving", "Ready")?;
        ensure!(ready.message.contains("OpenShift's service CA creates it"), "{ready}");
        Ok(())
    })
    .await;
    kubectl::ok(&["-n", name, "delete", "climcpinstance", "serving", "--timeout=120s"])?;
    kubectl::ok(&["delete", "crd", "e2etests.config.openshift.io"])?;
    kubectl::ok(&["delete", "namespace", name, "--wait=false"])?;
    checked
}
