//! Whether a live object differs from what it should be. Pure, so that a steady state costs no writes.

use cli_mcp_api::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// Whether `live` lacks something of `desired`.
///
/// Objects may have more than is desired: the API server adds defaults and status, other controllers add annotations.
/// Lists must match element by element, so that a rule, subject or container that somebody added is seen. Quantities
/// are equal by value: the API server writes `1000m` as `1`.
#[must_use]
pub fn differs(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().any(|(key, desired)| match live.get(key) {
            Some(live) => differs(desired, live),
            None => !is_empty(desired),
        }),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() != live.len() || desired.iter().zip(live).any(|(desired, live)| differs(desired, live))
        }
        (Value::String(desired), Value::String(live)) => desired != live && !same_quantity(desired, live),
        _ => desired != live,
    }
}

/// What `kubectl rollout restart` sets.
const RESTART: [&str; 4] = [
    "f:template",
    "f:metadata",
    "f:annotations",
    "f:kubectl.kubernetes.io/restartedAt",
];

/// Whether an entry says that somebody else has set something of an object beyond its metadata and status: a
/// variable, a container, a flag that server-side apply would leave where it is. An admin's restart is no such thing.
#[must_use]
pub fn is_foreign(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() != Some(names::FIELD_MANAGER)
        && entry.subresource.as_deref() != Some("status")
        && entry
            .fields_v1
            .as_ref()
            .and_then(|fields| fields.0.as_object())
            .is_some_and(|fields| {
                fields.iter().any(|(field, set)| match field.as_str() {
                    "f:metadata" | "f:status" => false,
                    "f:spec" => !is_restart(set),
                    _ => true,
                })
            })
}

fn is_restart(spec: &Value) -> bool {
    let end = RESTART.iter().try_fold(spec, |fields, step| {
        let fields = fields.as_object()?;
        let alone = fields.keys().all(|field| field == "." || field == step);
        fields.get(*step).filter(|_| alone)
    });
    end.is_some()
}

/// The API server drops empty lists and maps.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn same_quantity(one: &str, other: &str) -> bool {
    match (quantity(one), quantity(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// A quantity in units of 10^-9, exact
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>). `None` for anything else and
/// for what does not fit 128 bits.
fn quantity(text: &str) -> Option<i128> {
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    if number.is_empty() || suffix.is_empty() && !number.contains('.') && number.len() > 1 && number.starts_with('0') {
        return None;
    }
    let unit: i128 = match suffix {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => 1_000_000_000,
        "k" => 1_000_000_000_000,
        "M" => 1_000_000_000_000_000,
        "G" => 1_000_000_000_000_000_000,
        "T" => 1_000_000_000_000_000_000_000,
        "Ki" => 1_000_000_000 << 10,
        "Mi" => 1_000_000_000 << 20,
        "Gi" => 1_000_000_000 << 30,
        "Ti" => 1_000_000_000 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(unit)?;
    (scaled % scale == 0).then(|| scaled / scale)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_status_of_the_api_server_are_no_difference() {
        let desired = json!({"spec": {"replicas": 1, "ports": [{"port": 80}], "tolerations": []}});
        let live = json!({"metadata": {"uid": "u"}, "spec": {"replicas": 1, "x": 2, "ports": [{"port": 80, "protocol": "TCP"}]}});
        assert!(!differs(&desired, &live));
    }

    #[test]
    fn edits_are_differences() {
        let desired = json!({"rules": [{"verbs": ["get"]}], "data": {"a": "b"}});
        for live in [
            json!({"rules": [{"verbs": ["get", "delete"]}], "data": {"a": "b"}}),
            json!({"rules": [{"verbs": ["get"]}, {"verbs": ["list"]}], "data": {"a": "b"}}),
            json!({"rules": [{"verbs": ["get"]}], "data": {"a": "c"}}),
            json!({"rules": [{"verbs": ["get"]}]}),
            json!({"rules": [], "data": {"a": "b"}}),
        ] {
            assert!(differs(&desired, &live), "{live}");
        }
    }

    #[test]
    fn quantities_are_equal_by_value() {
        for (one, other) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1k", "1000"),
        ] {
            assert!(!differs(&json!(one), &json!(other)), "{one} {other}");
        }
        for (one, other) in [
            ("1", "2"),
            ("1Mi", "1M"),
            ("a", "b"),
            ("1", "01"),
            ("", "0"),
            ("128Mi", "128Mib"),
        ] {
            assert!(differs(&json!(one), &json!(other)), "{one} {other}");
        }
    }

    #[test]
    fn what_others_set_is_foreign_but_for_metadata_and_status() {
        let entry = |manager: &str, subresource: &str, fields: Value| -> bool {
            is_foreign(
                &serde_json::from_value(json!({"manager": manager, "subresource": subresource, "fieldsV1": fields}))
                    .unwrap(),
            )
        };
        let spec = json!({"f:spec": {"f:template": {}}, "f:metadata": {}});
        assert!(entry("kubectl-edit", "", spec.clone()));
        assert!(entry("kubectl", "scale", spec.clone()));
        assert!(!entry(names::FIELD_MANAGER, "", spec));
        assert!(!entry(
            "kube-controller-manager",
            "",
            json!({"f:metadata": {"f:annotations": {}}})
        ));
        assert!(!entry("kube-controller-manager", "status", json!({"f:status": {}})));
    }

    #[test]
    fn a_restart_by_an_admin_is_let_be_and_nothing_beside_it() {
        let entry = |annotations: Value, template: Value| -> bool {
            let mut template = template;
            template["f:metadata"] = json!({"f:annotations": annotations});
            let fields = json!({"f:spec": {"f:template": template}});
            is_foreign(&serde_json::from_value(json!({"manager": "kubectl-rollout", "fieldsV1": fields})).unwrap())
        };
        let restart = json!({".": {}, "f:kubectl.kubernetes.io/restartedAt": {}});
        assert!(!entry(restart.clone(), json!({})));
        assert!(entry(restart, json!({"f:spec": {}})));
        assert!(entry(
            json!({"f:kubectl.kubernetes.io/restartedAt": {}, "f:container.apparmor": {}}),
            json!({})
        ));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z]{0,4}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn nothing_differs_from_itself(value in value()) {
            prop_assert!(!differs(&value, &value));
        }

        #[test]
        fn what_is_added_to_the_top_is_not_ours(value in prop::collection::btree_map("[a-d]", value(), 0..4)) {
            let desired = Value::Object(value.into_iter().collect());
            let mut live = desired.clone();
            live["added-by-others"] = json!(1);
            prop_assert!(!differs(&desired, &live));
        }
    }
}
