//! Whether the network of the sandboxes is proven closed (contract, section 8): from the server's mark on a pod, and
//! from what the kubelet reports of the agent's own probe.

use cli_mcp_api::conditions::reasons;
use cli_mcp_api::v1alpha1::EgressCheck;
use cli_mcp_sandbox::wire::EGRESS_NOT_ENFORCED;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::sandboxes::Sandbox;

/// What is known of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// A sandbox that had to prove it is ready.
    Enforced,
    /// A sandbox reached what it must not.
    Open {
        /// Which.
        pod: String,
    },
    /// Nobody asked.
    Disabled,
    /// No sandbox has proven anything yet.
    Unknown,
}

/// Judges the sandboxes. `reported` is the one whose probe the kubelet reported, see [`reported_open`].
#[must_use]
pub fn judge(check: EgressCheck, sandboxes: &[Sandbox], reported: Option<String>) -> Egress {
    if check == EgressCheck::Disabled {
        return Egress::Disabled;
    }
    let marked = sandboxes
        .iter()
        .find(|sandbox| sandbox.egress_open && !sandbox.ready && !sandbox.terminating);
    if let Some(pod) = marked.map(|sandbox| sandbox.name.clone()).or(reported) {
        return Egress::Open { pod };
    }
    if sandboxes.iter().any(|sandbox| sandbox.ready) {
        Egress::Enforced
    } else {
        Egress::Unknown
    }
}

/// Status, reason and message of the condition. What was proven once stays until a sandbox proves otherwise.
#[must_use]
pub fn condition(egress: &Egress, before: Option<&str>) -> (&'static str, &'static str, String) {
    match egress {
        Egress::Open { pod } => (
            "False",
            reasons::EGRESS_NOT_ENFORCED,
            format!(
                "Sandbox {pod} can reach the API server directly: the cluster's network does not enforce NetworkPolicies. \
                 Install a CNI plugin that does, such as Calico, Cilium or OVN-Kubernetes; no command runs until then"
            ),
        ),
        Egress::Disabled => (
            "Unknown",
            reasons::EGRESS_CHECK_DISABLED,
            "spec.sandbox.egressCheck is Disabled: nothing is proven".to_owned(),
        ),
        Egress::Unknown if before != Some("True") => (
            "Unknown",
            reasons::NO_SANDBOX_YET,
            "No sandbox has run yet: the first one proves that its network is closed".to_owned(),
        ),
        Egress::Enforced | Egress::Unknown => (
            "True",
            reasons::AVAILABLE,
            "Sandboxes reach the proxy and DNS, and nothing else".to_owned(),
        ),
    }
}

/// The first running sandbox that is not ready and whose probe says that the network is open. Looks only at sandboxes
/// that run and are not ready, so that a steady state costs nothing.
///
/// # Errors
///
/// When events cannot be read.
pub async fn reported_open(client: &Client, namespace: &str, sandboxes: &[Sandbox]) -> kube::Result<Option<String>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let suspicious = sandboxes
        .iter()
        .filter(|sandbox| !sandbox.ready && !sandbox.terminating && !sandbox.ended && sandbox.trouble.is_none());
    for sandbox in suspicious {
        let fields = format!("involvedObject.uid={},reason=Unhealthy", sandbox.uid);
        let events = api.list(&ListParams::default().fields(&fields).limit(20)).await?;
        let open = events.items.iter().any(|event| {
            event
                .message
                .as_deref()
                .is_some_and(|message| message.contains(EGRESS_NOT_ENFORCED))
        });
        if open {
            return Ok(Some(sandbox.name.clone()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(ready: bool, egress_open: bool) -> Sandbox {
        let pod: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        Sandbox {
            ready,
            egress_open,
            ..Sandbox::of(&pod)
        }
    }

    #[test]
    fn one_open_sandbox_outweighs_every_closed_one() {
        let both = [sandbox(true, false), sandbox(false, true)];
        assert_eq!(
            judge(EgressCheck::Required, &both, None),
            Egress::Open { pod: "p".into() }
        );
        assert_eq!(judge(EgressCheck::Disabled, &both, None), Egress::Disabled);
        assert_eq!(judge(EgressCheck::Required, &both[..1], None), Egress::Enforced);
        assert_eq!(
            judge(EgressCheck::Required, &both[..1], Some("q".into())),
            Egress::Open { pod: "q".into() }
        );
    }

    #[test]
    fn a_sandbox_that_is_ready_again_has_recovered() {
        assert_eq!(
            judge(EgressCheck::Required, &[sandbox(true, true)], None),
            Egress::Enforced
        );
    }

    #[test]
    fn what_was_proven_stays_while_no_sandbox_runs() {
        assert_eq!(condition(&Egress::Unknown, Some("True")).0, "True");
        assert_eq!(condition(&Egress::Unknown, Some("False")).0, "Unknown");
        assert_eq!(condition(&Egress::Unknown, None).1, reasons::NO_SANDBOX_YET);
    }
}
