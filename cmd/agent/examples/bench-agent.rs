//! Measures the agent against floors in the same run: a bare HTTP echo, a plain pipe. Prints a table and one JSON line.
//!
//! `cargo run --release --example bench-agent -- PATH-TO-AGENT [CALLS]`

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cli_mcp_figures::Figure;
use serde_json::{Value, json};

const TOKEN: &str = "bench";

/// Bytes of output in lines of 50, at which a call is measured beside a plain pipe: how it grows.
const SIZES: [u64; 5] = [1, 1_000, 1_000_000, 100_000_000, 1_000_000_000];

/// The size that has bars.
const MUCH: u64 = 100_000_000;

/// Calls that do not just sleep as their time comes: what each overruns it by is told, without a bar.
const HARD_TO_STOP: [(&str, &str); 4] = [
    ("a stopped child and `wait`", "sleep 9 & kill -STOP $!; wait"),
    (
        "a Python that handles SIGINT",
        "python3 -c 'import signal, time\nsignal.signal(signal.SIGINT, lambda *_: None)\nwhile True: time.sleep(9)'",
    ),
    (
        "a loop over a string of 30 MB",
        "s=$(head -c 30000000 /dev/zero | tr '\\0' a); while :; do s=${s/a/b}; done",
    ),
    (
        "an sh that ignores TERM and INT",
        "sh -c 'trap \"\" TERM INT; while :; do sleep 9; done'",
    ),
];

/// The argument with which this program starts itself as the floor.
const SERVE_ECHO: &str = "serve-echo";

struct Agent {
    child: Child,
    address: SocketAddr,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(program) = arguments.next() else {
        writeln!(std::io::stderr().lock(), "error: give the path of the agent to measure")?;
        std::process::exit(2);
    };
    if program == SERVE_ECHO {
        return Ok(serve_echo()?);
    }
    let calls: usize = arguments.next().and_then(|calls| calls.parse().ok()).unwrap_or(10_000);
    let agent = start(&program)?;
    let idle = resident(&agent)?;
    let mut figures = Vec::new();

    let echo = Echo::start()?;
    let mut to_echo = connect(echo.address)?;
    let mut to_agent = connect(agent.address)?;
    let body = json!({"command": "true"}).to_string();
    let (mut floors, mut times) = (Vec::new(), Vec::new());
    for round in 0..20 {
        for (connection, samples) in [(&mut to_echo, &mut floors), (&mut to_agent, &mut times)] {
            for _ in 0..100 {
                let begun = Instant::now();
                exchange(connection, &body)?;
                if round > 1 {
                    samples.push(begun.elapsed());
                }
            }
        }
    }
    let (echoed, ran) = (median(&mut floors), median(&mut times));
    figures.push(
        Figure::new(
            "`true` on a kept connection over a bare HTTP echo (us), p50",
            ratio(ran, echoed),
            "x",
        )
        .of(microseconds(echoed), microseconds(ran))
        .at_most(1.6),
    );

    // What the allocator keeps once output was at the limit that is kept.
    run(&mut to_agent, &lines(3_000_000))?;
    for size in SIZES {
        let before = forget_peak(&agent)?;
        let command = lines(size);
        let (mut pipe, mut through) = (Vec::new(), Vec::new());
        for _ in 0..if size > MUCH { 1 } else { 5 } {
            pipe.push(plain_pipe(&command)?);
            let begun = Instant::now();
            run(&mut to_agent, &command)?;
            through.push(begun.elapsed());
        }
        let (piped, sent) = (median(&mut pipe), median(&mut through));
        let wall = Figure::new(
            format!("{size} B of lines over a plain pipe and its bash (ms), wall"),
            ratio(sent, piped),
            "x",
        )
        .of(milliseconds(piped), milliseconds(sent));
        let grown = Figure::new(
            format!("{size} B of lines, growth of resident memory at its peak"),
            kib_to_mib(status(&agent, "VmHWM:")?.saturating_sub(before)),
            "MiB",
        );
        figures.extend(if size == MUCH {
            [wall.at_most(1.5), grown.at_most(8.0)]
        } else {
            [wall, grown]
        });
    }
    figures.push(Figure::new("idle resident memory", kib_to_mib(idle), "MiB").at_most(4.0));

    let (mut overruns, mut kept) = (Vec::new(), true);
    run(&mut to_agent, "export K=1; cd /usr")?;
    for _ in 0..3 {
        let begun = Instant::now();
        exchange(
            &mut to_agent,
            &json!({"command": "L=2; sleep 9", "timeout": 1}).to_string(),
        )?;
        overruns.push(begun.elapsed().saturating_sub(Duration::from_secs(1)));
        let result = run(&mut to_agent, "echo $K $L $PWD")?;
        kept &= result["stdout"] == "1 2 /usr\n" && result.get("session_reset").is_none();
    }
    let overrun = milliseconds(median(&mut overruns));
    figures.push(Figure::new("timeout overrun", overrun, "ms").at_most(50.0));
    figures.push(Figure::new("state lost by it", if kept { 0.0 } else { 1.0 }, "").at_most(0.0));
    let first = milliseconds(first_byte(&agent)?);
    figures.push(Figure::new("first byte of streamed output", first, "ms").at_most(5.0));

    let descriptors = open_descriptors(&agent)?;
    let before = resident(&agent)?;
    let mut samples = Vec::new();
    for index in 0..calls {
        let command = match index % 4 {
            0 => "echo $RANDOM",
            1 => "true &",
            2 => "ls / >/dev/null",
            _ => "x=$((x+1)); (exit 3)",
        };
        let begun = Instant::now();
        run(&mut to_agent, command)?;
        samples.push(begun.elapsed());
    }
    let tenth = (samples.len() / 10).max(1);
    let (mut first, mut last) = (samples[..tenth].to_vec(), samples[samples.len() - tenth..].to_vec());
    std::thread::sleep(Duration::from_millis(500));
    let more = open_descriptors(&agent)? as f64 - descriptors as f64;
    figures.push(Figure::new("mixed calls", calls as f64, ""));
    figures.push(Figure::new("mixed calls, descriptors more", more, "").at_most(2.0));
    let grown = kib_to_mib(resident(&agent)?.saturating_sub(before));
    figures.push(Figure::new("mixed calls, growth of resident memory", grown, "MiB").at_most(1.0));
    let slower = ratio(median(&mut last), median(&mut first));
    figures.push(Figure::new("mixed calls, p50 of the last tenth over the first", slower, "x").at_most(1.2));
    figures.extend(hard_overruns(&program)?);
    Ok(cli_mcp_figures::print(&figures)?)
}

/// On agents of their own: these calls may cost their shell, and leave it large.
fn hard_overruns(program: &str) -> std::io::Result<Vec<Figure>> {
    let python = Command::new("python3").arg("--version").output();
    let has_python = python.is_ok_and(|tried| tried.status.success());
    let mut figures = Vec::new();
    for (name, command) in HARD_TO_STOP {
        if command.starts_with("python3") && !has_python {
            continue;
        }
        let mut overruns = Vec::new();
        for _ in 0..3 {
            let agent = start(program)?;
            let mut connection = connect(agent.address)?;
            let body = json!({"command": command, "timeout": 1}).to_string();
            let begun = Instant::now();
            exchange(&mut connection, &body)?;
            overruns.push(begun.elapsed().saturating_sub(Duration::from_secs(1)));
        }
        let overrun = milliseconds(median(&mut overruns));
        figures.push(Figure::new(format!("timeout overrun, {name}"), overrun, "ms"));
    }
    Ok(figures)
}

fn start(program: &str) -> std::io::Result<Agent> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let child = Command::new(program)
        .env("SANDBOX_AUTH_TOKEN", TOKEN)
        .env("SANDBOX_LISTEN", address.to_string())
        .stdout(Stdio::null())
        .spawn()?;
    let agent = Agent { child, address };
    while TcpStream::connect(address).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    Ok(agent)
}

fn connect(address: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn exchange(connection: &mut BufReader<TcpStream>, body: &str) -> std::io::Result<Vec<u8>> {
    let request = format!(
        "POST /exec HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.get_mut().write_all(request.as_bytes())?;
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut answer = vec![0; length];
    connection.read_exact(&mut answer)?;
    Ok(answer)
}

fn run(connection: &mut BufReader<TcpStream>, command: &str) -> std::io::Result<Value> {
    Ok(serde_json::from_slice(&exchange(
        connection,
        &json!({"command": command}).to_string(),
    )?)?)
}

/// The floor of a call: the same HTTP stack on one thread of a process of its own, answering a result of the same size.
struct Echo {
    child: Child,
    address: SocketAddr,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Echo {
    fn start() -> std::io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(SERVE_ECHO)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().parse().map_err(std::io::Error::other)?;
        Ok(Self { child, address })
    }
}

fn serve_echo() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        writeln!(std::io::stdout().lock(), "{}", listener.local_addr()?)?;
        loop {
            let (connection, _) = listener.accept().await?;
            connection.set_nodelay(true)?;
            let service = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                use http_body_util::BodyExt;
                let _body = request.into_body().collect().await?.to_bytes();
                let answer =
                    bytes::Bytes::from_static(b"{\"stdout\":\"\",\"stderr\":\"\",\"exit_code\":0,\"duration_ms\":0}");
                Ok::<_, hyper::Error>(http::Response::new(http_body_util::Full::new(answer)))
            });
            let io = hyper_util::rt::TokioIo::new(connection);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    })
}

fn lines(size: u64) -> String {
    format!("yes 0123456789012345678901234567890123456789012345678 | head -c {size}")
}

fn plain_pipe(command: &str) -> std::io::Result<Duration> {
    let begun = Instant::now();
    let mut child = Command::new("bash")
        .args(["-c", command])
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut output) = child.stdout.take() {
        let mut buffer = vec![0; 64 << 10];
        while output.read(&mut buffer)? > 0 {}
    }
    child.wait()?;
    Ok(begun.elapsed())
}

fn first_byte(agent: &Agent) -> std::io::Result<Duration> {
    let mut samples = Vec::new();
    for _ in 0..9 {
        let mut connection = connect(agent.address)?;
        // The command says when it wrote, by the clock that all processes share.
        let body = json!({"command": "sleep 0.1; echo $EPOCHREALTIME; sleep 0.1"}).to_string();
        let request = format!(
            "POST /exec HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer {TOKEN}\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        while !line.contains("\"stream\"") {
            line.clear();
            connection.read_line(&mut line)?;
        }
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let written: f64 = line
            .split("\"data\":\"")
            .nth(1)
            .and_then(|rest| rest.split('\\').next()?.parse().ok())
            .unwrap_or(0.0);
        samples.push(Duration::from_secs_f64((now.as_secs_f64() - written).max(0.0)));
        let mut rest = Vec::new();
        connection
            .get_ref()
            .set_read_timeout(Some(Duration::from_millis(300)))?;
        let _ = connection.read_to_end(&mut rest);
    }
    Ok(median(&mut samples))
}

fn median(samples: &mut [Duration]) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

fn ratio(value: Duration, floor: Duration) -> f64 {
    value.as_secs_f64() / floor.as_secs_f64()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn kib_to_mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn resident(agent: &Agent) -> std::io::Result<u64> {
    status(agent, "VmRSS:")
}

/// Sets the peak of resident memory to what is resident now, in KiB. Memory that a call gives back before it ends shows in the
/// peak alone (`clear_refs` in proc_pid_clear_refs(5)).
fn forget_peak(agent: &Agent) -> std::io::Result<u64> {
    std::fs::write(format!("/proc/{}/clear_refs", agent.child.id()), "5")?;
    status(agent, "VmHWM:")
}

/// A figure of `/proc/PID/status`, in KiB.
fn status(agent: &Agent, name: &str) -> std::io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .ok_or_else(|| std::io::Error::other(format!("no {name} in /proc/PID/status")))
}

fn open_descriptors(agent: &Agent) -> std::io::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", agent.child.id()))?.count())
}
