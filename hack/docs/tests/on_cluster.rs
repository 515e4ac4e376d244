//! The manifests that users copy, from the samples and from the pages: the API server itself accepts each. Run by
//! `make test-e2e`, which starts a cluster.

use std::io::Write;
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
