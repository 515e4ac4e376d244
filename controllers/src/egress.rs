//! Whether the network of the sandboxes is proven closed (contract, section 8): from the server's mark on a pod, and
//! from what the kubelet reports of the agent's own probe.

use cli_mcp_api::conditions::reasons;
use cli_mcp_api::v1alpha1::EgressCheck;
use cli_mcp_sandbox::wire::{EGRESS_OPEN, POLICY_SETTLES};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::sandboxes::Sandbox;
use crate::trouble;

/// What is known of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// A sandbox that had to prove it is ready. One that was built when the check was off had not.
    Enforced,
    /// A sandbox reached what it must not.
    Open {
        /// Which.
        pod: String,
    },
    /// Nobody asked.
    Disabled,
    /// A sandbox is starting or wanted, and has proven nothing yet.
    Pending,
    /// There is no sandbox that could prove anything.
    Unknown,
}

/// Judges the sandboxes of a pool of this size. `spec_hash` is that of the present template, which says that they must
/// prove it. `reported` is the one whose probe the kubelet reported, see [`reported_open`].
#[must_use]
pub fn judge(
    check: EgressCheck,
    spec_hash: Option<&str>,
    sandboxes: &[Sandbox],
    pool: usize,
    reported: Option<String>,
) -> Egress {
    if check == EgressCheck::Disabled {
        return Egress::Disabled;
    }
    // The mark stays on a pod: of one that has recovered, or ended since, it says nothing.
    let marked = sandboxes
        .iter()
        .find(|sandbox| sandbox.egress_open && sandbox.running && !sandbox.ready && !sandbox.terminating);
    if let Some(pod) = marked.map(|sandbox| sandbox.name.clone()).or(reported) {
        return Egress::Open { pod };
    }
    if sandboxes
        .iter()
        .any(|sandbox| sandbox.ready && spec_hash == Some(sandbox.spec_hash.as_str()))
    {
        Egress::Enforced
    } else if pool > 0 || sandboxes.iter().any(is_to_prove_it) {
        Egress::Pending
    } else {
        Egress::Unknown
    }
}

/// Whether a sandbox may yet show how its network is. One of an earlier template that is ready shows nothing: it may not have
/// been asked to.
fn is_to_prove_it(sandbox: &Sandbox) -> bool {
    !sandbox.ready && !sandbox.terminating && !sandbox.ended
}

/// Status, reason and message of the condition. What was proven once stays until a sandbox proves otherwise.
#[must_use]
pub fn condition(egress: &Egress, before: Option<&Condition>) -> (&'static str, &'static str, String) {
    let was = before.map(|before| before.status.as_str());
    match egress {
        // It does not start because of that, or is about to prove the contrary.
        Egress::Pending if was == Some("False") => (
            "False",
            reasons::EGRESS_NOT_ENFORCED,
            before.map(|before| before.message.clone()).unwrap_or_default(),
        ),
        Egress::Open { pod } => (
            "False",
            reasons::EGRESS_NOT_ENFORCED,
            format!(
                "Sandbox {pod} can reach the API server directly; no command runs until it cannot. Either the cluster's \
                 network does not enforce NetworkPolicies: install a CNI plugin that does, such as Calico, Cilium or \
                 OVN-Kubernetes. Or another NetworkPolicy lets the sandbox out: kubectl get networkpolicy"
            ),
        ),
        Egress::Disabled => (
            "Unknown",
            reasons::EGRESS_CHECK_DISABLED,
            "spec.sandbox.egressCheck is Disabled: nothing is proven".to_owned(),
        ),
        Egress::Pending | Egress::Unknown if was != Some("True") => (
            "Unknown",
            reasons::NO_SANDBOX_YET,
            "No sandbox with the check has run yet: the first one proves that its network is closed".to_owned(),
        ),
        Egress::Enforced | Egress::Pending | Egress::Unknown => (
            "True",
            reasons::AVAILABLE,
            "Sandboxes reach the proxy and DNS, and nothing else".to_owned(),
        ),
    }
}

/// Whether the kubelet's reports of a sandbox's probe are worth reading: it runs, is not ready, and belongs to nobody.
///
/// The probe runs as the sandbox's own user. In our image nobody may read the agent's file, so that the kernel keeps a session's
/// commands from the probe's output; in another they can write into it and forge what it says. Of an assigned sandbox only the
/// server's mark counts, which comes from the agent itself.
#[must_use]
pub fn is_suspicious(sandbox: &Sandbox) -> bool {
    sandbox.running && !sandbox.ready && !sandbox.terminating && sandbox.session.is_none() && sandbox.trouble.is_none()
}

/// The first running sandbox that is not ready and whose probe says that the network is open. Looks only at sandboxes
/// that run and are not ready, so that a steady state costs nothing.
///
/// # Errors
///
/// When events cannot be read.
pub async fn reported_open(client: &Client, namespace: &str, sandboxes: &[Sandbox]) -> kube::Result<Option<String>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    for sandbox in sandboxes.iter().filter(|sandbox| is_suspicious(sandbox)) {
        let fields = format!("involvedObject.uid={},reason=Unhealthy", sandbox.uid);
        let events = api.list(&ListParams::default().fields(&fields).limit(20)).await?;
        if shows_open(&events.items, sandbox, Timestamp::now()) {
            return Ok(Some(sandbox.name.clone()));
        }
    }
    Ok(None)
}

/// Whether a probe that failed since the sandbox is not ready said that the network is open, after the time that it may be.
fn shows_open(events: &[Event], sandbox: &Sandbox, now: Timestamp) -> bool {
    let says_open = |event: &Event| event.message.as_deref().is_some_and(|text| text.contains(EGRESS_OPEN));
    let since = sandbox.unready_since;
    now >= since + POLICY_SETTLES
        && events
            .iter()
            .any(|event| says_open(event) && trouble::last_seen(event) >= Some(since))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn sandbox(ready: bool, egress_open: bool) -> Sandbox {
        let pod: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        Sandbox {
            running: true,
            ready,
            egress_open,
            spec_hash: "now".to_owned(),
            ..Sandbox::of(&pod)
        }
    }

    fn judged(check: EgressCheck, sandboxes: &[Sandbox], reported: Option<&str>) -> Egress {
        judge(check, Some("now"), sandboxes, 0, reported.map(str::to_owned))
    }

    #[test]
    fn one_open_sandbox_outweighs_every_closed_one() {
        let both = [sandbox(true, false), sandbox(false, true)];
        assert_eq!(
            judged(EgressCheck::Required, &both, None),
            Egress::Open { pod: "p".into() }
        );
        assert_eq!(judged(EgressCheck::Disabled, &both, None), Egress::Disabled);
        assert_eq!(judged(EgressCheck::Required, &both[..1], None), Egress::Enforced);
        assert_eq!(
            judged(EgressCheck::Required, &both[..1], Some("q")),
            Egress::Open { pod: "q".into() }
        );
    }

    #[test]
    fn a_sandbox_of_the_time_without_the_check_proves_nothing() {
        let unproven = Sandbox {
            spec_hash: "before".into(),
            session: Some("s".into()),
            ..sandbox(true, false)
        };
        assert_eq!(
            judged(EgressCheck::Required, std::slice::from_ref(&unproven), None),
            Egress::Unknown
        );
        assert_eq!(
            judge(EgressCheck::Required, None, std::slice::from_ref(&unproven), 0, None),
            Egress::Unknown
        );
        assert_eq!(
            judged(EgressCheck::Required, &[unproven, sandbox(true, false)], None),
            Egress::Enforced
        );
    }

    #[test]
    fn what_a_session_can_forge_is_not_read() {
        let waiting = Sandbox {
            running: true,
            ..sandbox(false, false)
        };
        assert!(is_suspicious(&waiting));
        let assigned = Sandbox {
            session: Some("s".into()),
            ..waiting
        };
        assert!(!is_suspicious(&assigned));
    }

    #[test]
    fn a_sandbox_that_is_ready_again_has_recovered() {
        assert_eq!(
            judged(EgressCheck::Required, &[sandbox(true, true)], None),
            Egress::Enforced
        );
    }

    #[test]
    fn a_mark_says_nothing_of_a_sandbox_that_has_ended() {
        let ended = Sandbox {
            running: false,
            ended: true,
            ..sandbox(false, true)
        };
        assert_eq!(judged(EgressCheck::Required, &[ended], None), Egress::Unknown);
    }

    #[test]
    fn a_probe_shows_an_open_network_only_while_it_is_and_not_while_policies_settle() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let event = |message: &str, ago: i64| -> Event {
            let seen = now - SignedDuration::from_secs(ago);
            serde_json::from_value(serde_json::json!({"metadata": {}, "involvedObject": {},
                "message": format!("Readiness probe failed: {message}"), "lastTimestamp": seen.to_string()}))
            .unwrap()
        };
        let unready_for = |seconds: i64| Sandbox {
            unready_since: now - SignedDuration::from_secs(seconds),
            ..sandbox(false, false)
        };
        let open = "EgressNotEnforced: a direct connection to 10.96.0.1:443 succeeded; the likely cause is";
        assert!(shows_open(&[event(open, 3)], &unready_for(30), now));
        assert!(!shows_open(&[event(open, 3)], &unready_for(5), now), "it may settle");
        assert!(
            !shows_open(&[event(open, 3000)], &unready_for(30), now),
            "it was so once"
        );
        for unproven in [
            "EgressNotEnforced: the check has not finished",
            "EgressNotEnforced: no connection to the proxy at 10.96.0.7:8080, so that silence of the network proves nothing",
            "bash is not running",
        ] {
            assert!(!shows_open(&[event(unproven, 3)], &unready_for(30), now), "{unproven}");
        }
    }

    #[test]
    fn what_was_proven_stays_until_a_sandbox_proves_otherwise() {
        let before = |status: &str| -> Condition {
            serde_json::from_value(
                serde_json::json!({"type": "EgressEnforced", "status": status, "reason": "R",
                "message": "pod p is open", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
            )
            .unwrap()
        };
        assert_eq!(condition(&Egress::Unknown, Some(&before("True"))).0, "True");
        assert_eq!(condition(&Egress::Pending, Some(&before("True"))).0, "True");
        assert_eq!(condition(&Egress::Unknown, Some(&before("False"))).0, "Unknown");
        assert_eq!(condition(&Egress::Unknown, None).1, reasons::NO_SANDBOX_YET);
        assert_eq!(
            condition(&Egress::Pending, Some(&before("False"))),
            ("False", reasons::EGRESS_NOT_ENFORCED, "pod p is open".to_owned())
        );
    }
}
