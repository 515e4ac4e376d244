//! Who may come in.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Cluster;

pub(super) async fn review_token(State(cluster): State<Cluster>, Json(mut review): Json<Value>) -> Response {
    let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
    let user = cluster.lock().tokens.get(&token).cloned();
    review["status"] = match user {
        Some(user) => json!({"authenticated": true, "user": {"username": user, "groups": ["system:authenticated"]}}),
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
    };
    Json(review).into_response()
}

pub(super) async fn review_access(State(cluster): State<Cluster>, Json(mut review): Json<Value>) -> Response {
    let spec = &review["spec"];
    let attributes = &spec["resourceAttributes"];
    let right = (
        spec["user"].as_str().unwrap().to_owned(),
        attributes["verb"].as_str().unwrap().to_owned(),
    );
    let ours = attributes["group"] == "cli-mcp.redhat.com"
        && attributes["resource"] == "climcpinstances"
        && attributes["subresource"] == "mcp"
        && attributes["namespace"] == "ns"
        && attributes["name"] == "demo";
    review["status"] = json!({"allowed": ours && cluster.lock().rights.contains(&right)});
    Json(review).into_response()
}
