//! What never passes on a kubernetes target, whatever the credential may do: what runs code, opens a way around the
//! proxy, or answers with a credential (`proxy_cases.md`, cases 5 and 8 to 12).

use crate::request_info::RequestInfo;

/// Subresources that run code or open a way around the proxy, in any group: aggregated API servers have them too.
const TUNNELS: [&str; 4] = ["exec", "attach", "portforward", "proxy"];

/// KubeVirt's consoles and tunnels into virtual machines.
const KUBEVIRT_TUNNELS: [&str; 6] = ["console", "vnc", "portforward", "usbredir", "ssh", "vsock"];

/// Subresources that answer with a credential, in any group: `serviceaccounts/token`, Gardener's
/// `shoots/adminkubeconfig`, vCluster Platform's `virtualclusterinstances/kubeconfig`. A CustomResourceDefinition cannot
/// have one of these names, so that no ordinary object is meant.
const MINTING_SUBRESOURCES: [&str; 5] = [
    "token",
    "kubeconfig",
    "adminkubeconfig",
    "viewerkubeconfig",
    "accesskey",
];

/// Resources whose creation answers with a credential, or leads to one. A certificate signing request is among them
/// because the controller manager approves some by itself: with a powerful credential it is a client certificate.
const MINTING_RESOURCES: [(&str, &str); 17] = [
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("certificates.k8s.io", "podcertificaterequests"),
    ("oauth.openshift.io", "oauthaccesstokens"),
    ("oauth.openshift.io", "useroauthaccesstokens"),
    ("oauth.openshift.io", "oauthauthorizetokens"),
    ("oauth.openshift.io", "tokenreviews"),
    ("ext.cattle.io", "kubeconfigs"),
    ("ext.cattle.io", "tokens"),
    ("ext.cattle.io", "passwordchangerequests"),
    ("management.cattle.io", "kubeconfigs"),
    ("management.cattle.io", "tokens"),
    ("login.concierge.pinniped.dev", "tokencredentialrequests"),
    ("clientsecret.supervisor.pinniped.dev", "oidcclientsecretrequests"),
    ("upload.cdi.kubevirt.io", "uploadtokenrequests"),
    ("management.loft.sh", "ownedaccesskeys"),
    ("management.loft.sh", "resetaccesskeys"),
    ("storage.loft.sh", "accesskeys"),
];

/// Whether `name` is one of these. The API server compares exactly; a server behind it may not.
fn is_any(name: &str, of: &[&str]) -> bool {
    of.iter().any(|one| name.eq_ignore_ascii_case(one))
}

/// Why a request never passes, for the reader of the message; `None` when it is no such request.
#[must_use]
pub fn danger(method: &str, info: &RequestInfo) -> Option<&'static str> {
    if !info.is_resource {
        return None;
    }
    let (group, resource, subresource) = (info.group.as_str(), info.resource.as_str(), info.subresource.as_str());
    let reads = matches!(method, "GET" | "HEAD");
    if info.verb == "proxy" || is_any(subresource, &TUNNELS) {
        return Some("it runs code or opens a connection past the proxy");
    }
    if group.eq_ignore_ascii_case("subresources.kubevirt.io") && is_any(subresource, &KUBEVIRT_TUNNELS) {
        return Some("it opens a connection into a virtual machine");
    }
    if group.eq_ignore_ascii_case("token.kubevirt.io") {
        return Some("it mints a token for a virtual machine's console");
    }
    if is_any(subresource, &["ephemeralcontainers"]) && !reads {
        return Some("it runs code in a pod");
    }
    if is_any(subresource, &MINTING_SUBRESOURCES) {
        return Some("it mints a token");
    }
    if is_any(resource, &["certificatesigningrequests"]) && is_any(subresource, &["approval"]) {
        return Some("it mints a client certificate");
    }
    let mints = MINTING_RESOURCES
        .iter()
        .any(|(of_group, name)| group.eq_ignore_ascii_case(of_group) && resource.eq_ignore_ascii_case(name));
    if mints && !reads && !matches!(method, "DELETE" | "OPTIONS") {
        return Some("it mints a credential");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Target;

    fn is_denied(method: &str, raw: &str) -> bool {
        let target = Target::parse(raw).unwrap();
        danger(
            method,
            &RequestInfo::resolve(method, target.segments(), &target).unwrap(),
        )
        .is_some()
    }

    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

    #[test]
    fn cases_5_8_9_12_what_runs_code_or_tunnels_is_denied_with_every_method_and_in_every_group() {
        for raw in [
            "/api/v1/namespaces/ns/pods/p/exec",
            "/api/v1/namespaces/ns/pods/p/exec/",
            "/api/v1/namespaces/ns/pods/p/%65xec",
            "/api/v1/namespaces/ns/pods/p/EXEC",
            "/api/v1/namespaces/ns/pods/p/attach/x",
            "/api/v1/nodes/n/proxy",
            "/api/v1/nodes/n:10250/proxy/run/a/b/c",
            "/api/v1/namespaces/ns/services/https:web:8443/proxy/admin/x",
            "/api/v1/proxy/namespaces/ns/services/s",
            "/api/v1/proxy/nodes/n",
            "/apis/apps/v1/proxy/deployments/x",
            "/api/v1/watch/namespaces/ns/pods/p/exec",
            "/api/v1/watch/nodes/n/proxy/x",
            "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/pods",
            "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/secrets",
            "/apis/proxies.clusternet.io/v1alpha1/sockets/s/proxy/direct",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vnc",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vnc/screenshot",
            "/apis/subresources.kubevirt.io/v1alpha3/namespaces/ns/virtualmachines/vm/portforward/22/tcp",
            "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vsock",
            "/apis/token.kubevirt.io/v1alpha1/namespaces/ns/virtualmachines/vm/vnc",
        ] {
            for method in METHODS {
                assert!(is_denied(method, raw), "{method} {raw}");
            }
        }
    }

    #[test]
    fn case_11_what_answers_with_a_credential_is_denied() {
        for raw in [
            "/api/v1/namespaces/ns/serviceaccounts/sa/token",
            "/api/v1/watch/namespaces/ns/serviceaccounts/sa/token",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
            "/apis/core.gardener.cloud/v1beta1/namespaces/g/shoots/s/adminkubeconfig",
            "/apis/core.gardener.cloud/v1beta1/namespaces/g/shoots/s/viewerkubeconfig",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/kubeconfig",
        ] {
            for method in METHODS {
                assert!(is_denied(method, raw), "{method} {raw}");
            }
        }
        for (group, resource) in MINTING_RESOURCES {
            for raw in [
                format!("/apis/{group}/v1/{resource}"),
                format!("/apis/{group}/v1/namespaces/ns/{resource}"),
                format!("/apis/{group}/v1/{resource}/x"),
                format!("/apis/{group}/v1/watch/{resource}/x"),
            ] {
                for method in ["POST", "PUT", "PATCH"] {
                    assert!(is_denied(method, &raw), "{method} {raw}");
                }
                assert!(!is_denied("GET", &raw) && !is_denied("DELETE", &raw), "{raw}");
            }
        }
    }

    #[test]
    fn case_10_ephemeral_containers_may_be_read() {
        let raw = "/api/v1/namespaces/ns/pods/p/ephemeralcontainers";
        for method in METHODS {
            assert_eq!(is_denied(method, raw), !matches!(method, "GET" | "HEAD"), "{method}");
        }
    }

    #[test]
    fn case_7_names_that_read_like_these_are_names() {
        for raw in [
            "/api/v1/namespaces/exec/pods/attach/log",
            "/api/v1/namespaces/ns/services/proxy",
            "/api/v1/namespaces/ns/secrets/token",
            "/api/v1/namespaces/token/serviceaccounts/token",
            "/api/v1/namespaces/ns/configmaps/kubeconfig",
            "/api/v1/namespaces/proxy",
            "/api/v1/namespaces/proxy/status",
            "/api/v1/watch/namespaces/proxy/pods",
            "/apis/config.openshift.io/v1/proxies/cluster",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "/apis/token.example.com/v1/namespaces/ns/tokens/x",
            "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vnc",
        ] {
            for method in METHODS {
                assert!(!is_denied(method, raw), "{method} {raw}");
            }
        }
    }
}
