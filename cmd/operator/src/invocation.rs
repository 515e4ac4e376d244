//! What the flags of `run` mean together, checked before anything is started.

use std::net::{Ipv6Addr, SocketAddr};

use crate::cli::RunArguments;
use crate::metrics::Exposure;
use crate::namespaces::{self, NamespacesError};

/// What is wrong with an invocation.
#[derive(Debug, thiserror::Error)]
pub enum InvocationError {
    /// An image is not named.
    #[error("--{flag} is missing: name the image, or set {variable}")]
    Image {
        /// The flag.
        flag: &'static str,
        /// Its environment variable.
        variable: &'static str,
    },
    /// No address.
    #[error("--{flag} is {found:?}: write :port, address:port, or 0 for none")]
    Address {
        /// The flag.
        flag: &'static str,
        /// What was found.
        found: String,
    },
    /// No namespaces.
    #[error(transparent)]
    Namespaces(#[from] NamespacesError),
}

/// A checked invocation.
#[derive(Clone, Debug)]
pub struct Invocation {
    pub(crate) leader_elect: bool,
    pub(crate) health: Option<SocketAddr>,
    pub(crate) metrics: Option<Exposure>,
    pub(crate) watch: String,
    pub(crate) namespace: Option<String>,
    pub(crate) pod_name: Option<String>,
    pub(crate) server_image: String,
    pub(crate) proxy_image: String,
    pub(crate) sandbox_image: String,
}

impl TryFrom<&RunArguments> for Invocation {
    type Error = InvocationError;

    fn try_from(arguments: &RunArguments) -> Result<Self, Self::Error> {
        let image = |image: &Option<String>, flag, variable| {
            image
                .clone()
                .filter(|image| !image.trim().is_empty())
                .ok_or(InvocationError::Image { flag, variable })
        };
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let watch = match arguments.watch_namespace.trim() {
            "" => &arguments.default_watch_namespace,
            _ => &arguments.watch_namespace,
        };
        // The own namespace is known only later; a name stands for it here.
        namespaces::scopes(watch, "own")?;
        Ok(Self {
            leader_elect: arguments.leader_elect,
            health: address("health-probe-bind-address", &arguments.health_probe_bind_address)?,
            metrics: address("metrics-bind-address", &arguments.metrics_bind_address)?
                .map(|address| Exposure::of(address, arguments.metrics_cert_path.clone())),
            watch: watch.clone(),
            namespace: some(&arguments.namespace),
            pod_name: some(&arguments.pod_name),
            server_image: image(&arguments.server_image, "server-image", "RELATED_IMAGE_SERVER")?,
            proxy_image: image(&arguments.proxy_image, "proxy-image", "RELATED_IMAGE_PROXY")?,
            sandbox_image: image(&arguments.sandbox_image, "sandbox-image", "RELATED_IMAGE_SANDBOX")?,
        })
    }
}

/// `:port`, `address:port` or `0`, as controller-runtime has it.
fn address(flag: &'static str, text: &str) -> Result<Option<SocketAddr>, InvocationError> {
    if text == "0" || text.is_empty() {
        return Ok(None);
    }
    let parsed = match text.strip_prefix(':') {
        // All addresses of both families, as Go listens on them.
        Some(port) => port
            .parse()
            .ok()
            .map(|port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        None => text.replacen("localhost:", "127.0.0.1:", 1).parse().ok(),
    };
    parsed.map(Some).ok_or_else(|| InvocationError::Address {
        flag,
        found: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn invocation(more: &[&str]) -> Result<Invocation, InvocationError> {
        let images = ["operator", "--server-image=s", "--proxy-image=p", "--sandbox-image=b"];
        Invocation::try_from(&Cli::try_parse_from(images.iter().chain(more)).unwrap().run)
    }

    #[test]
    fn addresses_are_those_of_controller_runtime() {
        let bound = |text: &str| invocation(&[&format!("--health-probe-bind-address={text}")]).map(|run| run.health);
        assert_eq!(bound("0").unwrap(), None);
        assert_eq!(bound(":8081").unwrap(), Some("[::]:8081".parse().unwrap()));
        assert_eq!(
            bound("localhost:8081").unwrap(),
            Some("127.0.0.1:8081".parse().unwrap())
        );
        let error = bound("8081").unwrap_err().to_string();
        assert!(
            error.contains("--health-probe-bind-address") && error.contains("8081"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_list_of_namespaces_is_what_the_default_says() {
        let watch = |more: &[&str]| invocation(more).map(|run| run.watch);
        assert_eq!(watch(&[]).unwrap(), "");
        assert_eq!(watch(&["--default-watch-namespace=*"]).unwrap(), "*");
        assert_eq!(
            watch(&["--watch-namespace=a", "--default-watch-namespace=*"]).unwrap(),
            "a"
        );
    }

    #[test]
    fn a_missing_image_is_named_with_its_variable() {
        let error = Invocation::try_from(&Cli::try_parse_from(["operator"]).unwrap().run)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--server-image") && error.contains("RELATED_IMAGE_SERVER"),
            "{error}"
        );
    }

    #[test]
    fn bad_namespaces_are_found_before_the_cluster_is() {
        let error = invocation(&["--watch-namespace=A"]).unwrap_err().to_string();
        assert!(error.contains("WATCH_NAMESPACE"), "{error}");
    }
}
