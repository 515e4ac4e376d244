//! The lines that the agent writes to bash. Text only; nothing here runs.
//!
//! Everything rests on keywords, assignments and backslashed names, so that a user's functions and aliases called like
//! builtins change nothing (case 51). The null command after `time` prints `TIMEFORMAT` to the status pipe: it runs no trap,
//! and is not traced. Around the command standard error is that pipe, so that traces and traps of what the agent asks for
//! are not heard; in it, it is the call's stderr, so that no child ever inherits the pipe.

mod call;
mod channel;
mod status;

use std::sync::LazyLock;

use nix::sys::signal::Signal;

pub use self::call::{CallPaths, Form, call};
pub use self::channel::{Channel, NULL, ROOM, STATUS, TELLING, close_left, keep_null};
use self::status::{Asked, report, report_here, tell_discard};
pub use self::status::{Dialect, Status, find_status};
use crate::snapshot::print_shadows;

/// What tells one status line from everything else that may reach the pipe: unknown until bash reads the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// A fresh one.
    #[must_use]
    pub fn new() -> Self {
        Self(format!("{:016x}", rand::random::<u64>()))
    }

    /// As a status line has it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl Default for Nonce {
    fn default() -> Self {
        Self::new()
    }
}

/// Variables that make an idle bash act on its own: taken away between calls and put back for each (case 55, `TMOUT`).
/// Each value is quoted for bash, empty when the user has set none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stash {
    values: [Vec<u8>; 5],
    prompt_command: Vec<u8>,
}

const STASHED: [&str; 5] = ["TIMEFORMAT", "PS0", "PS1", "PS2", "TMOUT"];

/// What the wrapper must know about the shell's state to be safe from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hazards {
    /// Functions that shadow `.`, `builtin`, `command`, `exec`.
    pub shadowed: Vec<String>,
    /// Which of these builtins are switched off.
    pub switched_off: Vec<String>,
    /// `TIMEFORMAT` cannot be set.
    pub time_unusable: bool,
    /// A function of the user's names `TIMEFORMAT`, and may make it so.
    pub time_at_risk: bool,
    /// Aliases are called like keywords of the wrapper's lines.
    pub aliased_keywords: bool,
}

/// Keywords of the wrapper's lines: aliases of these names would take them over where aliases are expanded.
pub const KEYWORDS: [&str; 7] = ["time", "!", "[[", "{", "while", "do", "done"];

/// The variable in which a restore script lists the functions that bash does not read again.
pub const FAILED_FUNCTIONS: &str = "CLI_MCP_F";

/// What the names of the agent's own variables and functions begin with.
pub const OWN_NAMES: &str = "CLI_MCP_";

/// A text of the agent's for a shell in which commands have run: one could have made a name readonly that it knew. So the names
/// are this agent's alone.
#[must_use]
pub fn with_own_names(text: &str) -> String {
    static OWN: LazyLock<String> = LazyLock::new(|| format!("{OWN_NAMES}{:08x}_", rand::random::<u32>()));
    text.replace(OWN_NAMES, &OWN)
}

/// The variable that holds the user's `BASH_XTRACEFD` while a status is told.
fn traces() -> String {
    with_own_names("CLI_MCP_T")
}

/// Ends a line after which no alias may be expanded in the agent's own lines: some may be called like keywords.
const ALIASES_OFF: &str = r"\shopt -u expand_aliases";

/// Whether a command may define an alias.
fn mentions_aliases(command: &[u8]) -> bool {
    contains(command, b"alias") || contains(command, b"ALIAS")
}

/// Whether a command may make `TIMEFORMAT` another name of a variable of the user's, which a status must not be written to.
/// No attribute in an expansion tells of that.
#[must_use]
pub fn may_rename_time(command: &str) -> bool {
    let declares = ["declare", "typeset"].iter().any(|word| command.contains(word));
    declares
        && command.match_indices("TIMEFORMAT").any(|(at, _)| {
            let option = command[..at].split_whitespace().next_back().unwrap_or_default();
            option.starts_with('-') && option.contains('n')
        })
}

/// Whether a text has a word in it.
#[must_use]
pub fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

impl Hazards {
    fn is_off(&self, name: &str) -> bool {
        self.switched_off.iter().any(|other| other == name)
    }

    /// Whether the name does not run the builtin.
    fn misleads(&self, name: &str) -> bool {
        self.is_off(name) || self.shadowed.iter().any(|other| other == name)
    }

    /// Whether there is no way left to source a file.
    #[must_use]
    pub fn no_way_to_source(&self) -> bool {
        self.is_off(".") || [".", "builtin", "command"].iter().all(|name| self.misleads(name))
    }
}

/// How the next call begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// What `$?` must be.
    pub code: u8,
    /// `$-` after the last call.
    pub flags: String,
    /// What to put back.
    pub stash: Stash,
    /// The user's `expand_aliases`, where it is off only for the time between calls.
    pub aliases: Option<bool>,
    /// The user's `BASH_XTRACEFD`, or 0.
    pub traces: u32,
    /// The user's own limit leaves the shell no room for a subshell.
    pub no_room: bool,
}

/// Quotes text for bash.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes any bytes for bash.
#[must_use]
pub fn quote_bytes(text: &[u8]) -> Vec<u8> {
    let mut quoted = b"'".to_vec();
    for piece in text.split_inclusive(|byte| *byte == b'\'') {
        match piece.strip_suffix(b"'") {
            Some(before) => {
                quoted.extend_from_slice(before);
                quoted.extend_from_slice(br"'\''");
            }
            None => quoted.extend_from_slice(piece),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// A way to run a builtin that no function stands in for, where there is one.
fn builtin(hazards: &Hazards, name: &str) -> String {
    if !hazards.misleads(name) {
        format!(r"\{name}")
    } else if !hazards.misleads("builtin") {
        format!(r"\builtin {name}")
    } else {
        format!(r"\command {name}")
    }
}

/// The line that only asks for a status, after an interrupt. `quiet`: aliases may be called like keywords.
#[must_use]
pub fn probe(nonce: &Nonce, hazards: &Hazards, quiet: bool, channel: &Channel) -> Vec<u8> {
    let first = if quiet {
        format!("{ALIASES_OFF}\n")
    } else {
        String::new()
    };
    // Twice, since the first follows a prompt of the user's on its line.
    format!(
        "{first}{{ {}; time; }} 2>{}\n",
        report_here(nonce, hazards, Asked::default(), channel),
        channel.status
    )
    .into_bytes()
}

/// Asks for `$?` in the way that needs least.
#[must_use]
pub fn ask_least(nonce: &Nonce, channel: &Channel) -> Vec<u8> {
    format!("\n{{ {}; }} 2>{}\n", tell_discard(nonce), channel.status).into_bytes()
}

/// The lines that ask a shell for its whole state whose line has discarded itself, and which `told` what it could of it.
/// Nothing of what the command has set may end it in the agent's lines, nor take them over.
#[must_use]
pub fn ask_again(nonce: &Nonce, told: &Status, hazards: &Hazards, channel: &Channel) -> Vec<u8> {
    let hazards = Hazards {
        time_unusable: hazards.time_unusable || told.time_unusable,
        ..hazards.clone()
    };
    let mut lines = Vec::new();
    if told.flags.contains(['e', 'u']) {
        lines.extend_from_slice(b"\\set +eu\n");
    }
    lines.extend_from_slice(&probe(nonce, &hazards, true, channel));
    lines
}

/// The lines for a bash that is back at its prompt without having said so: what the last command left behind has broken
/// the wrapper. The first may be lost to a parser that is still inside an unclosed `[[`. The bare `time` says again what
/// `TIMEFORMAT` holds, where only the keyword was taken over; the last asks in the way that needs least.
#[must_use]
pub fn recover(nonce: &Nonce, hazards: &Hazards, channel: &Channel) -> Vec<u8> {
    let least = Hazards {
        time_unusable: true,
        ..hazards.clone()
    };
    format!(
        "\n{ALIASES_OFF}\n{{ time; }} 2>{}\n\n{}\n",
        channel.status,
        report(nonce, &least, Asked::default(), channel)
    )
    .into_bytes()
}

/// The line that reads a start-up or restore script; `quiet` as for [`probe`].
#[must_use]
pub fn startup(nonce: &Nonce, script: &str, quiet: bool, channel: &Channel) -> Vec<u8> {
    let asked = Asked {
        with_options: quiet,
        with_version: true,
        ..Asked::default()
    };
    let last = if quiet {
        format!("; {ALIASES_OFF}")
    } else {
        String::new()
    };
    let forget = format!("[[ ${{{FAILED_FUNCTIONS}+x}} ]] && \\unset -v {FAILED_FUNCTIONS}");
    let none = Hazards::default();
    format!(
        "{}\\. {script} </dev/null; {}; {forget}{last}\n",
        keep_null(&none),
        report_here(nonce, &none, asked, channel)
    )
    .into_bytes()
}

/// Builtins that a snapshot needs, in case the user has switched some off.
const NEEDED: &str = "set unset printf trap . declare compgen shopt ulimit umask local alias";

/// Builtins besides these that all other lines of the agent's may need.
const NEEDED_ELSEWHERE: [&str; 8] = [
    "exec", "eval", "exit", "builtin", "command", "export", "readonly", "enable",
];

/// Whether lines of the agent's may need a builtin.
#[must_use]
pub fn needs_builtin(name: &str) -> bool {
    NEEDED.split(' ').chain(NEEDED_ELSEWHERE).any(|other| other == name)
}

/// Enters POSIX mode, where special builtins win over functions, and remembers the options from before.
const ENTER_POSIX: &str = "CLI_MCP_B=$BASHOPTS CLI_MCP_S=$SHELLOPTS POSIXLY_CORRECT=y";

/// Enters the state in which a snapshot can be taken. Expects [`ENTER_POSIX`], and the exit status, or nothing, in
/// `$CLI_MCP_X`; leaves by the script. What is switched off is told before that is undone.
fn snapshot_body(script: &str) -> String {
    format!(
        "\\set +euxvET; {}\\unset -f unset; \\unset -v POSIXLY_CORRECT; \\unset -f printf enable; POSIXLY_CORRECT=y; \
         \\enable -n; \\enable {NEEDED}; \\printf \"BEGIN\\0%s\\0\" \"$CLI_MCP_X\"; \\trap -p; \\printf \"\\0\"; \\trap - DEBUG ERR RETURN EXIT; \\. {script}",
        print_shadows()
    )
}

/// A line with a syntax error, which puts the parser back where it begins. Some builds of bash 5.2 that met the end of a text
/// inside `$(` count one open quote too few from then on, and write before the memory that is for them, until they abort at
/// an innocent line. Where no line with a quote was read yet nothing is spoilt.
const RESYNC: &str = ")\n";

/// The line that puts the parser back, for a shell with these options: with `errexit` it would end there.
#[must_use]
pub fn resync(flags: &str) -> String {
    let harmless = if flags.contains('e') { "\\set +e\n" } else { "" };
    format!("{harmless}{RESYNC}")
}

/// The lines that take a snapshot in a subshell: whatever happens there, the shell itself is not touched.
#[must_use]
pub fn snapshot(
    nonce: &Nonce,
    flags: &str,
    hazards: &Hazards,
    script: &str,
    output: &str,
    channel: &Channel,
) -> Vec<u8> {
    let body = format!("CLI_MCP_X= {ENTER_POSIX}; {}", snapshot_body(script));
    format!(
        "{}( {} ) </dev/null >{output} 2>/dev/null; {}\n",
        resync(flags),
        with_own_names(&body),
        report_here(nonce, hazards, Asked::default(), channel)
    )
    .into_bytes()
}

/// The trap that saves the state of a shell that ends itself (case 38). Its redirections come before all else, so that
/// neither a trace nor a DEBUG trap is heard. The DEBUG trap is asked for here, since bash keeps it from what it sources. A
/// command may put the trap back in a subshell or give it to another bash (`eval "$(trap -p EXIT)"`): there it does nothing.
#[must_use]
pub fn exit_trap(shell: i32, script: &str, output: &str) -> String {
    with_own_names(&format!(
        "{EXIT_TRAP_HEAD}X=$? {ENTER_POSIX}; [[ $BASHPID != {shell} ]] || {{ \\trap -p DEBUG; \\. {script}; }}; }} </dev/null >{output} 2>/dev/null"
    ))
}

/// What that trap begins with.
pub const EXIT_TRAP_HEAD: &str = "{ CLI_MCP_";

/// The signal that brings bash out of its `wait`: one that nothing sends (signal(7): "unused").
pub const LEAVE_WAIT: Signal = Signal::SIGSTKFLT;

/// The signal by which a bash that must go is made to run its EXIT trap.
pub const LAST_WORDS: Signal = Signal::SIGVTALRM;

/// The line that sets the trap for it where SIGINT would end the shell. A signal with a trap ends `wait`, and the trap keeps
/// bash from going on until SIGINT comes, which then ends the list as it ends that of any busy shell.
#[must_use]
pub fn wait_trap() -> String {
    format!(
        "((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 503)) || \\trap {} {LEAVE_WAIT}\n",
        quote(WAIT_TRAP),
    )
}

/// The text of that trap. Keywords only, so that no function and no builtin that is switched off lets the list go on; heard
/// by no trace, as [`exit_trap`]. That descriptor 0 is closed shows that bash is in it. The second loop is for a shell that
/// has no descriptor left to redirect with.
pub const WAIT_TRAP: &str = "{ while [[ x ]]; do [[ x ]]; done; } 2>/dev/null <&-; while [[ x ]]; do [[ x ]]; done";

/// What the EXIT trap reads.
#[must_use]
pub fn exit_script(script: &str) -> String {
    with_own_names(&format!("{}\n", snapshot_body(script)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_quotes() {
        for text in ["", "a", "'", "a'b", "''", "a'"] {
            assert_eq!(quote_bytes(text.as_bytes()), quote(text).as_bytes());
        }
        assert_eq!(quote("a'b"), r"'a'\''b'");
    }
}
