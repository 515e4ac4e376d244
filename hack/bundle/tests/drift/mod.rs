//! The committed files against those that `make bundle` would write.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `make bundle` writes, below the repository's root.
const WRITTEN: [&str; 5] = [
    "bundle/manifests",
    "bundle/metadata",
    "bundle/tests",
    "bundle.Dockerfile",
    "catalog/template.yaml",
];

/// Whether kustomize can be run here; it needs no cluster.
pub(crate) fn kubectl_is_installed() -> bool {
    let started = Command::new("kubectl")
        .args(["version", "--client"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match started {
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        ran => ran.unwrap().success(),
    }
}

/// The committed files that are not as `config/` makes them, those too many and those too few among them.
pub(crate) fn stale() -> Vec<String> {
    let generated = tempfile::tempdir().unwrap();
    let output = Command::new(repository().join("hack/bundle.sh"))
        .arg(generated.path())
        .env("BUNDLE_PROGRAM", env!("CARGO_BIN_EXE_bundle"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [committed, expected] = [repository(), generated.path().to_owned()].map(|root| (files(&root), root));
    committed
        .0
        .union(&expected.0)
        .filter(|path| std::fs::read(committed.1.join(path)).ok() != std::fs::read(expected.1.join(path)).ok())
        .map(|path| path.display().to_string())
        .collect()
}

/// Paths of what is written, below `root`.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left: Vec<PathBuf> = WRITTEN.iter().map(|path| root.join(path)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.insert(path.strip_prefix(root).unwrap().to_owned());
        }
    }
    found
}
