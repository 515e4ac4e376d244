//! The address of the API server's Service, which no sandbox may reach: from the pod's environment, else from the Service.

use std::net::{IpAddr, SocketAddr};

use cli_mcp_controllers::error::text;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};

/// What the kubelet tells every pod
/// (<https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api>).
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Port of the Service `default/kubernetes`.
const DEFAULT_PORT: &str = "443";

/// Why the address is not known.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The host is a name that stands for no address.
    #[error(
        "KUBERNETES_SERVICE_HOST {host:?} is a name that stands for no address ({reason}): set it to the address of the API server, see kubectl -n default get service kubernetes"
    )]
    Name {
        /// The name.
        host: String,
        /// What the resolver says.
        reason: String,
    },
    /// The port is none.
    #[error("KUBERNETES_SERVICE_PORT {0:?} is not a port: set it to the port of the API server, mostly 443")]
    Port(String),
    /// The Service cannot be read.
    #[error("Service default/kubernetes, whose address no sandbox may reach, cannot be read: {0}")]
    Unread(String),
    /// The Service has no address.
    #[error(
        "Service default/kubernetes has no address, but {0:?}: set KUBERNETES_SERVICE_HOST to the address of the API server"
    )]
    NoAddress(String),
}

/// Where the environment says that the API server is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    /// A name and a port: some clusters put one into every pod, AKS among them.
    Name(String, u16),
}

/// The address and port, once for the life of the operator: names are not resolved by servers and agents.
///
/// # Errors
///
/// [`ApiServerError`] where environment and Service give none.
pub async fn address(client: &Client) -> Result<SocketAddr, ApiServerError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(host) = variable(HOST) else {
        let api: Api<Service> = Api::namespaced(client.clone(), "default");
        let service = api.get("kubernetes").await;
        return of_service(&service.map_err(|error| ApiServerError::Unread(text(&error)))?);
    };
    match place(&host, &variable(PORT).unwrap_or_else(|| DEFAULT_PORT.to_owned()))? {
        Place::Address(address) => Ok(address),
        Place::Name(name, port) => {
            let found = tokio::net::lookup_host((name.as_str(), port)).await;
            let address = least(&name, found)?;
            tracing::info!(host, %address, "Resolved KUBERNETES_SERVICE_HOST once: another address is taken at the next start");
            Ok(address)
        }
    }
}

fn place(host: &str, port: &str) -> Result<Place, ApiServerError> {
    let port = match port.parse() {
        Ok(0) | Err(_) => return Err(ApiServerError::Port(port.to_owned())),
        Ok(port) => port,
    };
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    Ok(match inner.unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => Place::Address(SocketAddr::new(address, port)),
        Err(_) => Place::Name(host.to_owned(), port),
    })
}

/// The least of them: resolvers give them in changing order, and another address is another template of all sandboxes.
fn least(host: &str, found: std::io::Result<impl Iterator<Item = SocketAddr>>) -> Result<SocketAddr, ApiServerError> {
    let reason = match found.map(Iterator::min) {
        Ok(Some(address)) => return Ok(address),
        Ok(None) => "the answer is empty".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(ApiServerError::Name {
        host: host.to_owned(),
        reason,
    })
}

fn of_service(service: &Service) -> Result<SocketAddr, ApiServerError> {
    let spec = service.spec.as_ref();
    let host = spec.and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default();
    match place(host, DEFAULT_PORT)? {
        Place::Address(address) => Ok(address),
        Place::Name(host, _) => Err(ApiServerError::NoAddress(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_as_it_is_and_all_else_is_a_name() {
        let address = |text: &str| Place::Address(text.parse().unwrap());
        assert_eq!(place("10.96.0.1", "443").unwrap(), address("10.96.0.1:443"));
        assert_eq!(place("fd00:10:96::1", "6443").unwrap(), address("[fd00:10:96::1]:6443"));
        assert_eq!(place("[fd00:10:96::1]", "443").unwrap(), address("[fd00:10:96::1]:443"));
        for name in ["demo.hcp.westeurope.azmk8s.io", "kubernetes", "10.96.0", "[kubernetes]"] {
            assert_eq!(place(name, "443").unwrap(), Place::Name(name.to_owned(), 443));
        }
    }

    #[test]
    fn a_port_that_is_none_is_named() {
        for port in ["https", "0", "65536", "tcp://10.96.0.1:443"] {
            let error = place("10.96.0.1", port).unwrap_err().to_string();
            assert!(
                error.contains("KUBERNETES_SERVICE_PORT") && error.contains(port),
                "{error}"
            );
        }
    }

    #[test]
    fn the_same_address_of_a_name_is_taken_in_whatever_order_they_come() {
        let mut found = ["192.0.2.1:443", "192.0.2.2:443"].map(|text| text.parse().unwrap());
        for _ in 0..2 {
            let least = least("api.example", Ok(found.into_iter())).unwrap();
            assert_eq!(least.to_string(), "192.0.2.1:443");
            found.reverse();
        }
    }

    #[test]
    fn a_name_without_an_address_ends_in_one_line_that_says_what_to_do() {
        let none = least("api.example", Ok(std::iter::empty()));
        let failed: std::io::Result<std::iter::Empty<_>> = Err(std::io::Error::other("no such host"));
        for error in [none, least("api.example", failed)] {
            let line = error.unwrap_err().to_string();
            for part in ["KUBERNETES_SERVICE_HOST", "api.example", "set it to the address"] {
                assert!(line.contains(part), "{part} is not in {line}");
            }
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    #[test]
    fn a_service_without_an_address_is_no_place() {
        let service = |address: &str| -> Service {
            serde_json::from_value(serde_json::json!({"spec": {"clusterIP": address}})).unwrap()
        };
        assert_eq!(
            of_service(&service("fd00::1")).unwrap(),
            "[fd00::1]:443".parse().unwrap()
        );
        for none in ["None", ""] {
            let error = of_service(&service(none)).unwrap_err().to_string();
            assert!(error.contains("default/kubernetes"), "{error}");
        }
    }
}
