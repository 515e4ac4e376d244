//! Links of Markdown pages to files and headings of this repository: what they lead to must be there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// What is wrong with the links of a page, one line each.
///
/// # Errors
///
/// When the page or one that it links to cannot be read.
pub fn broken(repository: &Path, page: &Path) -> Result<Vec<String>> {
    let text = crate::read(page)?;
    let mut broken = Vec::new();
    for target in targets(&text) {
        let (file, anchor) = resolve(repository, page, &target);
        if !file.exists() {
            broken.push(format!("{}: {target} does not exist", page.display()));
        } else if !anchor.is_empty() && !anchors(&crate::read(&file)?).contains(anchor) {
            broken.push(format!("{}: {target}: no such heading", page.display()));
        }
    }
    Ok(broken)
}

/// The files and folders that a page links to, links of their own followed; itself and what does not exist left out.
///
/// # Errors
///
/// When the page cannot be read.
pub fn led_to(repository: &Path, page: &Path) -> Result<BTreeSet<PathBuf>> {
    let text = crate::read(page)?;
    let own = page.canonicalize().ok();
    Ok(targets(&text)
        .iter()
        .filter_map(|target| resolve(repository, page, target).0.canonicalize().ok())
        .filter(|file| Some(file) != own.as_ref())
        .collect())
}

/// The file and the anchor that a link of a page names.
fn resolve<'a>(repository: &Path, page: &Path, target: &'a str) -> (PathBuf, &'a str) {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        page.parent().unwrap_or(repository).join(path)
    };
    (file, anchor)
}

/// Targets of inline links, without those to other sites and those in code.
fn targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for line in prose(text) {
        let mut rest = line.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = &rest[..end];
            if !target.contains("://") && !target.starts_with("mailto:") {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

/// The lines outside fenced blocks, without code spans.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push(line.split('`').step_by(2).collect());
        }
    }
    lines
}

/// Anchors of the headings, as GitHub makes them: lower case, blanks to dashes, everything but letters, digits, dashes
/// and underscores dropped.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() {
            continue;
        }
        let anchor: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect();
        anchors.insert(anchor);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_and_to_other_sites_are_not_ours() {
        let text = "[a](b.md#c) `[x](y)` [d](https://e) [f](#g)\n```\n[h](i)\n```\n";
        assert_eq!(targets(text), ["b.md#c", "#g"]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let anchors = anchors("# A b\n## `code` & more: x_y\n```\n# no\n```\n");
        assert_eq!(anchors.into_iter().collect::<Vec<_>>(), ["a-b", "code--more-x_y"]);
    }
}
