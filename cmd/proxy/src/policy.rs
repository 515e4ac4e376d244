//! What passes on a kubernetes target: a pure decision over the resolved request (`proxy.md`, step 4).

use cli_mcp_api::v1alpha1::{Access, DeniedResource};

use crate::deny_set;
use crate::path::Target;
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

/// Resources that answer with whatever resources their query asks for, so that they show any denied one: group and
/// resource. Clusterpedia's collections.
const SHOWS_ANY: [(&str, &str); 1] = [("clusterpedia.io", "collectionresources")];

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
            Self::Unresolvable(_) => 400,
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
        self.permit(method, info, segments)?;
        if info.is_resource && deny_set::has_tunnel(segments.get(info.at..).unwrap_or_default()) {
            return Err(Denied::Dangerous {
                what: describe(info),
                why: deny_set::TUNNEL,
            });
        }
        // Whoever serves it would answer these as if they were asked by themselves.
        for nested in info.nested(method, segments) {
            self.permit(method, &nested, segments)?;
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

    fn permit(&self, method: &str, info: &RequestInfo, segments: &[String]) -> Result<(), Denied> {
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
        Ok(())
    }
}

/// Whether a request is for a denied resource, or for another one that shows its content. The API server compares
/// exactly; a server behind it may not.
fn shows(info: &RequestInfo, denied: &DeniedResource) -> bool {
    let is = |found: &str, expected: &str| found.eq_ignore_ascii_case(expected);
    let itself = is(&info.group, &denied.group) && is(&info.resource, &denied.resource);
    let any = SHOWS_ANY
        .iter()
        .any(|(group, resource)| is(&info.group, group) && is(&info.resource, resource));
    itself
        || any
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
mod tests;
