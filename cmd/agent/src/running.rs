//! One command while it runs: reading what it writes, until it ends or must.

use std::time::Duration;

use cli_mcp_sandbox::wire::OutputStream;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::capture::Capture;
use crate::crowd::Crowd;
use crate::pipes::{CallPipes, Input};
use crate::reaper::ExitCode;
use crate::script::{self, Nonce, Status};
use crate::shell::Shell;
use crate::sink::Sink;

/// `exit_code` when the shell was killed from outside its own reckoning.
pub(crate) const KILLED: ExitCode = 137;
/// How long a shell may print its state while it ends itself.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// When a running call is first looked at for a shell that is back at its prompt without having said so, and the
/// longest time between two such looks.
const SILENCE: Duration = Duration::from_millis(50);
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// How long a command's status is looked for at once, giving way to bash each time. On a busy machine one such turn may take
/// long, and is then the last.
const QUICK_LOOKS: Duration = Duration::from_micros(100);
/// Bytes of a streamed line at most, before JSON.
const CHUNK_BYTES: usize = 16 << 10;

/// How a call ended.
#[derive(Debug)]
pub(crate) enum End {
    Status(Status),
    Shell(ExitCode),
    Deadline,
    Cancelled,
    Crowded { most: usize },
}

/// One command while it runs.
pub(crate) struct Running<'a> {
    pub(crate) shell: &'a mut Shell,
    pub(crate) pipes: &'a mut CallPipes,
    pub(crate) nonce: &'a Nonce,
    pub(crate) deadline: Instant,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) crowd: Option<&'a Crowd>,
}

impl Running<'_> {
    /// Reads what the command writes until it ends, or must.
    pub(crate) async fn watch(
        self,
        buffer: &mut [u8],
        stdout: &mut Capture,
        stderr: &mut Capture,
        sink: &mut Sink,
    ) -> End {
        let Self {
            shell,
            pipes,
            nonce,
            deadline,
            cancel,
            crowd,
        } = self;
        let mut error_buffer = vec![0; 16 << 10];
        let mut asked: Option<Nonce> = None;
        let mut silence = SILENCE;
        let mut look_at = Instant::now() + silence;
        let mut last_words: Option<Instant> = None;
        // The shortest commands end before this thread could sleep and be woken.
        let quick_until = Instant::now() + QUICK_LOOKS;
        loop {
            if let Some(status) = shell.poll_status(nonce) {
                return End::Status(status);
            }
            if Instant::now() > quick_until {
                break;
            }
            std::thread::yield_now();
        }
        let timer = sleep_until(deadline);
        tokio::pin!(timer);
        loop {
            let limit = if sink.wanted() { CHUNK_BYTES } else { buffer.len() };
            let may_read = !sink.blocked();
            tokio::select! {
                biased;
                ended = shell.hear_more() => {
                    if let Some(code) = ended {
                        return End::Shell(code);
                    }
                    if let Some(status) = shell.poll_status(nonce) {
                        return End::Status(if asked.is_some() { recovered(status) } else { status });
                    }
                    if let Some(status) = asked.as_ref().and_then(|asked| shell.poll_status(asked)) {
                        return End::Status(recovered(status));
                    }
                    if shell.ending_with().is_some() && last_words.is_none() {
                        last_words = Some(Instant::now() + LAST_WORDS);
                    }
                }
                () = cancel.cancelled() => return End::Cancelled,
                () = &mut timer => return End::Deadline,
                most = halted(crowd) => return End::Crowded { most },
                count = pipes.stdout.read(&mut buffer[..limit]), if may_read && !pipes.stdout.ended() => {
                    stdout.push(&buffer[..count]);
                    sink.push(OutputStream::Stdout, &buffer[..count]);
                }
                count = pipes.stderr.read(&mut error_buffer), if may_read && !pipes.stderr.ended() => {
                    stderr.push(&error_buffer[..count]);
                    sink.push(OutputStream::Stderr, &error_buffer[..count]);
                }
                () = sink.flush(), if sink.blocked() => {}
                () = sleep_until(last_words.unwrap_or(deadline)), if last_words.is_some() => {
                    let code = shell.ending_with().unwrap_or(KILLED);
                    shell.signal(Signal::SIGKILL);
                    shell.exit.wait().await;
                    return End::Shell(code);
                }
                // The wrapper may have broken on what the command left behind: then bash is at its prompt and answers this.
                () = sleep_until(look_at) => {
                    silence = (silence * 2).min(MAX_SILENCE);
                    look_at = Instant::now() + silence;
                    if !shell.at_prompt() {
                        continue;
                    }
                    if asked.is_some() {
                        shell.signal(Signal::SIGKILL);
                        shell.exit.wait().await;
                        return End::Shell(KILLED);
                    }
                    let again = Nonce::new();
                    if shell.write(&script::recover(&again, &shell.hazards)).is_ok() {
                        asked = Some(again);
                    }
                }
            }
        }
    }
}

/// Waits until there are too many processes, and says how many are let be.
async fn halted(crowd: Option<&Crowd>) -> usize {
    let Some(crowd) = crowd else {
        return std::future::pending().await;
    };
    crowd.halted().await;
    crowd.most()
}

/// A status that was got from a broken wrapper: its lines have switched aliases off, and what broke it is not known.
fn recovered(status: Status) -> Status {
    Status {
        aliases: Some(true),
        time_unusable: true,
        ..status
    }
}

/// Takes what is in a pipe at this moment, and no more: a background job may go on writing.
pub(crate) fn collect(
    input: &mut Input,
    buffer: &mut [u8],
    capture: &mut Capture,
    stream: OutputStream,
    sink: &mut Sink,
) {
    let mut left = input.waiting();
    while left > 0 {
        let room = left.min(buffer.len()).min(CHUNK_BYTES);
        let Some(count) = input.read_now(&mut buffer[..room]) else {
            return;
        };
        capture.push(&buffer[..count]);
        sink.push(stream, &buffer[..count]);
        left -= count.min(left);
    }
}
