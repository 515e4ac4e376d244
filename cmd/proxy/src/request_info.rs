//! Which API request a method and path are, exactly as the API server resolves them
//! (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`), so that a check here is a check there.

use crate::path::Target;

/// A resolved request. For a path that is no resource, everything but [`Self::verb`] is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the path is under a resource of `/api` or `/apis`.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `proxy`, or the method in
    /// lower case for paths that are no resources. Empty for OPTIONS on a resource.
    pub verb: String,
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, empty when cluster-scoped.
    pub namespace: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Name of the object.
    pub name: String,
    /// Where the resource stands among the segments.
    pub at: usize,
}

/// The API server answers such a path with an error: a special verb without anything behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path names no resource after its `watch` or `proxy`")]
pub struct Unresolvable;

impl RequestInfo {
    /// Whether the answer may take as long as it likes, to begin and to end: watches and logs.
    #[must_use]
    pub fn is_patient(&self) -> bool {
        self.verb == "watch" || self.subresource == "log"
    }

    /// Resolves a request. `segments` is the path below the server's prefix.
    ///
    /// # Errors
    ///
    /// Where the API server cannot resolve it either.
    pub fn resolve(method: &str, segments: &[String], target: &Target) -> Result<Self, Unresolvable> {
        let mut info = Self::by_path(method, segments, str::eq)?;
        if info.is_resource && info.name.is_empty() && info.verb == "get" {
            info.verb = if wants_watch(target) { "watch" } else { "list" }.to_owned();
            info.name = selected_name(target).unwrap_or_default();
        }
        if info.is_resource && info.name.is_empty() && info.verb == "delete" {
            info.verb = "deletecollection".to_owned();
        }
        Ok(info)
    }

    /// The requests that a server behind the API server may read in this one's path, without what their query says:
    /// Clusterpedia and Karmada's search serve a whole API below a resource of their own. Of an ordinary object nothing
    /// stands so far behind its resource.
    pub fn nested<'a>(&self, method: &'a str, segments: &'a [String]) -> impl Iterator<Item = Self> + use<'a> {
        let from = if self.is_resource { self.at } else { segments.len() };
        (from..segments.len()).filter_map(move |at| {
            // The API server compares exactly; a server behind it may not.
            Self::by_path(method, segments.get(at..)?, str::eq_ignore_ascii_case)
                .ok()
                .filter(|info| info.is_resource)
        })
    }

    /// `same` says whether a segment is one of the two roots.
    fn by_path(method: &str, segments: &[String], same: fn(&str, &str) -> bool) -> Result<Self, Unresolvable> {
        let (group, version, mut parts) = match segments {
            [root, version, rest @ ..] if same(root, "api") && !rest.is_empty() => ("", version, rest),
            [root, group, version, rest @ ..] if same(root, "apis") && !rest.is_empty() => {
                (group.as_str(), version, rest)
            }
            _ => {
                return Ok(Self {
                    verb: method.to_ascii_lowercase(),
                    ..Self::default()
                });
            }
        };
        let mut info = Self {
            is_resource: true,
            group: group.to_owned(),
            version: version.clone(),
            ..Self::default()
        };

        match parts.first().map(String::as_str) {
            Some(special @ ("watch" | "proxy")) => {
                if parts.len() < 2 {
                    return Err(Unresolvable);
                }
                info.verb = special.to_owned();
                parts = parts.get(1..).unwrap_or_default();
            }
            _ => {
                info.verb = match method {
                    "POST" => "create",
                    "GET" | "HEAD" => "get",
                    "PUT" => "update",
                    "PATCH" => "patch",
                    "DELETE" => "delete",
                    _ => "",
                }
                .to_owned();
            }
        }
        if let [namespaces, namespace, rest @ ..] = parts
            && namespaces == "namespaces"
        {
            info.namespace = namespace.clone();
            if rest.first().is_some_and(|next| next != "status" && next != "finalize") {
                parts = rest;
            }
        }
        let part = |index: usize| parts.get(index).cloned().unwrap_or_default();
        info.at = segments.len() - parts.len();
        info.resource = part(0);
        info.name = part(1);
        // A special verb without subresources: all that follows is a path on the proxied server.
        if info.verb != "proxy" {
            info.subresource = part(2);
        }
        Ok(info)
    }
}

/// The first `watch` parameter counts; only `false` and `0` are false.
fn wants_watch(target: &Target) -> bool {
    target
        .parameter("watch")
        .next()
        .is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
}

/// The name that a list is limited to by `fieldSelector=metadata.name=NAME`. When another list option does not decode,
/// the API server takes no name.
fn selected_name(target: &Target) -> Option<String> {
    for number in ["limit", "timeoutSeconds"] {
        if target
            .parameter(number)
            .next()
            .is_some_and(|value| value.parse::<i64>().is_err())
        {
            return None;
        }
    }
    let selector = target.parameter("fieldSelector").next()?;
    let mut name = None;
    for term in selector.split(',').filter(|term| !term.is_empty()) {
        let (key, value, equal) = split_term(term)?;
        if key == "metadata.name" && equal && name.is_none() {
            name = Some(value.to_owned());
        }
    }
    // Escapes are legal in values but never in names.
    name.filter(|name| !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%', '\\']))
}

/// `key!=value`, `key==value` or `key=value`, in the order in which the API server looks for the operator.
fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    let at = term.find('=')?;
    let (key, rest) = term.split_at(at);
    if let Some(key) = key.strip_suffix('!') {
        return Some((key, rest.get(1..)?, false));
    }
    rest.strip_prefix("==")
        .or_else(|| rest.strip_prefix('='))
        .map(|value| (key, value, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(method: &str, raw: &str) -> String {
        let target = Target::parse(raw).unwrap();
        match RequestInfo::resolve(method, target.segments(), &target) {
            Err(Unresolvable) => "unresolvable".into(),
            Ok(info) if !info.is_resource => format!("non-resource {}", info.verb),
            Ok(info) => format!(
                "{} {}/{} {}/{}/{}/{}",
                info.verb, info.group, info.version, info.namespace, info.resource, info.name, info.subresource
            ),
        }
    }

    /// Rows of the API server's own table test (`requestinfo_test.go`), and the names that look like keywords.
    #[test]
    fn resolves_as_the_api_server_does() {
        for (method, raw, expected) in [
            ("GET", "/api/v1/namespaces", "list /v1 /namespaces//"),
            ("GET", "/api/v1/namespaces/other", "get /v1 other/namespaces/other/"),
            ("GET", "/api/v1/namespaces/other/pods", "list /v1 other/pods//"),
            ("GET", "/api/v1/namespaces/other/pods/foo", "get /v1 other/pods/foo/"),
            ("HEAD", "/api/v1/namespaces/other/pods/foo", "get /v1 other/pods/foo/"),
            ("GET", "/api/v1/pods", "list /v1 /pods//"),
            ("HEAD", "/api/v1/pods", "list /v1 /pods//"),
            (
                "GET",
                "/api/v1/proxy/namespaces/other/pods/foo",
                "proxy /v1 other/pods/foo/",
            ),
            (
                "GET",
                "/api/v1/proxy/namespaces/other/pods/foo/subpath/not/a/subresource",
                "proxy /v1 other/pods/foo/",
            ),
            ("GET", "/api/v1/watch/pods", "watch /v1 /pods//"),
            ("GET", "/api/v1/pods?watch=true", "watch /v1 /pods//"),
            ("GET", "/api/v1/pods?watch=false", "list /v1 /pods//"),
            ("GET", "/api/v1/pods?watch", "watch /v1 /pods//"),
            ("GET", "/api/v1/pods?watch=0&watch=1", "list /v1 /pods//"),
            ("GET", "/api/v1/watch/namespaces/other/pods", "watch /v1 other/pods//"),
            (
                "GET",
                "/api/v1/watch/namespaces/ns/pods/p/exec",
                "watch /v1 ns/pods/p/exec",
            ),
            (
                "GET",
                "/api/v1/namespaces/other/pods/foo/status",
                "get /v1 other/pods/foo/status",
            ),
            (
                "GET",
                "/api/v1/namespaces/other/pods/foo/proxy/subpath",
                "get /v1 other/pods/foo/proxy",
            ),
            (
                "PUT",
                "/api/v1/namespaces/other/finalize",
                "update /v1 other/namespaces/other/finalize",
            ),
            (
                "PUT",
                "/api/v1/namespaces/other/status",
                "update /v1 other/namespaces/other/status",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/other/pods",
                "deletecollection /v1 other/pods//",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/ns/deployments/d/scale",
                "patch apps/v1 ns/deployments/d/scale",
            ),
            (
                "POST",
                "/apis/apps/v1/namespaces/ns/deployments/",
                "create apps/v1 ns/deployments//",
            ),
            ("OPTIONS", "/api/v1/pods", " /v1 /pods//"),
            ("GET", "/api/v1/namespaces/proxy/pods", "list /v1 proxy/pods//"),
            ("GET", "/api/v1/namespaces/watch", "get /v1 watch/namespaces/watch/"),
            (
                "GET",
                "/api/v1/namespaces/exec/pods/attach/status",
                "get /v1 exec/pods/attach/status",
            ),
            (
                "GET",
                "/api/v1/nodes/n:10250/proxy/run/a/b/c",
                "get /v1 /nodes/n:10250/proxy",
            ),
            ("GET", "/api/v1/proxy", "unresolvable"),
            ("GET", "/apis/g/v1/watch", "unresolvable"),
            ("GET", "/api/v1", "non-resource get"),
            ("GET", "/api", "non-resource get"),
            ("GET", "/apis/apps/v1", "non-resource get"),
            ("GET", "/apis/apps", "non-resource get"),
            ("POST", "/version", "non-resource post"),
            ("GET", "/", "non-resource get"),
            ("GET", "/API/v1/pods", "non-resource get"),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dfoo",
                "list /v1 /pods/foo/",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3D%3Dfoo,x%3Dy&watch=1",
                "watch /v1 /pods/foo/",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name!=foo",
                "list /v1 /pods//",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dfoo&limit=x",
                "list /v1 /pods//",
            ),
        ] {
            assert_eq!(resolve(method, raw), expected, "{method} {raw}");
        }
    }
}
