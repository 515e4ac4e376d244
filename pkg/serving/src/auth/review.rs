//! The two questions to the API server, and what they are about.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

/// How long the API server may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name, such as `system:serviceaccount:ns:name`.
    pub name: String,
    /// UID, if the authenticator gave one.
    pub uid: Option<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra attributes, handed on to the authorizer.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The API server did not decide.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReviewError(pub String);

/// Somebody who knows tokens and rights.
pub trait Review: Send + Sync + 'static {
    /// Whose token this is; none if nobody's.
    fn authenticate(&self, token: &str) -> impl Future<Output = Result<Option<User>, ReviewError>> + Send;

    /// Whether the user has the verb.
    fn authorize(&self, user: &User, verb: &str) -> impl Future<Output = Result<bool, ReviewError>> + Send;

    /// What the verb would be on, for the text of a refusal.
    fn what(&self) -> String;

    /// How somebody gets the right, for the text of a refusal: what an administrator must do.
    fn remedy(&self) -> String;
}

/// The object that callers need rights on.
#[derive(Clone, Debug)]
pub struct Object {
    /// API group.
    pub group: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What callers need a right on.
#[derive(Clone, Debug)]
pub enum Right {
    /// An object.
    Object(Object),
    /// A path of HTTP that stands for no resource, such as `/metrics`.
    Path(&'static str),
}

/// Asks the API server.
#[derive(Clone)]
pub struct KubernetesReview {
    tokens: Api<TokenReview>,
    access: Api<SubjectAccessReview>,
    right: Right,
    remedy: String,
}

impl KubernetesReview {
    /// Reviews for one right; who lacks it is told the remedy. The client needs `create` on `tokenreviews` and
    /// `subjectaccessreviews` (ClusterRole `system:auth-delegator`).
    #[must_use]
    pub fn new(client: Client, right: Right, remedy: String) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            access: Api::all(client),
            right,
            remedy,
        }
    }
}

async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ReviewError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        // A status of the API server speaks of the review and of this program's rights, never of the token.
        Ok(Err(error)) => Err(ReviewError(error.to_string())),
        Err(_) => Err(ReviewError(format!("no answer within {} s", TIMEOUT.as_secs()))),
    }
}

impl Review for KubernetesReview {
    async fn authenticate(&self, token: &str) -> Result<Option<User>, ReviewError> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            // No audience: the API server's own, so that a token for another service is not accepted.
            spec: TokenReviewSpec {
                audiences: None,
                token: Some(token.to_owned()),
            },
            status: None,
        };
        let status = bounded(self.tokens.create(&PostParams::default(), &review))
            .await?
            .status
            .unwrap_or_default();
        if status.authenticated != Some(true) {
            if let Some(reason) = status.error {
                tracing::debug!(%reason, "TokenReview did not authenticate");
            }
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        Ok(user.username.filter(|name| !name.is_empty()).map(|name| User {
            name,
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    async fn authorize(&self, user: &User, verb: &str) -> Result<bool, ReviewError> {
        let (resource, path) = match &self.right {
            Right::Object(object) => {
                let attributes = ResourceAttributes {
                    group: Some(object.group.clone()),
                    resource: Some(object.resource.clone()),
                    subresource: Some(object.subresource.clone()),
                    namespace: Some(object.namespace.clone()),
                    name: Some(object.name.clone()),
                    verb: Some(verb.to_owned()),
                    ..ResourceAttributes::default()
                };
                (Some(attributes), None)
            }
            Right::Path(path) => {
                let attributes = NonResourceAttributes {
                    path: Some((*path).to_owned()),
                    verb: Some(verb.to_owned()),
                };
                (None, Some(attributes))
            }
        };
        let review = SubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
                resource_attributes: resource,
                non_resource_attributes: path,
            },
            status: None,
        };
        let status = bounded(self.access.create(&PostParams::default(), &review))
            .await?
            .status
            .unwrap_or_default();
        Ok(status.allowed && status.denied != Some(true))
    }

    fn what(&self) -> String {
        match &self.right {
            Right::Object(Object {
                group,
                resource,
                subresource,
                namespace,
                name,
            }) => format!("{resource}/{subresource} {name:?} of {group} in namespace {namespace}"),
            Right::Path(path) => format!("the non-resource URL {path}"),
        }
    }

    fn remedy(&self) -> String {
        self.remedy.clone()
    }
}
