//! A hostile shell: in a session's sandbox through the `bash` tool, or in a sandbox that nobody has claimed.

use anyhow::{Result, ensure};
use cli_mcp_demo::session::Session;
use cli_mcp_e2e::kubectl;

/// Where an attack is run from.
pub enum Shell {
    /// The sandbox of a session, with what an MCP client has.
    Assigned(Session),
    /// A sandbox of the pool. An administrator's `kubectl exec` stands for whoever would get in there.
    Unassigned {
        /// Its namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code; none when there was no result.
    pub code: Option<i32>,
}

impl Shell {
    /// A word for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Assigned(_) => "assigned",
            Self::Unassigned { .. } => "unassigned",
        }
    }

    /// Runs a command.
    ///
    /// # Errors
    ///
    /// When it could not be sent.
    pub async fn run(&self, command: &str) -> Result<Ran> {
        match self {
            Self::Assigned(session) => {
                let result = session
                    .call(serde_json::json!({"command": command, "timeout": 240}))
                    .await?;
                Ok(Ran {
                    stdout: result.stdout,
                    stderr: if result.exit_code.is_some() {
                        result.stderr
                    } else {
                        result.text
                    },
                    code: result.exit_code,
                })
            }
            Self::Unassigned { namespace, pod } => {
                let (namespace, pod, command) = (namespace.clone(), pod.clone(), command.to_owned());
                let output = tokio::task::spawn_blocking(move || {
                    kubectl::run(&["-n", &namespace, "exec", &pod, "--", "bash", "-c", &command])
                })
                .await??;
                Ok(Ran {
                    stdout: output.stdout,
                    stderr: output.stderr,
                    code: Some(output.code),
                })
            }
        }
    }

    /// Runs a command that must end with exit code 0, and returns its output.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn ok(&self, command: &str) -> Result<String> {
        let ran = self.run(command).await?;
        ensure!(ran.code == Some(0), "{}: {command}: {ran:?}", self.kind());
        Ok(ran.stdout)
    }

    /// Runs a Python program, which must end with exit code 0, and returns its output.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn python(&self, program: &str) -> Result<String> {
        let ran = self.run(&format!("python3 - <<'PYTHON'\n{program}\nPYTHON\n")).await?;
        ensure!(ran.code == Some(0), "{}: python: {ran:?}", self.kind());
        Ok(ran.stdout)
    }
}
