//! One command while it runs: reading what it writes, until it ends or must.

use std::time::Duration;

use cli_mcp_sandbox::wire::OutputStream;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::capture::Capture;
use crate::crowd::Crowd;
use crate::echo::Echo;
use crate::pipes::{CallPipes, Input};
use crate::reaper::ExitCode;
use crate::script::{self, Nonce, Status};
use crate::shell::Shell;
use crate::sink::Sink;

/// `exit_code` when the shell was killed from outside its own reckoning.
pub(crate) const KILLED: ExitCode = 137;
/// How long a shell may print its state while it ends itself.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// How often a running call is looked at for a shell that is back at its prompt without having said so: an error in a command
/// that takes bash to its top level discards the agent's line with it. A look is one small read, and what a line behind the
/// call's would tell sooner costs more: some builds of bash 5.2 that met an unclosed `$(` are spoilt by the next line.
const SILENCE: Duration = Duration::from_millis(20);
/// The same for a call that has run for long.
const MAX_SILENCE: Duration = Duration::from_millis(100);
/// How long a command's status is looked for at once, giving way to bash each time. On a busy machine one such turn may take
/// long, and is then the last.
const QUICK_LOOKS: Duration = Duration::from_micros(100);
/// How long process substitutions are listened to after their command.
const LATE_WORDS: Duration = Duration::from_millis(250);
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
    pub(crate) echo: &'a mut Echo,
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
            echo,
        } = self;
        let mut error_buffer = vec![0; 16 << 10];
        let mut asked = Asked::Nothing;
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
                        return End::Status(if asked.broken() { recovered(status, shell) } else { status });
                    }
                    if let Some(status) = asked.answer(shell) {
                        if let Some(status) = asked.take(status, shell) {
                            return End::Status(status);
                        }
                        look_at = Instant::now() + SILENCE;
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
                    let told = echo.sift(&error_buffer[..count]);
                    stderr.push(&told);
                    sink.push(OutputStream::Stderr, &told);
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
                    if echo.torn.holds() && !shell.is_torn() {
                        let told = echo.torn.release();
                        stderr.push(&told);
                        sink.push(OutputStream::Stderr, &told);
                    }
                    if !shell.at_prompt() {
                        continue;
                    }
                    let again = Nonce::new();
                    let (line, next) = match asked {
                        Asked::Nothing => {
                            let line = script::ask_least(&again, &shell.channel);
                            (line, Asked::Least(again))
                        }
                        Asked::Least(_) => {
                            let line = script::recover(&again, &shell.hazards, &shell.channel);
                            (line, Asked::AfterBreak(again, None))
                        }
                        Asked::Again(_, ref told) => {
                            let line = script::recover(&again, &shell.hazards, &shell.channel);
                            (line, Asked::AfterBreak(again, Some(told.clone())))
                        }
                        Asked::AfterBreak(..) => {
                            shell.signal(Signal::SIGKILL);
                            shell.exit.wait().await;
                            return End::Shell(KILLED);
                        }
                    };
                    if shell.write(&line).is_ok() {
                        asked = next;
                    }
                }
            }
        }
    }
}

/// What a shell was asked that is back at its prompt without having told its status, and by which nonce it will say so.
enum Asked {
    Nothing,
    /// Only what became of its line.
    Least(Nonce),
    /// All, since its line has discarded itself, which it told; an interrupt by the command does that too.
    Again(Nonce, Status),
    /// What can be got from it, since its line was broken, and what it told before.
    AfterBreak(Nonce, Option<Status>),
}

impl Asked {
    fn answer(&self, shell: &mut Shell) -> Option<Status> {
        match self {
            Self::Nothing => None,
            Self::Least(nonce) | Self::Again(nonce, _) | Self::AfterBreak(nonce, _) => shell.poll_status(nonce),
        }
    }

    fn broken(&self) -> bool {
        matches!(self, Self::AfterBreak(..))
    }

    /// Takes an answer: the whole status, or the news that the line has discarded itself, after which the shell is asked for
    /// the rest.
    fn take(&mut self, answer: Status, shell: &mut Shell) -> Option<Status> {
        if answer.discarded {
            let again = Nonce::new();
            let lines = script::ask_again(&again, &answer, &shell.hazards, &shell.channel);
            // A shell that does not read is asked once more when it is looked at.
            if let Err(error) = shell.write(&lines) {
                tracing::debug!(%error, "The shell whose line was discarded does not read");
            }
            *self = Self::Again(again, answer);
            return None;
        }
        Some(match self {
            Self::Nothing | Self::Least(_) => answer,
            Self::Again(_, told) => answer.completed(told),
            Self::AfterBreak(_, Some(told)) => recovered(answer.completed(told), shell),
            // No success that nobody has told.
            Self::AfterBreak(_, None) => {
                let code = answer.code.max(1);
                recovered(Status { code, ..answer }, shell)
            }
        })
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
fn recovered(status: Status, shell: &Shell) -> Status {
    Status {
        aliases: status.aliases.or(shell.before.aliases).or(Some(true)),
        time_unusable: true,
        ..status
    }
}

/// Whether a command may start what goes on to write when bash is done with it, and is yet part of it: bash waits for no
/// process substitution. Those that only a sourced file or a function names are not seen.
pub(crate) fn may_write_late(command: &str) -> bool {
    command.contains(">(")
}

/// Reads on until both streams have ended, and not for long: something else may hold them open.
pub(crate) async fn hear_late(
    pipes: &mut CallPipes,
    buffer: &mut [u8],
    stdout: &mut Capture,
    stderr: &mut Capture,
    echo: &mut Echo,
    sink: &mut Sink,
) {
    let mut error_buffer = vec![0; CHUNK_BYTES];
    let timer = sleep_until(Instant::now() + LATE_WORDS);
    tokio::pin!(timer);
    while !(pipes.stdout.ended() && pipes.stderr.ended()) {
        tokio::select! {
            biased;
            () = &mut timer => return,
            count = pipes.stdout.read(&mut buffer[..CHUNK_BYTES]), if !pipes.stdout.ended() => {
                stdout.push(&buffer[..count]);
                sink.push(OutputStream::Stdout, &buffer[..count]);
            }
            count = pipes.stderr.read(&mut error_buffer), if !pipes.stderr.ended() => {
                let told = echo.sift(&error_buffer[..count]);
                stderr.push(&told);
                sink.push(OutputStream::Stderr, &told);
            }
        }
    }
}

/// Takes what is in a pipe at this moment, and no more: a background job may go on writing.
pub(crate) fn collect(
    input: &mut Input,
    buffer: &mut [u8],
    capture: &mut Capture,
    echo: &mut Echo,
    stream: OutputStream,
    sink: &mut Sink,
) {
    let mut left = input.waiting();
    while left > 0 {
        let room = left.min(buffer.len()).min(CHUNK_BYTES);
        let Some(count) = input.read_now(&mut buffer[..room]) else {
            return;
        };
        let told = echo.sift(&buffer[..count]);
        capture.push(&told);
        sink.push(stream, &told);
        left -= count.min(left);
    }
}
