//! The state of a shell as text: the script that prints it, its parser, and the script that brings it back.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::script::{Hazards, quote};

/// More than this is not kept: such a state would cost more memory than a sandbox has to spare.
pub const MAX_BYTES: usize = 8 << 20;

/// Prints the state, each piece ended by NUL. Runs after [`crate::script::snapshot`] has made it safe to.
pub const PRINT_STATE: &str = r#"\unset -f declare compgen alias ulimit umask
\unset POSIXLY_CORRECT
\printf '%s\0' "$CLI_MCP_B" "$CLI_MCP_S" "$PWD"
\printf 'VIFS\0'; \declare -p IFS; \printf '\0'
IFS=$' \t\n'
\set -f
\printf 'P\0'; [[ $# != 0 ]] && \printf '%q ' "$@"; \printf '\0'
for CLI_MCP_N in $(\compgen -v); do [[ $CLI_MCP_N == IFS ]] || { \printf 'V%s\0' "$CLI_MCP_N"; \declare -p -- "$CLI_MCP_N"; \printf '\0'; }; done
for CLI_MCP_N in $(\compgen -A function); do \printf 'F%s\0' "$CLI_MCP_N"; \declare -f -- "$CLI_MCP_N"; \printf '\0'; done
\printf 'G\0'; \declare -F; \printf '\0'
\printf 'A\0'; \declare -p BASH_ALIASES; \printf '\0'
\printf 'U\0'; \umask; \printf '\0'
for CLI_MCP_N in S H; do for CLI_MCP_L in c d e f i l m n q r s t u v x; do \printf 'L%s%s\0' $CLI_MCP_N $CLI_MCP_L; \ulimit -$CLI_MCP_N$CLI_MCP_L; \printf '\0'; done; done
\printf 'END\0'
"#;

/// Variables that every bash makes for itself, or that the agent handles by name.
const NOT_RESTORED: [&str; 44] = [
    "BASH",
    "BASHOPTS",
    "BASHPID",
    "BASH_ALIASES",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_ARGV0",
    "BASH_CMDS",
    "BASH_COMMAND",
    "BASH_EXECUTION_STRING",
    "BASH_LINENO",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_TRAPSIG",
    "BASH_VERSINFO",
    "BASH_VERSION",
    "BASH_XTRACEFD",
    "COMP_WORDBREAKS",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "PIPESTATUS",
    "POSIXLY_CORRECT",
    "PPID",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "PWD",
    "RANDOM",
    "SHELLOPTS",
    "SRANDOM",
    "TIMEFORMAT",
    "TMOUT",
    "UID",
    "_",
    "COPROC",
    "READLINE_LINE",
    "READLINE_POINT",
];

/// `set -o` options that never come back: those that do not outlive a call, end the shell, or are the agent's own.
const OPTIONS_NOT_RESTORED: [&str; 7] = [
    "errexit",
    "nounset",
    "noexec",
    "onecmd",
    "privileged",
    "history",
    "interactive-comments",
];

/// Functions that stand in for a way to source a file.
const SHADOWS: [&str; 3] = [".", "builtin", "command"];

/// The state of a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The status it ended with, when it ended itself.
    pub exit_code: Option<u8>,
    /// `$PWD`.
    pub directory: String,
    traps: String,
    shopts: Vec<String>,
    options: Vec<String>,
    positional: String,
    variables: BTreeMap<String, String>,
    functions: BTreeMap<String, String>,
    function_attributes: String,
    aliases: String,
    umask: String,
    limits: Vec<(String, String)>,
}

impl Snapshot {
    /// Reads what [`PRINT_STATE`] printed. None when it is not whole.
    #[must_use]
    pub fn parse(output: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(output);
        let (_, text) = text.rsplit_once("BEGIN\0")?;
        let mut pieces = text.split('\0');
        let exit_code = pieces.next()?.parse().ok();
        let traps = pieces.next()?;
        // A DEBUG trap may have printed before the traps themselves.
        let traps = traps.find("trap -- ").map_or("", |start| &traps[start..]);
        // POSIX mode also lists what is at its default.
        let traps = traps
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("trap -- - "))
            .collect();
        let list = |text: &str| {
            text.split(':')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let mut snapshot = Self {
            exit_code,
            traps,
            shopts: list(pieces.next()?),
            options: list(pieces.next()?),
            directory: pieces.next()?.to_owned(),
            ..Self::default()
        };
        loop {
            let head = pieces.next()?;
            if head == "END" {
                return Some(snapshot);
            }
            let body = pieces.next()?;
            match (head.get(..1)?, head.get(1..)?) {
                ("P", _) => body.clone_into(&mut snapshot.positional),
                ("V", name) if kept(name) && !body.is_empty() => {
                    snapshot.variables.insert(name.to_owned(), body.to_owned());
                }
                ("F", name) if !body.is_empty() => {
                    snapshot.functions.insert(name.to_owned(), body.to_owned());
                }
                ("G", _) => body.clone_into(&mut snapshot.function_attributes),
                ("A", _) => body.clone_into(&mut snapshot.aliases),
                ("U", _) => body.trim().clone_into(&mut snapshot.umask),
                ("L", name) if !body.is_empty() => snapshot.limits.push((name.to_owned(), body.trim().to_owned())),
                _ => {}
            }
        }
    }

    /// What of this state the wrapper must mind.
    #[must_use]
    pub fn hazards(&self) -> Hazards {
        let shadowed = SHADOWS
            .into_iter()
            .filter(|name| self.functions.contains_key(*name))
            .map(str::to_owned)
            .collect();
        let time_unusable = self.aliases.contains("[time]=");
        Hazards {
            shadowed,
            time_unusable,
        }
    }

    /// Whether SIGINT runs a trap of the user's: then it would not end a list.
    #[must_use]
    pub fn traps_interrupt(&self) -> bool {
        self.traps
            .lines()
            .any(|line| line.ends_with(" INT") || line.ends_with(" SIGINT"))
    }

    /// Whether `name` is a function or an alias here.
    #[must_use]
    pub fn redefines(&self, name: &str) -> bool {
        self.functions.contains_key(name) || self.aliases.contains(&format!("[{name}]="))
    }

    /// Whether any command runs a trap of the user's.
    #[must_use]
    pub fn traps_commands(&self) -> bool {
        self.traps
            .lines()
            .any(|line| line.ends_with(" DEBUG") || line.ends_with(" ERR") || line.ends_with(" RETURN"))
    }

    /// The script that brings this state into a fresh bash started with the variables `inherited`.
    ///
    /// Functions come after all that uses a builtin, and as plain definitions, which run no trap and expand no alias;
    /// aliases last, by assignment.
    #[must_use]
    pub fn restore_script(&self, inherited: &[String], exit_trap: &str) -> String {
        let mut script = String::new();
        script.push_str(&change_directory(&self.directory));
        for name in inherited
            .iter()
            .filter(|name| kept(name) && !self.variables.contains_key(*name))
        {
            let _ = writeln!(script, "\\unset -v {}", quote(name));
        }
        script.push_str("for CLI_MCP_N in ${BASHOPTS//:/ }; do \\shopt -u \"$CLI_MCP_N\"; done\n");
        for name in self.shopts.iter().filter(|name| *name != "login_shell") {
            let _ = writeln!(script, "\\shopt -s {}", quote(name));
        }
        for text in self.variables.values() {
            let _ = writeln!(script, "\\eval {}", quote(text));
        }
        for (name, value) in &self.limits {
            let _ = writeln!(script, "\\ulimit -{name} {}", quote(value));
        }
        if !self.umask.is_empty() {
            let _ = writeln!(script, "\\umask {}", quote(&self.umask));
        }
        if !self.positional.trim().is_empty() {
            let _ = writeln!(script, "\\eval {}", quote(&format!("set -- {}", self.positional)));
        }
        script.push_str("\\unset -v CLI_MCP_N\n");
        let _ = writeln!(script, "\\trap {} EXIT", quote(exit_trap));
        for trap in self.user_traps() {
            let _ = writeln!(script, "\\eval {}", quote(&trap));
        }
        for option in self
            .options
            .iter()
            .filter(|option| !OPTIONS_NOT_RESTORED.contains(&option.as_str()))
        {
            let _ = writeln!(script, "\\set -o {}", quote(option));
        }
        for option in ["braceexpand", "hashall"] {
            if !self.options.iter().any(|other| other == option) {
                let _ = writeln!(script, "\\set +o {option}");
            }
        }
        for text in self.functions.values() {
            let _ = writeln!(script, "{text}");
        }
        for line in self.function_attributes.lines() {
            if !line.starts_with("declare -f ") && line.starts_with("declare -f") {
                let _ = writeln!(script, "\\{line}");
            }
        }
        if let Some((_, aliases)) = self.aliases.split_once('=') {
            let _ = writeln!(script, "BASH_ALIASES={aliases}");
        }
        script
    }

    /// Forgets the functions that stand in for what the wrapper needs: a shell that has them all runs no command.
    pub fn without_shadows(&mut self) {
        for name in SHADOWS {
            self.functions.remove(name);
        }
    }

    /// Each trap by itself, without the agent's own.
    fn user_traps(&self) -> Vec<String> {
        let mut traps: Vec<String> = Vec::new();
        for line in self.traps.split_inclusive('\n') {
            match traps.last_mut() {
                Some(last) if !line.starts_with("trap -- ") => last.push_str(line),
                _ => traps.push(line.to_owned()),
            }
        }
        traps.retain(|trap| !is_own(trap));
        traps
    }
}

/// Words after which more than one plain command would have to be understood: keywords, and builtins that change state.
const NOT_PLAIN: [&str; 75] = [
    ".",
    ":",
    "[",
    "alias",
    "bg",
    "bind",
    "break",
    "builtin",
    "caller",
    "cd",
    "command",
    "compgen",
    "complete",
    "compopt",
    "continue",
    "declare",
    "dirs",
    "disown",
    "enable",
    "eval",
    "exec",
    "exit",
    "export",
    "fc",
    "fg",
    "getopts",
    "hash",
    "help",
    "history",
    "jobs",
    "kill",
    "let",
    "local",
    "logout",
    "mapfile",
    "popd",
    "printf",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "return",
    "set",
    "shift",
    "shopt",
    "source",
    "suspend",
    "test",
    "times",
    "trap",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "wait",
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "case",
    "esac",
    "for",
    "select",
    "while",
    "until",
    "do",
    "done",
    "in",
    "function",
    "time",
    "coproc",
    "[[",
];

/// Whether a command may change what a snapshot holds. Only the plainest are known not to: one command of plain words
/// whose name is no builtin that changes state, no keyword, and neither function nor alias of this shell.
#[must_use]
pub fn may_change_state(command: &str, known: &Snapshot) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" _./:,@%+=-".contains(&byte);
    let line = command.strip_suffix('\n').unwrap_or(command);
    let Some(name) = line.split_ascii_whitespace().next() else {
        return true;
    };
    !line.bytes().all(plain)
        || name.contains('=')
        || NOT_PLAIN.contains(&name)
        || known.redefines(name)
        || known.traps_commands()
}

fn kept(name: &str) -> bool {
    !NOT_RESTORED.contains(&name) && !name.starts_with("CLI_MCP_")
}

/// Whether a line of `trap -p` shows the agent's own EXIT trap.
fn is_own(trap: &str) -> bool {
    trap.starts_with("trap -- '{ \\. /proc/") && trap.trim_end().ends_with("2>/dev/null' EXIT")
}

/// Changes to a directory, or to its nearest parent that is there (case 58).
#[must_use]
pub fn change_directory(directory: &str) -> String {
    let mut tries: Vec<String> = Path::new(directory)
        .ancestors()
        .filter(|path| path.is_absolute())
        .map(|path| format!("\\cd -- {}", quote(&path.to_string_lossy())))
        .collect();
    if tries.is_empty() {
        tries.push("\\cd /".to_owned());
    }
    format!("{{ {}; }} 2>/dev/null\n", tries.join(" || "))
}

/// The script of a bash that has nothing to restore.
#[must_use]
pub fn startup_script(directory: &str, exit_trap: &str) -> String {
    format!("{}\\trap {} EXIT\n", change_directory(directory), quote(exit_trap))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] = b"D\nBEGIN\x003\0D\ntrap -- '{ \\. /proc/9/fd/15; } </dev/null >/proc/9/fd/14 2>/dev/null' EXIT\ntrap -- 'echo\n i' INT\ntrap -- - HUP\ntrap -- - ERR\n\0extglob\0errexit:xtrace\0/usr\0VIFS\0declare -- IFS=\" \"\n\0\
        P\0a\\ b \0VUID\0declare -ir UID=\"0\"\n\0VX\0declare -- X=\"1\"\n\0Ff\0f () \n{ \n    echo F\n}\n\0G\0declare -fx f\n\0\
        A\0declare -A BASH_ALIASES=([ll]=\"ls -l\" )\n\0U\x000022\n\0LSn\x00100\n\0END\0";

    #[test]
    fn a_printed_state_is_read_and_written_back() {
        let snapshot = Snapshot::parse(OUTPUT).unwrap();
        assert_eq!(snapshot.exit_code, Some(3));
        assert!(snapshot.traps_interrupt() && snapshot.redefines("f") && snapshot.redefines("ll"));
        let script = snapshot.restore_script(&["GONE".into(), "X".into()], "own");
        for expected in [
            "\\cd -- '/usr' || \\cd -- '/'",
            "\\unset -v 'GONE'",
            "\\eval 'declare -- X=\"1\"",
            "\\ulimit -Sn '100'",
            "\\trap 'own' EXIT",
            "\\eval 'trap -- '\\''echo\n i'\\'' INT",
            "\\set -o 'xtrace'",
            "\\declare -fx f",
            "BASH_ALIASES=([ll]=\"ls -l\" )",
        ] {
            assert!(script.contains(expected), "{expected} in {script}");
        }
        for unexpected in ["UID", "errexit", "/proc/9"] {
            assert!(!script.contains(unexpected), "{unexpected} in {script}");
        }
    }

    #[test]
    fn only_plain_words_are_known_to_change_nothing() {
        let known = Snapshot::parse(OUTPUT).unwrap();
        for plain in ["true", "ls -l /usr", "kubectl get pods -A -o=json\n"] {
            assert!(!may_change_state(plain, &known), "{plain}");
        }
        for other in [
            "",
            "A=1",
            "cd /",
            "f",
            "ll",
            "true;X=1",
            "echo $((X=1))",
            "true\nX=1",
            "echo ${X:=1}",
            "[[ x ]]",
            "exit",
        ] {
            assert!(may_change_state(other, &known), "{other}");
        }
    }

    #[test]
    fn half_a_state_is_no_state() {
        assert_eq!(Snapshot::parse(&OUTPUT[..OUTPUT.len() - 5]), None);
        assert_eq!(Snapshot::parse(b""), None);
    }
}
