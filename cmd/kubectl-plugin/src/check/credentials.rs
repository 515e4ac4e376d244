//! What is in the admin's two Secrets: judged by what the operator and the server do with them, and by the calendar.

use cli_mcp_api::names;
use cli_mcp_kubeconfig::{Credential, Kubeconfig};
use jiff::Timestamp;
use x509_parser::pem::Pem;

use super::Finding;
use super::facts::{Facts, SecretData, Seen};

const KUBECONFIG: &str = "Kubeconfig";
const CERTIFICATE: &str = "Certificate";

/// Seconds before an end at which it is told: two weeks.
const SOON: i64 = 14 * 86_400;

/// The investigation kubeconfig.
pub(super) fn kubeconfig(facts: &Facts) -> Finding {
    let Some(secret) = &facts.kubeconfig_secret else {
        return Finding::ok(KUBECONFIG, "no target of type kubernetes needs one");
    };
    let again = format!(
        "make a new one: kubectl cli-mcp investigation-kubeconfig -n {} -i {}, or kubectl -n {} create secret generic {secret} --from-file={}=FILE",
        facts.namespace,
        facts.name,
        facts.namespace,
        names::KUBECONFIG_KEY
    );
    let bytes = match value(&facts.kubeconfig, secret, names::KUBECONFIG_KEY) {
        Ok(bytes) => bytes,
        Err(Missing::Unseen(why)) => return Finding::unknown(KUBECONFIG, why),
        Err(Missing::Absent(what)) => return Finding::problem(KUBECONFIG, what, again),
    };
    let parsed = match Kubeconfig::parse(bytes) {
        Ok(parsed) => parsed,
        Err(invalid) => {
            let problems = invalid.problems().collect::<Vec<_>>().join("; ");
            return Finding::problem(
                KUBECONFIG,
                format!("Secret {secret}: {problems}"),
                format!("correct the file, and check it with operator kubeconfig check FILE; or {again}"),
            );
        }
    };
    let ends = parsed
        .endpoints()
        .iter()
        .filter_map(|endpoint| match &endpoint.user.credential {
            Credential::Token(token) => token_end(token.expose()),
            Credential::ClientCertificate { .. } => None,
        })
        .min();
    let servers: Vec<String> = parsed
        .clusters()
        .iter()
        .map(|cluster| cluster.server.to_string())
        .collect();
    let serves = format!("Secret {secret} serves {}", servers.join(", "));
    match ends {
        Some(end) => calendar(
            KUBECONFIG,
            &format!("the token in Secret {secret}"),
            end,
            facts.now,
            &again,
        )
        .unwrap_or_else(|| Finding::ok(KUBECONFIG, serves)),
        None => Finding::ok(KUBECONFIG, serves),
    }
}

/// The server's certificate.
pub(super) fn certificate(facts: &Facts) -> Finding {
    let secret = names::tls(&facts.name);
    let again = format!(
        "on OpenShift the service CA makes it; elsewhere have cert-manager issue it, or kubectl -n {} create secret tls {secret} --cert=FILE --key=FILE (docs/install.md, \"A certificate for the server\")",
        facts.namespace
    );
    let pem = match value(&facts.tls, &secret, "tls.crt").and_then(|pem| {
        value(&facts.tls, &secret, "tls.key")?;
        Ok(pem)
    }) {
        Ok(pem) => pem,
        Err(Missing::Unseen(why)) => return Finding::unknown(CERTIFICATE, why),
        Err(Missing::Absent(what)) => return Finding::problem(CERTIFICATE, what, again),
    };
    let first = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
    let Some(certificate) = first.as_ref().and_then(|pem| pem.parse_x509().ok()) else {
        return Finding::problem(
            CERTIFICATE,
            format!("Secret {secret}: tls.crt holds no certificate"),
            again,
        );
    };
    let end = certificate.validity().not_after.timestamp();
    if let Some(finding) = calendar(
        CERTIFICATE,
        &format!("the certificate in Secret {secret}"),
        end,
        facts.now,
        &again,
    ) {
        return finding;
    }
    let service = format!("{}.{}.svc", names::server(&facts.name), facts.namespace);
    let named = certificate
        .subject_alternative_name()
        .ok()
        .flatten()
        .is_some_and(|names| {
            let mut names = names.value.general_names.iter();
            names.any(|name| matches!(name, x509_parser::extensions::GeneralName::DNSName(dns) if *dns == service))
        });
    if named {
        Finding::ok(CERTIFICATE, format!("Secret {secret}, good until {}", day(end)))
    } else {
        Finding::warning(
            CERTIFICATE,
            format!("the certificate in Secret {secret} does not name {service}"),
            "clients inside the cluster cannot verify it: add that DNS name",
        )
    }
}

enum Missing {
    Unseen(String),
    Absent(String),
}

fn value<'a>(seen: &'a Seen<SecretData>, secret: &str, key: &str) -> Result<&'a Vec<u8>, Missing> {
    match seen {
        Err(why) => Err(Missing::Unseen(format!("Secret {secret} cannot be read: {why}"))),
        Ok(None) => Err(Missing::Absent(format!("Secret {secret} does not exist"))),
        Ok(Some(data)) => data
            .get(key)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| Missing::Absent(format!("Secret {secret} has no value under {key}"))),
    }
}

/// A finding when the end is past or near.
fn calendar(part: &'static str, what: &str, end: i64, now: Timestamp, remedy: &str) -> Option<Finding> {
    let left = end - now.as_second();
    if left <= 0 {
        Some(Finding::problem(part, format!("{what} ended on {}", day(end)), remedy))
    } else if left < SOON {
        Some(Finding::warning(part, format!("{what} ends on {}", day(end)), remedy))
    } else {
        None
    }
}

fn day(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| "an unknown day".to_owned(), |time| time.to_string())
}

/// When a ServiceAccount's token ends: the claim `exp` (RFC 7519, section 4.1.4). None for other tokens.
fn token_end(token: &[u8]) -> Option<i64> {
    use base64::Engine;
    let claims = std::str::from_utf8(token).ok()?.split('.').nth(1)?;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<serde_json::Value>(&claims)
        .ok()?
        .get("exp")?
        .as_i64()
}

#[cfg(test)]
mod tests {
    use base64::Engine;

    use super::*;

    #[test]
    fn the_end_of_a_token_is_read_from_its_claims() {
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"exp":1700000000}"#);
        assert_eq!(token_end(format!("h.{claims}.s").as_bytes()), Some(1_700_000_000));
        assert_eq!(token_end(b"opaque"), None);
    }

    #[test]
    fn an_end_is_told_when_it_is_past_or_near() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let told = |end| calendar("p", "it", end, now, "do").map(|finding| finding.level);
        assert_eq!(told(999_999), Some(crate::check::Level::Problem));
        assert_eq!(told(1_000_000 + SOON - 1), Some(crate::check::Level::Warning));
        assert_eq!(told(1_000_000 + SOON), None);
    }
}
