//! The status line: how bash is made to tell the state of the shell after a line, and how that is read back.

use std::fmt::Write as _;

use super::channel::{Channel, is_users};
use super::{FAILED_FUNCTIONS, Hazards, Nonce, STASHED, Stash, traces};

/// Separates the fields of a status line; `${x@Q}` never yields it.
const FIELD: char = '\u{1f}';

/// What the last status line said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `$?` of what ran.
    pub code: u8,
    /// `$-`.
    pub flags: String,
    /// `$PWD`.
    pub directory: Vec<u8>,
    /// What was taken away for the time between calls.
    pub stash: Box<Stash>,
    /// The user's `expand_aliases`, where the line has switched it off for the time between calls.
    pub aliases: Option<bool>,
    /// The user's `BASH_XTRACEFD` or 0, where it was asked for: it has led the traces of the line itself elsewhere.
    pub traces: Option<u32>,
    /// `TIMEFORMAT` has an attribute that keeps the agent from setting it.
    pub time_unusable: bool,
    /// What this bash does differently, where it was asked.
    pub dialect: Dialect,
    /// The line has discarded itself, and nothing of the command has run.
    pub refused: bool,
    /// The line has discarded itself behind the command's back: an error inside that took bash to its top level. Then only
    /// code, flags and aliases are told, and what is known of `TIMEFORMAT`.
    pub discarded: bool,
    /// The numbers of functions that a restore script could not bring back.
    pub unrestored: Vec<usize>,
}

impl Status {
    /// What a shell answered whose line had discarded itself, with what it `told` of that before.
    #[must_use]
    pub fn completed(self, told: &Self) -> Self {
        Self {
            code: told.code,
            aliases: told.aliases,
            time_unusable: told.time_unusable || self.time_unusable,
            ..self
        }
    }
}

/// Where versions of bash differ in what the wrapper rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Since 5.3 `!` keeps `errexit` away from all that the negated command runs, as POSIX.1-2024 has it.
    pub negation_exempts: bool,
    /// Since 5.3 SIGINT ends an interactive shell that stands in `wait` inside a sourced file.
    pub wait_is_fatal: bool,
}

impl Dialect {
    /// That of a version as `5.3`.
    pub(super) fn of(version: &str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let version = (numbers.next(), numbers.next());
        let from_5_3 = version >= (Some(5), Some(3));
        Self {
            negation_exempts: from_5_3,
            wait_is_fatal: from_5_3,
        }
    }
}

/// How a status is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// `TIMEFORMAT` may have been given an attribute: see [`guard`].
    pub(super) guarded: bool,
    /// `BASHOPTS` is wanted as well.
    pub(super) with_options: bool,
    /// So is where traces are led, which a redirection has noted: see [`super::channel::lead_traces_aside`].
    pub(super) with_traces: bool,
    /// So are the version of bash and what a restore script says.
    pub(super) with_version: bool,
}

/// An arithmetic expansion that fails when `TIMEFORMAT` has an attribute: `64#0` makes a number of the attributes' letters.
/// Its message shows the expression, and in it the nonce and the status; that of `${x:?}` would not do, since the status is
/// forgotten before its words are expanded.
fn guard(nonce: &Nonce) -> String {
    format!(
        "$((64#0${{TIMEFORMAT+${{TIMEFORMAT@a}}}}&&1/0,{GUARD_MARK}{},${{PIPESTATUS[0]}}))",
        spelled(nonce)
    )
}

/// A nonce in an expression whose error shows it. The line itself, which `set -v` shows before it runs, does not.
fn spelled(nonce: &Nonce) -> String {
    let (head, tail) = nonce.0.split_at(nonce.0.len() / 2);
    format!("{head}${{_+}}{tail}")
}

/// What stands before the nonce in the message of a failed [`guard`].
const GUARD_MARK: &str = "16#";
/// What stands before the nonce where the status is asked for by an expression that is none.
const ERROR_MARK: &str = "@";
/// What stands before the nonce where a line of its own tells what became of the one before it.
const DISCARD_MARK: &str = "@@";
/// What stands after the nonce where there is no status to tell.
const REFUSED: &str = "refused";

/// The end of a line that makes bash tell its status, wherever its standard error goes.
pub(super) fn report(nonce: &Nonce, hazards: &Hazards, asked: Asked, channel: &Channel) -> String {
    format!(
        "{{ {}; }} 2>{}",
        report_here(nonce, hazards, asked, channel),
        channel.status
    )
}

/// As [`report`], where standard error is the status pipe.
pub(super) fn report_here(nonce: &Nonce, hazards: &Hazards, asked: Asked, channel: &Channel) -> String {
    if hazards.time_unusable {
        // The error's message shows the expression; the rest of the line is discarded.
        let nonce = spelled(nonce);
        return format!("_=$(({ERROR_MARK}{nonce} ${{PIPESTATUS[0]}}{FIELD}$-{FIELD}${{PWD-}}{FIELD}))");
    }
    let mut line = format!("TIMEFORMAT=\"${{PIPESTATUS[0]}}{FIELD}$-{FIELD}${{PWD-}}");
    for name in STASHED {
        let _ = write!(line, "{FIELD}${{{name}:+${{{name}@Q}}}}");
    }
    let _ = write!(line, "{FIELD}${{PROMPT_COMMAND+${{PROMPT_COMMAND[@]@Q}}}}");
    line.push(FIELD);
    if asked.with_options {
        line.push_str("$BASHOPTS");
    }
    line.push(FIELD);
    if asked.with_traces {
        let _ = write!(line, "${{{}-}}", traces());
    }
    line.push(FIELD);
    if asked.with_version {
        let _ = write!(
            line,
            "${{BASH_VERSINFO[0]}}.${{BASH_VERSINFO[1]}}{FIELD}${{{FAILED_FUNCTIONS}-}}"
        );
    }
    if asked.guarded {
        let _ = write!(line, "{FIELD}{}", guard(nonce));
    }
    let _ = write!(
        line,
        "\"; {}; TIMEFORMAT=\"{} ${{TIMEFORMAT//%/%%}}\"; time; ",
        channel.mend_control(hazards),
        nonce.0
    );
    if asked.with_traces {
        let _ = write!(line, "\\unset -v {}; ", traces());
    }
    // Said again where the first may stand on one line with a prompt: one that is readonly cannot be taken away.
    line.push_str(
        "[[ ${PS0-}${PS1-}${PS2-}${TMOUT-}${PROMPT_COMMAND+x} ]] && { time; PS0= PS1= PS2= TMOUT=; PROMPT_COMMAND=(); }",
    );
    line
}

/// A way to discard the line that says so: the status of one that ran nothing.
pub(super) fn refuse(nonce: &Nonce) -> String {
    format!("_=$(({ERROR_MARK}{} {REFUSED}))", spelled(nonce))
}

/// A command on a line of its own that tells what the line before it left behind, in the way that needs least. `$?` is what
/// bash itself has made of the error that discarded it.
pub(super) fn tell_discard(nonce: &Nonce) -> String {
    format!(
        "_=$(({DISCARD_MARK}{} $?{FIELD}$-{FIELD}$BASHOPTS{FIELD}${{TIMEFORMAT+${{TIMEFORMAT@a}}}}{FIELD}))",
        spelled(nonce)
    )
}

/// Finds the status line of `nonce` in what came over the pipe.
#[must_use]
pub fn find_status(pipe: &[u8], nonce: &Nonce) -> Option<Status> {
    let marker = nonce.0.as_bytes();
    let mut start = 0;
    loop {
        let found = start
            + pipe
                .get(start..)?
                .windows(marker.len())
                .position(|window| window == marker)?;
        start = found + marker.len();
        let Some(end) = pipe[start..].iter().position(|byte| *byte == b'\n') else {
            continue;
        };
        let (before, rest) = (&pipe[..found], &pipe[start..start + end]);
        let line_starts = found == 0 || before.ends_with(b"\n");
        match rest.split_first() {
            Some((b' ', fields)) if before.ends_with(DISCARD_MARK.as_bytes()) => return Some(discarded_status(fields)),
            // What follows is the error's own text.
            Some((b' ', fields)) if before.ends_with(ERROR_MARK.as_bytes()) => {
                return Some(Status {
                    refused: fields.starts_with(REFUSED.as_bytes()),
                    stash: Box::default(),
                    aliases: None,
                    time_unusable: true,
                    ..parse_status(fields)
                });
            }
            Some((b' ', fields)) if line_starts => return Some(parse_status(fields)),
            Some((b',', code)) if before.ends_with(GUARD_MARK.as_bytes()) => return Some(guarded_status(code)),
            _ => {}
        }
    }
}

/// The status that a failed [`guard`] tells. Of the rest the worst is assumed.
fn guarded_status(text: &[u8]) -> Status {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Status {
        code: String::from_utf8_lossy(&text[..digits]).parse().unwrap_or(1),
        flags: "eu".to_owned(),
        time_unusable: true,
        ..Status::default()
    }
}

fn code_of(field: &[u8]) -> u8 {
    String::from_utf8_lossy(field).trim().parse().unwrap_or(1)
}

fn lists_aliases(options: &[u8]) -> bool {
    options
        .split(|byte| *byte == b':')
        .any(|name| name == b"expand_aliases")
}

/// What [`tell_discard`] tells.
fn discarded_status(line: &[u8]) -> Status {
    let mut fields = line.split(|byte| *byte == FIELD as u8);
    let mut next = || fields.next().unwrap_or_default();
    Status {
        code: code_of(next()),
        flags: String::from_utf8_lossy(next()).into_owned(),
        aliases: Some(lists_aliases(next())),
        time_unusable: !next().is_empty(),
        discarded: true,
        ..Status::default()
    }
}

fn parse_status(line: &[u8]) -> Status {
    let mut fields = line.split(|byte| *byte == FIELD as u8);
    let mut next = || fields.next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = code_of(next());
    let flags = text(next());
    let directory = next().to_vec();
    let mut values = [const { Vec::new() }; 5];
    for value in &mut values {
        *value = next().to_vec();
    }
    let prompt_command = next().to_vec();
    let options = next();
    let traces = text(next()).parse().ok();
    let version = next();
    let unrestored = text(next())
        .split_ascii_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect();
    let aliases = (!options.is_empty()).then(|| lists_aliases(options));
    Status {
        code,
        flags,
        directory,
        stash: Box::new(Stash { values, prompt_command }),
        aliases,
        traces: traces.map(|number| if is_users(number) { number } else { 0 }),
        time_unusable: false,
        refused: false,
        discarded: false,
        dialect: Dialect::of(&String::from_utf8_lossy(version)),
        unrestored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_only_at_the_start_of_a_line() {
        let nonce = Nonce("00ff00ff00ff00ff".into());
        let line = "00ff00ff00ff00ff 7\u{1f}hiBs\u{1f}/usr\u{1f}\u{1f}\u{1f}'$ '\u{1f}\u{1f}\u{1f}'a' 'b'\n";
        assert_eq!(find_status(format!("x{line}").as_bytes(), &nonce), None);
        let status = find_status(format!("+ noise\n{line}").as_bytes(), &nonce).unwrap();
        assert_eq!(
            (status.code, status.flags.as_str(), status.directory.as_slice()),
            (7, "hiBs", b"/usr".as_slice())
        );
        assert_eq!(status.stash.values[2], b"'$ '");
        assert_eq!(status.stash.prompt_command, b"'a' 'b'");
        assert_eq!(find_status(&line.as_bytes()[..20], &nonce), None);
    }

    #[test]
    fn a_guard_that_failed_tells_the_status_all_the_same() {
        let pipe =
            b"bash: 64#0ru&&1/0,16#00ff00ff00ff00ff,7: division by 0 (error token is \"0,16#00ff00ff00ff00ff,7\")\n";
        let status = find_status(pipe, &Nonce("00ff00ff00ff00ff".into())).unwrap();
        assert_eq!((status.code, status.time_unusable, status.aliases), (7, true, None));
        let pipe = "bash: @00ff00ff00ff00ff 9\u{1f}hB\u{1f}/usr\u{1f}: syntax error: operand expected\n";
        let status = find_status(pipe.as_bytes(), &Nonce("00ff00ff00ff00ff".into())).unwrap();
        assert_eq!(
            (status.code, status.flags.as_str(), status.directory.as_slice()),
            (9, "hB", b"/usr".as_slice())
        );
        assert_eq!((*status.stash, status.refused), (Stash::default(), false));
        let refused = refuse(&Nonce("00ff00ff00ff00ff".into())).replace("${_+}", "");
        assert!(
            find_status(format!("{refused}\n").as_bytes(), &Nonce("00ff00ff00ff00ff".into()))
                .unwrap()
                .refused
        );
    }

    #[test]
    fn a_line_that_is_shown_before_it_runs_tells_no_status() {
        let nonce = Nonce("00ff00ff00ff00ff".into());
        let asked = Asked {
            guarded: true,
            ..Asked::default()
        };
        for time_unusable in [false, true] {
            let hazards = Hazards {
                time_unusable,
                ..Hazards::default()
            };
            let line = format!(
                "{}; {}\n",
                refuse(&nonce),
                report(&nonce, &hazards, asked, &Channel::default())
            );
            assert_eq!(find_status(line.as_bytes(), &nonce), None, "{line}");
        }
    }
}
