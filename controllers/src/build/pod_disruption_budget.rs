//! PodDisruptionBudget of the proxy, when it has more than one pod.

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use crate::validate::Validated;

/// `cli-mcp-<name>-proxy`: one pod at a time may be drained.
pub(super) fn proxy(validated: &Validated) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata(validated, names::proxy(&validated.name), Some(Component::Proxy)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(labels::selector(&validated.name, Component::Proxy)),
                match_expressions: None,
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
