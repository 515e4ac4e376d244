//! An admin's questions, answered without a cluster: what is wrong with a kubeconfig, and what would be served.

use std::fmt;
use std::path::{Path, PathBuf};

use cli_mcp_api::names;
use cli_mcp_api::v1alpha1::{CliMcpInstance, TargetType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::dummy;
use crate::kubeconfig::Kubeconfig;
use crate::problems::{Invalid, quoted};
use crate::routes::Routes;
use crate::user::Credential;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What a file holds is wrong. One line a mistake.
    #[error("{}", prefixed(path, invalid))]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// All that is wrong with it.
        invalid: Invalid,
    },
}

fn prefixed(path: &Path, invalid: &Invalid) -> String {
    invalid
        .problems()
        .map(|problem| format!("{}: {problem}", path.display()))
        .collect::<Vec<_>>()
        .join("\n")
}

/// What a valid kubeconfig gives a sandbox: one line a server, then the warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One line a server.
    pub served: Vec<String>,
    /// What is accepted but looks like a mistake.
    pub warnings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.served.iter().try_for_each(|line| writeln!(formatter, "{line}"))?;
        self.warnings
            .iter()
            .try_for_each(|line| writeln!(formatter, "warning: {line}"))
    }
}

/// `operator kubeconfig check FILE`: everything that is wrong with the file, or what it will serve.
///
/// # Errors
///
/// When the file cannot be read, or with every mistake in it.
pub fn check(file: &Path) -> Result<Report, OfflineError> {
    let kubeconfig = load(file)?;
    let served = kubeconfig
        .endpoints()
        .iter()
        .map(|endpoint| {
            let credential = match &endpoint.user.credential {
                Credential::Token(_) => "a token",
                Credential::ClientCertificate { .. } => "a client certificate",
            };
            let acting = endpoint
                .user
                .impersonation
                .user
                .as_deref()
                .map(|user| format!(", acting as {}", quoted(user)))
                .unwrap_or_default();
            let trust = match &endpoint.cluster.ca {
                Some(certificates) => format!("{} CA certificate(s) of the file", certificates.len()),
                None => "the public roots".to_owned(),
            };
            format!(
                "serves {} (cluster {}) as user {} with {credential}{acting}, trusting {trust}",
                endpoint.cluster.server,
                quoted(&endpoint.cluster.name),
                quoted(&endpoint.user.name),
            )
        })
        .collect();
    Ok(Report {
        served,
        warnings: kubeconfig.warnings().to_vec(),
    })
}

/// `operator kubeconfig render FILE --instance INSTANCE.yaml --ca CA.crt --out DIR`: writes exactly the
/// `proxy-config.json` and `kubeconfig` that the proxy's ConfigMap of this instance would hold. A manifest without a
/// namespace is taken to be in `default`.
///
/// # Errors
///
/// When a file cannot be read or written, or with everything that is wrong in one. Nothing is written then.
pub fn render(file: &Path, instance: &Path, ca: &Path, out: &Path) -> Result<(), OfflineError> {
    let invalid = |path: &Path, message: String| OfflineError::Invalid {
        path: path.to_owned(),
        invalid: Invalid::one(message),
    };
    let manifest: CliMcpInstance = serde_yaml::from_slice(&read(instance)?)
        .map_err(|error| invalid(instance, format!("not a CliMcpInstance: {error}")))?;
    let name = manifest.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Err(invalid(
            instance,
            "metadata.name is missing: give the instance a name".into(),
        ));
    }
    let targets = &manifest.spec.proxy.targets;
    let kubernetes = targets
        .iter()
        .any(|target| target.target_type == TargetType::Kubernetes);
    let kubeconfig = if kubernetes { Some(load(file)?) } else { None };
    let routes = Routes::build(targets, kubeconfig.as_ref()).map_err(|problems| OfflineError::Invalid {
        path: instance.to_owned(),
        invalid: problems,
    })?;
    let ca_bytes = read(ca)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&ca_bytes).collect();
    if certificates.map_or(true, |certificates| certificates.is_empty()) {
        return Err(invalid(
            ca,
            "holds no PEM certificate: give the ca.crt of the proxy's CA".into(),
        ));
    }
    // Public by its PEM: a file that also holds a key must not reach a sandbox.
    if String::from_utf8_lossy(&ca_bytes).contains("PRIVATE KEY") {
        return Err(invalid(
            ca,
            "holds a private key: give ca.crt only, the sandbox sees it".into(),
        ));
    }
    let namespace = manifest.metadata.namespace.as_deref().unwrap_or("default");
    let rendered = dummy::render(kubeconfig.as_ref(), &ca_bytes, &dummy::proxy_url(name, namespace));
    std::fs::create_dir_all(out).map_err(|source| OfflineError::Io {
        path: out.to_owned(),
        source,
    })?;
    write(&out.join(names::ROUTES_KEY), &routes.to_json())?;
    write(&out.join(names::KUBECONFIG_KEY), &rendered)
}

fn load(file: &Path) -> Result<Kubeconfig, OfflineError> {
    Kubeconfig::parse(&read(file)?).map_err(|invalid| OfflineError::Invalid {
        path: file.to_owned(),
        invalid,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, OfflineError> {
    std::fs::read(path).map_err(|source| OfflineError::Io {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, content: &str) -> Result<(), OfflineError> {
    std::fs::write(path, content).map_err(|source| OfflineError::Io {
        path: path.to_owned(),
        source,
    })
}
