//! Queries of Prometheus, read as far as it takes to say which metrics and labels they are about.

use std::collections::BTreeSet;

/// A selector: a metric, and what its labels must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Name of the series, with `_total`, `_bucket` and their kind.
    pub metric: String,
    /// Each label with the values that are asked for, those of a regular expression one by one.
    pub labels: Vec<(String, Vec<String>)>,
}

/// The selectors of a query, or of a text with queries in it.
#[must_use]
pub fn selectors(text: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("cli_mcp_") {
        let word = &rest[at..];
        let end = word.find(|c: char| !is_name(c)).unwrap_or(word.len());
        let (metric, after) = word.split_at(end);
        let matchers = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        found.push(Selector {
            metric: metric.to_owned(),
            labels: matchers
                .map(|(matchers, _)| matchers.split(',').filter_map(matcher).collect())
                .unwrap_or_default(),
        });
        rest = after;
    }
    found
}

fn matcher(text: &str) -> Option<(String, Vec<String>)> {
    let (label, value) = text.split_once('=')?;
    let label = label.trim().trim_end_matches('!');
    let value = value.trim_start_matches('~').trim().trim_matches('"');
    Some((label.to_owned(), value.split('|').map(str::to_owned).collect()))
}

/// The labels that a query groups and joins by.
#[must_use]
pub fn grouping(query: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for keyword in ["by", "on", "without", "ignoring"] {
        for (at, _) in query.match_indices(keyword) {
            let whole = !query[..at].ends_with(is_name);
            let list = query[at + keyword.len()..].trim_start().strip_prefix('(');
            if let (true, Some((list, _))) = (whole, list.and_then(|list| list.split_once(')'))) {
                labels.extend(list.split(',').map(|label| label.trim().to_owned()));
            }
        }
    }
    labels
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_have_their_labels_and_values() {
        let found = selectors(r#"sum by (a) (rate(cli_mcp_x_total{o=~"u|v", n!="w"}[5m])) > cli_mcp_y"#);
        let labels = vec![
            ("o".to_owned(), vec!["u".to_owned(), "v".to_owned()]),
            ("n".to_owned(), vec!["w".to_owned()]),
        ];
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].metric.as_str(), &found[0].labels),
            ("cli_mcp_x_total", &labels)
        );
        assert_eq!((found[1].metric.as_str(), found[1].labels.len()), ("cli_mcp_y", 0));
    }

    #[test]
    fn groups_are_those_of_keywords_alone() {
        let labels = grouping("max by (a, b) (person(x)) and on(c) max without (d) (y)");
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    }
}
