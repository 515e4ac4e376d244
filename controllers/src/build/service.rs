//! Services of the server and the proxy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cli_mcp_api::labels::{self, Component};
use cli_mcp_api::names;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;

use super::metadata;
use crate::validate::Validated;

/// OpenShift's service CA issues the certificate into the named Secret
/// (<https://docs.redhat.com/en/documentation/openshift_container_platform/4.19/html/security_and_compliance/configuring-certificates#add-service-serving>).
const SERVING_CERT_ANNOTATION: &str = "service.beta.openshift.io/serving-cert-secret-name";

/// `cli-mcp-<name>`: the MCP endpoint.
pub(super) fn server(validated: &Validated) -> Service {
    let name = names::server(&validated.name);
    let mut service = service(
        validated,
        name,
        Component::Server,
        "https",
        names::SERVER_PORT,
        Some("https"),
    );
    if validated.openshift {
        service.metadata.annotations = Some(BTreeMap::from([(
            SERVING_CERT_ANNOTATION.to_owned(),
            names::tls(&validated.name),
        )]));
    }
    service
}

/// `cli-mcp-<name>-proxy`: what sandboxes have as `HTTPS_PROXY`.
pub(super) fn proxy(validated: &Validated) -> Service {
    service(
        validated,
        names::proxy(&validated.name),
        Component::Proxy,
        "proxy",
        names::PROXY_PORT,
        None,
    )
}

/// The cluster IP of a Service: none where it is headless, or only an alias of another host
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#headless-services>).
pub(crate) fn cluster_ip(service: &DynamicObject) -> Option<IpAddr> {
    service.data.pointer("/spec/clusterIP")?.as_str()?.parse().ok()
}

fn service(
    validated: &Validated,
    name: String,
    component: Component,
    port_name: &str,
    port: i32,
    app_protocol: Option<&str>,
) -> Service {
    Service {
        metadata: metadata(validated, name, Some(component)),
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort {
                app_protocol: app_protocol.map(str::to_owned),
                name: Some(port_name.to_owned()),
                port,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String(port_name.to_owned())),
                ..ServicePort::default()
            }]),
            selector: Some(labels::selector(&validated.name, component)),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
