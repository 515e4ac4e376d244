//! The API server and the kubelet.

mod faults;
mod forward;
mod reads;
mod reviews;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::faults::Trap;
use self::reads::{list_others, list_pods, read_pod};
use self::reviews::{review_access, review_token};
use super::agent::{Agent, Assigned};

/// What the kubelet does with new pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kubelet {
    /// Starts them.
    Starts,
    /// Starts them, and their agents listen when they are told to.
    StartsDeaf,
    /// Starts them, and their agents find the network open.
    StartsOpen,
    /// Cannot pull their image.
    CannotPull,
    /// Starts them, and they end at once.
    Crashes,
}

pub(crate) type Object = (String, String);

struct Inner {
    version: u64,
    objects: BTreeMap<Object, Value>,
    log: Vec<(u64, &'static str, Object, Value)>,
    requests: Vec<String>,
    user_agents: BTreeSet<String>,
    agents: BTreeMap<String, Agent>,
    kubelet: Kubelet,
    /// What pods show in place of their addresses.
    shown_address: Option<&'static str>,
    watches_are_silent: bool,
    pods_never_rest: bool,
    traps: Vec<Trap>,
    tokens: BTreeMap<String, String>,
    rights: Vec<(String, String)>,
}

/// A cluster. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Cluster {
    inner: Arc<Mutex<Inner>>,
    changed: watch::Sender<u64>,
    network: [u8; 2],
    next_ip: Arc<AtomicU32>,
    assigned: Assigned,
    /// Cancelled: agents of [`Kubelet::StartsDeaf`] listen.
    listen: CancellationToken,
    pub(crate) url: String,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let cluster = Self {
            inner: Arc::new(Mutex::new(Inner {
                version: 100,
                objects: BTreeMap::new(),
                log: Vec::new(),
                requests: Vec::new(),
                user_agents: BTreeSet::new(),
                agents: BTreeMap::new(),
                kubelet: Kubelet::Starts,
                shown_address: None,
                watches_are_silent: false,
                pods_never_rest: false,
                traps: Vec::new(),
                tokens: BTreeMap::new(),
                rights: Vec::new(),
            })),
            changed: watch::Sender::new(100),
            // Agents listen on a port that is fixed: tests at the same time use different parts of 127/8.
            network: [rand::random_range(1..=254), rand::random_range(0..=255)],
            next_ip: Arc::new(AtomicU32::new(1)),
            assigned: Assigned::default(),
            listen: CancellationToken::new(),
            url,
        };
        let router = Router::new()
            .route("/api/v1/namespaces/{ns}/pods", get(list_pods).post(create_pod))
            .route(
                "/api/v1/namespaces/{ns}/pods/{name}",
                get(read_pod).patch(patch_pod).delete(delete_pod),
            )
            .route("/api/v1/namespaces/{ns}/pods/{name}/portforward", get(forward::to_pod))
            .route("/api/v1/namespaces/{ns}/configmaps", get(list_others))
            .route(
                "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices",
                get(list_others),
            )
            .route(
                "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
                get(list_others),
            )
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(review_token))
            .route(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                post(review_access),
            )
            .layer(middleware::from_fn_with_state(cluster.clone(), faults::meet))
            .with_state(cluster.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        cluster
    }

    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "server"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        })
        .to_string()
    }

    /// From a network like the server's, pods are not where new ones say that they are.
    pub(crate) fn show_address(&self, address: &'static str) {
        self.lock().shown_address = Some(address);
    }

    /// Whether pods can be reached at their addresses.
    pub(crate) fn is_near(&self) -> bool {
        self.lock().shown_address.is_none()
    }

    pub(crate) fn kubelet(&self, kubelet: Kubelet) {
        self.lock().kubelet = kubelet;
    }

    /// Lets the agents of [`Kubelet::StartsDeaf`] listen.
    pub(crate) fn agents_listen(&self) {
        self.listen.cancel();
    }

    /// Watches bring nothing from now on, as with a connection that broke without a word.
    pub(crate) fn silence_watches(&self) {
        self.lock().watches_are_silent = true;
    }

    /// Whoever writes to a pod finds from now on that it was changed a moment before.
    pub(crate) fn keep_changing_pods(&self) {
        self.lock().pods_never_rest = true;
    }

    /// Lets a user in: the token, the user's name, the verbs.
    pub(crate) fn grant(&self, token: &str, user: &str, verbs: &[&str]) {
        let mut inner = self.lock();
        inner.tokens.insert(token.into(), user.into());
        inner
            .rights
            .extend(verbs.iter().map(|verb| (user.to_owned(), (*verb).to_owned())));
    }

    /// Puts an object, as an administrator or the operator would.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (plural.to_owned(), name);
        let exists = self.lock().objects.contains_key(&key);
        self.store(&key, object, if exists { "MODIFIED" } else { "ADDED" });
    }

    pub(crate) fn remove(&self, plural: &str, name: &str) {
        let key = (plural.to_owned(), name.to_owned());
        let mut inner = self.lock();
        inner.version += 1;
        let Some(mut object) = inner.objects.remove(&key) else {
            return;
        };
        object["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        let version = inner.version;
        inner.log.push((version, "DELETED", key.clone(), object));
        inner.agents.remove(&key.1);
        drop(inner);
        self.changed.send_replace(version);
    }

    /// Adds an unassigned, ready pod, as the operator would.
    pub(crate) fn add_pool_pod(&self, name: &str, spec_hash: &str, assign_digest: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "ns",
                "labels": {"cli-mcp.redhat.com/instance": "demo", "cli-mcp.redhat.com/component": "sandbox"},
                "annotations": {"cli-mcp.redhat.com/spec-hash": spec_hash},
            },
            "spec": {"containers": [{"name": "sandbox", "env": [{"name": "SANDBOX_ASSIGN_TOKEN_SHA256", "value": assign_digest}]}]},
        });
        self.admit(pod);
    }

    pub(crate) fn pods(&self) -> Vec<Value> {
        self.lock()
            .objects
            .iter()
            .filter(|((plural, _), _)| plural == "pods")
            .map(|(_, pod)| pod.clone())
            .collect()
    }

    /// A pod by its name.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.lock().objects[&("pods".to_owned(), name.to_owned())].clone()
    }

    /// The pods without a session.
    pub(crate) fn unassigned(&self) -> Vec<Value> {
        let labelled = |pod: &Value| pod["metadata"]["labels"]["cli-mcp.redhat.com/session-id"].is_string();
        self.pods().into_iter().filter(|pod| !labelled(pod)).collect()
    }

    /// The pods that carry a session's label.
    pub(crate) fn pods_of(&self, session: &str) -> Vec<Value> {
        self.pods()
            .into_iter()
            .filter(|pod| pod["metadata"]["labels"]["cli-mcp.redhat.com/session-id"] == *session)
            .collect()
    }

    /// The name of a session's first pod.
    pub(crate) fn pod_of(&self, session: &str) -> String {
        self.pods_of(session)[0]["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Commands that ran in a pod.
    pub(crate) fn ran(&self, pod: &str) -> Vec<String> {
        self.lock().agents.get(pod).map(Agent::ran).unwrap_or_default()
    }

    /// All commands that ever ran, anywhere that still lives.
    pub(crate) fn ran_anywhere(&self) -> Vec<String> {
        self.lock().agents.values().flat_map(Agent::ran).collect()
    }

    /// All commands whose caller left before they ended, anywhere that still lives.
    pub(crate) fn stopped_anywhere(&self) -> Vec<String> {
        self.lock().agents.values().flat_map(Agent::stopped).collect()
    }

    /// Pods whose agents were given a session, in that order, also those that are gone.
    pub(crate) fn assigned(&self) -> Vec<String> {
        self.assigned.lock().unwrap().clone()
    }

    /// Requests so far, as `METHOD path?query`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// How clients named themselves.
    pub(crate) fn user_agents(&self) -> BTreeSet<String> {
        self.lock().user_agents.clone()
    }

    /// Marks a pod as failed, as an eviction does, and stops its agent.
    pub(crate) fn evict(&self, name: &str) {
        self.lock().agents.remove(name);
        self.update_status(
            name,
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}),
        );
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn store(&self, key: &Object, mut object: Value, event: &'static str) -> Value {
        let mut inner = self.lock();
        inner.version += 1;
        let version = inner.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{version}"));
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        inner.objects.insert(key.clone(), object.clone());
        inner.log.push((version, event, key.clone(), object.clone()));
        drop(inner);
        self.changed.send_replace(version);
        object
    }

    fn update_status(&self, name: &str, status: Value) {
        let key = ("pods".to_owned(), name.to_owned());
        let Some(mut pod) = self.lock().objects.get(&key).cloned() else {
            return;
        };
        pod["status"] = status;
        self.store(&key, pod, "MODIFIED");
    }

    fn admit(&self, pod: Value) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let stored = self.store(&("pods".to_owned(), name.clone()), pod, "ADDED");
        let (cluster, started) = (self.clone(), stored.clone());
        tokio::spawn(async move { cluster.start_pod(&name, &started).await });
        stored
    }

    async fn start_pod(&self, name: &str, pod: &Value) {
        let kubelet = self.lock().kubelet;
        if kubelet == Kubelet::CannotPull {
            self.update_status(
                name,
                json!({"phase": "Pending", "containerStatuses": [{
                    "name": "sandbox", "ready": false, "restartCount": 0, "image": "x", "imageID": "",
                    "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "the image is not there"}},
                }]}),
            );
            return;
        }
        if kubelet == Kubelet::Crashes {
            self.update_status(
                name,
                json!({"phase": "Failed", "containerStatuses": [{
                    "name": "sandbox", "ready": false, "restartCount": 0, "image": "x", "imageID": "",
                    "state": {"terminated": {"reason": "Error", "exitCode": 2}},
                }]}),
            );
            return;
        }
        let n = self.next_ip.fetch_add(1, Ordering::SeqCst);
        let ip = format!("127.{}.{}.{n}", self.network[0], self.network[1]);
        let shown = self.lock().shown_address.map_or_else(|| ip.clone(), str::to_owned);
        let status = |phase: &str, ready: &str| json!({"phase": phase, "podIP": shown, "conditions": [{"type": "Ready", "status": ready}]});
        self.update_status(name, status("Pending", "False"));
        if kubelet == Kubelet::StartsDeaf {
            self.update_status(name, status("Running", "True"));
            self.listen.cancelled().await;
        }
        let agent = Agent::start(&ip, pod, kubelet == Kubelet::StartsOpen, self.assigned.clone()).await;
        self.lock().agents.insert(name.to_owned(), agent);
        match kubelet {
            Kubelet::StartsDeaf => {}
            // Its readiness probe asks the agent.
            Kubelet::StartsOpen => self.update_status(name, status("Running", "False")),
            _ => self.update_status(name, status("Running", "True")),
        }
    }
}

fn status(code: StatusCode, reason: &str) -> Response {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": reason,
    });
    (code, Json(body)).into_response()
}

async fn create_pod(State(cluster): State<Cluster>, Json(pod): Json<Value>) -> Response {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    if cluster.lock().objects.contains_key(&("pods".to_owned(), name)) {
        return status(StatusCode::CONFLICT, "AlreadyExists");
    }
    (StatusCode::CREATED, Json(cluster.admit(pod))).into_response()
}

async fn patch_pod(State(cluster): State<Cluster>, Path((_, name)): Path<(String, String)>, body: Bytes) -> Response {
    let patch: Value = serde_json::from_slice(&body).unwrap();
    let key = ("pods".to_owned(), name);
    // One writer at a time, as etcd's transactions have it.
    let mut inner = cluster.lock();
    let Some(mut pod) = inner.objects.get(&key).cloned() else {
        return status(StatusCode::NOT_FOUND, "NotFound");
    };
    if inner.pods_never_rest {
        inner.version += 1;
        pod["metadata"]["resourceVersion"] = json!(inner.version.to_string());
        inner.objects.insert(key.clone(), pod.clone());
    }
    let differs = |field: &str| {
        let wanted = &patch["metadata"][field];
        !wanted.is_null() && *wanted != pod["metadata"][field]
    };
    if differs("uid") {
        return status(
            StatusCode::UNPROCESSABLE_ENTITY,
            "metadata.uid: Invalid value: field is immutable",
        );
    }
    if differs("resourceVersion") {
        return status(StatusCode::CONFLICT, "Conflict");
    }
    merge(&mut pod, &patch);
    inner.version += 1;
    let version = inner.version;
    pod["metadata"]["resourceVersion"] = json!(version.to_string());
    inner.objects.insert(key.clone(), pod.clone());
    inner.log.push((version, "MODIFIED", key, pod.clone()));
    drop(inner);
    cluster.changed.send_replace(version);
    Json(pod).into_response()
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

async fn delete_pod(State(cluster): State<Cluster>, Path((_, name)): Path<(String, String)>, body: Bytes) -> Response {
    let options: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let key = ("pods".to_owned(), name.clone());
    let Some(mut pod) = cluster.lock().objects.get(&key).cloned() else {
        return status(StatusCode::NOT_FOUND, "NotFound");
    };
    let uid = &options["preconditions"]["uid"];
    if !uid.is_null() && *uid != pod["metadata"]["uid"] {
        return status(StatusCode::CONFLICT, "Conflict");
    }
    let due = jiff::Timestamp::now() + Duration::from_secs(5);
    pod["metadata"]["deletionTimestamp"] = json!(due.to_string());
    let terminating = cluster.store(&key, pod, "MODIFIED");
    let uid = terminating["metadata"]["uid"].clone();
    // The kubelet stops the container, and then the pod is gone.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let same = cluster
            .lock()
            .objects
            .get(&key)
            .is_some_and(|pod| pod["metadata"]["uid"] == uid);
        if same {
            cluster.remove("pods", &name);
        }
    });
    Json(terminating).into_response()
}
