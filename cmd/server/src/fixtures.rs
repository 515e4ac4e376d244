//! An API server and an agent within the process, and the server's parts over them, for unit tests. The API server needs no
//! socket, so that time can be paused.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, body};
use cli_mcp_api::v1alpha1::EgressCheck;
use cli_mcp_sandbox::pod::{ClusterAccess, Egress, SandboxTemplate, default_resources};
use cli_mcp_sandbox::token::HmacKey;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::agent::AgentClient;
use crate::agent::dial::Dialer;
use crate::allocation::Allocator;
use crate::cluster::Cluster;
use crate::config::SandboxConnection;
use crate::store::Sandbox;
use crate::store::cache::SandboxCache;
use crate::store::fixtures::pod;
use crate::telemetry::Telemetry;

/// An API server.
pub(crate) struct Api {
    client: kube::Client,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Api {
    /// One that answers a request, `METHOD path?query body`, with this, and with silence where that is none.
    pub(crate) fn new(answer: impl Fn(&str) -> Option<Response> + Send + Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (noted, answer) = (requests.clone(), Arc::new(answer));
        let router = Router::new().fallback(move |request: Request| {
            let (noted, answer) = (noted.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body::to_bytes(body, usize::MAX).await.unwrap();
                let line = format!("{} {} {}", head.method, head.uri, String::from_utf8_lossy(&body));
                noted.lock().unwrap().push(line.clone());
                match answer(&line) {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
        });
        Self {
            client: kube::Client::new(router, "ns"),
            requests,
        }
    }

    /// One that takes every write to a pod, and lists none.
    pub(crate) fn willing() -> Self {
        Self::new(|line| {
            Some(if line.starts_with("GET") {
                pods(&[])
            } else {
                Json(pod("p", "u", 1, Some("s1"))).into_response()
            })
        })
    }

    /// One that answers everything with an error.
    pub(crate) fn refusing(code: StatusCode, message: &'static str) -> Self {
        Self::new(move |_| Some(status(code, message)))
    }

    /// The requests that begin so.
    pub(crate) fn requests(&self, begin: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|line| line.starts_with(begin))
            .cloned()
            .collect()
    }
}

/// An error of the API server.
pub(crate) fn status(code: StatusCode, message: &str) -> Response {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let body = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": message});
    (code, Json(body)).into_response()
}

/// The answer to a LIST.
pub(crate) fn pods(items: &[Pod]) -> Response {
    Json(json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})).into_response()
}

/// The server's parts over an API server.
pub(crate) struct Replica {
    pub(crate) api: Api,
    pub(crate) cache: Arc<SandboxCache>,
    pub(crate) cluster: Cluster,
    pub(crate) key: HmacKey,
    pub(crate) telemetry: Telemetry,
    registry: Registry,
}

impl Replica {
    /// One whose watch has brought an empty LIST.
    pub(crate) fn new(api: Api) -> Self {
        let replica = Self::unsynced(api);
        replica.cache.apply(&Event::Init);
        replica.cache.apply(&Event::InitDone);
        replica
    }

    /// One whose watch has brought nothing.
    pub(crate) fn unsynced(api: Api) -> Self {
        let cache = Arc::new(SandboxCache::of_owner(None));
        let template = SandboxTemplate {
            instance: "demo".to_owned(),
            namespace: "ns".to_owned(),
            image: "localhost/sandbox:dev".to_owned(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            service_account: "cli-mcp-demo-sandbox".to_owned(),
            resources: default_resources(),
            workspace_size_limit: None,
            env: Vec::new(),
            runtime_class_name: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            access: ClusterAccess::Secret { name: "kc".to_owned() },
            egress: Egress {
                check: EgressCheck::Disabled,
                target: None,
                control: None,
            },
            listen: None,
        };
        let key = HmacKey::new(&[7; 32]).unwrap();
        let mut registry = Registry::default();
        Self {
            cluster: Cluster::new(api.client.clone(), cache.clone(), template, None, key.clone()),
            telemetry: Telemetry::register(&mut registry, cache.clone()),
            registry,
            api,
            cache,
            key,
        }
    }

    /// What the watch tells of a pod, and the sandbox that it is.
    pub(crate) fn watched(&self, pod: &Pod) -> Arc<Sandbox> {
        self.cache.apply(&Event::Apply(pod.clone()));
        let name = pod.metadata.name.as_deref().unwrap();
        self.cache.read(|store| store.get(name).cloned()).unwrap()
    }

    /// Its `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// A client of agents that listen on this port.
    pub(crate) fn agents(&self, port: u16) -> AgentClient {
        let pods = self.cluster.pods().clone();
        AgentClient::new(Dialer::with_port(SandboxConnection::Direct, pods, port))
    }

    /// An allocator whose agents listen on this port.
    pub(crate) fn allocator(&self, port: u16) -> Arc<Allocator> {
        Arc::new(Allocator::new(
            self.cluster.clone(),
            self.cache.clone(),
            self.agents(port),
            self.key.clone(),
            None,
            None,
            self.telemetry.clone(),
        ))
    }
}

/// Serves an agent on [`LOOPBACK`]: its port.
pub(crate) async fn agent(router: Router) -> u16 {
    let listener = tokio::net::TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

/// Where agents of unit tests listen.
pub(crate) const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A ready pod at [`LOOPBACK`].
pub(crate) fn local_pod(name: &str, session: Option<&str>) -> Pod {
    let mut local = pod(name, &format!("uid-{name}"), 7, session);
    local.status.get_or_insert_default().pod_ip = Some(LOOPBACK.to_string());
    local
}
