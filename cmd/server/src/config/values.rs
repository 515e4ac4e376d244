//! The grammar of single flag values: names, quantities, JSON, files. Each error is the sentence that the caller prints.

use std::net::SocketAddr;
use std::path::Path;

use cli_mcp_sandbox::token::HmacKey;
use serde::de::DeserializeOwned;

use super::settings::{ConfigError, refuse};

pub(super) fn pull_policy(text: &str) -> Result<Option<String>, ConfigError> {
    match text {
        "" => Ok(None),
        "Always" | "IfNotPresent" | "Never" => Ok(Some(text.to_owned())),
        _ => refuse(format!(
            "--sandbox-image-pull-policy {text:?} is unknown: use Always, IfNotPresent or Never"
        )),
    }
}

pub(super) fn quantity_or_none(flag: &str, text: &str) -> Result<Option<String>, ConfigError> {
    if text.is_empty() {
        Ok(None)
    } else {
        quantity(flag, text).map(|()| Some(text.to_owned()))
    }
}

/// The grammar of a Kubernetes quantity
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>), without a sign.
pub(super) fn quantity(flag: &str, text: &str) -> Result<(), ConfigError> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number_ok = number.chars().any(|c| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .map(|digits| digits.trim_start_matches(['+', '-']));
    let suffix_ok = matches!(suffix, "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E")
        || matches!(suffix, "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei")
        || exponent.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()));
    if number_ok && suffix_ok {
        Ok(())
    } else {
        refuse(format!(
            "{flag} {text:?} is not a quantity: write for example 500m, 2 or 512Mi"
        ))
    }
}

/// Where to listen; none for an empty text.
pub(super) fn socket_address(flag: &str, text: &str, example: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => refuse(format!("{flag} {text:?} is not ip:port: write for example {example}")),
    }
}

pub(super) fn json_or_default<T: DeserializeOwned + Default>(
    flag: &str,
    text: &str,
    what: &str,
) -> Result<T, ConfigError> {
    if text.trim().is_empty() {
        Ok(T::default())
    } else {
        json(flag, text, what)
    }
}

pub(super) fn json<T: DeserializeOwned>(flag: &str, text: &str, what: &str) -> Result<T, ConfigError> {
    // The text may hold a secret value (an EnvVar): the error gives the place, never the content.
    serde_json::from_str(text).map_err(|error| {
        let kind = if error.is_data() { "does not fit" } else { "is not JSON" };
        ConfigError::new(format!(
            "{flag} {kind} at line {} column {}: it takes the JSON of {what}",
            error.line(),
            error.column()
        ))
    })
}

pub(super) fn read_key(file: &Path) -> Result<HmacKey, ConfigError> {
    let bytes = std::fs::read(file).map_err(|error| {
        ConfigError::new(format!(
            "--hmac-key-file {}: {error}: give a readable file with at least 32 random bytes",
            file.display()
        ))
    })?;
    HmacKey::new(&bytes).map_err(|error| ConfigError::new(format!("--hmac-key-file {}: {error}", file.display())))
}

pub(super) fn require_readable(flag: &str, file: &Path) -> Result<(), ConfigError> {
    match std::fs::File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!(
            "{flag} {}: {error}: give a file that this user can read",
            file.display()
        )),
    }
}

pub(super) fn require_text(flag: &str, text: &str) -> Result<(), ConfigError> {
    if text.trim().is_empty() {
        refuse(format!("{flag} is empty: give it a value"))
    } else {
        Ok(())
    }
}

/// RFC 1123 label: what a namespace is, and an instance, whose name becomes part of Service names.
pub(super) fn require_name(flag: &str, text: &str, longest: usize) -> Result<(), ConfigError> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ok = !text.is_empty()
        && text.len() <= longest
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if ok {
        Ok(())
    } else {
        refuse(format!(
            "{flag} {text:?} is not a name: 1 to {longest} of a-z, 0-9 and -, not at an end"
        ))
    }
}

pub(super) fn none_if_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn non_empty_list(list: &[String]) -> Vec<String> {
    list.iter()
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::EnvVar;

    use super::*;

    #[test]
    fn quantities() {
        for good in ["1", "100m", "0.5", "512Mi", "1e3", "2E+3", "1k"] {
            assert_eq!(quantity("--x", good), Ok(()), "{good}");
        }
        for bad in ["", "m", "-1", "1 Gi", "1GiB", "1e", "1.2.3", "abc"] {
            assert!(quantity("--x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bad_json_value_is_not_repeated() {
        let error = json::<Vec<EnvVar>>(
            "--sandbox-env",
            r#"[{"name":"A","value":"s3cret"},3]"#,
            "a list of EnvVar",
        )
        .unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}
