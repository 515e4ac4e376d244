//! What the API server answers to reads.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Cluster, Inner, Object, status};

impl Inner {
    /// All objects as they were at a version. An API server may answer with this to who asks for nothing older: what came
    /// later must not be counted on.
    fn as_of(&self, version: u64) -> BTreeMap<Object, Value> {
        let mut objects = BTreeMap::new();
        for (_, event, key, object) in self.log.iter().filter(|(at, ..)| *at <= version) {
            if *event == "DELETED" {
                objects.remove(key);
            } else {
                objects.insert(key.clone(), object.clone());
            }
        }
        objects
    }

    /// The lines of a watch since a version, and the version up to which they go.
    fn events(&self, since: u64, plural: &str, query: &BTreeMap<String, String>) -> (String, u64) {
        let mut lines = String::new();
        if !self.watches_are_silent {
            for (version, event, (kind, _), object) in &self.log {
                if *version > since && kind == plural && selected(object, query) {
                    lines += &json!({"type": event, "object": object}).to_string();
                    lines.push('\n');
                }
            }
        }
        (lines, self.version)
    }
}

fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let labels = &object["metadata"]["labels"];
    let by_label = query.get("labelSelector").is_none_or(|selector| {
        selector.split(',').all(|term| {
            let (name, value) = term.split_once('=').unwrap();
            labels[name] == *value
        })
    });
    let by_name = query
        .get("fieldSelector")
        .is_none_or(|selector| object["metadata"]["name"] == *selector.strip_prefix("metadata.name=").unwrap());
    by_label && by_name
}

pub(super) async fn list_pods(
    State(cluster): State<Cluster>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    list(&cluster, "pods", &query)
}

pub(super) async fn list_others(
    State(cluster): State<Cluster>,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Response {
    let plural = request.uri().path().rsplit('/').next().unwrap().to_owned();
    list(&cluster, &plural, &query)
}

fn list(cluster: &Cluster, plural: &str, query: &BTreeMap<String, String>) -> Response {
    if query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") {
        return watch_from(cluster, plural, query);
    }
    let inner = cluster.lock();
    let state = match query.get("resourceVersionMatch").map(String::as_str) {
        Some("NotOlderThan") => inner.as_of(query["resourceVersion"].parse().unwrap()),
        _ => inner.objects.clone(),
    };
    let items: Vec<Value> = state
        .iter()
        .filter(|((kind, _), object)| kind == plural && selected(object, query))
        .map(|(_, object)| object.clone())
        .collect();
    Json(json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": inner.version.to_string()}, "items": items,
    }))
    .into_response()
}

fn watch_from(cluster: &Cluster, plural: &str, query: &BTreeMap<String, String>) -> Response {
    let from: u64 = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    let (cluster, plural, query) = (cluster.clone(), plural.to_owned(), query.clone());
    let changes = cluster.changed.subscribe();
    let stream = futures::stream::unfold((from, changes), move |(mut seen, mut changes)| {
        let (cluster, plural, query) = (cluster.clone(), plural.clone(), query.clone());
        async move {
            loop {
                changes.mark_unchanged();
                let (lines, latest) = cluster.lock().events(seen, &plural, &query);
                seen = latest.max(seen);
                if !lines.is_empty() {
                    return Some((Ok::<_, Infallible>(Bytes::from(lines)), (seen, changes)));
                }
                changes.changed().await.ok()?;
            }
        }
    });
    Response::new(Body::from_stream(stream))
}

pub(super) async fn read_pod(State(cluster): State<Cluster>, Path((_, name)): Path<(String, String)>) -> Response {
    match cluster.lock().objects.get(&("pods".to_owned(), name)) {
        Some(pod) => Json(pod.clone()).into_response(),
        None => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}
