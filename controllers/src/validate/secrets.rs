//! What can be wrong with a Secret, and what the admin is told to run.

use std::collections::BTreeMap;

use cli_mcp_api::conditions::reasons;
use cli_mcp_api::names;
use cli_mcp_kubeconfig::SigningCa;

use super::Problem;
use crate::dereference::{SecretContent, Unread};
use crate::error::text;

/// Contents of a generated Secret; `None` when it is not there yet, broken, or another object's. One that nothing
/// controls is the admin's own.
pub(super) fn key<'a>(
    secret: &'a Option<SecretContent>,
    (namespace, name): (&str, &str),
    wanted: &[&str],
    instance_uid: &str,
    problems: &mut Vec<Problem>,
) -> Option<&'a BTreeMap<String, Vec<u8>>> {
    let secret = secret.as_ref()?;
    if secret.controller.as_deref().is_some_and(|uid| uid != instance_uid) {
        problems.push(Problem {
            reason: reasons::CHILDREN_NOT_READY,
            message: format!(
                "Secret {name} belongs to another object, such as an earlier instance of this name: it is left alone, \
                 and made again when it is gone. If it stays: kubectl -n {namespace} delete secret {name}"
            ),
        });
        return None;
    }
    keys(secret, name, wanted, problems, || make_again(namespace, name))
}

/// The certificate of the proxy's CA, if the proxy can sign with the pair: it keeps its last good one, and a sandbox must
/// trust the one that is used.
pub(super) fn ca_certificate<'a>(
    secret: &'a Option<SecretContent>,
    (namespace, name): (&str, &str),
    instance_uid: &str,
    problems: &mut Vec<Problem>,
) -> Option<&'a [u8]> {
    let wanted = [names::CA_CERT_KEY, names::CA_KEY_KEY];
    let data = key(secret, (namespace, name), &wanted, instance_uid, problems)?;
    let (certificate, key) = (data.get(names::CA_CERT_KEY)?, data.get(names::CA_KEY_KEY)?);
    match SigningCa::read(certificate, key) {
        Ok(_) => Some(certificate),
        Err(error) => {
            problems.push(Problem {
                reason: reasons::SECRET_KEYS_INVALID,
                message: format!("Secret {name}: {error}. {}", make_again(namespace, name)),
            });
            None
        }
    }
}

/// What gives a generated Secret that is broken a good value.
pub(super) fn make_again(namespace: &str, secret: &str) -> String {
    format!("Delete the Secret to have another generated: kubectl -n {namespace} delete secret {secret}")
}

/// Contents of a Secret that has a value under each of these keys; without one the admin is told the remedy.
pub(super) fn keys<'a>(
    secret: &'a SecretContent,
    name: &str,
    wanted: &[&str],
    problems: &mut Vec<Problem>,
    remedy: impl FnOnce() -> String,
) -> Option<&'a BTreeMap<String, Vec<u8>>> {
    let lacking: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|key| secret.data.get(*key).is_none_or(Vec::is_empty))
        .collect();
    if lacking.is_empty() {
        return Some(&secret.data);
    }
    problems.push(Problem {
        reason: reasons::SECRET_KEYS_INVALID,
        message: format!(
            "Secret {name} has no value under {}: it needs {}. {}",
            lacking.join(" and "),
            wanted.join(" and "),
            remedy()
        ),
    });
    None
}

/// A Secret that is there, of which nothing more is known.
pub(super) fn unread(unread: &Unread) -> Problem {
    let Unread {
        namespace,
        name: secret,
        cause,
    } = unread;
    let remedy = match cause.as_ref() {
        kube::Error::Api(status) if status.is_forbidden() => {
            format!("The operator needs its Role in namespace {namespace}: install its roles again")
        }
        _ => "If that goes on, see whether the API server is well".to_owned(),
    };
    Problem {
        reason: reasons::CHILDREN_NOT_READY,
        message: format!(
            "Secret {secret} could not be read: {}. What needs it stays as it is, and it is tried again. {remedy}",
            text(cause)
        ),
    }
}

/// What fills a Secret that lacks the kubeconfig.
pub(super) fn fill_kubeconfig(namespace: &str, secret: &str) -> String {
    filled(
        namespace,
        &format!("generic {secret} --from-file={}=FILE", names::KUBECONFIG_KEY),
    )
}

/// What fills a Secret that lacks a part of the certificate.
pub(super) fn fill_tls(namespace: &str, secret: &str) -> String {
    filled(namespace, &format!("tls {secret} --cert=FILE --key=FILE"))
}

fn filled(namespace: &str, secret: &str) -> String {
    format!(
        "Fill it: kubectl -n {namespace} create secret {secret} --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -"
    )
}

pub(super) fn missing_kubeconfig(namespace: &str, secret: &str) -> Problem {
    Problem {
        reason: reasons::SECRETS_NOT_FOUND,
        message: format!(
            "Secret {secret} with the investigation kubeconfig does not exist. Create it: kubectl -n {namespace} create \
             secret generic {secret} --from-file={}=FILE",
            names::KUBECONFIG_KEY
        ),
    }
}

pub(super) fn missing_tls(namespace: &str, instance: &str, openshift: bool) -> Problem {
    let secret = names::tls(instance);
    let message = if openshift {
        format!(
            "Secret {secret} is not there yet: OpenShift's service CA creates it for Service {}",
            names::server(instance)
        )
    } else {
        format!(
            "Secret {secret} with the certificate of the MCP server (DNS name {}.{namespace}.svc) does not exist. Create \
             it: kubectl -n {namespace} create secret tls {secret} --cert=FILE --key=FILE",
            names::server(instance)
        )
    };
    Problem {
        reason: reasons::SECRETS_NOT_FOUND,
        message,
    }
}
