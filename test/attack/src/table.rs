//! The table of `docs/security.md`, made from the comments on the tests: what is tried, what stops it, and where.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The line before the table.
pub const BEGIN: &str =
    "<!-- The table of the attack suite: made from the tests' comments, and checked against them. -->";
/// The line behind it.
pub const END: &str = "<!-- End of the table of the attack suite. -->";

/// One attack.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// File and function, such as `network::kubelet`.
    pub test: String,
    /// What is tried.
    pub tried: String,
    /// The layer that stops it.
    pub stopped_by: String,
}

/// Reads the tests of one file: each function with `#[tokio::test]` must say what it tries, and what stops it.
///
/// # Errors
///
/// When one does not.
pub fn rows(module: &str, source: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut comment = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("#[") {
        } else {
            if let Some(function) = line.strip_prefix("async fn ").filter(|_| is_test) {
                let name = function.split('(').next().unwrap_or_default();
                rows.push(row(&format!("{module}::{name}"), &comment.join(" "))?);
            }
            comment.clear();
            is_test = false;
        }
    }
    Ok(rows)
}

fn row(test: &str, comment: &str) -> Result<Row> {
    let parts = comment
        .strip_prefix("Tried: ")
        .and_then(|text| text.split_once(" Stopped by: "));
    let Some((tried, stopped_by)) = parts else {
        bail!("{test}: its comment must read \"Tried: … Stopped by: …\", and reads {comment:?}");
    };
    Ok(Row {
        test: test.to_owned(),
        tried: tried.trim_end_matches('.').to_owned(),
        stopped_by: stopped_by.trim_end_matches('.').to_owned(),
    })
}

/// The table of every test in the folder, by file.
///
/// # Errors
///
/// When a file cannot be read, or a test does not say what it is.
pub fn table(folder: &Path) -> Result<String> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let mut text = "| what is tried | stopped by | test |\n|---|---|---|\n".to_owned();
    for file in files {
        let module = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        for row in rows(module, &std::fs::read_to_string(&file)?)? {
            writeln!(text, "| {} | {} | `{}` |", row.tried, row.stopped_by, row.test)?;
        }
    }
    Ok(text)
}

/// The text between the two marks.
#[must_use]
pub fn between_marks(document: &str) -> Option<&str> {
    let (_, rest) = document.split_once(BEGIN)?;
    let (table, _) = rest.split_once(END)?;
    Some(table.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_says_what_it_tries_and_what_stops_it() {
        let source = "/// Tried: to\n/// fly. Stopped by: gravity.\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn flying() -> Result<()> {\n";
        let expected = Row {
            test: "air::flying".into(),
            tried: "to fly".into(),
            stopped_by: "gravity".into(),
        };
        assert_eq!(rows("air", source).unwrap(), [expected]);
        assert!(rows("air", "/// Flies.\n#[tokio::test]\nasync fn flying() {}").is_err());
        assert_eq!(rows("air", "/// A helper.\nasync fn helper() {}").unwrap(), []);
    }
}
