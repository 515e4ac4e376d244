//! A real agent for tests: starts the program on a free port of loopback, calls it, and looks at its
//! processes from outside.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ffi::OsString;
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cli_mcp_sandbox::wire::{ExecResult, StreamLine};
use serde_json::{Value, json};

use self::http::{Answer, connect, receive, send};

mod contained;
pub(crate) mod http;

/// The session token of every test agent.
pub(crate) const TOKEN: &str = "test-session-token";
/// Nothing takes this long unless it hangs.
pub(crate) const GENEROUS: Duration = Duration::from_secs(90);

/// How to start an agent.
pub(crate) struct Setup {
    environment: Vec<(String, String)>,
    home: Option<std::path::PathBuf>,
    contained: bool,
    small_disk: bool,
}

/// A running agent; ended when dropped.
pub(crate) struct Agent {
    child: Child,
    pid: i32,
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
            home: None,
            contained: false,
            small_disk: false,
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
        }
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
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut agent = Agent {
            pid: i32::try_from(child.id()).unwrap(),
            child,
            address,
            home,
            connection: Default::default(),
        };
        let mut output = agent.child.stdout.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        until("the agent listens", || TcpStream::connect(address).is_ok());
        if self.contained {
            let parent = agent.pid;
            let found = table().into_iter().find(|(_, ppid, _)| *ppid == parent);
            agent.pid = found.expect("the agent is below the program that contains it").0;
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

    /// Command lines of all living processes below the agent, but for its own two.
    pub(crate) fn processes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut parents = vec![self.pid()];
        let table = table();
        while let Some(parent) = parents.pop() {
            for (pid, ppid, state) in &table {
                if *ppid == parent {
                    parents.push(*pid);
                    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line).replace('\0', " ");
                    let own = parent == self.pid()
                        && (line.starts_with("bash --norc --noprofile") || line.contains("descriptor-holder"));
                    if !own && *state != 'Z' {
                        found.push(line);
                    }
                }
            }
        }
        found
    }

    /// Asserts that no process of a call is left. The agent's own snapshot, a subshell of bash's, may be for a moment.
    pub(crate) fn until_quiet(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
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

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.open_descriptors().len()
    }

    /// What each open descriptor of the agent refers to.
    pub(crate) fn open_descriptors(&self) -> Vec<std::path::PathBuf> {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap_or_default())
            .collect()
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

fn table() -> Vec<(i32, i32, char)> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let state = fields.next()?.chars().next()?;
            Some((pid, fields.next()?.parse().ok()?, state))
        })
        .collect()
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
