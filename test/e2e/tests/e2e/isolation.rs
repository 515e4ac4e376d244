//! What a sandbox is and holds: a pod that passes the strictest standard, and nothing worth taking.

use anyhow::{Result, ensure};
use cli_mcp_e2e::secret_search::Needles;
use cli_mcp_e2e::{instance, kubectl};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_passes_the_restricted_standard() -> Result<()> {
    let shared = instance::shared()?;
    let session = shared.session("restricted").await?;
    session.bash("true").await?;
    // The namespace enforces the standard, so that the pod exists is one proof. That it is enforced is the other.
    let privileged = kubectl::run(&[
        "-n",
        &shared.namespace,
        "run",
        "privileged",
        "--image=localhost/none",
        "--privileged",
        "--dry-run=server",
    ])?;
    ensure!(
        privileged.stderr.contains("violates PodSecurity \"restricted"),
        "{privileged:?}"
    );

    let client = cli_mcp_e2e::cluster::client().await?;
    let pods = Api::<Pod>::namespaced(client, &shared.namespace);
    let sandbox = pods
        .list(&ListParams::default().labels("cli-mcp.redhat.com/session-id=restricted"))
        .await?
        .items;
    let spec = sandbox.first().and_then(|pod| pod.spec.as_ref());
    let spec = spec.ok_or_else(|| anyhow::anyhow!("the session has no pod"))?;
    ensure!(spec.automount_service_account_token == Some(false));
    ensure!(spec.enable_service_links == Some(false));
    let context = spec.containers[0].security_context.as_ref();
    ensure!(
        context.and_then(|context| context.read_only_root_filesystem) == Some(true),
        "{context:?}"
    );
    let id = session.bash("id -u; touch /usr/x 2>&1; cat /proc/1/environ").await?;
    ensure!(
        !id.stdout.starts_with("0\n") && id.stdout.contains("Read-only file system"),
        "{id:?}"
    );
    ensure!(id.exit_code != Some(0), "the agent's environment can be read: {id:?}");
    session.delete().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_the_namespace_is_in_the_sandbox() -> Result<()> {
    let shared = instance::shared()?;
    let session = shared.session("secrets").await?;
    session.bash("kubectl get pods >/dev/null").await?;
    let client = cli_mcp_e2e::cluster::client().await?;
    let needles = Needles::of(&client, &[&shared.namespace]).await?;
    ensure!(
        needles.names().len() > 5,
        "expected the CA key, the HMAC key, the TLS key and two tokens: {:?}",
        needles.names()
    );
    let search = format!("python3 - <<'PYTHON'\n{}\nPYTHON\n", needles.program());
    let result = session
        .call(serde_json::json!({"command": search, "timeout": 240}))
        .await?;
    ensure!(result.exit_code == Some(0), "{result:?}");
    needles.judge(&result.stdout)?;
    session.delete().await?;
    Ok(())
}
