//! What is found wrong, and what changes with what.

use super::fixtures::{TOKEN, instance, observed, secret, settings, validated};
use super::*;

fn reasons_of(observed: &Observed) -> Vec<&'static str> {
    validated(&instance(), observed)
        .problems
        .iter()
        .map(|problem| problem.reason)
        .collect()
}

#[test]
fn nothing_is_wrong_with_the_fixture() {
    let validated = validated(&instance(), &observed());
    assert_eq!(validated.problems, []);
    assert!(validated.proxy_can_run() && validated.server_can_run());
    assert!(
        validated
            .proxy_config
            .unwrap()
            .kubeconfig
            .contains("proxy-managed-token")
    );
}

#[test]
fn an_empty_key_is_told_from_a_missing_secret() {
    assert_eq!(
        reasons_of(&Observed {
            tls: secret(&[("tls.crt", "x"), ("tls.key", "")]),
            ..observed()
        }),
        ["SecretKeysInvalid"]
    );
    assert_eq!(
        reasons_of(&Observed {
            tls: None,
            ..observed()
        }),
        ["SecretsNotFound"]
    );
    assert_eq!(
        reasons_of(&Observed {
            hmac: secret(&[("key", "short")]),
            ..observed()
        }),
        ["SecretKeysInvalid"]
    );
    assert_eq!(
        reasons_of(&Observed {
            kubeconfig: secret(&[("config", "x")]),
            ..observed()
        }),
        ["SecretKeysInvalid"]
    );
}

#[test]
fn an_incomplete_secret_comes_with_what_fills_it() {
    let filled = |secret: &str| {
        format!(
            "kubectl -n ns create secret {secret} --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -"
        )
    };
    let earlier = secret(&[("key", "0123456789abcdef0123456789abcdef")]).map(|secret| SecretContent {
        controller: Some("uid-earlier".to_owned()),
        ..secret
    });
    let cases = [
        (
            Observed {
                tls: secret(&[("tls.crt", "x")]),
                ..observed()
            },
            filled("tls cli-mcp-demo-tls --cert=FILE --key=FILE"),
        ),
        (
            Observed {
                kubeconfig: secret(&[]),
                ..observed()
            },
            filled("generic cli-mcp-demo-kubeconfig --from-file=kubeconfig=FILE"),
        ),
        (
            Observed {
                ca: secret(&[("ca.crt", "x")]),
                ..observed()
            },
            "kubectl -n ns delete secret cli-mcp-demo-proxy-ca".to_owned(),
        ),
        (
            Observed {
                hmac: secret(&[("key", "short")]),
                ..observed()
            },
            "kubectl -n ns delete secret cli-mcp-demo-hmac".to_owned(),
        ),
        (
            Observed {
                hmac: earlier,
                ..observed()
            },
            "kubectl -n ns delete secret cli-mcp-demo-hmac".to_owned(),
        ),
    ];
    for (observed, command) in cases {
        let problems = validated(&instance(), &observed).problems;
        assert!(
            matches!(&problems[..], [one] if one.message.ends_with(&command)),
            "{command}: {problems:?}"
        );
    }
}

/// The CA's Secret with these contents.
fn with_ca(certificate: &[u8], key: &[u8]) -> Observed {
    let mut ca = secret(&[]).unwrap();
    ca.data.insert(names::CA_CERT_KEY.to_owned(), certificate.to_vec());
    ca.data.insert(names::CA_KEY_KEY.to_owned(), key.to_vec());
    Observed {
        ca: Some(ca),
        ..observed()
    }
}

fn generated_ca(now: time::OffsetDateTime) -> crate::generate::Ca {
    crate::generate::ca("ns", "demo", now).unwrap()
}

#[test]
fn a_ca_that_the_proxy_would_not_take_is_a_problem_and_goes_into_no_sandbox() {
    let (good, other) = (
        generated_ca(time::OffsetDateTime::now_utc()),
        generated_ca(time::OffsetDateTime::now_utc()),
    );
    let (certificate, key) = (good.certificate.as_bytes(), good.key.as_bytes());
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate).unwrap();
    let utf_16: Vec<u8> = good.certificate.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let leaf_key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::default()
        .self_signed(&leaf_key)
        .unwrap()
        .pem();
    let leaf_key = leaf_key.serialize_pem();
    let both = good.certificate.clone() + &good.key;
    let cases: [(&[u8], &[u8], &str); 8] = [
        (both.as_bytes(), key, "ca.crt also holds a private key"),
        (&pem.contents, key, "ca.crt holds no PEM certificate"),
        (&utf_16, key, "ca.crt holds no PEM certificate"),
        (b"no PEM", key, "ca.crt holds no PEM certificate"),
        (
            leaf.as_bytes(),
            leaf_key.as_bytes(),
            "ca.crt is no certificate authority",
        ),
        (certificate, other.key.as_bytes(), "ca.key is not the key of ca.crt"),
        (certificate, b"no key", "ca.key holds no unencrypted PEM private key"),
        (certificate, certificate, "ca.key holds no unencrypted PEM private key"),
    ];
    for (certificate, key, word) in cases {
        let validated = validated(&instance(), &with_ca(certificate, key));
        let [problem] = &validated.problems[..] else {
            panic!("{word}: {:?}", validated.problems);
        };
        assert_eq!(problem.reason, "SecretKeysInvalid");
        let message = &problem.message;
        assert!(
            message.starts_with(&format!("Secret cli-mcp-demo-proxy-ca: {word}"))
                && message.ends_with("kubectl -n ns delete secret cli-mcp-demo-proxy-ca"),
            "{message}"
        );
        let key = String::from_utf8_lossy(key);
        assert!(!key.lines().any(|line| message.contains(line)), "{message}");
        assert_eq!(validated.proxy_config, None, "{word}");
        assert!(!validated.proxy_can_run() && !validated.needs_ca, "{word}");
    }
}

#[test]
fn a_ca_that_the_proxy_takes_is_no_problem_whatever_the_time() {
    let now = time::OffsetDateTime::now_utc();
    let (good, ended) = (generated_ca(now), generated_ca(now - time::Duration::days(10 * 365)));
    let commented = [&b"# Z\xfcrich\n"[..], good.certificate.as_bytes()].concat();
    let cases: [(&[u8], &str); 3] = [
        (good.certificate.as_bytes(), &good.key),
        (ended.certificate.as_bytes(), &ended.key),
        (&commented, &good.key),
    ];
    for (certificate, key) in cases {
        let validated = validated(&instance(), &with_ca(certificate, key.as_bytes()));
        assert_eq!(validated.problems, []);
        assert!(validated.proxy_can_run());
    }
}

#[test]
fn generated_secrets_that_are_missing_are_no_problem_of_the_admins() {
    let validated = validated(
        &instance(),
        &Observed {
            ca: None,
            hmac: None,
            ..observed()
        },
    );
    assert_eq!(validated.problems, []);
    assert!(validated.needs_ca && validated.needs_hmac);
    assert!(!validated.proxy_can_run() && !validated.server_can_run());
}

#[test]
fn a_bad_kubeconfig_is_explained_without_its_secret() {
    let text =
        format!("apiVersion: v1\nkind: Config\nusers: [{{name: u, user: {{token: {TOKEN}, exec: {{command: x}}}}}}]\n");
    let problems = validated(
        &instance(),
        &Observed {
            kubeconfig: secret(&[("kubeconfig", &text)]),
            ..observed()
        },
    )
    .problems;
    assert_eq!(problems[0].reason, "KubeconfigInvalid");
    assert!(
        problems[0].message.contains("cli-mcp-demo-kubeconfig"),
        "{}",
        problems[0].message
    );
    assert!(!problems[0].message.contains(TOKEN));
}

#[test]
fn an_allowlist_needs_no_kubeconfig() {
    let mut instance = instance();
    instance.spec.proxy.targets =
        serde_json::from_value(serde_json::json!([{"type": "allowlist", "domains": ["example.com"]}])).unwrap();
    let validated = validated(
        &instance,
        &Observed {
            kubeconfig: None,
            ..observed()
        },
    );
    assert_eq!(validated.problems, []);
    assert!(validated.proxy_can_run());
}

#[test]
fn openshift_makes_the_certificate() {
    let settings = Settings {
        openshift: true,
        ..settings()
    };
    let validated = validate(
        &instance(),
        &Observed {
            tls: None,
            ..observed()
        },
        &settings,
    )
    .unwrap();
    assert!(
        validated.problems[0].message.contains("service CA"),
        "{}",
        validated.problems[0].message
    );
}

#[test]
fn hashes_follow_what_they_stand_for() {
    let before = validated(&instance(), &observed());
    let base = observed();
    let again = |observed: Observed| validated(&instance(), &observed);
    let rotated = again(Observed {
        hmac: secret(&[("key", "another key of thirty-two bytes!")]),
        ..base.clone()
    });
    assert_ne!(rotated.hmac_hash, before.hmac_hash);
    assert_ne!(rotated.mounts_hash, before.mounts_hash);
    let newer = base.kubeconfig.clone().map(|secret| SecretContent {
        resource_version: "2".into(),
        ..secret
    });
    let one = again(base.clone());
    let token = again(Observed {
        kubeconfig: newer,
        ..base
    });
    assert_ne!(token.proxy_inputs_hash, one.proxy_inputs_hash);
    assert_eq!(
        token.mounts_hash, one.mounts_hash,
        "a new token changes nothing in a sandbox"
    );
}

#[test]
fn reserved_variables_are_found() {
    let mut instance = instance();
    instance.spec.sandbox.env =
        serde_json::from_value(serde_json::json!([{"name": "HOME", "value": "/"}, {"name": "A"}])).unwrap();
    assert_eq!(validated(&instance, &observed()).reserved_env, ["HOME"]);
}
