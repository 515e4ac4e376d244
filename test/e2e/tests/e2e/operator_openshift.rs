//! OpenShift's way with users: every pod of a namespace runs as a random UID of group 0. Here a MutatingAdmissionPolicy sets
//! it, as the restricted-v2 SCC does.

use std::io::Write;

use anyhow::{Result, ensure};
use cli_mcp_e2e::instance::Instance;
use cli_mcp_e2e::{cluster, kubectl};

const NAMESPACE: &str = "e2e-openshift";

/// First of the UIDs that OpenShift would give the namespace
/// (<https://docs.redhat.com/en/documentation/openshift_container_platform/4.19/html/authentication_and_authorization/managing-pod-security-policies>).
fn uid() -> u32 {
    1_000_000_000 + std::process::id() % 10_000 * 10_000
}

fn policy(uid: u32) -> String {
    format!(
        "apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {{name: {NAMESPACE}}}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {NAMESPACE}}}}}
    resourceRules: [{{apiGroups: [\"\"], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{{spec: Object.spec{{securityContext: Object.spec.securityContext{{runAsUser: {uid}, fsGroup: {uid}}}}}}}'
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: {NAMESPACE}}}
spec: {{policyName: {NAMESPACE}}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_works_with_a_random_user_of_group_0() -> Result<()> {
    let served = kubectl::run(&["get", "mutatingadmissionpolicies.v1beta1.admissionregistration.k8s.io"])?;
    if served.code != 0 {
        writeln!(
            std::io::stderr().lock(),
            "SKIPPED: the cluster does not serve MutatingAdmissionPolicy: {}",
            served.stderr
        )?;
        return Ok(());
    }
    let uid = uid();
    kubectl::ok(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s"])?;
    kubectl::ok(&["create", "namespace", NAMESPACE])?;
    kubectl::apply(&policy(uid))?;
    // A policy holds some moments after it was written.
    cluster::eventually("the policy", async || {
        let pod = kubectl::ok(&[
            "-n",
            NAMESPACE,
            "run",
            "probe",
            "--image=none",
            "--dry-run=server",
            "-o",
            "json",
        ])?;
        let pod: serde_json::Value = serde_json::from_str(&pod)?;
        ensure!(pod["spec"]["securityContext"]["runAsUser"] == uid, "{pod}");
        Ok(())
    })
    .await?;
    let worked = works(uid).await;
    kubectl::ok(&[
        "delete",
        "mutatingadmissionpolicybinding,mutatingadmissionpolicy",
        NAMESPACE,
    ])?;
    worked?;
    kubectl::ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

async fn works(uid: u32) -> Result<()> {
    let spec = "  sandbox: {warmPoolSize: 1}\n  proxy: {targets: [{type: kubernetes}]}\n";
    let instance = Instance::create(NAMESPACE, "openshift", spec)?;
    let session = instance.session("random-user").await?;
    let who = session.bash("id -u; id -g; pwd").await?;
    ensure!(who.stdout == format!("{uid}\n0\n/workspace\n"), "{who:?}");
    let files = session
        .bash("set -e; echo a >file; cat file; mkdir -p \"$HOME/.cache\"; echo b >/tmp/file; cat /tmp/file; x=kept")
        .await?;
    ensure!(files.stdout == "a\nb\n", "{files:?}");
    let pods = session.bash("kubectl get pods -A -o name | head -1; echo $x").await?;
    ensure!(
        pods.exit_code == Some(0) && pods.stdout.starts_with("pod/") && pods.stdout.ends_with("kept\n"),
        "{pods:?}"
    );
    session.delete().await?;
    let users = kubectl::ok(&[
        "-n",
        NAMESPACE,
        "get",
        "pod",
        "-o",
        "jsonpath={range .items[*]}{.metadata.labels.cli-mcp\\.redhat\\.com/component}={.spec.securityContext.runAsUser}{\"\\n\"}{end}",
    ])?;
    for component in ["server", "proxy", "sandbox"] {
        ensure!(
            users.lines().any(|line| line == format!("{component}={uid}")),
            "{component}: {users}"
        );
    }
    Ok(())
}
