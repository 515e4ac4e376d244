//! A witness of commands that no sandbox takes with it: each asks the investigated API server for an object of a name of its
//! own, and the audit log tells which were asked for, and how often.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use cli_mcp_e2e::cluster;
use serde_json::Value;

use crate::history;
use crate::load::Client;

/// The audit log of the API server, as it is now.
///
/// # Errors
///
/// When it cannot be read.
pub fn audit_log() -> Result<File> {
    open(Path::new(&cluster::setting("DEVCLUSTER_AUDIT_LOG")?))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

/// What a command of a session does to leave a mark in the log: words of bash, that neither print nor fail.
///
/// curl, because kubectl asks again by itself when a connection breaks. Without looking at certificates, because a session
/// keeps the CA that it began with (docs/rotation.md) and must be seen all the same. Not for long, because the proxy may be away.
#[must_use]
pub fn testimony(session: &str, mark: u64) -> String {
    format!(
        "curl --silent --insecure --max-time 3 --output /dev/null https://kubernetes.default.svc/api/v1/namespaces/default/configmaps/{session}-{mark} || true"
    )
}

/// How often each mark of each session is in the log.
#[derive(Debug, Default)]
struct Marks(BTreeMap<String, BTreeMap<u64, u32>>);

impl Marks {
    /// Takes note of a line of the log.
    fn take(&mut self, line: &str) {
        // Most lines are of others, and one that the end of an API server cut off tells nothing.
        if !line.contains("configmaps") {
            return;
        }
        let Ok(entry) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let object = &entry["objectRef"];
        if entry["stage"] != "ResponseComplete" || entry["verb"] != "get" || object["resource"] != "configmaps" {
            return;
        }
        let name = object["name"].as_str().and_then(|name| name.rsplit_once('-'));
        if let Some((session, mark)) = name
            && let Ok(mark) = mark.parse()
        {
            *self.0.entry(session.to_owned()).or_default().entry(mark).or_default() += 1;
        }
    }
}

struct Reading {
    path: PathBuf,
    log: BufReader<File>,
    /// A line of which the end is not written yet.
    line: String,
    marks: Marks,
}

impl Reading {
    fn from_now(path: PathBuf) -> Result<Self> {
        let mut log = open(&path)?;
        log.seek(SeekFrom::End(0))?;
        Ok(Self {
            path,
            log: BufReader::new(log),
            line: String::new(),
            marks: Marks::default(),
        })
    }

    /// Reads what was written since, in the file of before too where the API server has begun another. Two of them between two
    /// readings would be 400 MB of requests.
    fn go_on(&mut self) -> Result<()> {
        loop {
            while self.log.read_line(&mut self.line)? > 0 {
                if self.line.ends_with('\n') {
                    self.marks.take(&self.line);
                    self.line.clear();
                }
            }
            let now = open(&self.path)?;
            if now.metadata()?.ino() == self.log.get_ref().metadata()?.ino() {
                return Ok(());
            }
            self.line.clear();
            self.log = BufReader::new(now);
        }
    }
}

/// Reads the audit log as it grows.
pub struct Witness(Mutex<Reading>);

impl Witness {
    /// Begins with what comes now.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn from_now() -> Result<Self> {
        let path = cluster::setting("DEVCLUSTER_AUDIT_LOG")?;
        Ok(Self(Mutex::new(Reading::from_now(path.into())?)))
    }

    fn marks(&self, session: &str) -> Result<BTreeMap<u64, u32>> {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reading.go_on()?;
        Ok(reading.marks.0.get(session).cloned().unwrap_or_default())
    }

    /// Waits until a command of each session that is yet to begin was seen, and compares all that were seen with their answers:
    /// none ran twice, in one sandbox or in two, and none against its answer's word.
    ///
    /// # Errors
    ///
    /// What does not hold.
    pub async fn compare(&self, clients: &[Client]) -> Result<()> {
        for client in clients {
            let begin = client.next();
            let seen = cluster::eventually("the next command's request in the audit log", async || {
                let seen = self.marks(&client.id)?;
                ensure!(
                    seen.range(begin..).next().is_some(),
                    "session {}: the last was that of command {:?}, and {begin} comes next",
                    client.id,
                    seen.last_key_value()
                );
                Ok(seen)
            })
            .await?;
            history::at_most_once(&client.all(), &seen)
                .with_context(|| format!("session {}, by the audit log", client.id))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(stage: &str, name: &str) -> String {
        format!(
            r#"{{"stage":"{stage}","verb":"get","requestURI":"/api/v1/namespaces/default/configmaps/{name}","objectRef":{{"resource":"configmaps","namespace":"default","name":"{name}"}}}}"#
        )
    }

    #[test]
    fn a_log_is_read_on_through_half_lines_and_into_the_next_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let write = |text: &str| {
            let mut log = File::options().create(true).append(true).open(&path).unwrap();
            log.write_all(text.as_bytes()).unwrap();
        };
        let entry = |mark: u64| line("ResponseComplete", &format!("chaos-0-{mark}")) + "\n";
        write(&entry(1));
        let mut reading = Reading::from_now(path.clone()).unwrap();
        let (begin, end) = (&entry(2)[..50], &entry(2)[50..]);
        write(begin);
        reading.go_on().unwrap();
        write(end);
        write(&entry(3));
        std::fs::rename(&path, folder.path().join("audit-before.log")).unwrap();
        write(&entry(4));
        reading.go_on().unwrap();
        reading.go_on().unwrap();
        let seen: Vec<_> = reading.marks.0["chaos-0"]
            .iter()
            .map(|(mark, count)| (*mark, *count))
            .collect();
        assert_eq!(seen, [(2, 1), (3, 1), (4, 1)]);
    }

    #[test]
    fn each_request_of_a_command_is_counted_for_its_session() {
        let mut marks = Marks::default();
        let whole = line("ResponseComplete", "chaos-1-7");
        for line in [
            &line("ResponseComplete", "chaos-0-7"),
            &whole,
            &whole,
            &line("ResponseStarted", "chaos-0-7"),
            &line("ResponseComplete", "kube-root-ca.crt"),
            &line("ResponseComplete", "chaos-0-8")[..60],
            &line("ResponseComplete", "chaos-0-9").replace(r#""verb":"get""#, r#""verb":"watch""#),
        ] {
            marks.take(line);
        }
        let expected = [("chaos-0", 7, 1), ("chaos-1", 7, 2)];
        let found: Vec<_> = marks
            .0
            .iter()
            .flat_map(|(session, marks)| marks.iter().map(|(mark, count)| (session.as_str(), *mark, *count)))
            .collect();
        assert_eq!(found, expected);
    }
}
