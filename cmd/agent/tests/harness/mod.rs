//! A real agent for tests: starts the program on a free port of loopback, calls it, and looks at its
//! processes from outside.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cli_mcp_sandbox::wire::{ExecResult, StreamLine};
use serde_json::{Value, json};

use self::http::{Answer, connect, receive, send};

mod contained;
pub(crate) mod http;
mod processes;

/// The session token of every test agent.
pub(crate) const TOKEN: &str = "test-session-token";
/// Nothing takes this long unless it hangs.
pub(crate) const GENEROUS: Duration = Duration::from_secs(90);

/// How to start an agent.
pub(crate) struct Setup {
    environment: Vec<(String, String)>,
    home: Option<PathBuf>,
    contained: bool,
    small_disk: bool,
    log_kept: bool,
}

/// A running agent; ended when dropped.
pub(crate) struct Agent {
    child: Child,
    pid: i32,
    log: Option<JoinHandle<Vec<u8>>>,
    pub(crate) address: SocketAddr,
    pub(crate) home: tempfile::TempDir,
    connection: std::cell::RefCell<Option<BufReader<TcpStream>>>,
}

/// Sends `/cancel` on a connection of its own.
pub(crate) fn cancel_at(address: SocketAddr) -> Value {
    let mut connection = connect(address);
    let authorization = format!("Bearer {TOKEN}");
    send(
        connection.get_mut(),
        "POST",
        "/cancel",
        &[("Authorization", &authorization)],
        b"",
    );
    receive(&mut connection).unwrap().json()
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            environment: vec![("SANDBOX_AUTH_TOKEN".into(), TOKEN.into())],
            ..Self::unassigned()
        }
    }

    /// An agent as a pod has it: the first process of its namespace, an ordinary user, and no way to gain privileges. None,
    /// visibly, where this machine lets nobody start one.
    pub(crate) fn contained() -> Option<Self> {
        let tried = contained::command(env!("CARGO_BIN_EXE_agent"))
            .arg("--version")
            .output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Some(Self {
                contained: true,
                ..Self::new()
            });
        }
        eprintln!("SKIPPED: no program can be started in a namespace of its own as another user");
        None
    }

    /// An agent whose home is a disk of 1 MiB. None, visibly, where this machine lets nobody mount one.
    pub(crate) fn on_small_disk() -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let tried = contained::on_small_disk("true").env("HOME", home.path()).output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Some(Self {
                small_disk: true,
                ..Self::new()
            });
        }
        eprintln!("SKIPPED: no disk can be mounted in a namespace of its own");
        None
    }

    pub(crate) fn unassigned() -> Self {
        Self {
            environment: Vec::new(),
            home: None,
            contained: false,
            small_disk: false,
            log_kept: false,
        }
    }

    /// Keeps what the agent writes, for [`Agent::end_and_log`].
    pub(crate) fn log_kept(mut self) -> Self {
        self.log_kept = true;
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub(crate) fn home(mut self, home: &Path) -> Self {
        self.home = Some(home.to_owned());
        self
    }

    pub(crate) fn start(self) -> Agent {
        let agent = self.start_unready();
        until("the agent is ready", || {
            agent.request("GET", "/health", &[], b"").status == 200
        });
        agent
    }

    /// Starts and waits only for the port.
    pub(crate) fn start_unready(self) -> Agent {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let program = env!("CARGO_BIN_EXE_agent");
        let mut command = if self.contained {
            let user = contained::user();
            std::os::unix::fs::chown(home.path(), Some(user), Some(user)).unwrap();
            contained::command(program)
        } else if self.small_disk {
            contained::on_small_disk(program)
        } else {
            Command::new(program)
        };
        let (mut output, writer) = std::io::pipe().unwrap();
        if self.log_kept {
            command.stderr(writer.try_clone().unwrap());
        }
        let child = command
            .env_clear()
            .env("PATH", path())
            .env("HOME", self.home.as_deref().unwrap_or(home.path()))
            .env("SANDBOX_LISTEN", address.to_string())
            .env("RUST_LOG", "info")
            // Where `make coverage` has an instrumented agent write its counters.
            .envs(std::env::var_os("LLVM_PROFILE_FILE").map(|file| ("LLVM_PROFILE_FILE", file)))
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(writer)
            .spawn()
            .unwrap();
        // It holds the writing ends, which would keep the output from ending.
        drop(command);
        let log_kept = self.log_kept;
        let log = std::thread::spawn(move || {
            let mut log = Vec::new();
            // A pipe that breaks off ends the log.
            let _ = if log_kept {
                output.read_to_end(&mut log).map(drop)
            } else {
                std::io::copy(&mut output, &mut std::io::sink()).map(drop)
            };
            log
        });
        let mut agent = Agent {
            pid: i32::try_from(child.id()).unwrap(),
            log: Some(log),
            child,
            address,
            home,
            connection: Default::default(),
        };
        // Where nobody listens yet, a connection from a free port to itself comes about, too.
        until("the agent listens", || {
            let connected = TcpStream::connect(address);
            connected.is_ok_and(|stream| stream.local_addr().unwrap() != address)
        });
        if self.contained {
            let parent = agent.pid;
            agent.pid = processes::child(parent).expect("the agent is below the program that contains it");
        }
        agent
    }
}

impl Agent {
    pub(crate) fn start() -> Self {
        Setup::new().start()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a request over the kept connection.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut slot = self.connection.borrow_mut();
        let connection = slot.get_or_insert_with(|| self.connect());
        send(connection.get_mut(), method, path, headers, body);
        let answer = receive(connection).expect("an answer");
        if answer.headers.get("connection").is_some_and(|value| value == "close") {
            *slot = None;
        }
        answer
    }

    pub(crate) fn connect(&self) -> BufReader<TcpStream> {
        connect(self.address)
    }

    pub(crate) fn post(&self, path: &str, token: &str, body: &Value) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
        ];
        self.request("POST", path, &headers, body.to_string().as_bytes())
    }

    pub(crate) fn exec_body(&self, body: &Value) -> Answer {
        self.post("/exec", TOKEN, body)
    }

    /// Runs a command, for at most a minute.
    pub(crate) fn run(&self, command: &str) -> ExecResult {
        self.exec_body(&json!({"command": command})).result()
    }

    pub(crate) fn run_for(&self, seconds: u32, command: &str) -> ExecResult {
        self.exec_body(&json!({"command": command, "timeout": seconds}))
            .result()
    }

    /// The stdout of a command that must succeed.
    pub(crate) fn out(&self, command: &str) -> String {
        let result = self.run(command);
        assert_eq!(result.exit_code, 0, "{command}: {result:?}");
        result.stdout
    }

    /// Sends `/exec` on a connection of its own and leaves it open.
    pub(crate) fn begin(&self, body: &Value, accept: &str) -> BufReader<TcpStream> {
        let mut connection = self.connect();
        let authorization = format!("Bearer {TOKEN}");
        let headers = [
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", accept),
        ];
        send(
            connection.get_mut(),
            "POST",
            "/exec",
            &headers,
            body.to_string().as_bytes(),
        );
        connection
    }

    /// Runs a command and gives its streamed lines.
    pub(crate) fn stream(&self, command: &str) -> Vec<StreamLine> {
        let mut connection = self.begin(&json!({"command": command}), "application/x-ndjson");
        let answer = receive(&mut connection).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.headers["content-type"], "application/x-ndjson");
        answer
            .body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    pub(crate) fn cancel(&self) -> Value {
        cancel_at(self.address)
    }

    /// Waits until `command` prints `expected`.
    pub(crate) fn until(&self, command: &str, expected: &str) {
        until(&format!("{command} prints {expected:?}"), || {
            self.run(command).stdout == expected
        });
    }

    /// Waits until `/metrics` has this line.
    pub(crate) fn until_metric(&self, line: &str) {
        until(line, || {
            let metrics = self.request("GET", "/metrics", &[], b"").body;
            String::from_utf8_lossy(&metrics).lines().any(|found| found == line)
        });
    }

    /// Waits until a command has made this file in its home folder.
    pub(crate) fn until_file(&self, name: &str) {
        until(name, || self.home.path().join(name).exists());
    }

    pub(crate) fn terminate(&self) {
        signal(self.pid(), "TERM");
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + GENEROUS;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends the agent and gives all that it wrote to stdout and stderr.
    pub(crate) fn end_and_log(mut self) -> String {
        self.terminate();
        self.wait();
        String::from_utf8(self.log.take().unwrap().join().unwrap()).unwrap()
    }
}

/// `PATH` for agents and models. `AGENT_TEST_BASH` puts another bash in front of the installed one.
pub(crate) fn path() -> OsString {
    static FOLDER: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let bash = std::env::var_os("AGENT_TEST_BASH")?;
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(bash, folder.path().join("bash")).unwrap();
        Some(folder)
    });
    let mut path = OsString::new();
    if let Some(folder) = folder {
        path.push(folder.path());
        path.push(":");
    }
    path.push(std::env::var_os("PATH").unwrap());
    path
}

impl Drop for Agent {
    fn drop(&mut self) {
        signal(self.pid(), "TERM");
        let deadline = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) fn signal(pid: i32, name: &str) {
    let _ = Command::new("/bin/bash")
        .args(["-c", &format!("kill -{name} {pid}")])
        .stderr(Stdio::null())
        .status();
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + GENEROUS;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come to be: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a program is installed; a test that needs it says visibly when it is not.
pub(crate) fn installed(program: &str) -> bool {
    let found = Command::new("bash")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap()
        .status
        .success();
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}
