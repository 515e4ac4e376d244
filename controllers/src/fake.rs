//! An API server in memory, for tests: objects by path, server-side apply as far as one field manager needs it, and
//! failures at chosen writes. A request that the operator's roles do not allow fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::api::DynamicObject;
use kube::client::Body;
use serde_json::{Value, json};

use crate::build::ChildKind;
use crate::caches::{Caches, keep_child};
use crate::rights::tests::{self as rights, Asked};

/// The server. Clones share their objects.
#[derive(Clone, Default)]
pub(crate) struct FakeServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By path: `/api/v1/namespaces/ns/pods/name`.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// What was last applied, by path: a field that is applied no more is taken away.
    applied: BTreeMap<String, Value>,
    /// What was ever asked for, whatever object it was for.
    asked: BTreeSet<Asked>,
    /// Writes that were received, as `METHOD path`.
    writes: Vec<String>,
    /// The write with this number fails.
    fail_at: Option<usize>,
    /// The write, as `METHOD path`, that a webhook refuses.
    refused: Option<String>,
    /// The object that cannot be read, and the answer to who tries.
    unreadable: Option<(String, StatusCode)>,
    /// What reads do not show.
    hidden: Option<String>,
    /// What is made again by somebody when it is applied.
    made_again: Option<String>,
    /// The cluster IP that cannot be had, and for how many tries.
    taken: Option<(String, usize)>,
    /// A webhook makes every new Service headless.
    headless: bool,
}

type Answer = (StatusCode, Value);

impl FakeServer {
    /// A client of this server.
    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = server.answer(&parts.method, parts.uri.path(), parts.uri.query(), body);
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(serde_json::to_vec(&answer).unwrap()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        Client::new(service, "ns")
    }

    /// Puts an object there as it is.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut state = self.0.lock().unwrap();
        state.store(path, object);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.remove(path)
    }

    /// Every object, without what differs from run to run.
    pub(crate) fn objects(&self) -> BTreeMap<String, Value> {
        let state = self.0.lock().unwrap();
        let mut objects = state.objects.clone();
        for object in objects.values_mut() {
            let metadata = object["metadata"].as_object_mut().unwrap();
            for field in ["uid", "resourceVersion", "managedFields"] {
                metadata.remove(field);
            }
        }
        objects
    }

    /// What was ever asked for.
    pub(crate) fn asked(&self) -> BTreeSet<Asked> {
        self.0.lock().unwrap().asked.clone()
    }

    /// Writes since the last call.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    /// Lets the write with this number, counted from now, fail.
    pub(crate) fn fail_at(&self, number: Option<usize>) {
        let mut state = self.0.lock().unwrap();
        state.writes.clear();
        state.fail_at = number;
    }

    /// Lets a webhook refuse this write, as `METHOD path`.
    pub(crate) fn refuse(&self, write: &str) {
        self.0.lock().unwrap().refused = Some(write.to_owned());
    }

    /// Refuses this cluster IP so many times.
    pub(crate) fn take_address(&self, address: &str, times: usize) {
        self.0.lock().unwrap().taken = Some((address.to_owned(), times));
    }

    /// Whether a webhook makes every new Service headless.
    pub(crate) fn make_headless(&self, headless: bool) {
        self.0.lock().unwrap().headless = headless;
    }

    /// Lets the read of an object fail, or no read any more.
    pub(crate) fn refuse_read(&self, refused: Option<(&str, StatusCode)>) {
        self.0.lock().unwrap().unreadable = refused.map(|(path, code)| (path.to_owned(), code));
    }

    /// Lets no read show an object, as if it was made after every read.
    pub(crate) fn hide(&self, path: Option<&str>) {
        self.0.lock().unwrap().hidden = path.map(str::to_owned);
    }

    /// Lets the next apply of an object be refused for a field that cannot change. By then somebody has made it again.
    pub(crate) fn make_again_at_apply(&self, path: &str) {
        self.0.lock().unwrap().made_again = Some(path.to_owned());
    }

    /// Caches that show what is there now.
    pub(crate) fn caches(&self) -> Caches {
        let state = self.0.lock().unwrap();
        let under = |prefix: &str| -> Vec<Value> {
            state
                .objects
                .iter()
                .filter(|(path, _)| path.starts_with(prefix))
                .map(|(_, object)| object.clone())
                .collect()
        };
        fn read<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
            values
                .into_iter()
                .map(|value| serde_json::from_value(value).unwrap())
                .collect()
        }
        let managed = |value: &Value| value["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "cli-mcp-operator";
        let children = ChildKind::ALL
            .into_iter()
            .map(|kind| {
                let resource = kind.api_resource();
                let root = if resource.group.is_empty() {
                    "/api/v1"
                } else {
                    &format!("/apis/{}", resource.api_version)
                };
                let found = under(&format!("{root}/namespaces/ns/{}/", resource.plural));
                let mut children: Vec<DynamicObject> = read(found.into_iter().filter(managed).collect());
                for child in &mut children {
                    // As in a list.
                    child.types = None;
                    keep_child(child, &resource);
                }
                (kind, children)
            })
            .collect();
        Caches::holding(
            read(under(
                "/apis/cli-mcp.redhat.com/v1alpha1/namespaces/ns/climcpinstances/",
            )),
            children,
            read(under("/api/v1/namespaces/ns/secrets/")),
            read(under("/api/v1/namespaces/ns/pods/")),
            read(under("/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/")),
            read(under("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/")).pop(),
        )
    }

    fn answer(&self, method: &Method, path: &str, query: Option<&str>, body: Value) -> Answer {
        let asked = rights::asked(method, path).unwrap();
        assert!(rights::allows(&asked), "the operator has no right to {method} {path}");
        let mut state = self.0.lock().unwrap();
        state.asked.insert(asked.of_any());
        if *method == Method::GET {
            if let Some((_, code)) = state.unreadable.as_ref().filter(|(refused, _)| refused == path) {
                let reason = if *code == StatusCode::FORBIDDEN {
                    "Forbidden"
                } else {
                    "InternalError"
                };
                return status(*code, reason, "the test says so");
            }
            return state.read(path, query);
        }
        state.writes.push(format!("{method} {path}"));
        if state.fail_at == Some(state.writes.len()) {
            return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "the test says so");
        }
        if state.refused == state.writes.last().cloned() {
            return status(
                StatusCode::FORBIDDEN,
                "Forbidden",
                "admission webhook denied the request",
            );
        }
        // Those of the operator are never read back.
        if path.starts_with("/apis/events.k8s.io/") {
            return (StatusCode::CREATED, body);
        }
        match *method {
            Method::POST => state.create(path, body),
            Method::PATCH => state.patch(path, body, query.is_some_and(|query| query.contains("force"))),
            Method::PUT => state.replace(path, body),
            _ => state.delete(path, &body),
        }
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        let before = self.objects.get(path);
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = before.map_or_else(
                || json!(format!("uid-{}", self.version)),
                |before| before["metadata"]["uid"].clone(),
            );
        }
        if path.contains("/services/")
            && object["spec"]["clusterIP"].is_null()
            && object["spec"]["type"] != "ExternalName"
        {
            let kept = before.map(|before| before["spec"]["clusterIP"].clone());
            object["spec"]["clusterIP"] = kept.filter(|kept| !kept.is_null()).unwrap_or(json!("10.96.0.7"));
        }
        let unchanged = before.is_some_and(|before| {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            *before == object
        });
        if !unchanged {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn read(&self, path: &str, query: Option<&str>) -> Answer {
        if let Some(object) = self.objects.get(path).filter(|_| self.hidden.as_deref() != Some(path)) {
            return (StatusCode::OK, object.clone());
        }
        let plural = path.rsplit('/').next().unwrap_or_default();
        if ["pods", "events"].contains(&plural) {
            let component = query.and_then(|query| {
                query
                    .rsplit_once("component%3D")
                    .map(|(_, component)| component.to_owned())
            });
            let query = query.unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
            let fields = query
                .split_once("fieldSelector=")
                .and_then(|(_, rest)| rest.split('&').next())
                .unwrap_or_default();
            let fields: Vec<(String, &str)> = fields
                .split(',')
                .filter_map(|field| field.split_once('='))
                .map(|(field, wanted)| (format!("/{}", field.replace('.', "/")), wanted))
                .collect();
            let items: Vec<&Value> = self
                .objects
                .iter()
                .filter(|(known, _)| known.starts_with(&format!("{path}/")))
                .map(|(_, object)| object)
                .filter(|object| {
                    component.as_ref().is_none_or(|wanted| {
                        object["metadata"]["labels"]["cli-mcp.redhat.com/component"] == json!(wanted)
                    })
                })
                .filter(|object| {
                    fields
                        .iter()
                        .all(|(field, wanted)| object.pointer(field).is_some_and(|found| found == wanted))
                })
                .collect();
            return (
                StatusCode::OK,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}),
            );
        }
        status(StatusCode::NOT_FOUND, "NotFound", path)
    }

    fn create(&mut self, path: &str, mut object: Value) -> Answer {
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        if self.objects.contains_key(&path) {
            return status(StatusCode::CONFLICT, "AlreadyExists", &path);
        }
        let wanted = object["spec"]["clusterIP"].as_str();
        if let Some((taken, times)) = &mut self.taken
            && *times > 0
            && wanted == Some(taken)
        {
            *times -= 1;
            let message = "spec.clusterIPs: Invalid value: failed to allocate IP: provided IP is already allocated";
            return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        }
        self.applied.insert(path.clone(), object.clone());
        object["metadata"]["managedFields"] = json!([entry("Update")]);
        if self.headless && path.contains("/services/") {
            object["spec"]["clusterIP"] = json!("None");
        }
        (StatusCode::CREATED, self.store(&path, object))
    }

    /// Only server-side apply takes away what the manager no longer sets.
    fn patch(&mut self, path: &str, patch: Value, is_apply: bool) -> Answer {
        let whole = is_apply && !path.ends_with("/status");
        let path = path.trim_end_matches("/status");
        if is_apply && self.made_again.take_if(|again| again == path).is_some() {
            self.objects.get_mut(path).unwrap()["metadata"]["uid"] = json!("another");
            return status(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "spec.selector: field is immutable",
            );
        }
        let mut live = self.objects.get(path).cloned();
        if let Some(live) = &live {
            for field in ["uid", "resourceVersion"] {
                let wanted = &patch["metadata"][field];
                if !wanted.is_null() && *wanted != live["metadata"][field] {
                    return status(StatusCode::CONFLICT, "Conflict", path);
                }
            }
        } else if !patch["metadata"]["uid"].is_null() {
            return status(StatusCode::CONFLICT, "Conflict", path);
        }
        // What was set otherwise, apply keeps.
        let updated = |live: &&mut Value| {
            let entries = live["metadata"]["managedFields"].as_array();
            entries.is_some_and(|entries| entries.contains(&entry("Update")))
        };
        if whole && let Some(before) = self.applied.insert(path.to_owned(), patch.clone()) {
            let applied = live.iter_mut().filter(|live| !updated(live));
            applied.for_each(|live| take_away(live, &before, &patch));
        }
        let mut merged = live.unwrap_or_else(|| json!({}));
        merge(&mut merged, patch);
        let metadata = &merged["metadata"];
        if !metadata["deletionTimestamp"].is_null() && metadata["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.objects.remove(path);
            return (StatusCode::OK, merged);
        }
        let ours = entry("Apply");
        match merged["metadata"]["managedFields"].as_array_mut() {
            Some(entries) if entries.contains(&ours) => {}
            Some(entries) => entries.push(ours),
            None => merged["metadata"]["managedFields"] = json!([ours]),
        }
        (StatusCode::OK, self.store(path, merged))
    }

    fn replace(&mut self, path: &str, object: Value) -> Answer {
        match self.objects.get(path) {
            Some(live) if live["metadata"]["resourceVersion"] == object["metadata"]["resourceVersion"] => {
                let mut object = object;
                object["metadata"]["managedFields"] = json!([entry("Update")]);
                (StatusCode::OK, self.store(path, object))
            }
            Some(_) => status(StatusCode::CONFLICT, "Conflict", path),
            None => status(StatusCode::NOT_FOUND, "NotFound", path),
        }
    }

    fn delete(&mut self, path: &str, options: &Value) -> Answer {
        let Some(live) = self.objects.get(path) else {
            return status(StatusCode::NOT_FOUND, "NotFound", path);
        };
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != live["metadata"][field] {
                return status(StatusCode::CONFLICT, "Conflict", path);
            }
        }
        self.objects.remove(path);
        (
            StatusCode::OK,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
        )
    }
}

/// What the managed fields say of the operator.
fn entry(operation: &str) -> Value {
    json!({"manager": "cli-mcp-operator", "operation": operation})
}

/// Removes what was applied before and is applied no more.
fn take_away(live: &mut Value, before: &Value, now: &Value) {
    let (Value::Object(live), Value::Object(before)) = (live, before) else {
        return;
    };
    for (key, before) in before {
        match (live.get_mut(key), now.get(key)) {
            (Some(live), Some(now)) => take_away(live, before, now),
            (Some(_), None) => {
                live.remove(key);
            }
            (None, _) => {}
        }
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn status(code: StatusCode, reason: &str, message: &str) -> Answer {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": message, "code": code.as_u16()});
    (code, body)
}
