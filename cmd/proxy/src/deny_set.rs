//! What never passes on a kubernetes target, whatever the credential may do: what runs code, opens a way around the
//! proxy, or answers with a credential (`proxy_cases.md`, cases 5 and 8 to 12).

use crate::request_info::RequestInfo;

/// Subresources that run code or open a way around the proxy, in any group: aggregated API servers have them too.
const TUNNELS: [&str; 6] = ["exec", "attach", "portforward", "proxy", "shell", "debugshell"];

/// The same under names that mean something else in other groups: KubeVirt's consoles and tunnels into virtual machines,
/// Open Cluster Management's way to the services of a managed cluster.
const TUNNELS_OF_GROUPS: [(&str, &str); 7] = [
    ("subresources.kubevirt.io", "console"),
    ("subresources.kubevirt.io", "vnc"),
    ("subresources.kubevirt.io", "portforward"),
    ("subresources.kubevirt.io", "usbredir"),
    ("subresources.kubevirt.io", "ssh"),
    ("subresources.kubevirt.io", "vsock"),
    ("proxy.open-cluster-management.io", "aggregator"),
];

/// Endings of subresources that answer with a credential, in any group: `serviceaccounts/token`, Gardener's
/// `shoots/adminkubeconfig`, vCluster Platform's `users/accesskeys`, `apps/credentials`, scripts that join a node by a
/// token, and database addresses with their password. A CustomResourceDefinition cannot have such a subresource, so that
/// no ordinary object is meant.
const MINTING_SUBRESOURCES: [&str; 8] = [
    "token",
    "tokenrequest",
    "accesskey",
    "accesskeys",
    "kubeconfig",
    "credentials",
    "joinscript",
    "externaldatabase",
];

/// Endings of resources whose creation answers with a credential, in any group: OpenShift's `useroauthaccesstokens`,
/// Rancher's `tokens` and `kubeconfigs`, vCluster Platform's `ownedaccesskeys`. None of Kubernetes' own ends so, and of
/// other resources it is not known what makes a credential out of them.
const MINTING_ENDINGS: [&str; 8] = [
    "token",
    "tokens",
    "tokenrequest",
    "tokenrequests",
    "accesskey",
    "accesskeys",
    "kubeconfig",
    "kubeconfigs",
];

/// Other resources whose creation answers with a credential, or leads to one. A certificate signing request is among them
/// because the controller manager approves some by itself: with a powerful credential it is a client certificate.
const MINTING_RESOURCES: [(&str, &str); 6] = [
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("certificates.k8s.io", "podcertificaterequests"),
    ("oauth.openshift.io", "tokenreviews"),
    ("ext.cattle.io", "passwordchangerequests"),
    ("login.concierge.pinniped.dev", "tokencredentialrequests"),
    ("clientsecret.supervisor.pinniped.dev", "oidcclientsecretrequests"),
];

/// Whether `name` is one of these. The API server compares exactly; a server behind it may not.
fn is_any(name: &str, of: &[&str]) -> bool {
    of.iter().any(|one| name.eq_ignore_ascii_case(one))
}

fn ends_with_any(name: &str, endings: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    endings.iter().any(|ending| name.ends_with(ending))
}

fn is_pair(group: &str, name: &str, of: &[(&str, &str)]) -> bool {
    of.iter()
        .any(|(of_group, one)| group.eq_ignore_ascii_case(of_group) && name.eq_ignore_ascii_case(one))
}

/// Whether a tunnel's name stands anywhere behind an object's name, `parts` being the resource and all that follows. In
/// Kubernetes' own API nothing stands behind the subresource; an aggregated server may have its tunnels there, as
/// Clusterpedia's `resources/clusters/NAME/proxy`.
#[must_use]
pub fn has_tunnel(parts: &[String]) -> bool {
    parts.iter().skip(2).any(|part| is_any(part, &TUNNELS))
}

/// Why a request with a tunnel never passes.
pub const TUNNEL: &str = "it runs code or opens a connection past the proxy";

/// Why a request never passes, for the reader of the message; `None` when it is no such request.
#[must_use]
pub fn danger(method: &str, info: &RequestInfo) -> Option<&'static str> {
    if !info.is_resource {
        return None;
    }
    let (group, resource, subresource) = (info.group.as_str(), info.resource.as_str(), info.subresource.as_str());
    let reads = matches!(method, "GET" | "HEAD");
    if info.verb == "proxy" || is_any(subresource, &TUNNELS) {
        return Some(TUNNEL);
    }
    if is_pair(group, subresource, &TUNNELS_OF_GROUPS) {
        return Some("it opens a connection into a virtual machine or another cluster");
    }
    if group.eq_ignore_ascii_case("token.kubevirt.io") {
        return Some("it mints a token for a virtual machine's console");
    }
    if is_any(subresource, &["ephemeralcontainers"]) && !reads {
        return Some("it runs code in a pod");
    }
    if ends_with_any(subresource, &MINTING_SUBRESOURCES) {
        return Some("it mints a token");
    }
    if is_any(resource, &["certificatesigningrequests"]) && is_any(subresource, &["approval"]) {
        return Some("it mints a client certificate");
    }
    let mints = ends_with_any(resource, &MINTING_ENDINGS) || is_pair(group, resource, &MINTING_RESOURCES);
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
        let info = RequestInfo::resolve(method, target.segments(), &target).unwrap();
        danger(method, &info).is_some() || has_tunnel(&target.segments()[info.at..])
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
            "/apis/clusterpedia.io/v1beta1/resources/clusters/c1/proxy/metrics",
            "/apis/clusterpedia.io/v1beta1/resources/clusters/api/Proxy/metrics",
            "/apis/proxy.open-cluster-management.io/v1beta1/namespaces/c/clusterstatuses/c/aggregator/svc/x",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/shell",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/debugshell",
            "/apis/management.loft.sh/v1/nodeproviders/p/exec",
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
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/accesskey",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/nodeaccesskey",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/joinscript",
            "/apis/management.loft.sh/v1/namespaces/p/virtualclusterinstances/v/externaldatabase",
            "/apis/management.loft.sh/v1/clusters/c/accesskey",
            "/apis/management.loft.sh/v1/users/u/accesskeys",
            "/apis/management.loft.sh/v1/teams/t/AccessKeys",
            "/apis/management.loft.sh/v1/tenants/t/nicotoken",
            "/apis/management.loft.sh/v1/apps/a/credentials",
            "/apis/any.example/v1/things/t/sometokenrequest",
        ] {
            for method in METHODS {
                assert!(is_denied(method, raw), "{method} {raw}");
            }
        }
        let by_ending = [
            ("oauth.openshift.io", "oauthaccesstokens"),
            ("oauth.openshift.io", "useroauthaccesstokens"),
            ("oauth.openshift.io", "oauthauthorizetokens"),
            ("ext.cattle.io", "kubeconfigs"),
            ("ext.cattle.io", "tokens"),
            ("management.cattle.io", "kubeconfigs"),
            ("management.cattle.io", "Tokens"),
            ("upload.cdi.kubevirt.io", "uploadtokenrequests"),
            ("management.loft.sh", "ownedaccesskeys"),
            ("management.loft.sh", "resetaccesskeys"),
            ("management.loft.sh", "directclusterendpointtokens"),
            ("management.loft.sh", "ingressauthtokens"),
            ("management.loft.sh", "licensetokens"),
            ("management.loft.sh", "redirecttokens"),
            ("storage.loft.sh", "accesskeys"),
            ("any.example", "sometokens"),
        ];
        for (group, resource) in by_ending.into_iter().chain(MINTING_RESOURCES) {
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
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            "/apis/token.example.com/v1/namespaces/kubeconfigs/tokenizers/accesskeys",
            "/apis/apps/v1/namespaces/shell/deployments/credentials/scale",
            "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vnc",
        ] {
            for method in METHODS {
                assert!(!is_denied(method, raw), "{method} {raw}");
            }
        }
    }
}
