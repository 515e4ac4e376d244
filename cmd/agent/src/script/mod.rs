//! The lines that the agent writes to bash. Text only; nothing here runs.
//!
//! Everything rests on keywords, assignments and backslashed names, so that a user's functions and aliases called like
//! builtins change nothing (case 51). Bash's own standard error is the status pipe: the null command after `time` prints
//! `TIMEFORMAT` there, needs no redirection, runs no trap, and is not traced. During a call that descriptor is replaced
//! by the call's stderr, so that no child ever inherits it.

mod status;

use nix::sys::signal::Signal;

use self::status::{Asked, report};
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
}

impl Default for Nonce {
    fn default() -> Self {
        Self::new()
    }
}

/// `TIMEFORMAT` as bash behaves without one, quoted.
const DEFAULT_TIMEFORMAT: &str = r"$'\nreal\t%3lR\nuser\t%3lU\nsys\t%3lS'";

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
    /// Functions that shadow `.`, `builtin`, `command`.
    pub shadowed: Vec<String>,
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

/// Ends a line after which no alias may be expanded in the agent's own lines: some may be called like keywords.
const ALIASES_OFF: &str = r"\shopt -u expand_aliases";

/// Whether a command may define an alias.
fn mentions_aliases(command: &[u8]) -> bool {
    contains(command, b"alias") || contains(command, b"ALIAS")
}

/// Whether a text has a word in it.
#[must_use]
pub fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

impl Hazards {
    /// Whether functions of the user's stand in for every way to source a file.
    #[must_use]
    pub fn no_way_to_source(&self) -> bool {
        self.shadowed.len() >= 3
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

/// The paths by which bash reaches a call's command and output.
#[derive(Clone, Debug)]
pub struct CallPaths {
    /// The command's bytes.
    pub command: String,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The line that runs one call, whose text is `command`: `!` keeps `errexit` and the ERR trap away from the sourcing
/// command itself, whose true status stays in `PIPESTATUS`. Where `!` would keep `errexit` away from the command's own text
/// as well, a shell in which it is left set ends with a call that fails.
#[must_use]
pub fn call(
    nonce: &Nonce,
    before: &Before,
    hazards: &Hazards,
    dialect: Dialect,
    command: &[u8],
    paths: &CallPaths,
) -> Vec<u8> {
    let mut line = Vec::with_capacity(768);
    if before.flags.contains(['e', 'u']) {
        line.extend_from_slice(b"\\set +eu; ");
    }
    for (name, value) in STASHED.iter().zip(&before.stash.values) {
        let always = *name == "TIMEFORMAT" && !hazards.time_unusable;
        if !value.is_empty() {
            line.extend_from_slice(unless_readonly(name).as_bytes());
        }
        if !value.is_empty() || always {
            line.extend_from_slice(name.as_bytes());
            line.push(b'=');
            line.extend_from_slice(if value.is_empty() {
                DEFAULT_TIMEFORMAT.as_bytes()
            } else {
                value
            });
            line.extend_from_slice(b"; ");
        }
    }
    if !before.stash.prompt_command.is_empty() {
        line.extend_from_slice(unless_readonly("PROMPT_COMMAND").as_bytes());
        line.extend_from_slice(b"PROMPT_COMMAND=(");
        line.extend_from_slice(&before.stash.prompt_command);
        line.extend_from_slice(b"); ");
    }
    if before.aliases == Some(true) {
        line.extend_from_slice(b"\\shopt -s expand_aliases; ");
    }
    // In a list before its end a failure sets `$?` and triggers nothing.
    match before.code {
        0 => {}
        1 => line.extend_from_slice(b"[[ '' ]] && [[ x ]]; "),
        code => line.extend_from_slice(format!("(\\exit {code}) && [[ x ]]; ").as_bytes()),
    }
    let switch_off = hazards.aliased_keywords || mentions_aliases(command);
    let asked = Asked {
        guarded: hazards.time_at_risk || contains(command, b"TIMEFORMAT"),
        with_options: switch_off,
        with_version: false,
    };
    let dot = source_builtin(hazards);
    let CallPaths {
        command,
        stdout,
        stderr,
    } = paths;
    let negation = if dialect.negation_exempts { "" } else { "! " };
    let run = format!(
        "{negation}{dot} {command} </dev/null >{stdout} 2>{stderr}; {}",
        report(nonce, hazards, asked)
    );
    line.extend_from_slice(run.as_bytes());
    if switch_off {
        line.extend_from_slice(b"; ");
        line.extend_from_slice(ALIASES_OFF.as_bytes());
    }
    line.push(b'\n');
    line
}

/// Begins an assignment that is not tried on a variable which could not be taken away either, and so needs no putting back.
fn unless_readonly(name: &str) -> String {
    format!("[[ ${{{name}@a}} == *r* ]] || ")
}

fn source_builtin(hazards: &Hazards) -> &'static str {
    let shadowed = |name: &str| hazards.shadowed.iter().any(|other| other == name);
    if !shadowed(".") {
        r"\."
    } else if !shadowed("builtin") {
        r"\builtin ."
    } else {
        r"\command ."
    }
}

/// The line that only asks for a status, after an interrupt. `quiet`: aliases may be called like keywords.
#[must_use]
pub fn probe(nonce: &Nonce, hazards: &Hazards, quiet: bool) -> Vec<u8> {
    let first = if quiet {
        format!("{ALIASES_OFF}\n")
    } else {
        String::new()
    };
    format!("{first}{}\n", report(nonce, hazards, Asked::default())).into_bytes()
}

/// The lines for a bash that is back at its prompt without having said so: what the last command left behind has broken
/// the wrapper. The first may be lost to a parser that is still inside an unclosed `[[`. The bare `time` says again what
/// `TIMEFORMAT` holds, where only the keyword was taken over; the last asks in the way that needs least.
#[must_use]
pub fn recover(nonce: &Nonce, hazards: &Hazards) -> Vec<u8> {
    let least = Hazards {
        time_unusable: true,
        ..hazards.clone()
    };
    format!("\n{ALIASES_OFF}\ntime\n{}\n", report(nonce, &least, Asked::default())).into_bytes()
}

/// The line that reads a start-up or restore script; `quiet` as for [`probe`].
#[must_use]
pub fn startup(nonce: &Nonce, script: &str, quiet: bool) -> Vec<u8> {
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
    format!(
        "\\. {script} </dev/null; {}; {forget}{last}\n",
        report(nonce, &Hazards::default(), asked)
    )
    .into_bytes()
}

/// Builtins that a snapshot needs, in case the user has switched some off.
const NEEDED: &str = "set unset printf trap . declare compgen shopt ulimit umask local alias";

/// Enters POSIX mode, where special builtins win over functions, and remembers the options from before.
const ENTER_POSIX: &str = "CLI_MCP_B=$BASHOPTS CLI_MCP_S=$SHELLOPTS POSIXLY_CORRECT=y";

/// Enters the state in which a snapshot can be taken. Expects [`ENTER_POSIX`], and the exit status, or nothing, in
/// `$CLI_MCP_X`; leaves by the script.
fn snapshot_body(script: &str) -> String {
    format!(
        "\\set +euxvET; {}\\unset -f printf enable; \
         \\enable {NEEDED}; \\printf \"BEGIN\\0%s\\0\" \"$CLI_MCP_X\"; \\trap -p; \\printf \"\\0\"; \\trap - DEBUG ERR RETURN EXIT; \\. {script}",
        print_shadows()
    )
}

/// A line with a syntax error, which puts the parser back where it begins. Some builds of bash 5.2 that met the end of a text
/// inside `$(` count one open quote too few from then on, and write before the memory that is for them, until they abort at
/// an innocent line. Where no line with a quote was read yet nothing is spoilt.
pub const RESYNC: &str = ")\n";

/// The lines that take a snapshot in a subshell: whatever happens there, the shell itself is not touched.
#[must_use]
pub fn snapshot(nonce: &Nonce, hazards: &Hazards, script: &str, output: &str) -> Vec<u8> {
    let body = snapshot_body(script);
    format!(
        "{RESYNC}( CLI_MCP_X= {ENTER_POSIX}; {body} ) </dev/null >{output} 2>/dev/null; {}\n",
        report(nonce, hazards, Asked::default())
    )
    .into_bytes()
}

/// The trap that saves the state of a shell that ends itself (case 38). Its redirections come before all else, so that
/// neither a trace nor a DEBUG trap is heard. The DEBUG trap is asked for here, since bash keeps it from what it sources.
#[must_use]
pub fn exit_trap(script: &str, output: &str) -> String {
    format!("{EXIT_TRAP_HEAD}{ENTER_POSIX}; \\trap -p DEBUG; \\. {script}; }} </dev/null >{output} 2>/dev/null")
}

/// What that trap begins with.
pub const EXIT_TRAP_HEAD: &str = "{ CLI_MCP_X=$? ";

/// The signal that brings bash out of its `wait`: one that nothing sends (signal(7): "unused").
pub const LEAVE_WAIT: Signal = Signal::SIGSTKFLT;

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
    format!("{}\n", snapshot_body(script))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> CallPaths {
        CallPaths {
            command: "/c".into(),
            stdout: "/o".into(),
            stderr: "/e".into(),
        }
    }

    #[test]
    fn errexit_is_switched_off_and_the_last_status_put_back() {
        let before = Before {
            code: 42,
            flags: "ehB".into(),
            ..Before::default()
        };
        let line = call(
            &Nonce("n".into()),
            &before,
            &Hazards::default(),
            Dialect::default(),
            b"x",
            &paths(),
        );
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with("\\set +eu; TIMEFORMAT=$'"), "{line}");
        assert!(
            line.contains("(\\exit 42) && [[ x ]]; ! \\. /c </dev/null >/o 2>/e; "),
            "{line}"
        );
    }

    #[test]
    fn a_function_called_dot_is_avoided() {
        let hazards = Hazards {
            shadowed: vec![".".into()],
            ..Hazards::default()
        };
        let line = call(
            &Nonce("n".into()),
            &Before::default(),
            &hazards,
            Dialect::default(),
            b"x",
            &paths(),
        );
        assert!(String::from_utf8(line).unwrap().contains(r"! \builtin . /c"));
    }

    #[test]
    fn what_a_command_names_is_minded() {
        let line = |before: &Before, command: &str| {
            let line = call(
                &Nonce("n".into()),
                before,
                &Hazards::default(),
                Dialect::default(),
                command.as_bytes(),
                &paths(),
            );
            String::from_utf8(line).unwrap()
        };
        assert!(!line(&Before::default(), "true").contains("expand_aliases"));
        assert!(line(&Before::default(), "alias a=b").ends_with("; \\shopt -u expand_aliases\n"));
        let off = Before {
            aliases: Some(true),
            ..Before::default()
        };
        assert!(line(&off, "true").contains("\\shopt -s expand_aliases; ! "));
        assert!(line(&Before::default(), "readonly TIMEFORMAT").contains("&&1/0,16#n,"));
    }

    #[test]
    fn the_dialect_follows_the_version() {
        for (version, exempts) in [
            ("5.0", false),
            ("5.2", false),
            ("5.3", true),
            ("6.0", true),
            ("", false),
        ] {
            assert_eq!(Dialect::of(version).negation_exempts, exempts, "{version}");
        }
        let new = Dialect::of("5.3");
        let line = call(
            &Nonce("n".into()),
            &Before::default(),
            &Hazards::default(),
            new,
            b"x",
            &paths(),
        );
        assert!(String::from_utf8(line).unwrap().contains(r"; \. /c </dev/null"));
    }

    #[test]
    fn quoting_survives_quotes() {
        for text in ["", "a", "'", "a'b", "''", "a'"] {
            assert_eq!(quote_bytes(text.as_bytes()), quote(text).as_bytes());
        }
        assert_eq!(quote("a'b"), r"'a'\''b'");
    }
}
