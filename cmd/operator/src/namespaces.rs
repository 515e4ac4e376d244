//! Which namespaces are watched, out of `WATCH_NAMESPACE`.

use std::collections::BTreeSet;

use cli_mcp_controllers::Scope;

/// Why `WATCH_NAMESPACE` cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespacesError {
    /// `*` beside names.
    #[error("WATCH_NAMESPACE is {0:?}: * is all namespaces and stands alone")]
    AllAndMore(String),
    /// A part is no name of a namespace.
    #[error("WATCH_NAMESPACE names {0:?}: a namespace has 1 to 63 lower-case letters, digits and hyphens")]
    NotAName(String),
}

/// Reads `WATCH_NAMESPACE`: empty is `own`, a list is split at commas, `*` is all.
///
/// # Errors
///
/// When a part is no name.
pub fn scopes(watch: &str, own: &str) -> Result<Vec<Scope>, NamespacesError> {
    let parts: BTreeSet<&str> = watch
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        return Ok(vec![Scope::Namespace(own.to_owned())]);
    }
    if parts.contains("*") {
        return if parts.len() == 1 {
            Ok(vec![Scope::All])
        } else {
            Err(NamespacesError::AllAndMore(watch.to_owned()))
        };
    }
    parts
        .into_iter()
        .map(|part| {
            if is_label(part) {
                Ok(Scope::Namespace(part.to_owned()))
            } else {
                Err(NamespacesError::NotAName(part.to_owned()))
            }
        })
        .collect()
}

/// RFC 1123 label.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 63
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
        && text.bytes().all(|byte| inner(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Scope> {
        names.iter().map(|name| Scope::Namespace((*name).to_owned())).collect()
    }

    #[test]
    fn own_one_several_all() {
        assert_eq!(scopes("", "own"), Ok(named(&["own"])));
        assert_eq!(scopes(" ", "own"), Ok(named(&["own"])));
        assert_eq!(scopes("a", "own"), Ok(named(&["a"])));
        assert_eq!(scopes("b, a,b,", "own"), Ok(named(&["a", "b"])));
        assert_eq!(scopes("*", "own"), Ok(vec![Scope::All]));
    }

    #[test]
    fn what_is_no_name_is_named() {
        assert_eq!(scopes("a,*", "own"), Err(NamespacesError::AllAndMore("a,*".into())));
        for bad in ["A", "-a", "a-", "a.b", "a b"] {
            assert_eq!(scopes(bad, "own"), Err(NamespacesError::NotAName(bad.into())));
        }
    }
}
