//! The program as an admin meets it: bad invocations end with one line and exit code 2, questions with an answer.
#![allow(clippy::unwrap_used, reason = "a test that cannot read what it tests has failed")]

use std::process::{Command, Output};

const RUN: [&str; 3] = ["--server-image=s", "--proxy-image=p", "--sandbox-image=b"];

fn operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_operator"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = operator(arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    assert!(line.starts_with("error: "), "{line}");
    assert!(output.stdout.is_empty());
    line
}

#[test]
fn a_bad_invocation_is_one_line_and_code_2() {
    assert!(refused(&["--no-such-flag"]).contains("--no-such-flag"));
    assert!(refused(&[]).contains("RELATED_IMAGE_SERVER"));
    assert!(refused(&["run", "--server-image=s", "--proxy-image=p"]).contains("RELATED_IMAGE_SANDBOX"));
    assert!(refused(&[&RUN[..], &["--watch-namespace=Not_A_Name"]].concat()).contains("WATCH_NAMESPACE"));
    assert!(
        refused(&[&RUN[..], &["--health-probe-bind-address=8081"]].concat()).contains("--health-probe-bind-address")
    );
    assert!(refused(&[&RUN[..], &["--metrics-bind-address=:99999"]].concat()).contains("--metrics-bind-address"));
    assert!(refused(&["kubeconfig", "check"]).contains("FILE"));
    assert!(refused(&["kubeconfig", "check", "/no/such/file"]).contains("/no/such/file"));
    assert!(refused(&["completion", "csh"]).contains("csh"));
    assert!(refused(&["reconcile"]).contains("reconcile"));
}

#[test]
fn a_certificate_of_the_metrics_that_cannot_be_served_is_a_bad_invocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let start = || refused(&[&RUN[..], &["--metrics-bind-address=:8443", "--metrics-cert-path", path]].concat());
    let line = start();
    let missing = format!("{path}/tls.crt");
    for part in ["--metrics-cert-path", &missing, "leave the flag out"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let pair = || rcgen::generate_simple_self_signed(vec!["metrics".to_owned()]).unwrap();
    let (one, other) = (pair(), pair());
    std::fs::write(&missing, one.cert.pem()).unwrap();
    std::fs::write(folder.path().join("tls.key"), other.signing_key.serialize_pem()).unwrap();
    assert!(
        start().contains("--metrics-cert-path"),
        "the key of another certificate"
    );
    std::fs::write(folder.path().join("tls.key"), one.signing_key.serialize_pem()).unwrap();
    let arguments = [&RUN[..], &["--metrics-bind-address=:8443", "--metrics-cert-path", path]].concat();
    let line = String::from_utf8(operator(&arguments).stderr).unwrap();
    assert!(line.contains("no cluster"), "it goes on to look for a cluster: {line}");
}

#[test]
fn without_a_cluster_it_says_where_it_looked() {
    let output = operator(&RUN);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("no cluster") && line.contains("kubeconfig"), "{line}");
}

#[test]
fn help_teaches_and_names_variables() {
    let output = operator(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for word in [
        "WATCH_NAMESPACE",
        "--leader-elect",
        "RELATED_IMAGE_SANDBOX",
        "kubectl apply",
        "kubeconfig",
        "completion",
    ] {
        assert!(help.contains(word), "{word} is not in the help");
    }
    assert!(operator(&["--version"]).status.success());
    assert!(operator(&["completion", "bash"]).stdout.len() > 100);
}

#[test]
fn a_kubeconfig_is_checked_and_rendered_offline() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (good, bad, instance, ca, out) = (
        path("good"),
        path("bad"),
        path("instance.yaml"),
        path("ca.crt"),
        path("out"),
    );
    std::fs::write(
        &good,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: k, cluster: {server: 'https://api.example.com:6443'}}]\n\
         users: [{name: u, user: {token: a-token-of-some-length}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n",
    )
    .unwrap();
    std::fs::write(
        &bad,
        "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {exec: {command: x}}}]\n",
    )
    .unwrap();
    std::fs::write(
        &instance,
        "apiVersion: cli-mcp.redhat.com/v1alpha1\nkind: CliMcpInstance\nmetadata: {name: demo, namespace: ns}\n\
         spec: {proxy: {targets: [{type: kubernetes}]}}\n",
    )
    .unwrap();
    let checked = operator(&["kubeconfig", "check", &good]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("api.example.com:6443"));
    let refused = operator(&["kubeconfig", "check", &bad]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .lines()
            .all(|line| line.starts_with("error: "))
    );

    let key = rcgen_ca();
    std::fs::write(&ca, key).unwrap();
    let rendered = operator(&[
        "kubeconfig",
        "render",
        &good,
        "--instance",
        &instance,
        "--ca",
        &ca,
        "--out",
        &out,
    ]);
    assert!(
        rendered.status.success(),
        "{}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    let dummy = std::fs::read_to_string(format!("{out}/kubeconfig")).unwrap();
    assert!(dummy.contains("proxy-managed-token") && !dummy.contains("a-token-of-some-length"));
    assert!(
        std::fs::read_to_string(format!("{out}/proxy-config.json"))
            .unwrap()
            .contains("api.example.com")
    );
}

fn rcgen_ca() -> String {
    rcgen::generate_simple_self_signed(vec!["ca".to_owned()])
        .unwrap()
        .cert
        .pem()
}
