//! What the facts mean, in the order in which a person would look: each part stands on those before it.

use cli_mcp_api::conditions::{self, reasons};
use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::CliMcpInstance;
use cli_mcp_controllers::trouble;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::facts::{Facts, Platform, Seen};
use super::{Finding, credentials};

/// Judges everything.
pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = platform(&facts.platform, facts.instance.is_ok());
    let instance = match &facts.instance {
        Ok(Some(instance)) => instance,
        Ok(None) => {
            findings.push(Finding::problem(
                "Instance",
                format!("CliMcpInstance {}/{} does not exist", facts.namespace, facts.name),
                format!(
                    "kubectl get climcpinstances -A lists those that do; create it in namespace {}",
                    facts.namespace
                ),
            ));
            return findings;
        }
        Err(why) => {
            findings.push(Finding::unknown("Instance", format!("it cannot be read: {why}")));
            return findings;
        }
    };
    findings.push(observed(instance));
    findings.push(credentials::kubeconfig(facts));
    findings.push(credentials::certificate(facts));
    findings.push(policies(facts));
    findings.push(deployment(
        facts,
        "Proxy",
        &facts.proxy,
        &names::proxy(&facts.name),
        Component::Proxy,
    ));
    findings.push(proxy_endpoint(facts));
    findings.push(deployment(
        facts,
        "Server",
        &facts.server,
        &names::server(&facts.name),
        Component::Server,
    ));
    findings.push(reviews(facts));
    findings.push(sandboxes(facts, instance));
    findings.push(egress(instance));
    findings.push(capacity(instance));
    findings.push(ready(instance));
    findings
}

/// Judges what every instance stands on.
pub(super) fn platform(platform: &Platform, served: bool) -> Vec<Finding> {
    vec![api_server(platform), definition(platform, served), operator(platform)]
}

fn api_server(platform: &Platform) -> Finding {
    match &platform.version {
        Ok(version) => Finding::ok("API server", format!("Kubernetes {version}")),
        Err(why) => Finding::problem(
            "API server",
            format!("it does not answer: {why}"),
            "see kubectl config current-context and kubectl version",
        ),
    }
}

fn definition(platform: &Platform, served: bool) -> Finding {
    const PART: &str = "Definition";
    match &platform.crd {
        // Who may not read definitions sees whether the resource is served.
        Err(_) if served => Finding::ok(PART, "CliMcpInstances are served"),
        Err(why) => Finding::unknown(PART, format!("the CustomResourceDefinition cannot be read: {why}")),
        Ok(None) => Finding::problem(
            PART,
            "the CustomResourceDefinition climcpinstances.cli-mcp.redhat.com is not installed",
            "install the operator: docs/install.md",
        ),
        Ok(Some(crd)) => {
            let served: Vec<&str> = crd
                .spec
                .versions
                .iter()
                .filter(|version| version.served)
                .map(|version| version.name.as_str())
                .collect();
            if served.contains(&"v1alpha1") {
                Finding::ok(PART, "v1alpha1 is served")
            } else {
                Finding::problem(
                    PART,
                    format!("v1alpha1 is not served, only {}", served.join(", ")),
                    "use the plugin that belongs to the installed operator",
                )
            }
        }
    }
}

fn available(deployment: &Deployment) -> (i32, i32) {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
    (available.unwrap_or_default(), wanted)
}

fn operator(platform: &Platform) -> Finding {
    const PART: &str = "Operator";
    let operators = match &platform.operators {
        Ok(operators) => operators,
        Err(why) => return Finding::unknown(PART, format!("Deployments of all namespaces cannot be listed: {why}")),
    };
    let place = |deployment: &Deployment| {
        format!(
            "{}/{}",
            deployment.namespace().unwrap_or_default(),
            deployment.name_any()
        )
    };
    match operators.iter().find(|deployment| available(deployment).0 > 0) {
        Some(running) => Finding::ok(PART, format!("Deployment {} runs", place(running))),
        None => match operators.first() {
            Some(down) => Finding::problem(
                PART,
                format!("Deployment {} has no available pod", place(down)),
                format!(
                    "kubectl -n {} describe pods, and kubectl -n {} logs deployment/{}",
                    down.namespace().unwrap_or_default(),
                    down.namespace().unwrap_or_default(),
                    down.name_any()
                ),
            ),
            None => Finding::problem(
                PART,
                "no Deployment of it in any namespace",
                "install it: docs/install.md",
            ),
        },
    }
}

fn observed(instance: &CliMcpInstance) -> Finding {
    const PART: &str = "Instance";
    let seen = instance.status.as_ref().and_then(|status| status.observed_generation);
    if instance.metadata.deletion_timestamp.is_some() {
        return Finding::warning(
            PART,
            "it is being deleted",
            "wait; if it stays, the operator is down or cannot delete: see its log. It removes the finalizer when every sandbox is gone",
        );
    }
    match (seen, instance.metadata.generation) {
        (Some(seen), Some(generation)) if seen == generation => Finding::ok(PART, "the operator has seen its spec"),
        (None, _) => Finding::problem(
            PART,
            "no operator has looked at it",
            "does an operator watch this namespace? Its WATCH_NAMESPACE must name it, be empty for its own, or * for all (docs/install.md)",
        ),
        _ => Finding::warning(
            PART,
            "the operator has not seen the latest spec yet",
            "wait some seconds; if it stays so, read the operator's log",
        ),
    }
}

fn policies(facts: &Facts) -> Finding {
    const PART: &str = "Isolation";
    let remedy = || "the operator makes it again within seconds; if not, read the operator's log".to_owned();
    let sandbox = names::sandbox(&facts.name);
    match &facts.sandbox_policy {
        Err(why) => return Finding::unknown(PART, format!("NetworkPolicies cannot be read: {why}")),
        Ok(None) => return Finding::problem(PART, format!("NetworkPolicy {sandbox} does not exist"), remedy()),
        Ok(Some(policy)) => {
            let types = policy.spec.as_ref().and_then(|spec| spec.policy_types.as_ref());
            if !types.is_some_and(|types| types.iter().any(|kind| kind == "Egress")) {
                return Finding::problem(PART, format!("NetworkPolicy {sandbox} leaves egress open"), remedy());
            }
        }
    }
    let proxy = names::proxy(&facts.name);
    if matches!(facts.proxy_policy, Ok(None)) {
        return Finding::problem(PART, format!("NetworkPolicy {proxy} does not exist"), remedy());
    }
    if matches!(facts.config_map, Ok(None)) {
        return Finding::problem(
            PART,
            format!("ConfigMap {proxy} does not exist"),
            "it is made from the kubeconfig: mend that first",
        );
    }
    Finding::ok(PART, "both NetworkPolicies are in place")
}

fn component(pod: &Pod) -> Option<&str> {
    pod.labels().get(labels::COMPONENT).map(String::as_str)
}

fn troubles(pods: &Seen<Vec<Pod>>, of: Component) -> Option<String> {
    pods.as_ref().ok()?.iter().find_map(|pod| {
        let concerns = component(pod) == Some(of.as_str()) && !trouble::is_ready(pod);
        concerns.then(|| Some(format!("pod {}: {}", pod.name_any(), trouble::of(pod)?)))?
    })
}

fn deployment(
    facts: &Facts,
    part: &'static str,
    seen: &Seen<Option<Deployment>>,
    name: &str,
    of: Component,
) -> Finding {
    match seen {
        Err(why) => Finding::unknown(part, format!("Deployment {name} cannot be read: {why}")),
        Ok(None) => Finding::problem(
            part,
            format!("Deployment {name} does not exist"),
            "it is made when the Secrets that it mounts exist: mend those first",
        ),
        Ok(Some(deployment)) => {
            let (available, wanted) = available(deployment);
            if available >= wanted {
                return Finding::ok(part, format!("{available} of {wanted} pods are available"));
            }
            let why = troubles(&facts.pods, of)
                .map(|why| format!(": {why}"))
                .unwrap_or_default();
            let found = format!("{available} of {wanted} pods are available{why}");
            let remedy = format!(
                "kubectl -n {0} describe pods -l {1}, and kubectl -n {0} logs deployment/{name}",
                facts.namespace,
                labels::selector_string(&facts.name, of)
            );
            if available > 0 {
                Finding::warning(part, found, remedy)
            } else {
                Finding::problem(part, found, remedy)
            }
        }
    }
}

fn proxy_endpoint(facts: &Facts) -> Finding {
    const PART: &str = "Proxy address";
    match &facts.proxy_slices {
        Err(why) => Finding::unknown(PART, format!("EndpointSlices cannot be read: {why}")),
        Ok(slices) => {
            let ready = slices
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false))
                .count();
            if ready > 0 {
                Finding::ok(PART, format!("{ready} ready in Service {}", names::proxy(&facts.name)))
            } else {
                Finding::problem(
                    PART,
                    format!(
                        "Service {} has no ready endpoint, so no sandbox is started",
                        names::proxy(&facts.name)
                    ),
                    "mend the proxy first",
                )
            }
        }
    }
}

/// Without the binding the server can review no token, and every client gets 503.
fn reviews(facts: &Facts) -> Finding {
    const PART: &str = "Token review";
    let account = names::server(&facts.name);
    let named = |subject: &k8s_openapi::api::rbac::v1::Subject| {
        subject.name == account && subject.namespace.as_deref() == Some(&facts.namespace)
    };
    match &facts.delegator {
        Err(why) => Finding::unknown(PART, format!("ClusterRoleBindings cannot be read: {why}")),
        Ok(Some(binding)) if binding.role_ref.name != names::AUTH_DELEGATOR_ROLE => Finding::problem(
            PART,
            format!(
                "ClusterRoleBinding {} refers to {}, not to {}",
                names::AUTH_DELEGATOR_BINDING,
                binding.role_ref.name,
                names::AUTH_DELEGATOR_ROLE
            ),
            "somebody else made it: delete it, the operator makes it again",
        ),
        Ok(Some(binding)) if binding.subjects.iter().flatten().any(named) => {
            Finding::ok(PART, "the server may review tokens")
        }
        Ok(_) => Finding::problem(
            PART,
            format!(
                "ClusterRoleBinding {} does not name ServiceAccount {account}",
                names::AUTH_DELEGATOR_BINDING
            ),
            "the operator adds it; if not, its ClusterRole lacks a right: read the operator's log, and install docs/install.md's manifests again",
        ),
    }
}

fn sandboxes(facts: &Facts, instance: &CliMcpInstance) -> Finding {
    const PART: &str = "Sandboxes";
    if let Err(why) = &facts.pods {
        return Finding::unknown(PART, format!("pods cannot be listed: {why}"));
    }
    let status = instance.status.as_ref();
    let count = |value: Option<i32>| value.unwrap_or_default();
    let sessions = count(status.and_then(|status| status.sessions));
    let (ready, desired) = (
        count(status.and_then(|status| status.warm_pool_ready)),
        count(status.and_then(|status| status.warm_pool_desired)),
    );
    let found = format!("{sessions} sessions, {ready} of {desired} warm");
    match troubles(&facts.pods, Component::Sandbox) {
        Some(why) => Finding::warning(
            PART,
            format!("{found}; {why}"),
            format!(
                "kubectl -n {} describe pods -l {}",
                facts.namespace,
                labels::selector_string(&facts.name, Component::Sandbox)
            ),
        ),
        None => Finding::ok(PART, found),
    }
}

/// Status, reason and message of a condition.
fn condition<'a>(instance: &'a CliMcpInstance, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = &instance.status.as_ref()?.conditions;
    let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((&condition.status, &condition.reason, &condition.message))
}

fn egress(instance: &CliMcpInstance) -> Finding {
    const PART: &str = "Closed network";
    match condition(instance, conditions::EGRESS_ENFORCED) {
        Some(("True", _, message)) => Finding::ok(PART, message),
        Some(("False", _, message)) => Finding::problem(
            PART,
            message,
            "install a network plugin that enforces NetworkPolicy (docs/install.md, \"Before you begin\"); sandboxes look again by themselves",
        ),
        Some((_, reasons::EGRESS_CHECK_DISABLED, message)) => Finding::warning(
            PART,
            message,
            "set spec.sandbox.egressCheck to Required, unless another layer is known to close the network",
        ),
        Some((_, _, message)) => Finding::unknown(PART, message),
        None => Finding::unknown(PART, "the operator has not told yet"),
    }
}

fn capacity(instance: &CliMcpInstance) -> Finding {
    const PART: &str = "Capacity";
    let limit = instance.spec.sandbox.max_sessions;
    let sessions = instance
        .status
        .as_ref()
        .and_then(|status| status.sessions)
        .unwrap_or_default();
    if limit == 0 {
        Finding::ok(PART, "no limit of sessions")
    } else if sessions < limit {
        Finding::ok(PART, format!("{sessions} of at most {limit} sessions"))
    } else {
        Finding::warning(
            PART,
            format!("all {limit} sessions are taken: new ones are refused"),
            "end sessions (kubectl cli-mcp sessions, kubectl cli-mcp delete), raise spec.sandbox.maxSessions, or shorten idleTimeout",
        )
    }
}

fn ready(instance: &CliMcpInstance) -> Finding {
    const PART: &str = "Ready";
    match condition(instance, conditions::READY) {
        Some(("True", _, message)) => Finding::ok(PART, message),
        Some((_, reason, message)) => Finding::problem(
            PART,
            format!("{reason}: {message}"),
            format!("docs/troubleshoot.md, \"{reason}\"; what is above comes first"),
        ),
        None => Finding::problem(
            PART,
            "no condition yet",
            "wait some seconds; if it stays so, read the operator's log",
        ),
    }
}
