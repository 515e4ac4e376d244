//! A user of a kubeconfig: which credentials the proxy can present, and what it refuses (`proxy_cases.md`, cases 40,
//! 42, 71, 72).

use std::fmt;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_yaml::{Mapping, Value};

use crate::cluster::{decode, is_set};
use crate::document;
use crate::dummy::DUMMY_TOKEN;
use crate::secret::{Scrubber, Secret};

/// Keys of a user that client-go knows.
pub(crate) const KEYS: [&str; 15] = [
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "token",
    "tokenFile",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
    "username",
    "password",
    "auth-provider",
    "exec",
    "extensions",
];

/// What authenticates a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A bearer token: visible ASCII, as a header takes it.
    Token(Secret),
    /// A client certificate for the proxy's own connection.
    ClientCertificate {
        /// The chain, the user's certificate first.
        chain: Vec<CertificateDer<'static>>,
        /// The private key, DER.
        key: ClientKey,
    },
}

/// A private key that no `Debug` shows.
#[derive(PartialEq, Eq)]
pub struct ClientKey(PrivateKeyDer<'static>);

impl ClientKey {
    /// The key, for the one place that signs with it.
    #[must_use]
    pub fn expose(&self) -> PrivateKeyDer<'static> {
        self.0.clone_key()
    }
}

impl Clone for ClientKey {
    fn clone(&self) -> Self {
        Self(self.0.clone_key())
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[redacted]")
    }
}

/// Whom the user acts as. The proxy adds exactly these headers after it has stripped the client's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// `as`.
    pub user: Option<String>,
    /// `as-uid`.
    pub uid: Option<String>,
    /// `as-groups`.
    pub groups: Vec<String>,
    /// `as-user-extra`: key and values.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Impersonation {
    /// The headers, in a stable order: name and value.
    #[must_use]
    pub fn headers(&self) -> Vec<(String, String)> {
        let user = self
            .user
            .iter()
            .map(|user| ("impersonate-user".to_owned(), user.clone()));
        let uid = self.uid.iter().map(|uid| ("impersonate-uid".to_owned(), uid.clone()));
        let groups = self
            .groups
            .iter()
            .map(|group| ("impersonate-group".to_owned(), group.clone()));
        let extra = self.extra.iter().flat_map(|(key, values)| {
            let name = format!("impersonate-extra-{}", escape_header_key(key));
            values.iter().map(move |value| (name.clone(), value.clone()))
        });
        user.chain(uid).chain(groups).chain(extra).collect()
    }
}

/// Percent-encodes what a header name cannot hold, as client-go does for keys of `as-user-extra`.
fn escape_header_key(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte.to_ascii_lowercase()));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A user whose credential the proxy can present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name in the file.
    pub name: String,
    /// What authenticates it.
    pub credential: Credential,
    /// Whom it acts as.
    pub impersonation: Impersonation,
}

impl User {
    /// Whether both present the same identity.
    pub(crate) fn same_identity(&self, other: &Self) -> bool {
        self.credential == other.credential && self.impersonation == other.impersonation
    }
}

/// Teaches the scrubber every secret of a user, served or not.
pub(crate) fn collect_secrets(body: &Mapping, scrubber: &mut Scrubber) {
    for key in ["token", "password"] {
        match body.get(key) {
            Some(Value::String(text)) => scrubber.add(text.trim().as_bytes()),
            Some(Value::Number(number)) => scrubber.add(number.to_string().as_bytes()),
            _ => {}
        }
    }
    for key in ["client-key-data", "client-certificate-data"] {
        let Some(Value::String(data)) = body.get(key) else {
            continue;
        };
        // The certificate is public, but a key may have been pasted in its place or beside it.
        match decode(data) {
            Some(pem) => {
                let private = key == "client-key-data" || pem.windows(11).any(|window| window == b"PRIVATE KEY");
                if private {
                    scrubber.add_pem(&pem);
                    scrubber.add_runs(data.as_bytes());
                }
            }
            None => scrubber.add_pem(data.as_bytes()),
        }
    }
    if let Some(Value::Mapping(provider)) = body.get("auth-provider")
        && let Some(Value::Mapping(config)) = provider.get("config")
    {
        let public = [
            "client-id",
            "idp-issuer-url",
            "idp-certificate-authority",
            "cmd-path",
            "cmd-args",
            "expiry",
        ];
        for (key, value) in config {
            if let (Some(key), Some(value)) = (key.as_str(), value.as_str())
                && !public.contains(&key)
            {
                scrubber.add(value.as_bytes());
            }
        }
    }
    if let Some(Value::Mapping(exec)) = body.get("exec")
        && let Some(Value::Sequence(env)) = exec.get("env")
    {
        env.iter()
            .filter_map(|entry| entry.get("value")?.as_str())
            .for_each(|value| scrubber.add(value.as_bytes()));
    }
}

/// Reads a user; on failure every mistake in it, each with its remedy.
pub(crate) fn read(name: &str, body: &Mapping) -> Result<User, Vec<String>> {
    let mut problems = Vec::new();
    let remedy = "use the token of a ServiceAccount (`kubectl create token`, or a Secret of type \
                  kubernetes.io/service-account-token) in `token`";
    if is_set(body, "exec") {
        problems.push(format!(
            "`exec` runs a program, which the proxy does not have: {remedy}"
        ));
    }
    if is_set(body, "auth-provider") {
        problems.push(format!(
            "`auth-provider` is not supported (client-go removed it): {remedy}"
        ));
    }
    if is_set(body, "username") || is_set(body, "password") {
        problems.push(format!(
            "basic authentication (`username`, `password`) is not supported by API servers: {remedy}"
        ));
    }
    for (key, inline) in [
        ("tokenFile", "token"),
        ("client-certificate", "client-certificate-data"),
        ("client-key", "client-key-data"),
    ] {
        if is_set(body, key) {
            problems.push(format!(
                "`{key}` names a file, which the proxy does not have: put its content inline into `{inline}` \
                 (`kubectl config view --raw --flatten` does for certificates)"
            ));
        }
    }
    let refused = !problems.is_empty();
    let mut field = |key: &str| {
        document::text(body, key)
            .map_err(|problem| problems.push(problem))
            .ok()
            .flatten()
    };
    let (token, certificate, key) = (
        field("token"),
        field("client-certificate-data"),
        field("client-key-data"),
    );
    let credential = match (token, certificate, key) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
            Err("has both a token and a client certificate: which one counts differs between clients: leave one".into())
        }
        (Some(token), None, None) => read_token(token).map(Credential::Token),
        (None, Some(certificate), Some(key)) => read_client_certificate(certificate, key),
        (None, Some(_), None) => {
            Err("`client-certificate-data` has no `client-key-data` beside it: add the key".into())
        }
        (None, None, Some(_)) => Err("`client-key-data` has no `client-certificate-data` beside it: add it".into()),
        (None, None, None) => Err(format!("has no credential: {remedy}")),
    };
    let credential = match credential {
        Ok(credential) => Some(credential),
        // One message a mistake: who has an exec plugin needs not hear that there is no token either.
        Err(_) if refused && token.is_none() && certificate.is_none() && key.is_none() => None,
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let impersonation = read_impersonation(body).map_err(|problem| problems.push(problem)).ok();
    match (credential, impersonation) {
        (Some(credential), Some(impersonation)) if problems.is_empty() => Ok(User {
            name: name.to_owned(),
            credential,
            impersonation,
        }),
        _ => Err(problems),
    }
}

fn read_token(token: &str) -> Result<Secret, String> {
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err("`token` is only white space: put the token there".into());
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`token` has a character that no header can carry: copy it anew, in one line".into());
    }
    if token == DUMMY_TOKEN {
        return Err(
            "`token` is the sandbox's placeholder: give the investigation kubeconfig, not the dummy one".into(),
        );
    }
    Ok(Secret::new(token))
}

fn read_client_certificate(certificate: &str, key: &str) -> Result<Credential, String> {
    let certificate =
        decode(certificate).ok_or("`client-certificate-data` is not base64: encode the PEM file with `base64 -w0`")?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| "`client-certificate-data` holds broken PEM: encode the certificate anew")?;
    if chain.is_empty() {
        return Err("`client-certificate-data` holds no certificate: encode the PEM file of the certificate".into());
    }
    let key = decode(key).ok_or("`client-key-data` is not base64: encode the PEM file with `base64 -w0`")?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| "`client-key-data` holds no unencrypted PEM private key: encode the PEM file of the key")?;
    let provider = rustls::crypto::ring::default_provider();
    rustls::sign::CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            "`client-key-data` is not the key of `client-certificate-data`: give the pair that belongs together"
        }
        _ => {
            "`client-certificate-data` or `client-key-data` is of a kind that TLS cannot use: use RSA, ECDSA or Ed25519"
        }
    })?;
    Ok(Credential::ClientCertificate {
        chain,
        key: ClientKey(key),
    })
}

fn read_impersonation(body: &Mapping) -> Result<Impersonation, String> {
    let user = document::text(body, "as")?.map(str::to_owned);
    let uid = document::text(body, "as-uid")?.map(str::to_owned);
    let groups = document::texts(body.get("as-groups"), "as-groups")?;
    let mut extra = Vec::new();
    for (key, values) in document::mapping(body, "as-user-extra")?.into_iter().flatten() {
        let key = key
            .as_str()
            .ok_or("`as-user-extra` has a key that is not text: put it in quotes")?;
        extra.push((key.to_owned(), document::texts(Some(values), "as-user-extra")?));
    }
    extra.sort();
    let impersonation = Impersonation {
        user,
        uid,
        groups,
        extra,
    };
    if impersonation.user.is_none() && impersonation != Impersonation::default() {
        return Err("`as-uid`, `as-groups` and `as-user-extra` need `as`: add it, or remove them".into());
    }
    let legal = |value: &str| {
        !value.is_empty() && value.trim() == value && value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
    };
    if !impersonation
        .headers()
        .iter()
        .all(|(name, value)| legal(value) && name.len() < 256)
    {
        return Err(
            "`as`, `as-uid`, `as-groups` or `as-user-extra` is empty or has a character that no header can carry: \
                    use visible ASCII"
                .into(),
        );
    }
    Ok(impersonation)
}
