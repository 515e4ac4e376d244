//! Kubeconfigs that the tests begin with.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cli_mcp_kubeconfig::Kubeconfig;

pub(crate) fn ca() -> String {
    let params = rcgen::CertificateParams::new(vec!["ca.test".to_owned()]).unwrap();
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

pub(crate) fn ca_data() -> String {
    STANDARD.encode(ca())
}

/// A client certificate and key, base64 of PEM.
pub(crate) fn client_pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["me".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    (STANDARD.encode(certificate.pem()), STANDARD.encode(key.serialize_pem()))
}

/// A kubeconfig of one cluster and user.
pub(crate) fn one(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: prod\n  cluster: {{{cluster}}}\nusers:\n- name: admin\n  user: \
         {{{user}}}\ncontexts:\n- name: main\n  context: {{cluster: prod, user: admin, namespace: web}}\ncurrent-context: main\n"
    )
}

pub(crate) fn cluster() -> String {
    format!(
        "server: \"https://api.example.com:6443\", certificate-authority-data: {}",
        ca_data()
    )
}

pub(crate) fn good() -> String {
    one(&cluster(), "token: abcdefghijklmnop")
}

pub(crate) fn problems(text: &str) -> Vec<String> {
    match Kubeconfig::parse(text.as_bytes()) {
        Ok(_) => Vec::new(),
        Err(invalid) => invalid.problems().map(str::to_owned).collect(),
    }
}
