//! The API server as oracle: its audit log says how it resolved each path of a generated corpus, and the proxy's
//! resolver agrees or refuses. Nothing is changed in the cluster: every request is sent as a user without rights.
//! `make test-e2e` runs it on the development cluster, whose audit log can be read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cli_mcp_kubeconfig::{Credential, Host, Kubeconfig, Trust};
use cli_mcp_proxy::body::Decoder;
use cli_mcp_proxy::deny_set;
use cli_mcp_proxy::dial::{AddressRule, Dialer, SystemResolver, UpstreamStream};
use cli_mcp_proxy::head::{Head, find_end};
use cli_mcp_proxy::path::Target;
use cli_mcp_proxy::policy::{Decision, Rules};
use cli_mcp_proxy::request_info::RequestInfo;
use cli_mcp_proxy::{strip, tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Requests that are compared.
const CORPUS: usize = 3000;

/// Every choice is made by this, so that each run tries the same corpus.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    fn sometimes(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

const KEYWORDS: &[&str] = &[
    "exec",
    "attach",
    "proxy",
    "watch",
    "namespaces",
    "status",
    "finalize",
    "pods",
    "token",
    "log",
    "api",
    "apis",
    "v1",
    "a",
    "portforward",
    "ephemeralcontainers",
    "n:10250",
    "https:web:8443",
    "x.y",
    "approval",
    "nodes",
    "secrets",
    "kube-system",
    "kubeconfig",
    "serviceaccounts",
    "system:admin",
    "EXEC",
];
const RESOURCES: &[&str] = &[
    "pods",
    "nodes",
    "services",
    "secrets",
    "namespaces",
    "serviceaccounts",
    "configmaps",
    "deployments",
    "events",
    "certificatesigningrequests",
    "clusters",
    "virtualmachineinstances",
    "proxies",
];
const SUBRESOURCES: &[&str] = &[
    "exec",
    "attach",
    "portforward",
    "proxy",
    "ephemeralcontainers",
    "token",
    "log",
    "status",
    "scale",
    "finalize",
    "approval",
    "console",
    "vnc",
    "eviction",
    "binding",
    "adminkubeconfig",
    "vsock",
];
const QUERIES: &[&str] = &[
    "watch=true",
    "watch=1",
    "watch",
    "watch=",
    "watch=false",
    "watch=0",
    "watch=False",
    "watch=x",
    "watch=0&watch=1",
    "limit=5",
    "fieldSelector=metadata.name%3Dfoo",
    "fieldSelector=metadata.name=foo&watch=1",
    "fieldSelector=metadata.name!%3Dfoo",
    "fieldSelector=metadata.namespace%3Dx",
    "w%61tch=1",
    "command=id&container=c",
    "follow=true",
    "timeoutSeconds=1",
    "fieldSelector=metadata.name%3Dfoo&limit=x",
    "pretty=true",
    "fieldSelector=spec.a%3Db,metadata.name%3D%3Dbar",
];

fn path(choices: &mut Choices) -> String {
    let mut parts: Vec<&str> = Vec::new();
    match choices.below(10) {
        0..=4 => parts.extend(["api", "v1"]),
        5..=7 => {
            let group = choices.pick(&[
                "apps",
                "certificates.k8s.io",
                "subresources.kubevirt.io",
                "rbac.authorization.k8s.io",
                "proxy",
                "watch",
            ]);
            parts.extend(["apis", group, choices.pick(&["v1", "v1beta1", "watch", "proxy"])]);
        }
        8 => parts.push(choices.pick(&[
            "version", "healthz", "openapi", "apis", "api", "metrics", "foo", "logs", "API",
        ])),
        _ => parts.extend(["api", choices.pick(KEYWORDS)]),
    }
    if choices.sometimes(6) {
        parts.push(choices.pick(&["watch", "proxy"]));
    }
    if choices.sometimes(2) {
        parts.push("namespaces");
        if !choices.sometimes(8) {
            parts.push(choices.pick(KEYWORDS));
        }
    }
    for _ in 0..choices.below(5) {
        parts.push(match choices.below(3) {
            0 => choices.pick(RESOURCES),
            1 => choices.pick(SUBRESOURCES),
            _ => choices.pick(KEYWORDS),
        });
    }
    let mut text = String::new();
    for part in parts {
        text.push('/');
        if choices.sometimes(25) {
            text.push_str(choices.pick(&[
                ".", "..", "", "%2e%2e", "%2F", "a%2Fb", ";", "%", "%00", "\u{e9}", "%25",
            ]));
            text.push('/');
        }
        for character in part.chars() {
            if choices.sometimes(30) {
                text.push_str(&format!("%{:02x}", character as u32));
            } else {
                text.push(character);
            }
        }
    }
    if choices.sometimes(8) {
        text.push('/');
    }
    if choices.sometimes(3) {
        text.push('?');
        text.push_str(choices.pick(QUERIES));
    }
    text
}

#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    api_version: String,
    namespace: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    verb: String,
    object_ref: Option<ObjectRef>,
}

fn resolved(decision: &Decision) -> (String, ObjectRef) {
    let info = decision.info.clone();
    let reference = ObjectRef {
        api_group: info.group,
        api_version: info.version,
        namespace: info.namespace,
        resource: info.resource,
        subresource: info.subresource,
        name: info.name,
    };
    (info.verb, reference)
}

/// Sends a request and reads its answer; `false` when the connection ends with it.
async fn ask(stream: &mut UpstreamStream, method: &str, request: &str) -> std::io::Result<bool> {
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut buffer = Vec::new();
    let end = loop {
        if let Some(end) = find_end(&buffer, 0).unwrap() {
            break end;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Err(cut());
        }
    };
    let mut rest = buffer.split_off(end);
    let head = Head::parse(buffer).unwrap();
    let (_, status) = head.status_line().unwrap();
    let mut body = Decoder::new(head.response_framing(method, status).unwrap());
    loop {
        while !rest.is_empty() && !body.is_done() {
            let consumed = body.step(&rest).unwrap().consumed;
            rest.drain(..consumed);
        }
        if body.is_done() {
            return Ok(!head.has_member("connection", "close"));
        }
        if stream.read_buf(&mut rest).await? == 0 {
            return if body == Decoder::UntilClose {
                Ok(false)
            } else {
                Err(cut())
            };
        }
    }
}

#[tokio::test]
async fn the_api_server_resolves_each_path_as_the_proxy_does() {
    let Ok(audit_log) = std::env::var("DEVCLUSTER_AUDIT_LOG") else {
        println!("SKIPPED: DEVCLUSTER_AUDIT_LOG is not set: only the development cluster's audit log can be read");
        return;
    };
    let file = std::fs::read(std::env::var("KUBECONFIG").expect("KUBECONFIG of a cluster admin")).unwrap();
    let kubeconfig = Kubeconfig::parse(&file).unwrap();
    let endpoints = kubeconfig.endpoints();
    let (cluster, user) = (endpoints[0].cluster, endpoints[0].user);
    let trust = cluster.ca.clone().map_or(Trust::System, Trust::Only);
    let roots = tls::public_roots(None).unwrap();
    let host = match &cluster.server.authority.host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    };
    let dialer = Dialer {
        authority: cluster.server.authority.clone(),
        rule: AddressRule::Kubernetes,
        resolver: Arc::new(SystemResolver),
        tls: Arc::new(tls::kubernetes(&cluster.name, &trust, &user.credential, &roots).unwrap()),
        server_name: host.try_into().unwrap(),
    };
    let bearer = match &user.credential {
        Credential::Token(token) => format!("Authorization: Bearer {}\r\n", String::from_utf8_lossy(token.expose())),
        Credential::ClientCertificate { .. } => String::new(),
    };

    let run = std::process::id();
    let mut choices = Choices(42);
    let mut expected: HashMap<String, (String, Decision)> = HashMap::new();
    let rules = Rules::default();
    let (mut refused, mut denied) = (0, 0);
    let mut kept = None;
    while expected.len() < CORPUS {
        let raw = path(&mut choices);
        let method = choices.pick(&["GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);
        let Ok(target) = Target::parse(&raw) else {
            refused += 1;
            continue;
        };
        let decision = rules.decide(method, &target, None);
        if decision.verdict.is_err() {
            denied += 1;
        }
        let sent = target.to_canonical(strip::is_token_parameter);
        let id = format!("oracle-{run}-{}", expected.len());
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => dialer.dial().await.unwrap(),
        };
        let request = format!(
            "{method} {sent} HTTP/1.1\r\nHost: {}\r\n{bearer}Impersonate-User: oracle-without-rights\r\nAudit-ID: {id}\r\n\
             Content-Length: 0\r\n\r\n",
            cluster.server.authority.host_header()
        );
        let answered = tokio::time::timeout(Duration::from_secs(60), ask(&mut stream, method, &request))
            .await
            .expect("no answer");
        kept = answered.unwrap().then_some(stream);
        expected.insert(id, (format!("{method} {sent}"), decision));
    }

    // The log is written a little after the answer.
    let mut seen = HashMap::new();
    for _ in 0..100 {
        let log = std::fs::read_to_string(&audit_log).unwrap();
        seen = log
            .lines()
            .filter(|line| line.contains(&format!("oracle-{run}-")))
            .filter_map(|line| serde_json::from_str::<Event>(line).ok())
            .map(|event| (event.audit_id.clone(), event))
            .collect();
        if seen.len() >= CORPUS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (mut compared, mut differences) = (0, Vec::new());
    for (id, (request, decision)) in &expected {
        let Some(event) = seen.get(id) else { continue };
        // What the proxy refuses before it is resolved has nothing to compare.
        let unresolved = !decision.info.is_resource && decision.verdict.is_err();
        if unresolved {
            continue;
        }
        compared += 1;
        let (verb, reference) = resolved(decision);
        let found = event.object_ref.as_ref().map_or(Default::default(), |found| ObjectRef {
            api_group: found.api_group.clone(),
            api_version: found.api_version.clone(),
            namespace: found.namespace.clone(),
            resource: found.resource.clone(),
            subresource: found.subresource.clone(),
            name: found.name.clone(),
        });
        if verb != event.verb || reference != found {
            differences.push(format!(
                "{request}: proxy {verb} {reference:?}, API server {} {found:?}",
                event.verb
            ));
        }
        let as_resolved = RequestInfo {
            is_resource: event.object_ref.is_some(),
            verb: event.verb.clone(),
            group: found.api_group.clone(),
            version: found.api_version.clone(),
            namespace: found.namespace.clone(),
            resource: found.resource.clone(),
            subresource: found.subresource.clone(),
            name: found.name.clone(),
            at: 0,
        };
        let method = request.split(' ').next().unwrap_or_default();
        if deny_set::danger(method, &as_resolved).is_some() && decision.verdict.is_ok() {
            differences.push(format!("{request}: passes, but the API server takes it for {found:?}"));
        }
    }
    println!(
        "compared {compared}, refused by grammar {refused}, denied by policy {denied}, differences {}",
        differences.len()
    );
    assert!(
        compared > CORPUS / 2,
        "only {compared} of {CORPUS} are in the audit log"
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
