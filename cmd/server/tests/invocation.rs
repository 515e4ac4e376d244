//! Bad invocations end with one clear line on stderr and exit code 2, before anything is contacted.

#![allow(
    clippy::unwrap_used,
    reason = "the lints know tests by their attribute, not the functions that tests share"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::write(files.path("key"), [7; 32]).unwrap();
        std::fs::write(files.path("short"), [7; 31]).unwrap();
        std::fs::write(files.path("text"), "no PEM").unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(files.path("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(files.path("tls.key"), made.signing_key.serialize_pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn run(args: &[String], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_server"));
    command.env_clear().stdin(Stdio::null()).args(args);
    for (name, value) in env {
        command.env(name, value);
    }
    command.output().unwrap()
}

fn required(key: &Path) -> Vec<String> {
    [
        "--namespace=ns",
        "--instance-name=demo",
        "--sandbox-image=localhost/sandbox:dev",
        "--sandbox-service-account=cli-mcp-demo-sandbox",
        &format!("--hmac-key-file={}", key.display()),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn refused(output: &Output, context: &str) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{context}: {text}");
    assert_eq!(text.lines().count(), 1, "{context}: {text}");
    assert!(text.starts_with("error: "), "{context}: {text}");
    assert!(output.stdout.is_empty(), "{context}");
    text
}

#[test]
fn each_bad_invocation_is_one_line_that_names_the_flag() {
    let files = Files::new();
    let key = files.path("key");
    let base = required(&key);
    let pem = |cert: &str, private: &str| {
        format!(
            "--tls-cert-file={} --tls-private-key-file={}",
            files.path(cert).display(),
            files.path(private).display()
        )
    };
    let local = "--kubeconfig-secret=kc";
    let http = format!("{local} --transport=http --stateless");
    let proxy = "--proxy-service=p --proxy-ca-secret=c --dummy-kubeconfig-configmap=m";
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "--kubeconfig-secret"),
        (format!("{local} --nonsense"), "--nonsense"),
        (format!("{local} --namespace=Not_A_Name"), "--namespace"),
        (format!("{local} --instance-name={}", "x".repeat(45)), "--instance-name"),
        (format!("{local} --hmac-key-file=/nonexistent/key"), "/nonexistent/key"),
        (
            format!("{local} --hmac-key-file={}", files.path("short").display()),
            "at least 32",
        ),
        (format!("{local} --sandbox-image="), "--sandbox-image"),
        (
            format!("{local} --sandbox-image-pull-policy=Sometimes"),
            "--sandbox-image-pull-policy",
        ),
        (format!("{local} --sandbox-cpu-limit=fast"), "--sandbox-cpu-limit"),
        (format!("{local} --sandbox-env=[{{"), "--sandbox-env"),
        (format!("{local} --sandbox-env={{}}"), "--sandbox-env"),
        (format!("{local} --sandbox-node-selector=[]"), "--sandbox-node-selector"),
        (format!("{local} --sandbox-tolerations=3"), "--sandbox-tolerations"),
        (format!("{local} --sandbox-owner={{}}"), "--sandbox-owner"),
        (format!("{local} --sandbox-resources=x"), "--sandbox-resources"),
        (
            format!("{local} --sandbox-workspace-size-limit=big"),
            "--sandbox-workspace-size-limit",
        ),
        (format!("{local} --idle-timeout=30"), "--idle-timeout"),
        (format!("{local} --idle-timeout=soon"), "--idle-timeout"),
        (format!("{local} --drain-timeout=-1s"), "--drain-timeout"),
        (format!("{local} --max-sessions=-1"), "--max-sessions"),
        (format!("{local} --audit-commands=all"), "--audit-commands"),
        (format!("{local} --sandbox-connection=teleport"), "--sandbox-connection"),
        (format!("{local} --session-id=Not_Valid"), "--session-id"),
        (
            format!("{local} --kubeconfig=/nonexistent/kubeconfig"),
            "/nonexistent/kubeconfig",
        ),
        (format!("{local} --health-address=8081"), "--health-address"),
        (format!("{local} --sandbox-listen=::"), "--sandbox-listen"),
        (format!("{local} --sandbox-listen=localhost:8090"), "--sandbox-listen"),
        (format!("{local} {proxy}"), "exclude each other"),
        ("--proxy-service=p".to_owned(), "--proxy-ca-secret"),
        (proxy.to_owned(), "--egress-target"),
        (format!("{proxy} --egress-target=10.96.0.1:443"), "--egress-control"),
        (
            format!("{proxy} --egress-target=kubernetes:443 --egress-control=10.96.0.2:8080"),
            "--egress-target",
        ),
        (format!("{local} --egress-check=Sometimes"), "--egress-check"),
        (format!("{local} --transport=http"), "--stateless"),
        (format!("{local} --transport=carrier-pigeon"), "--transport"),
        (format!("{http} --session-id=s1"), "--session-id"),
        (format!("{http} --address=0.0.0.0:8443"), "not loopback"),
        (format!("{http} --address=nowhere"), "--address"),
        (
            format!("{http} --address=0.0.0.0:8443 {}", pem("tls.crt", "tls.key")),
            "--authorization=kubernetes",
        ),
        (
            format!("{http} --address=0.0.0.0:8443 --authorization=kubernetes"),
            "--tls-cert-file",
        ),
        (
            format!("{http} --tls-cert-file={}", files.path("tls.crt").display()),
            "--tls-private-key-file",
        ),
        (
            format!("{http} --tls-private-key-file={}", files.path("tls.key").display()),
            "--tls-cert-file",
        ),
        (format!("{http} {}", pem("missing", "tls.key")), "--tls-cert-file"),
        (format!("{http} {}", pem("text", "tls.key")), "no certificate"),
        (format!("{http} {}", pem("tls.crt", "text")), "no private key"),
        (format!("{http} --allowed-hosts=http://x/"), "--allowed-hosts"),
        (format!("{http} --allowed-origins=x"), "--allowed-origins"),
        (format!("{local} --authorization=kubernetes"), "stdio"),
        (format!("{local} {}", pem("tls.crt", "tls.key")), "stdio"),
    ];
    for (more, expected) in cases {
        let mut args = base.clone();
        for argument in more.split_whitespace() {
            let flag = argument.split('=').next().unwrap();
            args.retain(|given| given.split('=').next() != Some(flag));
            args.push(argument.to_owned());
        }
        let text = refused(&run(&args, &[]), &more);
        assert!(text.contains(expected), "{more}: {text}");
    }
}

#[test]
fn a_missing_required_flag_is_named() {
    let files = Files::new();
    let base = required(&files.path("key"));
    for missing in &base {
        let flag = missing.split('=').next().unwrap();
        let mut args: Vec<String> = base.iter().filter(|given| *given != missing).cloned().collect();
        args.push("--kubeconfig-secret=kc".to_owned());
        let text = refused(&run(&args, &[]), flag);
        assert!(text.contains(flag), "{flag}: {text}");
    }
}

#[test]
fn a_flag_may_come_from_the_environment() {
    let files = Files::new();
    let key = files.path("key");
    let env = [
        ("CLI_MCP_NAMESPACE", "ns"),
        ("CLI_MCP_INSTANCE_NAME", "demo"),
        ("CLI_MCP_SANDBOX_IMAGE", "localhost/sandbox:dev"),
        ("CLI_MCP_SANDBOX_SERVICE_ACCOUNT", "sa"),
        ("CLI_MCP_HMAC_KEY_FILE", key.to_str().unwrap()),
        ("CLI_MCP_KUBECONFIG_SECRET", "kc"),
        ("CLI_MCP_TRANSPORT", "http"),
        ("CLI_MCP_STATELESS", "true"),
        ("CLI_MCP_ADDRESS", "0.0.0.0:8443"),
    ];
    let text = refused(&run(&[], &env), "environment");
    assert!(text.contains("not loopback"), "{text}");
}

#[test]
fn help_version_and_completion_go_to_stdout() {
    for (flag, expected) in [
        ("--help", "CLI_MCP_"),
        ("--version", "server "),
        ("--completion=bash", "_server"),
    ] {
        let output = run(&[flag.to_owned()], &[]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{flag}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{flag}");
    }
}

#[test]
fn a_collector_that_cannot_be_served_is_named() {
    let files = Files::new();
    let mut args = required(&files.path("key"));
    args.push("--kubeconfig-secret=kc".to_owned());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let missing = files.path("missing").display().to_string();
    for (name, value, remedy) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", missing.as_str(), "missing"),
    ] {
        let text = refused(&run(&args, &[endpoint, (name, value)]), name);
        assert!(text.contains(remedy) && text.contains("OTEL_EXPORTER_OTLP_"), "{text}");
    }
}
