//! The images of the operator's Deployment: its own, and those that its `RELATED_IMAGE_*` variables name.

use serde_json::{Value, json};

const PREFIX: &str = "RELATED_IMAGE_";

/// Puts other images in the place of those that a Deployment names.
pub fn replace(deployment: &mut Value, images: &[(String, String)]) {
    let pinned = |image: &Value| {
        let found = images.iter().find(|(current, _)| image == current);
        found.map(|(_, pinned)| Value::from(pinned.as_str()))
    };
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        if let Some(image) = pinned(&container["image"]) {
            container["image"] = image;
        }
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            if let Some(image) = pinned(&variable["value"]) {
                variable["value"] = image;
            }
        }
    }
}

/// Entries of `relatedImages`, and the image of the operator itself.
#[must_use]
pub fn related(deployment: &Value) -> (Vec<Value>, String) {
    let mut related = Vec::new();
    let mut own = String::new();
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array();
    for container in containers.into_iter().flatten() {
        if let Some(image) = container["image"].as_str() {
            related.push(json!({"name": container["name"], "image": image}));
            image.clone_into(&mut own);
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().and_then(|name| name.strip_prefix(PREFIX));
            if let Some((name, image)) = name.zip(variable["value"].as_str()) {
                related.push(json!({"name": name.to_lowercase(), "image": image}));
            }
        }
    }
    (related, own)
}

/// Whether an image is named by its digest: only then can a mirror stand in for its registry.
#[must_use]
pub fn is_pinned(image: &Value) -> bool {
    image["image"].as_str().is_some_and(|image| image.contains("@sha256:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_related_and_can_be_pinned() {
        let mut deployment = json!({
            "spec": {"template": {"spec": {"containers": [{
                "name": "manager", "image": "a:1",
                "env": [{"name": "RELATED_IMAGE_SERVER", "value": "b:1"}, {"name": "OTHER", "value": "c"}],
            }]}}},
        });
        let (before, own) = related(&deployment);
        assert_eq!(own, "a:1");
        assert_eq!(
            before,
            [
                json!({"name": "manager", "image": "a:1"}),
                json!({"name": "server", "image": "b:1"})
            ]
        );
        assert!(!before.iter().any(is_pinned));
        let pin = |image: &str| (format!("{image}:1"), format!("{image}@sha256:00"));
        replace(&mut deployment, &[pin("a"), pin("b")]);
        let (after, _) = related(&deployment);
        assert!(after.iter().all(is_pinned), "{after:?}");
    }
}
