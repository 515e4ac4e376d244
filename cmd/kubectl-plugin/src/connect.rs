//! The way to an instance's server: a port-forward or a URL, a token, and the certificate that is trusted.

use std::path::Path;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use cli_mcp_client::session::{Endpoint, Session, Token};
use cli_mcp_controllers::trouble;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};

use crate::cli::{Connection, Place};
use crate::cluster::Cluster;
use crate::error::{Error, Result, told};
use crate::forward::Forward;
use crate::trust::{self, Trust};

/// Seconds that a token of ours is good for: the least that the API server grants.
const TOKEN_SECONDS: i64 = 600;

/// ConfigMap with OpenShift's service CA, which every namespace has.
const SERVICE_CA: (&str, &str) = ("openshift-service-ca.crt", "service-ca.crt");

/// A server that can be called.
pub(crate) struct Server {
    endpoint: Endpoint,
    trust: Trust,
    /// Name that the forward stands for, and the forward.
    forward: Option<(String, Forward)>,
}

impl Server {
    /// Finds the way. A URL with a token needs no cluster.
    pub(crate) async fn of(place: &Place, connection: &Connection) -> Result<Self> {
        let token = connection
            .token_file
            .as_deref()
            .map(read)
            .transpose()?
            .map(|bytes| token_of(&bytes, connection.token_file.as_deref()))
            .transpose()?;
        let ca = connection.ca_file.as_deref().map(read).transpose()?;
        match &connection.url {
            Some(url) => Self::at(place, connection, base_of(url)?, token, ca).await,
            None => Self::forwarded(&Cluster::of(place).await?, connection, token, ca).await,
        }
    }

    async fn at(
        place: &Place,
        connection: &Connection,
        base_url: String,
        token: Option<Token>,
        ca: Option<Vec<u8>>,
    ) -> Result<Self> {
        let token = match token {
            Some(token) => Some(token),
            // Only a server on loopback serves plain HTTP, and it asks for no token.
            None if base_url.starts_with("http://") => None,
            None => {
                let cluster = Cluster::of(place).await?;
                let instance = cluster.instance(connection.instance.as_deref()).await?;
                Some(request_token(&cluster, &instance).await?)
            }
        };
        Ok(Self {
            endpoint: Endpoint {
                base_url,
                ca_pem: None,
                token,
            },
            trust: ca.map_or(Trust::Machine, Trust::Authority),
            forward: None,
        })
    }

    async fn forwarded(
        cluster: &Cluster,
        connection: &Connection,
        token: Option<Token>,
        ca: Option<Vec<u8>>,
    ) -> Result<Self> {
        let instance = cluster.instance(connection.instance.as_deref()).await?;
        let token = match token {
            Some(token) => token,
            None => request_token(cluster, &instance).await?,
        };
        let trust = match ca {
            Some(pem) => Trust::Authority(pem),
            None => trust_of(cluster, &instance).await,
        };
        let pod = server_pod(cluster, &instance).await?;
        let port = u16::try_from(names::SERVER_PORT).unwrap_or_default();
        let forward = Forward::start(cluster.api::<Pod>(), pod, port)
            .await
            .map_err(|error| Error::Failed(format!("cannot listen on loopback for a port-forward: {error}")))?;
        let host = format!("{}.{}.svc", names::server(&instance), cluster.namespace);
        Ok(Self {
            endpoint: Endpoint {
                base_url: format!("https://{host}:{}", forward.address().port()),
                ca_pem: None,
                token: Some(token),
            },
            trust,
            forward: Some((host, forward)),
        })
    }

    /// Connects a session.
    pub(crate) async fn session(&self, id: &str) -> Result<Session> {
        Ok(Session::open(self.http(Some(id))?, &self.endpoint.base_url, id).await?)
    }

    /// Ends a session: the status of the answer, and its text.
    pub(crate) async fn end(&self, id: &str) -> Result<(u16, String)> {
        let mut url = reqwest::Url::parse(&self.endpoint.base_url)
            .map_err(|error| Error::Invocation(format!("--url is no URL: {error}")))?;
        // As a segment of its own: whatever the id holds, no other path is meant.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("sessions").push(id);
        }
        let failed = |error: reqwest::Error| Error::Server(error.into());
        let answer = self.http(None)?.delete(url).send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        Ok((status, answer.text().await.map_err(failed)?))
    }

    fn http(&self, session: Option<&str>) -> Result<reqwest::Client> {
        let mut builder = self.endpoint.client_builder(session)?;
        if let Some((host, forward)) = &self.forward {
            builder = builder.resolve(host, forward.address());
        }
        let built = self.trust.clone().apply(builder)?.build();
        built.map_err(|error| Error::Server(error.into()))
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| Error::Invocation(format!("{}: {error}", file.display())))
}

fn token_of(bytes: &[u8], file: Option<&Path>) -> Result<Token> {
    let text = String::from_utf8_lossy(bytes).trim().to_owned();
    if text.is_empty() {
        return Err(Error::Invocation(format!(
            "--token-file {} is empty: write a token into it, as kubectl create token prints it",
            file.unwrap_or(Path::new("")).display()
        )));
    }
    Ok(Token(text))
}

fn base_of(url: &str) -> Result<String> {
    let refused = |why: &str| {
        Err(Error::Invocation(format!(
            "--url {url:?}: {why}: write for example https://mcp.example.com"
        )))
    };
    let Ok(parsed) = reqwest::Url::parse(url) else {
        return refused("this is no URL");
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        // What it holds is not shown.
        return Err(Error::Invocation(
            "--url holds a user or a password: leave them out, a token goes into --token-file".to_owned(),
        ));
    }
    let local = matches!(parsed.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match parsed.scheme() {
        "https" => {}
        "http" if local => {}
        "http" => return refused("a token in clear is sent to loopback only"),
        _ => return refused("the scheme is not https"),
    }
    let base = url.trim_end_matches('/');
    Ok(base.strip_suffix("/mcp").unwrap_or(base).to_owned())
}

/// A token that the server accepts, of the ServiceAccount that the operator makes for clients.
async fn request_token(cluster: &Cluster, instance: &str) -> Result<Token> {
    let account = names::client(instance);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = cluster
        .api::<ServiceAccount>()
        .create_token_request(&account, &PostParams::default(), &request)
        .await
        .map_err(|error| {
            Error::Failed(format!(
                "cannot get a token of ServiceAccount {account} in namespace {}: {}. Give one with --token-file, or look at the instance with kubectl cli-mcp check",
                cluster.namespace,
                told(&error)
            ))
        })?;
    let status = answer
        .status
        .ok_or_else(|| Error::Failed(format!("the API server gave no token of ServiceAccount {account}")))?;
    Ok(Token(status.token))
}

/// What cannot be read is not known: the decision then falls to what can.
async fn trust_of(cluster: &Cluster, instance: &str) -> Trust {
    let secret = cluster.api::<Secret>().get_opt(&names::tls(instance)).await;
    let secret = secret
        .ok()
        .flatten()
        .and_then(|secret| secret.data)
        .map(|data| data.into_iter().map(|(key, value)| (key, value.0)).collect());
    let service_ca = cluster.api::<ConfigMap>().get_opt(SERVICE_CA.0).await;
    let service_ca = service_ca
        .ok()
        .flatten()
        .and_then(|map| map.data)
        .and_then(|mut data| data.remove(SERVICE_CA.1));
    trust::decide(secret.as_ref(), service_ca.as_deref())
}

async fn server_pod(cluster: &Cluster, instance: &str) -> Result<String> {
    let selector = labels::selector_string(instance, Component::Server);
    let pods = cluster
        .api::<Pod>()
        .list(&ListParams::default().labels(&selector))
        .await
        .map_err(Error::api(format!(
            "list the server's pods in namespace {}",
            cluster.namespace
        )))?;
    pods.iter()
        .find(|pod| trouble::is_ready(pod))
        .map(ResourceExt::name_any)
        .ok_or_else(|| {
            Error::Failed(format!(
                "no server pod of CliMcpInstance {}/{instance} is ready: see kubectl cli-mcp check -n {} -i {instance}",
                cluster.namespace, cluster.namespace
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_base_and_a_token_goes_nowhere_in_clear() {
        assert_eq!(base_of("https://a.example/mcp/").unwrap(), "https://a.example");
        assert_eq!(base_of("http://localhost:8080").unwrap(), "http://localhost:8080");
        for bad in [
            "http://a.example",
            "a.example",
            "ftp://localhost",
            "https://u:s3cret@a.example",
        ] {
            let error = base_of(bad).unwrap_err();
            assert!(
                matches!(error, Error::Invocation(_)) && !error.to_string().contains("s3cret"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_token_is_named_by_its_file() {
        let error = token_of(b" \n", Some(Path::new("t"))).unwrap_err().to_string();
        assert!(error.contains("--token-file t"), "{error}");
    }
}
