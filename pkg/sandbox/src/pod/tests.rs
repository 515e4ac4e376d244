use super::*;
use crate::token::HmacKey;

fn template() -> SandboxTemplate {
    SandboxTemplate {
        instance: "demo".into(),
        namespace: "ns".into(),
        image: "localhost/sandbox:dev".into(),
        image_pull_policy: None,
        image_pull_secrets: vec![],
        service_account: "cli-mcp-demo-sandbox".into(),
        resources: default_resources(),
        workspace_size_limit: Some("1Gi".into()),
        env: vec![
            EnvVar {
                name: "EDITOR".into(),
                value: Some("vi".into()),
                value_from: None,
            },
            EnvVar {
                name: "HTTPS_PROXY".into(),
                value: Some("http://elsewhere".into()),
                value_from: None,
            },
            EnvVar {
                name: "SANDBOX_EGRESS_CHECK".into(),
                value: Some("Disabled".into()),
                value_from: None,
            },
        ],
        runtime_class_name: None,
        node_selector: BTreeMap::new(),
        tolerations: vec![],
        access: ClusterAccess::Proxy {
            url: proxy_url("cli-mcp-demo-proxy", "ns"),
            ca_secret: "cli-mcp-demo-proxy-ca".into(),
            kubeconfig_config_map: "cli-mcp-demo-proxy".into(),
        },
        egress: Egress {
            check: EgressCheck::Required,
            target: Some("10.96.0.1:443".into()),
            control: Some("10.96.0.7:8080".into()),
        },
        listen: None,
    }
}

fn pod(template: &SandboxTemplate) -> Pod {
    let token = HmacKey::new(&[7; 32]).unwrap().session_token("s1").digest();
    template.build(
        "p",
        &Assignment::Session { id: "s1".into(), token },
        "2026-01-01T00:00:00Z",
        None,
    )
}

fn values<'a>(pod: &'a Pod, name: &str) -> Vec<&'a str> {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    container
        .env
        .iter()
        .flatten()
        .filter(|env| env.name == name)
        .filter_map(|env| env.value.as_deref())
        .collect()
}

#[test]
fn reserved_variables_are_the_operators() {
    let pod = pod(&template());
    assert_eq!(values(&pod, "HTTPS_PROXY"), ["http://cli-mcp-demo-proxy.ns.svc:8080"]);
    assert_eq!(values(&pod, "SANDBOX_EGRESS_CHECK"), ["Required"]);
    assert_eq!(values(&pod, "EDITOR"), ["vi"]);
}

#[test]
fn the_pod_carries_digests_and_no_key_of_the_ca() {
    let text = serde_json::to_string(&pod(&template())).unwrap();
    let token = HmacKey::new(&[7; 32]).unwrap().session_token("s1");
    assert!(!text.contains(token.reveal()));
    assert!(text.contains(&token.digest().to_hex()));
    assert!(!text.contains("ca.key"));
}

#[test]
fn every_writable_volume_has_a_limit() {
    for workspace_size_limit in [None, Some("64Mi".to_owned())] {
        let named = SandboxTemplate {
            workspace_size_limit,
            ..template()
        };
        for volume in pod(&named).spec.unwrap().volumes.unwrap() {
            let writable = volume.empty_dir.as_ref();
            assert!(writable.is_none_or(|dir| dir.size_limit.is_some()), "{volume:?}");
        }
    }
}

#[test]
fn only_the_local_form_mounts_a_credential() {
    let local = SandboxTemplate {
        access: ClusterAccess::Secret { name: "kc".into() },
        ..template()
    };
    assert!(
        serde_json::to_string(&pod(&local))
            .unwrap()
            .contains(r#""secretName":"kc""#)
    );
    assert!(values(&pod(&local), "HTTPS_PROXY").is_empty());
}

#[test]
fn the_hash_follows_the_template_and_not_the_session() {
    let changed = SandboxTemplate {
        image: "localhost/other:dev".into(),
        ..template()
    };
    assert_eq!(template().spec_hash(), template().spec_hash());
    assert_ne!(template().spec_hash(), changed.spec_hash());
}

#[test]
fn a_template_without_an_address_to_listen_on_is_hashed_as_before_there_was_one() {
    assert_eq!(template().spec_hash(), "029c50ea68bdbd7f");
    assert!(values(&pod(&template()), "SANDBOX_LISTEN").is_empty());
    let ipv6 = SandboxTemplate {
        listen: Some("[::]:8090".parse().unwrap()),
        ..template()
    };
    assert_ne!(template().spec_hash(), ipv6.spec_hash());
    assert_eq!(values(&pod(&ipv6), "SANDBOX_LISTEN"), ["[::]:8090"]);
}

#[test]
fn names_of_session_pods_fit_and_differ_by_instance() {
    let longest = "i".repeat(names::MAX_INSTANCE_NAME);
    assert!(session_pod_name(&longest, &"s".repeat(63)).len() <= 63);
    assert_ne!(session_pod_name("a", "s"), session_pod_name("b", "s"));
    // Without a separator these two would hash the same text.
    assert_ne!(session_pod_name("a", "bc")[10..], session_pod_name("ab", "c")[11..]);
}
