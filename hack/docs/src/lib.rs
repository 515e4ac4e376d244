//! The documentation as a product of the code: what is written from it, and what is checked against it.

pub mod blocks;
pub mod links;
pub mod queries;
pub mod reference;
pub mod source;
pub mod troubleshoot;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The pages whose commands `make test-docs` runs, in its order: the quick start makes the instance that the others are about, and
/// cleans up after them.
pub const RUN: [&str; 10] = [
    "docs/quick-start.md",
    "README.md",
    "docs/troubleshoot.md",
    "docs/security.md",
    "docs/proxy.md",
    "docs/sandbox-image.md",
    "docs/clients.md",
    "docs/operate.md",
    "docs/rotation.md",
    "docs/install.md",
];

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
