//! What passes on a kubernetes target: a pure decision over the resolved request (`proxy.md`, step 4).

use cli_mcp_api::v1alpha1::{Access, DeniedResource};

use crate::deny_set;
use crate::path::{Target, TargetError};
use crate::request_info::{RequestInfo, Unresolvable};

/// Methods that pass at all (`proxy_cases.md`, case 38).
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The API server's own roots: what lies under them gets the credential, nothing else does (case 14).
const ROOTS: [&str; 10] = [
    "api",
    "apis",
    "openapi",
    "version",
    "healthz",
    "livez",
    "readyz",
    ".well-known",
    "openid",
    "metrics",
];

/// Resources of other groups that answer with the content of a denied one: group, resource, subresource, and what they
/// show. OpenShift's `imagestreams/secrets` lists Secrets.
const SHOWN_ELSEWHERE: [(&str, &str, &str, &str, &str); 1] =
    [("image.openshift.io", "imagestreams", "secrets", "", "secrets")];

/// What a target allows beside the fixed rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Path under which the API is served; empty for most servers.
    pub prefix: String,
    /// What passes.
    pub access: Access,
    /// Refused whatever the credential may do.
    pub denied_resources: Vec<DeniedResource>,
    /// Whether the identity goes with the connection, as that of a client certificate does: then nothing can be asked
    /// without it.
    pub identity_by_connection: bool,
}

/// Why a request is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Not one of the methods that pass.
    #[error("method {0} is not served")]
    Method(String),
    /// Not a path that is read in one way only.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The API server cannot resolve it.
    #[error(transparent)]
    Unresolvable(#[from] Unresolvable),
    /// Outside the server's prefix or the API's roots.
    #[error("the path is outside the API of this target: nothing else on the host gets a credential")]
    OutsideApi,
    /// Runs code, opens a tunnel or mints a token.
    #[error("denied by credential proxy: {what}: {why}")]
    Dangerous {
        /// Resource and subresource.
        what: String,
        /// Why, for the reader of the message.
        why: &'static str,
    },
    /// `access: ReadOnly`.
    #[error("denied by credential proxy: {0}: this target is ReadOnly")]
    ReadOnly(String),
    /// `deniedResources`.
    #[error("denied by credential proxy: {0}: the resource is in deniedResources of this target")]
    DeniedResource(String),
    /// An upgrade other than websocket on watch.
    #[error("denied by credential proxy: an upgrade of the connection, except to websocket on a watch")]
    Upgrade,
}

impl Denied {
    /// The status that the client gets.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Method(_) => 405,
            Self::Target(_) | Self::Unresolvable(_) => 400,
            _ => 403,
        }
    }
}

/// What a request is, and whether it passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The resolved request, as far as it could be resolved. For the audit line.
    pub info: RequestInfo,
    /// Whether the credential goes with it: not with OPTIONS.
    pub inject: bool,
    /// `Err` when it does not pass.
    pub verdict: Result<(), Denied>,
}

impl Rules {
    /// The segments below this target's prefix; `None` when the path is not under it. Segments are compared whole, so
    /// `/k8s/clusters/c-1` does not match `/k8s/clusters/c-10`.
    #[must_use]
    pub fn below_prefix<'a>(&self, target: &'a Target) -> Option<&'a [String]> {
        let mut rest = target.segments();
        for expected in self.prefix.split('/').skip(1) {
            match rest.split_first() {
                Some((first, tail)) if first == expected => rest = tail,
                _ => return None,
            }
        }
        Some(rest)
    }

    /// Judges a request whose target could be read. `upgrade` is the requested protocol, if any.
    #[must_use]
    pub fn decide(&self, method: &str, target: &Target, upgrade: Option<&str>) -> Decision {
        let deny = |info: RequestInfo, denied: Denied| Decision {
            info,
            inject: false,
            verdict: Err(denied),
        };
        let verb_only = || RequestInfo {
            verb: method.to_ascii_lowercase(),
            ..RequestInfo::default()
        };
        let nameless = method == "OPTIONS";
        if !METHODS.contains(&method) || (nameless && self.identity_by_connection) {
            return deny(verb_only(), Denied::Method(method.chars().take(32).collect()));
        }
        let Some(segments) = self.below_prefix(target) else {
            return deny(verb_only(), Denied::OutsideApi);
        };
        let info = match RequestInfo::resolve(method, segments, target) {
            Ok(info) => info,
            Err(error) => return deny(verb_only(), Denied::Unresolvable(error)),
        };
        let verdict = match segments.first() {
            Some(root) if !ROOTS.contains(&root.as_str()) => Err(Denied::OutsideApi),
            _ => self.judge(method, &info, segments, upgrade),
        };
        Decision {
            inject: verdict.is_ok() && !nameless,
            info,
            verdict,
        }
    }

    fn judge(
        &self,
        method: &str,
        info: &RequestInfo,
        segments: &[String],
        upgrade: Option<&str>,
    ) -> Result<(), Denied> {
        if let Some(why) = deny_set::danger(method, info) {
            return Err(Denied::Dangerous {
                what: describe(info),
                why,
            });
        }
        if info.is_resource && self.denied_resources.iter().any(|denied| shows(info, denied)) {
            return Err(Denied::DeniedResource(describe(info)));
        }
        if self.access == Access::ReadOnly && !reads_only(method, info) {
            let what = if info.is_resource {
                format!("{} {}", info.verb, describe(info))
            } else {
                format!("{method} /{}", segments.join("/"))
            };
            return Err(Denied::ReadOnly(what));
        }
        match upgrade {
            None => Ok(()),
            Some(protocol)
                if protocol == "websocket" && method == "GET" && info.is_resource && info.verb == "watch" =>
            {
                Ok(())
            }
            Some(_) => Err(Denied::Upgrade),
        }
    }
}

/// Whether a request is for a denied resource, or for another one that shows its content. The API server compares
/// exactly; a server behind it may not.
fn shows(info: &RequestInfo, denied: &DeniedResource) -> bool {
    let is = |found: &str, expected: &str| found.eq_ignore_ascii_case(expected);
    let itself = is(&info.group, &denied.group) && is(&info.resource, &denied.resource);
    itself
        || SHOWN_ELSEWHERE
            .iter()
            .any(|(group, resource, subresource, shown_group, shown)| {
                (is(&info.group, group) && is(&info.resource, resource) && is(&info.subresource, subresource))
                    && (is(&denied.group, shown_group) && is(&denied.resource, shown))
            })
}

/// Judged by method and verb: the verb of a legacy `watch/` path is `watch` whatever the method.
fn reads_only(method: &str, info: &RequestInfo) -> bool {
    match method {
        "GET" | "HEAD" => true,
        "POST" => {
            info.verb == "create"
                && info.subresource.is_empty()
                && info.name.is_empty()
                && matches!(
                    (info.group.as_str(), info.resource.as_str()),
                    (
                        "authorization.k8s.io",
                        "selfsubjectaccessreviews" | "selfsubjectrulesreviews"
                    ) | ("authentication.k8s.io", "selfsubjectreviews")
                        | ("authorization.openshift.io", "selfsubjectrulesreviews")
                )
        }
        _ => false,
    }
}

/// `pods/exec`, `deployments.apps`, `virtualmachineinstances.subresources.kubevirt.io/vnc`.
fn describe(info: &RequestInfo) -> String {
    let mut text = info.resource.clone();
    if !info.group.is_empty() {
        text.push('.');
        text.push_str(&info.group);
    }
    if !info.subresource.is_empty() {
        text.push('/');
        text.push_str(&info.subresource);
    } else if info.verb == "proxy" {
        text.push_str("/proxy");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(rules: &Rules, method: &str, raw: &str) -> u16 {
        match Target::parse(raw) {
            Err(_) => 400,
            Ok(target) => rules
                .decide(method, &target, None)
                .verdict
                .map_or_else(|denied| denied.status(), |()| 200),
        }
    }

    /// Section H of `proxy_cases.md`: what is expected on a kubernetes target with an empty prefix.
    #[test]
    fn section_h_vectors() {
        let rules = Rules::default();
        for (method, raw) in [
            ("GET", "/api/v1/namespaces/ns/pods/p/log?follow=true"),
            ("GET", "/api/v1/namespaces/proxy/pods"),
            ("GET", "/api/v1/namespaces/ns/services/proxy"),
            ("GET", "/api/v1/namespaces/ns/configmaps/exec"),
            ("GET", "/apis/config.openshift.io/v1/proxies/cluster"),
            ("GET", "/api/v1/namespaces/ns/pods/exec/log"),
            ("GET", "/api/v1/namespaces/exec/pods/attach/status"),
            ("GET", "/api/v1/namespaces/proxy"),
            ("GET", "/api/v1/namespaces/proxy/status"),
            ("PUT", "/api/v1/namespaces/x/finalize"),
            ("PATCH", "/apis/apps/v1/namespaces/ns/deployments/exec/scale"),
            ("GET", "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            ("POST", "/api/v1/namespaces/ns/serviceaccounts"),
            ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
            ("GET", "/apis/"),
            ("GET", "/version/"),
            ("GET", "/"),
        ] {
            assert_eq!(status_of(&rules, method, raw), 200, "{method} {raw}");
        }
        for method in ["GET", "POST", "OPTIONS", "DELETE"] {
            for raw in [
                "/api/v1/namespaces/ns/pods/p/exec",
                "/api/v1/namespaces/ns/pods/p/exec/",
                "/api/v1/namespaces/ns/pods/p/%65xec",
                "/api/v1/nodes/n/proxy",
                "/api/v1/nodes/n/proxy/",
                "/api/v1/nodes/n:10250/proxy/run/a/b/c",
                "/api/v1/namespaces/ns/services/https:web:8443/proxy/admin/x",
                "/api/v1/proxy/namespaces/ns/services/s",
                "/api/v1/proxy/nodes/n",
                "/api/v1/watch/namespaces/ns/pods/p/exec",
                "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/pods",
                "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/vnc",
                "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/console",
                "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/portforward",
                "/api/v1/namespaces/ns/serviceaccounts/sa/token",
                "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval",
                "/v3/tokens",
                "/logs/kubelet.log",
                "/oauth/authorize",
                "/debug/pprof",
            ] {
                assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
            }
        }
        for method in ["PATCH", "PUT", "POST"] {
            assert_eq!(
                status_of(&rules, method, "/api/v1/namespaces/ns/pods/p/ephemeralcontainers"),
                403
            );
            assert_eq!(
                status_of(&rules, method, "/apis/oauth.openshift.io/v1/oauthaccesstokens"),
                403
            );
            assert_eq!(status_of(&rules, method, "/apis/ext.cattle.io/v1/tokens"), 403);
        }
        for method in ["TRACE", "TRACK", "CONNECT", "PROPFIND", "get"] {
            assert_eq!(status_of(&rules, method, "/api/v1/pods"), 405, "{method}");
        }
        assert_eq!(status_of(&rules, "GET", "/api/v1/proxy"), 400);
    }

    #[test]
    fn case_14_only_under_the_prefix_and_on_segment_boundaries() {
        let rules = Rules {
            prefix: "/k8s/clusters/c-1".into(),
            ..Rules::default()
        };
        assert_eq!(status_of(&rules, "GET", "/k8s/clusters/c-1/api/v1/pods"), 200);
        assert_eq!(status_of(&rules, "GET", "/k8s/clusters/c-1/version"), 200);
        for raw in [
            "/k8s/clusters/c-10/api/v1/pods",
            "/v3/tokens",
            "/api/v1/pods",
            "/k8s/clusters/c-1/v3/tokens",
            "/k8s/clusters",
        ] {
            assert_eq!(status_of(&rules, "POST", raw), 403, "{raw}");
        }
        assert_eq!(
            status_of(&rules, "GET", "/k8s/clusters/c-1/api/v1/namespaces/n/pods/p/exec"),
            403
        );
    }

    #[test]
    fn read_only_lets_reads_and_self_reviews_pass() {
        let rules = Rules {
            access: Access::ReadOnly,
            ..Rules::default()
        };
        for (method, raw) in [
            ("GET", "/api/v1/pods"),
            ("HEAD", "/api/v1/pods"),
            ("GET", "/api/v1/pods?watch=1"),
            ("GET", "/api/v1/watch/pods"),
            ("GET", "/api/v1/namespaces/n/pods/p/log"),
            ("GET", "/apis"),
            ("GET", "/openapi/v3"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"),
            ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"),
        ] {
            assert_eq!(status_of(&rules, method, raw), 200, "{method} {raw}");
        }
        for (method, raw) in [
            ("POST", "/api/v1/namespaces/n/pods"),
            ("DELETE", "/api/v1/watch/namespaces/n/pods/p"),
            ("POST", "/api/v1/watch/pods"),
            ("PATCH", "/api/v1/namespaces/n/pods/p"),
            ("DELETE", "/api/v1/namespaces/n/pods"),
            ("OPTIONS", "/api/v1/pods"),
            ("POST", "/api/v1/namespaces/n/pods/p/eviction"),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x"),
            ("POST", "/apis/evil.example/v1/selfsubjectaccessreviews"),
            ("POST", "/version"),
        ] {
            assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
        }
    }

    #[test]
    fn denied_resources_are_refused_for_all_verbs_with_their_subresources() {
        let denied = |group: &str, resource: &str| DeniedResource {
            group: group.into(),
            resource: resource.into(),
        };
        let rules = Rules {
            denied_resources: vec![
                denied("", "secrets"),
                denied("apps", "deployments"),
                denied("", "namespaces"),
            ],
            ..Rules::default()
        };
        for (method, raw) in [
            ("GET", "/api/v1/secrets"),
            ("GET", "/api/v1/watch/namespaces/n/secrets/s"),
            ("GET", "/api/v1/namespaces/n/secrets/s"),
            ("DELETE", "/api/v1/namespaces/n/secrets"),
            ("OPTIONS", "/api/v1/secrets"),
            ("GET", "/apis/apps/v1beta1/namespaces/n/deployments/d/scale"),
            ("GET", "/api/v1/namespaces/n"),
            ("PUT", "/api/v1/namespaces/n/finalize"),
            ("GET", "/api/v1/namespaces/n/Secrets/s"),
            ("GET", "/apis/image.openshift.io/v1/namespaces/n/imagestreams/i/secrets"),
        ] {
            assert_eq!(status_of(&rules, method, raw), 403, "{method} {raw}");
        }
        assert_eq!(status_of(&rules, "GET", "/api/v1/namespaces/n/pods"), 200);
        assert_eq!(status_of(&rules, "GET", "/api/v1/namespaces/secrets/pods/secrets"), 200);
        assert_eq!(
            status_of(&rules, "GET", "/apis/extensions/v1/namespaces/n/deployments"),
            200
        );
    }

    #[test]
    fn case_47_only_websocket_on_watch_may_upgrade() {
        let rules = Rules::default();
        let verdict = |method: &str, raw: &str, upgrade: &str| {
            rules
                .decide(method, &Target::parse(raw).unwrap(), Some(upgrade))
                .verdict
        };
        assert_eq!(verdict("GET", "/api/v1/pods?watch=1", "websocket"), Ok(()));
        assert_eq!(verdict("GET", "/api/v1/watch/pods", "websocket"), Ok(()));
        assert_eq!(verdict("GET", "/api/v1/pods?watch=1", "SPDY/3.1"), Err(Denied::Upgrade));
        assert_eq!(verdict("GET", "/api/v1/pods", "websocket"), Err(Denied::Upgrade));
        assert_eq!(
            verdict("GET", "/api/v1/namespaces/n/pods/p/log?follow=1", "websocket"),
            Err(Denied::Upgrade)
        );
        assert!(matches!(
            verdict("GET", "/api/v1/namespaces/n/pods/p/exec", "websocket"),
            Err(Denied::Dangerous { .. })
        ));
    }

    #[test]
    fn options_passes_without_the_credential_or_not_at_all() {
        let target = Target::parse("/api/v1/pods").unwrap();
        let decision = Rules::default().decide("OPTIONS", &target, None);
        assert_eq!((decision.verdict, decision.inject), (Ok(()), false));
        assert!(Rules::default().decide("GET", &target, None).inject);
        let rules = Rules {
            identity_by_connection: true,
            ..Rules::default()
        };
        assert_eq!(status_of(&rules, "OPTIONS", "/api/v1/pods"), 405);
        assert_eq!(status_of(&rules, "GET", "/api/v1/pods"), 200);
    }
}
