//! For generated kubeconfigs, valid and not: no run of eight bytes of any secret in the dummy file, the routes, an
//! error, a warning or `Debug` (`proxy_cases.md`, case 74).

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
use cli_mcp_kubeconfig::{Kubeconfig, Routes, dummy};
use proptest::prelude::*;

/// Secrets that share text with names and hosts now and then, so that overlaps are tried too.
fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9._~+/-]{8,40}",
        "[a-z]{4,8}-(prod|stage|admin)-[a-z]{2,8}",
        Just("production-cluster-token".to_owned()),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,20}",
        Just("production-cluster".to_owned()),
        "\\PC{1,12}"
    ]
}

#[derive(Clone, Debug)]
struct Parts {
    names: [String; 3],
    token: Option<String>,
    password: Option<String>,
    url_password: Option<String>,
    key: Option<String>,
    id_token: Option<String>,
    exec_env: Option<String>,
    unused_token: String,
    namespace: String,
}

fn parts() -> impl Strategy<Value = Parts> {
    let rare = || prop::option::weighted(0.15, secret());
    (
        [name(), name(), name()],
        name(),
        prop::option::weighted(0.9, secret()),
        rare(),
        prop::option::weighted(0.15, "[A-Za-z0-9]{8,20}"),
        rare(),
        rare(),
        rare(),
        secret(),
    )
        .prop_map(
            |(names, namespace, token, password, url_password, key, id_token, exec_env, unused_token)| Parts {
                names,
                token,
                password,
                url_password,
                key,
                id_token,
                exec_env,
                unused_token,
                namespace,
            },
        )
}

impl Parts {
    fn secrets(&self) -> Vec<&String> {
        [
            &self.token,
            &self.password,
            &self.url_password,
            &self.key,
            &self.id_token,
            &self.exec_env,
        ]
        .into_iter()
        .flatten()
        .chain([&self.unused_token])
        .collect()
    }

    fn file(&self) -> String {
        let [cluster, user, context] = &self.names;
        let mut fields = serde_json::Map::new();
        let mut set = |key: &str, value: Option<serde_json::Value>| value.map(|value| fields.insert(key.into(), value));
        set("token", self.token.clone().map(Into::into));
        set("password", self.password.clone().map(Into::into));
        set(
            "client-key-data",
            self.key.as_ref().map(|key| STANDARD.encode(key).into()),
        );
        set(
            "auth-provider",
            self.id_token
                .as_ref()
                .map(|token| serde_json::json!({"name": "oidc", "config": {"id-token": token}})),
        );
        set(
            "exec",
            self.exec_env
                .as_ref()
                .map(|value| serde_json::json!({"command": "x", "env": [{"name": "A", "value": value}]})),
        );
        let server = match &self.url_password {
            Some(password) => format!("https://me:{password}@production.example.com"),
            None => "https://production.example.com".to_owned(),
        };
        serde_json::json!({
            "clusters": [{"name": cluster, "cluster": {"server": server}}],
            "users": [{"name": user, "user": fields}, {"name": "unused!", "user": {"token": self.unused_token}}],
            "contexts": [{"name": context, "context": {"cluster": cluster, "user": user, "namespace": self.namespace}}],
            "current-context": context,
        })
        .to_string()
    }
}

/// The first run of eight bytes of a secret, raw or in base64, that a text holds.
fn leak(text: &str, secrets: &[&String]) -> Option<String> {
    let forms = secrets
        .iter()
        .flat_map(|secret| [(*secret).clone(), STANDARD.encode(secret)]);
    forms
        .flat_map(|form| form.as_bytes().windows(8).map(<[u8]>::to_vec).collect::<Vec<_>>())
        .find(|run| text.as_bytes().windows(8).any(|window| window == run))
        .map(|run| String::from_utf8_lossy(&run).into_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn case_74_no_run_of_a_secret_shows_anywhere(parts in parts()) {
        let secrets = parts.secrets();
        let targets: Vec<Target> = serde_yaml::from_str("[{type: kubernetes}]").unwrap();
        match Kubeconfig::parse(parts.file().as_bytes()) {
            Err(invalid) => {
                prop_assert_eq!(leak(&invalid.to_string(), &secrets), None, "{}", invalid);
                prop_assert_eq!(leak(&format!("{invalid:?}"), &secrets), None);
            }
            Ok(kubeconfig) => {
                let rendered = dummy::render(Some(&kubeconfig), "CA", "http://p:8080");
                prop_assert_eq!(leak(&rendered, &secrets), None, "{}", rendered);
                prop_assert_eq!(leak(&format!("{kubeconfig:?}"), &secrets), None);
                prop_assert_eq!(leak(&kubeconfig.warnings().join("\n"), &secrets), None);
                let routes = Routes::build(&targets, Some(&kubeconfig)).unwrap();
                prop_assert_eq!(leak(&routes.to_json(), &secrets), None);
                let resolved = routes.resolve(Some(&kubeconfig)).unwrap();
                prop_assert_eq!(leak(&format!("{resolved:?}"), &secrets), None);
            }
        }
    }

    #[test]
    fn whatever_is_read_neither_panics_nor_leaks(text in "\\PC{0,200}|(clusters|users|contexts|token|- name|: |\\n|  |\\[|\\{|x){0,30}") {
        let _ = Kubeconfig::parse(text.as_bytes());
    }
}
