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
