//! Whole kubeconfigs: what is accepted, what is refused and with which message (`proxy_cases.md`, cases 67 and 71
//! to 75), and what becomes of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_api::v1alpha1::Target;
use cli_mcp_kubeconfig::{Credential, Kubeconfig, ResolvedKubernetes, ResolvedRoute, Routes, Trust, dummy, offline};

fn ca() -> String {
    let params = rcgen::CertificateParams::new(vec!["ca.test".to_owned()]).unwrap();
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

fn ca_data() -> String {
    STANDARD.encode(ca())
}

/// A client certificate and key, base64 of PEM.
fn client_pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["me".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    (STANDARD.encode(certificate.pem()), STANDARD.encode(key.serialize_pem()))
}

/// A kubeconfig of one cluster and user.
fn one(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: prod\n  cluster: {{{cluster}}}\nusers:\n- name: admin\n  user: \
         {{{user}}}\ncontexts:\n- name: main\n  context: {{cluster: prod, user: admin, namespace: web}}\ncurrent-context: main\n"
    )
}

fn cluster() -> String {
    format!(
        "server: \"https://api.example.com:6443\", certificate-authority-data: {}",
        ca_data()
    )
}

fn good() -> String {
    one(&cluster(), "token: abcdefghijklmnop")
}

fn problems(text: &str) -> Vec<String> {
    match Kubeconfig::parse(text.as_bytes()) {
        Ok(_) => Vec::new(),
        Err(invalid) => invalid.problems().map(str::to_owned).collect(),
    }
}

#[test]
fn forms_of_one_file() {
    let text = good();
    let expected = Kubeconfig::parse(text.as_bytes()).unwrap();
    let json = serde_json::to_string(&serde_yaml::from_str::<serde_json::Value>(&text).unwrap()).unwrap();
    for form in [
        format!("\u{feff}{text}"),
        text.replace('\n', "\r\n"),
        json,
        format!("---\n{text}"),
        format!("{text}---\n"),
    ] {
        assert_eq!(Kubeconfig::parse(form.as_bytes()).unwrap(), expected, "{form}");
    }
    let endpoint = &expected.endpoints()[0];
    assert_eq!(endpoint.cluster.server.to_string(), "https://api.example.com:6443");
    assert!(matches!(&endpoint.user.credential, Credential::Token(token) if token.expose() == b"abcdefghijklmnop"));
    assert!(expected.warnings().is_empty(), "{:?}", expected.warnings());
}

#[test]
fn anchors_and_merge_keys_are_expanded() {
    let text = good().replace("cluster: {server", "cluster: &c {server").replace(
        "users:",
        "- name: copy\n  cluster:\n    <<: *c\n    server: https://two.example.com\nusers:",
    ) + "";
    let text = text.replace(
        "current-context",
        "- name: second\n  context: {cluster: copy, user: admin}\ncurrent-context",
    );
    let kubeconfig = Kubeconfig::parse(text.as_bytes()).unwrap();
    assert_eq!(kubeconfig.endpoints().len(), 2);
    assert!(kubeconfig.clusters()[1].ca.is_some());
}

#[test]
fn tokens_are_trimmed_and_ca_data_may_be_wrapped() {
    let ca = ca();
    let wrapped: String = STANDARD
        .encode(format!("{ca}{ca}"))
        .as_bytes()
        .chunks(64)
        .map(|line| format!("{}\n      ", str::from_utf8(line).unwrap()))
        .collect();
    let text = format!(
        "clusters:\n- name: prod\n  cluster:\n    server: https://h\n    certificate-authority-data: |\n      {wrapped}\nusers:\n- \
         name: admin\n  user: {{token: \"  abc\\n\"}}\ncontexts:\n- name: c\n  context: {{cluster: prod, user: admin}}\n"
    );
    let kubeconfig = Kubeconfig::parse(text.as_bytes()).unwrap();
    assert_eq!(kubeconfig.clusters()[0].ca.as_ref().map(Vec::len), Some(2));
    assert!(matches!(&kubeconfig.users()[0].credential, Credential::Token(token) if token.expose() == b"abc"));
    assert_eq!(
        kubeconfig.current_context(),
        Some("c"),
        "the only context is the current one"
    );
}

#[test]
fn each_mistake_names_user_cluster_and_remedy() {
    let (certificate, key) = client_pair();
    let (_, other_key) = client_pair();
    for (user, words) in [
        ("exec: {command: aws, args: [eks]}".to_owned(), "exec ServiceAccount"),
        (
            "auth-provider: {name: oidc, config: {id-token: abcdefghij}}".into(),
            "auth-provider ServiceAccount",
        ),
        (
            "username: u, password: hunter2hunter2".into(),
            "username ServiceAccount",
        ),
        ("tokenFile: /var/token".into(), "tokenFile inline"),
        ("token: abc, tokenFile: /var/token".into(), "tokenFile inline"),
        (
            "client-certificate: /c, client-key: /k".into(),
            "client-certificate inline --flatten",
        ),
        (
            format!("token: abc, client-certificate-data: {certificate}, client-key-data: {key}"),
            "both leave",
        ),
        (format!("client-certificate-data: {certificate}"), "client-key-data add"),
        (format!("client-key-data: {key}"), "client-certificate-data add"),
        (
            format!("client-certificate-data: {certificate}, client-key-data: {other_key}"),
            "pair",
        ),
        (
            "client-certificate-data: \"!\", client-key-data: \"!\"".into(),
            "base64",
        ),
        (
            format!(
                "client-certificate-data: {}, client-key-data: {key}",
                STANDARD.encode("x")
            ),
            "certificate encode",
        ),
        (String::new(), "credential token"),
        ("token: \"  \"".into(), "white"),
        ("token: \"a b\"".into(), "header"),
        ("token: \"a\u{e9}\"".into(), "header"),
        ("token: 12345678".into(), "quotes"),
        ("token: proxy-managed-token".into(), "placeholder dummy"),
        ("token: abc, as-groups: [g]".into(), "need as"),
        ("token: abc, as: \"a\\nb\"".into(), "header ASCII"),
        ("token: abc, as: x, as-groups: g".into(), "list"),
    ] {
        let found = problems(&one(&cluster(), &user));
        assert!(!found.is_empty(), "{user}");
        for problem in &found {
            assert!(problem.starts_with("user \"admin\" (cluster \"prod\"): "), "{problem}");
            assert!(
                !problem.contains("hunter2") && !problem.contains("abcdefghij"),
                "{problem}"
            );
        }
        for word in words.split(' ') {
            assert!(
                found.iter().any(|problem| problem.contains(word)),
                "{user}: {found:?} lacks {word}"
            );
        }
    }
    let data = ca_data();
    for (cluster, word) in [
        ("server: \"http://h\"".to_owned(), "https"),
        ("server: \"https://127.0.0.1:6443\"".into(), "loopback"),
        (String::new(), "missing"),
        (
            "server: \"https://h\", insecure-skip-tls-verify: true".into(),
            "certificate-authority-data",
        ),
        (
            "server: \"https://h\", insecure-skip-tls-verify: \"yes\"".into(),
            "certificate-authority-data",
        ),
        ("server: \"https://h\", certificate-authority: /ca.crt".into(), "inline"),
        (
            format!("server: \"https://h\", certificate-authority: /ca.crt, certificate-authority-data: {data}"),
            "inline",
        ),
        (
            "server: \"https://h\", certificate-authority-data: \"!!\"".into(),
            "base64",
        ),
        (
            format!(
                "server: \"https://h\", certificate-authority-data: {}",
                STANDARD.encode("x")
            ),
            "no certificate",
        ),
        ("server: \"https://h\", proxy-url: \"http://p\"".into(), "proxy-url"),
        (
            "server: \"https://h\", tls-server-name: \"a b\"".into(),
            "tls-server-name",
        ),
    ] {
        let found = problems(&one(&cluster, "token: abc"));
        assert_eq!(found.len(), 1, "{cluster}: {found:?}");
        assert!(
            found[0].starts_with("cluster \"prod\" (user \"admin\"): ") && found[0].contains(word),
            "{found:?}"
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let found = problems(&one(
        "server: \"http://h\", certificate-authority: /x",
        "tokenFile: /t, as-uid: u",
    ));
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn mistakes_of_the_whole_file() {
    let text = good();
    for (bad, word) in [
        (String::new(), "empty"),
        ("[]".into(), "mapping"),
        ("a: [".into(), "line"),
        (format!("{text}---\n{text}"), "more than one"),
        (text.replace("kind: Config", "kind: Pod"), "kind: Config"),
        (text.replace("apiVersion: v1", "apiVersion: v2"), "apiVersion: v1"),
        (text.replace("kind: Config", "kind: Config\nkind: Config"), "twice"),
        (text.replace("user: {token", "user: {token: x, token"), "twice"),
        (
            text.replace("current-context: main", "current-context: gone"),
            "current-context",
        ),
        (
            text.replace("cluster: prod, user: admin", "cluster: gone, user: admin"),
            "not in `clusters`",
        ),
        (
            text.replace("cluster: prod, user: admin", "cluster: prod, user: gone"),
            "not in `users`",
        ),
        (
            text.replace("cluster: prod, user: admin", "cluster: prod"),
            "names no `user`",
        ),
        ("clusters: []\nusers: []\ncontexts: []".into(), "no `clusters`"),
        ("clusters: x".into(), "not a list"),
        (
            text.replace("users:\n", "users:\n- name: admin\n  user: {token: y}\n"),
            "twice",
        ),
        (format!("{text}#{}", "x".repeat(1024 * 1024)), "1 MiB"),
    ] {
        let found = problems(&bad);
        assert!(found.iter().any(|problem| problem.contains(word)), "{word}: {found:?}");
    }
    assert!(
        Kubeconfig::parse(b"\xff\xfe")
            .unwrap_err()
            .to_string()
            .contains("UTF-8")
    );
}

#[test]
fn two_credentials_for_one_server_are_refused_and_told_apart_by_prefix() {
    let file = |second: &str| {
        format!(
            "clusters:\n- name: a\n  cluster: {{server: \"https://h/k8s/clusters/c-1\"}}\n- name: b\n  cluster: {{server: \
             \"{second}\"}}\nusers:\n- name: one\n  user: {{token: first-token-1}}\n- name: two\n  user: {{token: \
             second-token-2}}\ncontexts:\n- name: x\n  context: {{cluster: a, user: one}}\n- name: y\n  context: {{cluster: b, \
             user: two}}\n"
        )
    };
    let found = problems(&file("HTTPS://H:443/k8s/clusters/c-1/"));
    assert_eq!(found.len(), 1, "{found:?}");
    for word in ["\"one\"", "\"two\"", "\"b\"", "two credentials", "remove"] {
        assert!(found[0].contains(word), "{found:?}");
    }
    let kubeconfig = Kubeconfig::parse(file("https://h/k8s/clusters/c-2").as_bytes()).unwrap();
    assert_eq!(kubeconfig.endpoints().len(), 2);
    assert!(
        kubeconfig
            .warnings()
            .iter()
            .any(|warning| warning.contains("system's roots"))
    );
}

#[test]
fn what_no_context_names_is_ignored_and_still_scrubbed() {
    let unused = "- name: old\n  user: {exec: {command: x, env: [{name: A, value: very-secret-value}]}, password: old-password-1}\n";
    let text = good().replace("contexts:", &format!("{unused}contexts:"));
    let kubeconfig = Kubeconfig::parse(text.as_bytes()).unwrap();
    assert!(kubeconfig.warnings().iter().any(|warning| warning.contains("\"old\"")));
    let text = text
        .replace("name: main", "name: old-password-1")
        .replace("current-context: main", "");
    let found = problems(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("context number 1") && !found[0].contains("old-password"),
        "{found:?}"
    );
}

#[test]
fn unknown_keys_are_warnings() {
    let text = good()
        .replace("kind: Config", "kind: Config\nfoo: 1")
        .replace("{token", "{Token: x, token");
    let kubeconfig = Kubeconfig::parse(text.as_bytes()).unwrap();
    assert_eq!(kubeconfig.warnings().len(), 2, "{:?}", kubeconfig.warnings());
}

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
