//! What becomes of a valid file: routes, the dummy file, and the answers to an admin.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_api::v1alpha1::Target;
use cli_mcp_kubeconfig::{Credential, Kubeconfig, ResolvedKubernetes, ResolvedRoute, Routes, Trust, dummy, offline};

use crate::fixtures::{ca, good, one};

fn targets(yaml: &str) -> Vec<Target> {
    serde_yaml::from_str(yaml).unwrap()
}

#[test]
fn routes_hold_no_secret_and_survive_json() {
    let kubeconfig = Kubeconfig::parse(good().as_bytes()).unwrap();
    let targets = targets(
        "[{type: kubernetes, access: ReadOnly, deniedResources: [{group: apps, resource: deployments}]}, {type: allowlist, \
         domains: [B.example.com, \"a.example.com:8443\", \"[2001:db8::1]:443\", b.example.com]}]",
    );
    let routes = Routes::build(&targets, Some(&kubeconfig)).unwrap();
    let json = routes.to_json();
    assert!(!json.contains("abcdefgh"), "{json}");
    assert_eq!(Routes::from_json(json.as_bytes()).unwrap(), routes);
    assert_eq!(Routes::build(&targets, Some(&kubeconfig)).unwrap().to_json(), json);
    assert_eq!(routes.targets().len(), 4);
    let resolved = routes.resolve(Some(&kubeconfig)).unwrap();
    let ResolvedRoute::Kubernetes(kubernetes) = &resolved[0] else {
        panic!("{resolved:?}")
    };
    let ResolvedKubernetes {
        authority,
        trust,
        credential,
        route,
        ..
    } = &**kubernetes;
    assert_eq!(authority.to_string(), "api.example.com:6443");
    assert!(matches!(trust, Trust::Only(certificates) if certificates.len() == 1));
    assert!(matches!(credential, Credential::Token(_)));
    assert_eq!(route.denied_resources[0].resource, "deployments");
    assert!(
        matches!(&resolved[1], ResolvedRoute::Allowlist { authority } if authority.to_string() == "a.example.com:8443")
    );
}

#[test]
fn routes_that_cannot_be_served_name_the_field() {
    let kubeconfig = Kubeconfig::parse(good().as_bytes()).unwrap();
    for (yaml, words) in [
        ("[]", "spec.proxy.targets"),
        ("[{type: kubernetes}, {type: kubernetes}]", "targets[1] second"),
        (
            "[{type: allowlist, domains: [\"*.example.com\"]}]",
            "targets[0].domains[0] literal",
        ),
        ("[{type: allowlist, domains: [\"https://example.com\"]}]", "domains[0]"),
        ("[{type: allowlist, domains: [\"a:70000\"]}]", "domains[0] port"),
        ("[{type: allowlist, domains: []}]", "targets[0].domains"),
        (
            "[{type: kubernetes}, {type: allowlist, domains: [\"api.example.com:6443\"]}]",
            "targets[1].domains[0] kubeconfig",
        ),
    ] {
        let error = Routes::build(&targets(yaml), Some(&kubeconfig))
            .unwrap_err()
            .to_string();
        for word in words.split(' ') {
            assert!(error.contains(word), "{yaml}: {error} lacks {word}");
        }
    }
    assert!(
        Routes::build(&targets("[{type: kubernetes}]"), None)
            .unwrap_err()
            .to_string()
            .contains("kubeconfig")
    );
}

#[test]
fn routes_of_another_time_do_not_resolve() {
    let kubeconfig = Kubeconfig::parse(good().as_bytes()).unwrap();
    let routes = Routes::build(&targets("[{type: kubernetes}]"), Some(&kubeconfig)).unwrap();
    for (changed, word) in [
        (good().replace("api.example.com", "new.example.com"), "new.example.com"),
        (good().replace("prod", "production"), "prod"),
        (good().replace("admin", "root"), "admin"),
    ] {
        let changed = Kubeconfig::parse(changed.as_bytes()).unwrap();
        let error = routes.resolve(Some(&changed)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(routes.resolve(None).is_err());
    let json = routes.to_json();
    assert!(
        Routes::from_json(json.replace("\"version\": 1", "\"version\": 2").as_bytes())
            .unwrap_err()
            .to_string()
            .contains("version 2")
    );
    assert!(Routes::from_json(json.replace("\"port\"", "\"prot\"").as_bytes()).is_err());
    assert!(Routes::from_json(json.replace("api.example.com", "api.example.com.").as_bytes()).is_err());
    assert!(Routes::from_json(b"{}").is_err());
}

#[test]
fn the_dummy_file_is_a_kubeconfig_for_the_same_contexts() {
    let kubeconfig = Kubeconfig::parse(good().as_bytes()).unwrap();
    let rendered = dummy::render(Some(&kubeconfig), "PROXY CA", "http://p:8080");
    let value: serde_json::Value = serde_yaml::from_str(&rendered).unwrap();
    assert_eq!(value["current-context"], "main");
    assert_eq!(
        value["clusters"][0]["cluster"]["server"],
        "https://api.example.com:6443"
    );
    assert_eq!(value["clusters"][0]["cluster"]["proxy-url"], "http://p:8080");
    assert_eq!(
        value["clusters"][0]["cluster"]["certificate-authority-data"],
        STANDARD.encode("PROXY CA")
    );
    assert_eq!(
        value["users"][0]["user"],
        serde_json::json!({"token": dummy::DUMMY_TOKEN})
    );
    assert_eq!(value["contexts"][0]["context"]["namespace"], "web");
    let empty: serde_json::Value = serde_yaml::from_str(&dummy::render(None, "CA", "http://p:8080")).unwrap();
    assert_eq!(empty["clusters"], serde_json::json!([]));
}

#[test]
fn check_and_render_answer_offline() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("kubeconfig"), good()).unwrap();
    let report = offline::check(&path("kubeconfig")).unwrap().to_string();
    assert!(
        report.contains("serves https://api.example.com:6443") && report.contains("\"admin\""),
        "{report}"
    );
    assert!(!report.contains("abcdefgh"), "{report}");
    std::fs::write(path("bad"), one("server: \"http://h\"", "tokenFile: /t")).unwrap();
    let error = offline::check(&path("bad")).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 2, "{error}");
    assert!(error.lines().all(|line| line.contains("/bad: ")), "{error}");
    assert!(
        offline::check(&path("missing"))
            .unwrap_err()
            .to_string()
            .contains("missing")
    );

    std::fs::write(
        path("instance.yaml"),
        "apiVersion: cli-mcp.redhat.com/v1alpha1\nkind: CliMcpInstance\nmetadata: {name: demo, namespace: ns}\nspec: {proxy: \
         {targets: [{type: kubernetes}, {type: allowlist, domains: [example.com]}]}}\n",
    )
    .unwrap();
    std::fs::write(path("ca.crt"), ca()).unwrap();
    offline::render(
        &path("kubeconfig"),
        &path("instance.yaml"),
        &path("ca.crt"),
        &path("out"),
    )
    .unwrap();
    let kubeconfig = Kubeconfig::parse(good().as_bytes()).unwrap();
    let routes = std::fs::read(path("out/proxy-config.json")).unwrap();
    assert_eq!(
        Routes::from_json(&routes)
            .unwrap()
            .resolve(Some(&kubeconfig))
            .unwrap()
            .len(),
        2
    );
    let dummy = std::fs::read_to_string(path("out/kubeconfig")).unwrap();
    assert!(dummy.contains("http://cli-mcp-demo-proxy.ns.svc:8080"), "{dummy}");

    std::fs::write(
        path("ca.crt"),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    let error = offline::render(
        &path("kubeconfig"),
        &path("instance.yaml"),
        &path("ca.crt"),
        &path("none"),
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("ca.crt"), "{error}");
    assert!(!path("none").exists(), "nothing half-applied");
}
