//! Following the files: by content, as one consistent set, keeping what is served when the new cannot be
//! (`proxy.md`, "Inputs"; `proxy_cases.md`, case 77).

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cli_mcp_api::names;
use time::OffsetDateTime;

use crate::dial::Resolve;
use crate::metrics::ReloadLabels;
use crate::proxy::Shared;
use crate::state::{Inputs, State, StateError};

/// How often the files are compared. A change is taken at the second look that sees it, well within the 10 s that the page
/// promises.
const PERIOD: Duration = Duration::from_secs(1);

/// Where the inputs are.
#[derive(Clone, Debug)]
pub struct Directories {
    /// `proxy-config.json`.
    pub routes: PathBuf,
    /// `kubeconfig`; may be missing when there is no kubernetes target.
    pub kubeconfig: PathBuf,
    /// `ca.crt` and `ca.key`.
    pub ca: PathBuf,
    /// A file of roots that replace the public ones.
    pub ssl_cert_file: Option<PathBuf>,
}

/// Why the inputs are not in use.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}; give the mounted folder with --routes-dir, --kubeconfig-dir or --ca-dir")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of roots cannot be read.
    #[error("SSL_CERT_FILE: cannot read {path}: {source}")]
    ReadRoots {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What the files hold cannot be served.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Shows on `/health` what is wrong with the files on disk, while the earlier ones are served.
#[derive(Debug, Default)]
pub struct ReloadStatus(Mutex<Option<String>>);

impl ReloadStatus {
    /// The last reload's error, until the files are right again.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, error: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// The directory as it is now: the kubelet swaps a whole volume by one symbolic link, and files that are read through
/// what the link points at belong together.
fn snapshot(directory: &Path) -> PathBuf {
    std::fs::canonicalize(directory.join("..data")).unwrap_or_else(|_| directory.to_owned())
}

fn read(path: PathBuf) -> Result<Vec<u8>, LoadError> {
    std::fs::read(&path).map_err(|source| LoadError::Read { path, source })
}

fn read_roots(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|source| LoadError::ReadRoots {
        path: path.to_owned(),
        source,
    })
}

/// Reads all inputs.
///
/// # Errors
///
/// When a file that must be there cannot be read.
pub fn read_inputs(directories: &Directories) -> Result<Inputs, LoadError> {
    let ca = snapshot(&directories.ca);
    let kubeconfig = match read(snapshot(&directories.kubeconfig).join(names::KUBECONFIG_KEY)) {
        Ok(bytes) => Some(bytes),
        Err(LoadError::Read { source, .. })
            if matches!(
                source.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            None
        }
        Err(error) => return Err(error),
    };
    Ok(Inputs {
        routes: read(snapshot(&directories.routes).join(names::ROUTES_KEY))?,
        kubeconfig,
        ca_certificate: read(ca.join(names::CA_CERT_KEY))?,
        ca_key: read(ca.join(names::CA_KEY_KEY))?,
        public_roots: directories.ssl_cert_file.as_deref().map(read_roots).transpose()?,
    })
}

/// Compares, loads and swaps.
pub struct Reloader {
    directories: Directories,
    resolver: Arc<dyn Resolve>,
    /// What was last tried, served or not.
    tried: Inputs,
    /// Whether it could not be served.
    refused: bool,
    /// What the last look saw for the first time.
    seen: Option<Inputs>,
    /// The end of the CA that was warned about.
    warned_of: Option<OffsetDateTime>,
    status: Arc<ReloadStatus>,
}

impl Reloader {
    /// Loads for the first time.
    ///
    /// # Errors
    ///
    /// When the inputs cannot be served: there is nothing older to serve.
    pub fn start(directories: Directories, resolver: Arc<dyn Resolve>) -> Result<(Self, State), LoadError> {
        let tried = read_inputs(&directories)?;
        let state = State::build(&tried, &resolver, OffsetDateTime::now_utc())?;
        Ok((
            Self {
                directories,
                resolver,
                tried,
                refused: false,
                seen: None,
                warned_of: None,
                status: Arc::default(),
            },
            state,
        ))
    }

    /// What `/health` shows.
    #[must_use]
    pub fn status(&self) -> Arc<ReloadStatus> {
        self.status.clone()
    }

    /// Warns of the CA's end, and compares the files with what was last tried; loads and swaps them when they differ, and
    /// differ in the same way as at the last look: half of a file that is being written may be valid, a token's half above
    /// all. What could not be served is tried again at each look, as `now` may be why.
    pub fn check(&mut self, shared: &Shared, now: OffsetDateTime) {
        match read_inputs(&self.directories) {
            Ok(inputs) if inputs == self.tried => {
                self.seen = None;
                if self.refused {
                    self.load(inputs, shared, now);
                } else {
                    // A file that could not be read for a while is back as it was.
                    self.report(shared, None);
                }
            }
            Ok(inputs) if self.seen.as_ref() != Some(&inputs) => self.seen = Some(inputs),
            Ok(inputs) => self.load(inputs, shared, now),
            Err(error) => {
                self.seen = None;
                self.report(shared, Some(error.to_string()));
            }
        }
        self.warn_of_end(shared, now);
    }

    /// Warns once of a CA that ends soon, also when no file has changed for years.
    fn warn_of_end(&mut self, shared: &Shared, now: OffsetDateTime) {
        let near = shared.state.load().minter.near_end(now);
        if let Some(end) = near.filter(|_| near != self.warned_of) {
            tracing::warn!(not_after = %end, "The proxy's CA ends soon; delete its Secret to have a new one made");
        }
        self.warned_of = near;
    }

    fn load(&mut self, inputs: Inputs, shared: &Shared, now: OffsetDateTime) {
        let built = State::build(&inputs, &self.resolver, now);
        self.tried = inputs;
        self.seen = None;
        self.refused = built.is_err();
        match built {
            Ok(state) => {
                shared.state.store(Arc::new(state));
                self.report(shared, None);
                shared
                    .metrics
                    .reloads
                    .get_or_create(&ReloadLabels { result: "success" })
                    .inc();
                tracing::info!("Reloaded routes, kubeconfig and CA");
            }
            Err(error) => self.report(shared, Some(error.to_string())),
        }
    }

    /// Shows what is wrong; logs and counts it when it is new.
    fn report(&self, shared: &Shared, error: Option<String>) {
        if let Some(text) = &error
            && self.status.error().as_ref() != Some(text)
        {
            tracing::error!(error = %text, "Cannot use the new files, the earlier ones stay in use");
            shared
                .metrics
                .reloads
                .get_or_create(&ReloadLabels { result: "failure" })
                .inc();
        }
        shared.metrics.reload_failing.set(i64::from(error.is_some()));
        self.status.set(error);
    }

    /// Checks forever, and lets connection pools drop what is old.
    pub async fn run(mut self, shared: Arc<Shared>) -> Infallible {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.check(&shared, OffsetDateTime::now_utc());
            shared.state.load().sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_may_be_missing_but_not_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let directories = Directories {
            routes: folder.path().to_owned(),
            kubeconfig: folder.path().join("mounted"),
            ca: folder.path().to_owned(),
            ssl_cert_file: None,
        };
        for name in [names::ROUTES_KEY, names::CA_CERT_KEY, names::CA_KEY_KEY] {
            let error = read_inputs(&directories).err().unwrap();
            assert!(error.to_string().contains(name), "{error}");
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let kubeconfig = || read_inputs(&directories).map(|inputs| inputs.kubeconfig);
        assert_eq!(kubeconfig().unwrap(), None, "no folder");
        std::fs::write(&directories.kubeconfig, "").unwrap();
        assert_eq!(kubeconfig().unwrap(), None, "no folder, but a file");
        std::fs::remove_file(&directories.kubeconfig).unwrap();
        std::fs::create_dir(&directories.kubeconfig).unwrap();
        assert_eq!(kubeconfig().unwrap(), None, "an empty folder");
        let file = directories.kubeconfig.join(names::KUBECONFIG_KEY);
        std::fs::create_dir(&file).unwrap();
        let error = kubeconfig().unwrap_err();
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "content").unwrap();
        assert_eq!(kubeconfig().unwrap(), Some(b"content".to_vec()));
    }
}
