//! What is accepted, and what is refused with which message (`proxy_cases.md`, cases 67 and 71 to 75).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_kubeconfig::{Credential, Kubeconfig};

use crate::fixtures::{ca, ca_data, client_pair, cluster, good, one, problems};

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
fn cases_40_75_tokens_are_trimmed_and_ca_data_may_be_wrapped() {
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
fn cases_27_71_72_75_each_mistake_names_user_cluster_and_remedy() {
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
            "no certificate:",
        ),
        (
            format!(
                "server: \"https://h\", certificate-authority-data: {}",
                STANDARD.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            ),
            "trust anchor",
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
            .any(|warning| warning.contains("public roots"))
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
