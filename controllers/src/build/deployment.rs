//! What the Deployments of server and proxy have in common: pods that pass the `restricted` Pod Security Standard,
//! spread over nodes, never below their number in a rollout.

use std::collections::BTreeMap;

use cli_mcp_api::labels::{self, Component};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction, KeyToPath, PodAffinityTerm,
    PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretVolumeSource,
    SecurityContext, TopologySpreadConstraint, Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use crate::validate::Validated;

/// Seconds a pod may take to end: the 25 s that both programs drain, and some to spare.
const TERMINATION_GRACE_SECONDS: i64 = 35;

/// What differs between the two Deployments.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) component: Component,
    pub(super) replicas: i32,
    /// The pod needs the token of its ServiceAccount.
    pub(super) mounts_token: bool,
    /// Annotations of the pod template: a change of one rolls the pods.
    pub(super) pod_annotations: BTreeMap<String, String>,
    pub(super) container: Container,
    pub(super) volumes: Vec<Volume>,
}

/// The Deployment of a workload; its ServiceAccount has the same name.
pub(super) fn deployment(validated: &Validated, workload: Workload) -> Deployment {
    let Workload {
        name,
        component,
        replicas,
        mounts_token,
        pod_annotations,
        container,
        volumes,
    } = workload;
    let selector = LabelSelector {
        match_labels: Some(labels::selector(&validated.name, component)),
        match_expressions: None,
    };
    let pod = PodSpec {
        affinity: (replicas > 1).then(|| apart(&selector)),
        automount_service_account_token: Some(mounts_token),
        containers: vec![hardened(verbatim(container))],
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(runtime_default()),
            ..PodSecurityContext::default()
        }),
        service_account_name: Some(name.clone()),
        termination_grace_period_seconds: Some(TERMINATION_GRACE_SECONDS),
        topology_spread_constraints: (replicas > 1).then(|| vec![over_zones(&selector)]),
        volumes: Some(volumes),
        ..PodSpec::default()
    };
    Deployment {
        metadata: metadata(validated, name, Some(component)),
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            selector,
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels::component(&validated.name, component)),
                    annotations: Some(pod_annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// The kubelet expands `$(NAME)` in arguments and makes one `$` of two
/// (<https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/>): doubled, what a user
/// wrote arrives as it was written.
fn verbatim(container: Container) -> Container {
    let double = |argument: String| argument.replace('$', "$$");
    Container {
        args: container.args.map(|args| args.into_iter().map(double).collect()),
        ..container
    }
}

fn hardened(container: Container) -> Container {
    Container {
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                add: None,
                drop: Some(vec!["ALL".to_owned()]),
            }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            seccomp_profile: Some(runtime_default()),
            ..SecurityContext::default()
        }),
        // What a program says last on stderr stands in the pod's status, and so in the instance's condition.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..container
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        ..SeccompProfile::default()
    }
}

/// Different nodes where there are any.
fn apart(selector: &LabelSelector) -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    label_selector: Some(selector.clone()),
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    ..PodAffinityTerm::default()
                },
            }]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn over_zones(selector: &LabelSelector) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        label_selector: Some(selector.clone()),
        max_skew: 1,
        topology_key: "topology.kubernetes.io/zone".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    }
}

pub(super) fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A port of every address of the pod, as flags take it. `[::]` takes IPv4 too, but cannot be had on a node without IPv6.
pub(super) fn every_address(validated: &Validated, port: i32) -> String {
    let address = if validated.ipv6_first { "[::]" } else { "0.0.0.0" };
    format!("{address}:{port}")
}

/// A GET on the plain listener of probes.
pub(super) fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("health".to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        failure_threshold: Some(failure_threshold),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

/// Mounts a volume as a whole folder, so that the kubelet refreshes its files.
pub(super) fn folder(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// A volume of some keys of a Secret; all of them when none is named.
pub(super) fn secret_volume(volume: &str, secret: String, keys: &[&str]) -> Volume {
    Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            items: items(keys),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// A volume of some keys of a ConfigMap.
pub(super) fn config_map_volume(volume: &str, config_map: String, keys: &[&str]) -> Volume {
    Volume {
        name: volume.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map,
            items: items(keys),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn items(keys: &[&str]) -> Option<Vec<KeyToPath>> {
    let items: Vec<_> = keys
        .iter()
        .map(|key| KeyToPath {
            key: (*key).to_owned(),
            path: (*key).to_owned(),
            mode: None,
        })
        .collect();
    (!items.is_empty()).then_some(items)
}
