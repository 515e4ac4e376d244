//! The manifests that users copy, from the samples and from the pages: the API server itself accepts each, and kubectl builds the
//! overlays. Run by `make test-e2e`, which starts a cluster.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cli_mcp_docs::{blocks, read, repository};

fn dry_run(manifest: &str) -> Result<()> {
    let mut child = Command::new("kubectl")
        .args(["apply", "--dry-run=server", "-n", "default", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    child.stdin.take().context("no stdin")?.write_all(manifest.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{}\n{manifest}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
fn docs_samples_are_accepted() -> Result<()> {
    let samples = repository().join("config/samples");
    let mut count = 0;
    for entry in std::fs::read_dir(samples)? {
        let path = entry?.path();
        let text = read(&path)?;
        if text.contains("kind: CliMcpInstance") {
            dry_run(&text).with_context(|| path.display().to_string())?;
            count += 1;
        }
    }
    ensure!(count > 3, "only {count} samples");
    Ok(())
}

#[test]
fn docs_examples_are_accepted() -> Result<()> {
    let page = read(&repository().join("docs/configure.md"))?;
    let examples: Vec<_> = blocks::of(&page)
        .into_iter()
        .filter(|block| block.info == "yaml")
        .collect();
    ensure!(examples.len() > 8, "only {} examples", examples.len());
    for example in examples {
        dry_run(&example.text).with_context(|| format!("docs/configure.md line {}", example.line))?;
    }
    Ok(())
}

/// Copies what an overlay is made of; kustomize follows no link out of its folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[test]
fn docs_overlays_can_be_built() -> Result<()> {
    let page = read(&repository().join("docs/install.md"))?;
    let folder = tempfile::tempdir()?;
    copy(
        &repository().join("config"),
        &folder.path().join("cli-mcp-operator/config"),
    )?;
    let mut built = Vec::new();
    for overlay in blocks::of(&page)
        .iter()
        .filter(|block| block.text.starts_with("# kustomization.yaml"))
    {
        std::fs::write(folder.path().join("kustomization.yaml"), &overlay.text)?;
        let output = Command::new("kubectl")
            .arg("kustomize")
            .arg(folder.path())
            .output()
            .context("cannot start kubectl")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "docs/install.md line {}: {error}",
            overlay.line
        );
        built.push(String::from_utf8(output.stdout)?);
    }
    let [images, namespaces] = built.as_slice() else {
        anyhow::bail!("{} overlays", built.len());
    };
    for program in ["operator", "server", "proxy", "agent"] {
        ensure!(
            images.contains(&format!("registry.example.com/cli-mcp-{program}:v")),
            "{program}"
        );
    }
    ensure!(!images.contains("quay.io/"), "an image is left");
    let variable = "        - name: WATCH_NAMESPACE\n          value: team-a,team-b\n";
    ensure!(namespaces.contains(variable), "{namespaces}");
    ensure!(namespaces.contains("name: cli-mcp-operator-manager-namespaces-role\nrules:"));
    ensure!(!namespaces.contains("name: cli-mcp-operator-manager-namespaces-rolebinding"));
    Ok(())
}
