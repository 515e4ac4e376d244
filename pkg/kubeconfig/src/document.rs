//! From bytes to one YAML mapping: what encodings and YAML features a kubeconfig may use (`proxy_cases.md`, case 75).
//!
//! Messages hold places, never contents: the text that does not parse may well be a token.

use serde::Deserialize;
use serde_yaml::{Mapping, Value};

use crate::kubeconfig::MAX_BYTES;

/// Reads the one document. JSON is YAML; a byte order mark and CRLF are fine; anchors and merge keys are expanded.
pub(crate) fn read(bytes: &[u8]) -> Result<Mapping, String> {
    if bytes.len() > MAX_BYTES {
        return Err(format!(
            "the kubeconfig has {} bytes, at most {MAX_BYTES} (1 MiB) are read: leave only what the sandbox needs",
            bytes.len()
        ));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!(
            "the kubeconfig is not UTF-8 at byte {}: save it as UTF-8",
            error.valid_up_to()
        )
    })?;
    let mut found = None;
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut value = Value::deserialize(document).map_err(|error| syntax(&error))?;
        value.apply_merge().map_err(|error| syntax(&error))?;
        match value {
            Value::Null => {}
            Value::Mapping(mapping) if found.is_none() => found = Some(mapping),
            Value::Mapping(_) => {
                return Err("the kubeconfig has more than one YAML document: leave one, without `---` lines".into());
            }
            _ => return Err("the kubeconfig is not a YAML mapping: it must hold clusters, users and contexts".into()),
        }
    }
    found.ok_or_else(|| "the kubeconfig is empty: put clusters, users and contexts into it".into())
}

fn syntax(error: &serde_yaml::Error) -> String {
    let place = error
        .location()
        .map(|location| format!(" at line {} column {}", location.line(), location.column()))
        .unwrap_or_default();
    if error.to_string().contains("duplicate entry") {
        format!("the kubeconfig has the same key twice in one mapping{place}: leave one of them")
    } else {
        format!("the kubeconfig is not valid YAML{place}: `kubectl config view --kubeconfig FILE` shows the mistake")
    }
}

/// A field's text. `None` when absent, null or empty, as in client-go, where they mean the same.
pub(crate) fn text<'a>(mapping: &'a Mapping, key: &str) -> Result<Option<&'a str>, String> {
    match mapping.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{key}` is not text: put its value in quotes")),
    }
}

/// A list of texts. Empty when absent.
pub(crate) fn texts(value: Option<&Value>, key: &str) -> Result<Vec<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Sequence(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                _ => Err(format!("`{key}` has an entry that is not text: put it in quotes")),
            })
            .collect(),
        Some(_) => Err(format!("`{key}` is not a list")),
    }
}

/// A nested mapping. `None` when absent or null.
pub(crate) fn mapping<'a>(outer: &'a Mapping, key: &str) -> Result<Option<&'a Mapping>, String> {
    match outer.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Mapping(inner)) => Ok(Some(inner)),
        Some(_) => Err(format!("`{key}` is not a mapping")),
    }
}

/// A list at the top of the file, as the entries that are mappings, each with its name.
pub(crate) fn named<'a>(top: &'a Mapping, list: &str, inner: &str) -> Result<Vec<Named<'a>>, Vec<String>> {
    let items = match top.get(list) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Sequence(items)) => items,
        Some(_) => return Err(vec![format!("`{list}` is not a list")]),
    };
    let mut entries: Vec<Named<'a>> = Vec::new();
    let mut problems = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let read = || -> Result<Named<'a>, String> {
            let Value::Mapping(item) = item else {
                return Err(format!("`{list}[{index}]` is not a mapping"));
            };
            let name = text(item, "name")
                .map_err(|error| format!("`{list}[{index}]`: {error}"))?
                .ok_or_else(|| format!("`{list}[{index}]` has no name: give it one"))?;
            let body = mapping(item, inner).map_err(|error| format!("`{list}[{index}]`: {error}"))?;
            Ok(Named { name, body })
        };
        match read() {
            Ok(entry) if entries.iter().any(|other| other.name == entry.name) => problems.push(format!(
                "{inner} {} stands twice in `{list}`: remove or rename one",
                crate::problems::quoted(entry.name)
            )),
            Ok(entry) => entries.push(entry),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        Ok(entries)
    } else {
        Err(problems)
    }
}

/// One entry of `clusters`, `users` or `contexts`.
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) body: Option<&'a Mapping>,
}

/// The keys that client-go does not know and therefore ignores: most often a typing mistake.
pub(crate) fn unknown_keys<'a>(mapping: &'a Mapping, known: &[&str]) -> impl Iterator<Item = &'a str> {
    mapping
        .keys()
        .filter_map(Value::as_str)
        .filter(move |key| !known.contains(key))
        .collect::<Vec<_>>()
        .into_iter()
}
