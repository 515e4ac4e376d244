//! The documentation as a product of the code: what is written from it, and what is checked against it.

pub mod blocks;
pub mod links;
pub mod reference;
pub mod source;
pub mod troubleshoot;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A file that is generated, wholly or in part.
pub struct Page {
    /// Path below the repository's root.
    pub path: String,
    /// What it must hold.
    pub content: String,
}

/// Every generated file, as the code has it now.
///
/// # Errors
///
/// When a source file cannot be read, or an error text has no entry in `docs/troubleshoot.md`.
pub fn pages(repository: &Path) -> Result<Vec<Page>> {
    let mut pages = reference::pages(repository)?;
    let path = "docs/troubleshoot.md";
    let current = read(&repository.join(path))?;
    let content = troubleshoot::fill(&current, &source::texts(repository)?)?;
    pages.push(Page {
        path: path.to_owned(),
        content,
    });
    Ok(pages)
}

/// Reads a text file.
///
/// # Errors
///
/// When it cannot be read; the error names it.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
