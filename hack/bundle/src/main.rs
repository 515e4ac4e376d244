//! Reads the invocation and the manifests, writes the bundle or the objects.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use cli_mcp_bundle::olm::Group;
use cli_mcp_bundle::package::Package;

/// Makes the OLM bundle, and what OLM makes of it.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generates the bundle: reads what `kubectl kustomize config/manifests` prints, writes bundle/, bundle.Dockerfile and
    /// catalog/
    Generate(Generate),
    /// Prints the objects that OLM would install for an operator group, for a cluster without OLM: pipe them into kubectl
    /// apply --server-side -f -
    Objects(Objects),
}

#[derive(Args)]
struct Generate {
    /// Folder to write to: the root of the repository
    #[arg(long, env = "BUNDLE_OUT", default_value = ".")]
    out: PathBuf,
    /// Channels of the bundle; the first is the default
    #[arg(long, env = "CHANNELS", default_value = "candidate", value_delimiter = ',')]
    channels: Vec<String>,
    /// Image of the bundle itself, for the catalog
    #[arg(
        long,
        env = "BUNDLE_IMG",
        default_value = concat!("quay.io/codeready-toolchain/cli-mcp-operator-bundle:v", env!("CARGO_PKG_VERSION"))
    )]
    bundle_image: String,
    #[command(flatten)]
    images: Images,
}

#[derive(Args)]
struct Objects {
    /// Folder with manifests/ of the bundle
    #[arg(long, env = "BUNDLE", default_value = "bundle")]
    bundle: PathBuf,
    /// Namespace of the operator
    #[arg(long, env = "BUNDLE_NAMESPACE", default_value = "cli-mcp-operator-system")]
    namespace: String,
    /// Namespaces that the operator is for, separated by commas. None: all
    #[arg(long, env = "BUNDLE_TARGETS", value_delimiter = ',')]
    targets: Vec<String>,
    #[command(flatten)]
    images: Images,
}

#[derive(Args)]
struct Images {
    /// Use this image in place of the one that the manifests name, as CURRENT=PINNED; repeated. Pinned by digest, all four
    /// make the bundle fit for disconnected clusters, and it says so
    #[arg(long = "image", env = "BUNDLE_IMAGES", value_parser = replacement, value_delimiter = ',')]
    images: Vec<(String, String)>,
}

fn replacement(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(current, pinned)| !current.is_empty() && !pinned.is_empty())
        .map(|(current, pinned)| (current.to_owned(), pinned.to_owned()))
        .ok_or_else(|| format!("{text:?} is not CURRENT=PINNED"))
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(arguments) => generate(arguments),
        Command::Objects(arguments) => objects(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do where stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn generate(arguments: Generate) -> Result<()> {
    let mut manifests = String::new();
    std::io::stdin()
        .read_to_string(&mut manifests)
        .context("the manifests are read from stdin")?;
    let package = Package {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        channels: arguments.channels,
        bundle_image: arguments.bundle_image,
        images: arguments.images.images,
    };
    let files = cli_mcp_bundle::generate(&manifests, &package)?;
    let bundle = arguments.out.join("bundle");
    // A manifest that config/ no longer has must not stay.
    for folder in ["manifests", "metadata", "tests"] {
        remove(&bundle.join(folder))?;
    }
    for (path, content) in files {
        let path = arguments.out.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn objects(arguments: &Objects) -> Result<()> {
    let folder = arguments.bundle.join("manifests");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("cannot read {}", folder.display()))?;
    paths.sort();
    let mut text = String::new();
    for path in paths {
        text.push_str("---\n");
        text.push_str(&std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    let group = Group {
        namespace: arguments.namespace.clone(),
        targets: arguments
            .targets
            .iter()
            .filter(|target| !target.is_empty())
            .cloned()
            .collect(),
    };
    let mut out = std::io::stdout().lock();
    for object in cli_mcp_bundle::install(&text, &group, &arguments.images.images)? {
        writeln!(out, "---\n{}", serde_json::to_string(&object)?)?;
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
