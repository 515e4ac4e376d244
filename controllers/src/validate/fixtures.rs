//! An instance with everything it needs, for tests of this crate.

use std::sync::LazyLock;

use super::*;

/// The credential in [`observed`]'s kubeconfig.
pub(crate) const TOKEN: &str = "token-that-must-not-leak-0123456789";

pub(crate) fn instance() -> CliMcpInstance {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "cli-mcp.redhat.com/v1alpha1",
        "kind": "CliMcpInstance",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "uid-demo", "generation": 7},
        "spec": {"proxy": {"targets": [{"type": "kubernetes"}]}},
    }))
    .unwrap()
}

pub(crate) fn secret(data: &[(&str, &str)]) -> Option<SecretContent> {
    Some(SecretContent {
        uid: "uid".into(),
        resource_version: "1".into(),
        controller: None,
        data: data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect(),
    })
}

pub(crate) fn observed() -> Observed {
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: 'https://10.96.0.1:443'}}}}]\n\
         users: [{{name: u, user: {{token: {TOKEN}}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
    );
    static CA: LazyLock<crate::generate::Ca> =
        LazyLock::new(|| crate::generate::ca("ns", "demo", time::OffsetDateTime::now_utc()).unwrap());
    let ca = &*CA;
    Observed {
        kubeconfig: secret(&[(names::KUBECONFIG_KEY, &kubeconfig)]),
        tls: secret(&[("tls.crt", "certificate"), ("tls.key", "key")]),
        ca: secret(&[(names::CA_CERT_KEY, &ca.certificate), (names::CA_KEY_KEY, &ca.key)]),
        hmac: secret(&[(names::HMAC_KEY, "0123456789abcdef0123456789abcdef")]),
        proxy_address: Some("10.96.0.7:8080".into()),
        proxy_ready: true,
        ..Observed::default()
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        server_image: "localhost/server:dev".into(),
        proxy_image: "localhost/proxy:dev".into(),
        sandbox_image: "localhost/agent:dev".into(),
        api_server: "10.96.0.1:443".parse().unwrap(),
        openshift: false,
    }
}

pub(crate) fn validated(instance: &CliMcpInstance, observed: &Observed) -> Validated {
    validate(instance, observed, &settings()).unwrap()
}
