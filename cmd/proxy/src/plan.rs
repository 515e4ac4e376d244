//! Everything that is decided about a request before a byte of it goes upstream: whose it is, whether it passes, and
//! how it is written anew. No IO.

use std::sync::Arc;

use cli_mcp_kubeconfig::Authority;

use crate::head::{Framing, Head, HeadError};
use crate::path::{Target, TargetError, raw_target_without_parameters};
use crate::proxy::Entry;
use crate::refusal::Refusal;
use crate::request_info::RequestInfo;
use crate::state::{ApiServers, Backend, KubernetesUpstream, State, Upstream};
use crate::strip;

/// What goes upstream, and to whom.
pub struct Plan {
    /// To whom.
    pub backend: PlannedBackend,
    /// The head, written anew.
    pub outbound: Vec<u8>,
    /// How long the body is.
    pub framing: Framing,
    /// The protocol that the connection may switch to.
    pub upgrade: Option<String>,
    /// Whether the answer may take as long as it likes to begin.
    pub patient: bool,
}

/// To whom a request goes.
pub enum PlannedBackend {
    /// An API server, with its identity.
    Kubernetes(Arc<KubernetesUpstream>),
    /// A public server, with nothing.
    Allowlist(Arc<Upstream>),
}

impl PlannedBackend {
    /// The server.
    #[must_use]
    pub fn upstream(&self) -> &Upstream {
        match self {
            Self::Kubernetes(kubernetes) => &kubernetes.upstream,
            Self::Allowlist(upstream) => upstream,
        }
    }

    /// The injected token, to recognise it in the answer.
    #[must_use]
    pub fn token(&self) -> Option<&[u8]> {
        match self {
            Self::Kubernetes(kubernetes) => kubernetes.token.as_deref(),
            Self::Allowlist(_) => None,
        }
    }
}

/// Judges a request by one state, whatever is reloaded meanwhile.
///
/// # Errors
///
/// The refusal, and whether the connection ends with it.
pub fn plan(head: &Head, authority: &Authority, state: &State, entry: &mut Entry<'_>) -> Result<Plan, (Refusal, bool)> {
    let malformed = |error: HeadError| (Refusal::new(error.status(), error.to_string()), true);
    let (method, raw) = head.request_line().map_err(malformed)?;
    let verb_only = || RequestInfo {
        verb: method.to_ascii_lowercase(),
        ..RequestInfo::default()
    };
    // Another form of target may hold user information, and none of it is a path.
    let path = raw
        .split(['?', '#'])
        .next()
        .filter(|path| path.starts_with('/'))
        .unwrap_or_default();
    entry.describe(path.to_owned(), verb_only());
    let framing = head.request_framing().map_err(malformed)?;
    check_host(head, authority)?;
    if head
        .values("expect")
        .any(|expectation| !expectation.eq_ignore_ascii_case(b"100-continue"))
    {
        return Err((Refusal::new(417, "only `Expect: 100-continue` is understood"), true));
    }
    let asks = head.values("upgrade").next().is_some();
    let upgrade = (asks && head.has_member("connection", "upgrade")).then(|| {
        let protocols: Vec<String> = head
            .members("upgrade")
            .map(|member| String::from_utf8_lossy(member).to_ascii_lowercase())
            .collect();
        protocols.join(", ")
    });
    let Some(destination) = state.destination(authority) else {
        return Err((
            Refusal::new(403, format!("{} is no longer a target of this sandbox", authority)),
            true,
        ));
    };
    let plan = match &destination.target {
        Backend::Kubernetes(servers) => plan_kubernetes(servers, method, raw, head, framing, upgrade, entry),
        Backend::Allowlist(upstream) => plan_allowlist(upstream, method, raw, head, framing, upgrade),
    }?;
    // After the policy, so that who asks for exec hears that it is denied. SPDY clients send `Content-Length: 0`.
    if asks && framing != Framing::Empty {
        return Err((Refusal::new(400, "an upgrade with a body is ambiguous"), true));
    }
    Ok(plan)
}

/// Exactly one `Host`, and it is the tunnel's (case 17).
fn check_host(head: &Head, authority: &Authority) -> Result<(), (Refusal, bool)> {
    let mut hosts = head.values("host");
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err((Refusal::new(400, "exactly one Host header is required"), true));
    };
    let parsed = std::str::from_utf8(host)
        .ok()
        .map(|host| Authority::parse_with_default(host, 443));
    match parsed {
        Some(Ok(found)) if found == *authority => Ok(()),
        Some(Ok(found)) => Err((
            Refusal::new(
                421,
                format!("the tunnel leads to {authority}, but the request is for {found}"),
            ),
            true,
        )),
        Some(Err(error)) => Err((Refusal::new(400, format!("malformed Host header: {error}")), true)),
        None => Err((Refusal::new(400, "malformed Host header"), true)),
    }
}

fn plan_kubernetes(
    servers: &ApiServers,
    method: &str,
    raw: &str,
    head: &Head,
    framing: Framing,
    upgrade: Option<String>,
    entry: &mut Entry<'_>,
) -> Result<Plan, (Refusal, bool)> {
    let target = match Target::parse(raw) {
        Ok(target) => target,
        Err(error) => return Err(unread(error)),
    };
    let kubernetes = servers.for_target(&target);
    let decision = kubernetes.rules.decide(method, &target, upgrade.as_deref());
    let patient = decision.info.is_patient();
    entry.describe(target.decoded_path(), decision.info);
    decision
        .verdict
        .map_err(|denied| (Refusal::new(denied.status(), denied.to_string()), false))?;
    // An API server leaves it unread, and while it waits to be taken the client is not seen to leave.
    if ["GET", "HEAD"].contains(&method) && !matches!(framing, Framing::Empty | Framing::Length(0)) {
        return Err((Refusal::new(400, "a GET or HEAD with a body is not served"), true));
    }
    let injected = decision.inject.then_some(kubernetes.injected.as_slice());
    let path = target.to_canonical(strip::is_token_parameter);
    let outbound = write_head(
        method,
        &path,
        &kubernetes.upstream.host_header,
        head,
        framing,
        upgrade.as_deref(),
        injected,
    );
    Ok(Plan {
        backend: PlannedBackend::Kubernetes(kubernetes.clone()),
        outbound,
        framing,
        upgrade,
        patient,
    })
}

fn plan_allowlist(
    upstream: &Arc<Upstream>,
    method: &str,
    raw: &str,
    head: &Head,
    framing: Framing,
    upgrade: Option<String>,
) -> Result<Plan, (Refusal, bool)> {
    // Methods are told apart by case, but not by every server.
    if ["TRACE", "TRACK", "CONNECT"]
        .iter()
        .any(|refused| method.eq_ignore_ascii_case(refused))
    {
        return Err((Refusal::new(405, format!("method {method} is not served")), false));
    }
    let path = raw_target_without_parameters(raw, strip::is_token_parameter).map_err(unread)?;
    if upgrade
        .as_deref()
        .is_some_and(|protocol| protocol != "websocket" || method != "GET")
    {
        return Err((
            Refusal::new(403, "an upgrade of the connection is refused, except to websocket"),
            false,
        ));
    }
    let outbound = write_head(
        method,
        &path,
        &upstream.host_header,
        head,
        framing,
        upgrade.as_deref(),
        None,
    );
    Ok(Plan {
        backend: PlannedBackend::Allowlist(upstream.clone()),
        outbound,
        framing,
        upgrade,
        patient: false,
    })
}

/// What cannot be read is a mistake of the sender, not of the connection, except in another form of request.
fn unread(error: TargetError) -> (Refusal, bool) {
    let refusal = Refusal::new(error.status(), error.to_string());
    (refusal, error == TargetError::NotOriginForm)
}

/// The request as it is sent: nothing of the client's bytes but what was understood.
fn write_head(
    method: &str,
    path: &str,
    host: &str,
    head: &Head,
    framing: Framing,
    upgrade: Option<&str>,
    injected: Option<&[u8]>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    for part in [method, " ", path, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    strip::write_field(b"Host", host.as_bytes(), &mut out);
    strip::write_request_fields(head, &mut out);
    match framing {
        Framing::Length(length) => strip::write_field(b"Content-Length", length.to_string().as_bytes(), &mut out),
        Framing::Chunked => strip::write_field(b"Transfer-Encoding", b"chunked", &mut out),
        Framing::Empty | Framing::UntilClose => {}
    }
    if let Some(protocol) = upgrade {
        strip::write_field(b"Connection", b"Upgrade", &mut out);
        strip::write_field(b"Upgrade", protocol.as_bytes(), &mut out);
    }
    if let Some(injected) = injected {
        out.extend_from_slice(injected);
    }
    out.extend_from_slice(b"\r\n");
    out
}
