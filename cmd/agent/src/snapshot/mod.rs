//! The state of a shell: what a bash printed of it, read.

mod commands;
mod hidden;
mod plain;
mod print;
mod restore;
mod shadow;
mod traps;
mod variables;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub use plain::{may_change_state, may_lower_limits, may_set_traps};
pub use print::PRINT_STATE;
pub use restore::{change_directory, startup_script};
pub use shadow::print_shadows;

use self::traps::{Trap, read_traps};
use self::variables::declarations;
use crate::script::{Hazards, KEYWORDS, OWN_NAMES, contains, needs_builtin};

/// More than this is not kept: such a state would cost more memory than a sandbox has to spare.
pub const MAX_BYTES: usize = 8 << 20;

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

/// Builtins that are ways to source a file, and whose names functions can take.
const SHADOWS: [&str; 3] = [".", "builtin", "command"];

const DEBUG: &str = "DEBUG";

/// The state of a shell. What bash printed is bytes: names of files and functions need not be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The status it ended with, when it ended itself.
    pub exit_code: Option<u8>,
    /// The working directory: `$PWD` where that names it.
    pub directory: Vec<u8>,
    /// The user's.
    traps: Vec<Trap>,
    shopts: Vec<String>,
    options: Vec<String>,
    positional: Vec<u8>,
    variables: BTreeMap<String, Vec<u8>>,
    /// Variables that are declared and have no value.
    declared: BTreeMap<String, Vec<u8>>,
    /// Whether the shell ended inside a function.
    in_function: bool,
    /// Builtins that are switched off.
    switched_off: Vec<String>,
    functions: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A `declare` for each function.
    function_attributes: Vec<u8>,
    aliases: Vec<u8>,
    /// Where commands were found.
    hashed: Vec<u8>,
    completions: Vec<u8>,
    /// The directory stack below the working directory, from its bottom, quoted.
    directories: Vec<u8>,
    umask: String,
    limits: Vec<(String, String)>,
    time_unusable: bool,
}

/// What was printed before a state, and the state.
#[must_use]
pub fn split_begin(output: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = output.windows(BEGIN.len()).position(|window| window == BEGIN)?;
    Some((&output[..at], &output[at + BEGIN.len()..]))
}

const BEGIN: &[u8] = b"BEGIN\0";

impl Snapshot {
    /// Reads what [`PRINT_STATE`] printed. None when it is not whole: cut short, or printed by a shell that could not fork
    /// to list what it has.
    #[must_use]
    pub fn parse(output: &[u8]) -> Option<Self> {
        let (before, state) = split_begin(output)?;
        let mut pieces = state.split(|byte| *byte == 0);
        let exit_code = pieces.next().map(String::from_utf8_lossy)?.parse().ok();
        let traps = read_traps(pieces.next()?);
        let list = |text: &[u8]| {
            String::from_utf8_lossy(text)
                .split(':')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let mut snapshot = Self {
            exit_code,
            traps,
            shopts: list(pieces.next()?),
            options: list(pieces.next()?),
            directory: pieces.next()?.to_vec(),
            ..Self::default()
        };
        snapshot.add_debug_traps(read_traps(before));
        snapshot.switched_off = names_switched_off(before);
        let mut variables_listed = false;
        loop {
            let head = pieces.next()?;
            if head == b"END" {
                snapshot.add_shadows(before);
                return (variables_listed && snapshot.has_all_functions()).then_some(snapshot);
            }
            let body = pieces.next()?;
            // Every bash has this one.
            variables_listed |= head == b"V" && declarations(body).any(|found| found.name == "BASHOPTS");
            snapshot.add_piece(*head.first()?, &head[1..], body);
        }
    }

    fn add_piece(&mut self, kind: u8, name: &[u8], body: &[u8]) {
        let text = || String::from_utf8_lossy(body).trim().to_owned();
        let name_text = || String::from_utf8_lossy(name).into_owned();
        match kind {
            b'I' => self.in_function = true,
            b'P' => body.clone_into(&mut self.positional),
            b'V' => self.add_variables(body),
            b'F' | b'T' if !body.is_empty() && !name.starts_with(OWN_NAMES.as_bytes()) => {
                self.functions.insert(name.to_vec(), definition(kind, body).to_vec());
            }
            b'G' => body.clone_into(&mut self.function_attributes),
            b'A' => body.clone_into(&mut self.aliases),
            b'H' => body.clone_into(&mut self.hashed),
            b'C' => body.clone_into(&mut self.completions),
            b'S' => body.clone_into(&mut self.directories),
            b'D' => {
                if let Some(directory) = body.strip_suffix(b"\n").filter(|path| !path.is_empty()) {
                    directory.clone_into(&mut self.directory);
                }
            }
            b'U' => self.umask = text(),
            b'L' if !body.is_empty() => self.limits.push((name_text(), text())),
            _ => {}
        }
    }

    fn add_variables(&mut self, listing: &[u8]) {
        for found in declarations(listing) {
            if found.name == "TIMEFORMAT" {
                self.time_unusable = !["-", "x"].contains(&found.attributes);
            }
            let variables = match found.attributes {
                _ if !kept(found.name) => continue,
                _ if found.has_value => &mut self.variables,
                _ => &mut self.declared,
            };
            variables.insert(found.name.to_owned(), found.text.to_vec());
        }
    }

    /// The builtins that come back although they were switched off: the agent's own lines need them.
    pub fn switched_on_again(&self) -> impl Iterator<Item = &str> {
        self.switched_off
            .iter()
            .map(String::as_str)
            .filter(|name| needs_builtin(name))
    }

    /// Adds the DEBUG trap, which a sourced text does not see.
    fn add_debug_traps(&mut self, traps: Vec<Trap>) {
        if !self.traps.iter().any(|trap| trap.signal == DEBUG) {
            self.traps.extend(traps.into_iter().filter(|trap| trap.signal == DEBUG));
        }
    }

    /// Takes the DEBUG trap of an earlier state over where nothing can have changed it: unless functions are traced, bash
    /// keeps it from what it sources, and so from each call, also from one that ends the shell.
    pub fn keep_debug_trap(&mut self, earlier: &Self) {
        if !self.options.iter().any(|option| option == "functrace") {
            self.add_debug_traps(earlier.traps.clone());
        }
    }

    /// Adds the functions that had to be taken away before all others were listed.
    fn add_shadows(&mut self, listing: &[u8]) {
        for shadow in shadow::find_shadows(listing) {
            if !shadow.attributes.is_empty() {
                let line = format!("declare -f{} {}\n", shadow.attributes, shadow.name);
                self.function_attributes.extend_from_slice(line.as_bytes());
            }
            self.functions.insert(shadow.name.as_bytes().to_vec(), shadow.text);
        }
    }

    /// Name and attributes of each function that bash named by itself.
    fn function_attributes(&self) -> impl Iterator<Item = (&[u8], &str)> {
        self.function_attributes
            .split(|byte| *byte == b'\n')
            .filter_map(|line| {
                let rest = line.strip_prefix(b"declare -f")?;
                let space = rest.iter().position(|byte| *byte == b' ')?;
                Some((&rest[space + 1..], std::str::from_utf8(&rest[..space]).ok()?))
            })
            .filter(|(name, _)| !name.starts_with(OWN_NAMES.as_bytes()))
    }

    /// Whether each of them was printed too.
    fn has_all_functions(&self) -> bool {
        self.function_attributes()
            .all(|(name, _)| self.functions.contains_key(name))
    }

    /// The name of the function with this number, as far as it can be shown.
    #[must_use]
    pub fn function_name(&self, number: usize) -> Option<String> {
        let name = self.functions.keys().nth(number)?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// What the wrapper must mind in the shell that has printed this state.
    #[must_use]
    pub fn hazards(&self) -> Hazards {
        let shadowed = SHADOWS
            .into_iter()
            .chain(["exec"])
            .filter(|name| self.functions.contains_key(name.as_bytes()))
            .map(str::to_owned)
            .collect();
        Hazards {
            shadowed,
            switched_off: self.switched_off.clone(),
            time_unusable: self.time_unusable,
            time_at_risk: self.any_text(|text| contains(text, b"TIMEFORMAT")),
            aliased_keywords: self.aliases_keywords(),
        }
    }

    /// What it must mind in one that is made from it: attributes of `TIMEFORMAT` are not brought back, and the builtins that its
    /// lines need come back on.
    #[must_use]
    pub fn hazards_restored(&self) -> Hazards {
        Hazards {
            time_unusable: false,
            switched_off: Vec::new(),
            ..self.hazards()
        }
    }

    /// Whether aliases are called like keywords of the wrapper's lines.
    #[must_use]
    pub fn aliases_keywords(&self) -> bool {
        KEYWORDS
            .iter()
            .any(|name| self.has_alias(name) || self.has_alias(&format!("\"{name}\"")))
    }

    /// Whether the shell shows what it reads.
    #[must_use]
    pub fn is_verbose(&self) -> bool {
        self.options.iter().any(|option| option == "verbose")
    }

    fn has_alias(&self, name: &str) -> bool {
        contains(&self.aliases, format!("[{name}]=").as_bytes())
    }

    /// Puts the user's `expand_aliases` in place of what the idle shell has.
    pub fn set_expand_aliases(&mut self, on: bool) {
        self.shopts.retain(|name| name != "expand_aliases");
        if on {
            self.shopts.push("expand_aliases".to_owned());
        }
    }

    /// Whether the text of a function or alias of this shell is one that `wanted` looks for.
    fn any_text(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        wanted(&self.aliases) || self.functions.values().any(|text| wanted(text))
    }

    fn traps_any(&self, signals: &[&str]) -> bool {
        self.traps.iter().any(|trap| signals.contains(&trap.signal.as_str()))
    }

    /// Whether the user has a trap for the end of the shell, or for the signal by which the agent ends one.
    #[must_use]
    pub fn traps_the_end(&self) -> bool {
        self.traps_any(&["EXIT", "VTALRM"])
    }

    /// Whether SIGINT runs a trap of the user's: then it would not end a list.
    #[must_use]
    pub fn traps_interrupt(&self) -> bool {
        self.traps_any(&["INT"])
    }

    /// Whether `name` is a function or an alias here.
    #[must_use]
    pub fn redefines(&self, name: &str) -> bool {
        self.functions.contains_key(name.as_bytes()) || self.has_alias(name)
    }

    /// Whether any command runs a trap of the user's.
    #[must_use]
    pub fn traps_commands(&self) -> bool {
        self.traps_any(&[DEBUG, "ERR", "RETURN"])
    }

    /// Puts another working directory in place of this state's, unless both are one by different names.
    pub fn move_to(&mut self, directory: &Path) {
        let same = std::fs::canonicalize(OsStr::from_bytes(&self.directory)).is_ok_and(|path| path == directory);
        if !same {
            directory.as_os_str().as_bytes().clone_into(&mut self.directory);
        }
    }

    /// Forgets the resource limits: under them the shell could not even open what it runs a command with.
    pub fn without_limits(&mut self) {
        self.limits.clear();
    }

    /// Forgets the functions that stand in for what the wrapper needs: a shell that has them all runs no command.
    pub fn without_shadows(&mut self) {
        for name in SHADOWS {
            self.functions.remove(name.as_bytes());
        }
    }
}

/// The builtins that are switched off, by what was printed last before a state: `enable -n` lists them.
fn names_switched_off(before: &[u8]) -> Vec<String> {
    let lines = before
        .strip_suffix(b"\n")
        .unwrap_or(before)
        .rsplit(|byte| *byte == b'\n');
    lines
        .map_while(|line| line.strip_prefix(b"enable -n "))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// The definition of a function as bash printed it, without the keyword that newer ones put before odd names, and, where
/// `type` printed it, without the line that says what it is.
fn definition(kind: u8, body: &[u8]) -> &[u8] {
    let text = match body.iter().position(|byte| *byte == b'\n') {
        Some(end) if kind == b'T' => &body[end + 1..],
        _ => body,
    };
    let text = text.strip_prefix(b"function ").unwrap_or(text);
    text.strip_suffix(b"\n").unwrap_or(text)
}

fn kept(name: &str) -> bool {
    !NOT_RESTORED.contains(&name) && !name.starts_with(OWN_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] = b"D\nBEGIN\x003\0D\ntrap -- '{ CLI_MCP_X=$? \\. /proc/9/fd/15; } </dev/null >/proc/9/fd/14 2>/dev/null' EXIT\ntrap -- 'echo\n i' INT\ntrap -- - HUP\ntrap -- - ERR\n\0extglob\0errexit:xtrace\0/usr\0V\0declare -- IFS=\" \"\ndeclare -r BASHOPTS=\"\"\ndeclare -ir UID=\"0\"\ndeclare -- X=\"1\"\n\0\
        P\0a\\ b \0Ff\0f () \n{ \n    echo F\n}\n\0G\0declare -fx f\n\0\
        A\0declare -A BASH_ALIASES=([ll]=\"ls -l\" )\n\0U\x000022\n\0LSn\x00100\n\0END\0";

    #[test]
    fn a_printed_state_is_read_and_written_back() {
        let snapshot = Snapshot::parse(OUTPUT).unwrap();
        assert_eq!(snapshot.exit_code, Some(3));
        assert!(snapshot.traps_interrupt() && snapshot.redefines("f") && snapshot.redefines("ll"));
        let script = String::from_utf8(snapshot.restore_script(&["GONE".into(), "X".into()], "own")).unwrap();
        for expected in [
            "\\cd -- '/usr' || \\cd -- '/'",
            "\\unset -v 'GONE'",
            "\\eval 'declare -- X=\"1\"",
            "\\ulimit -Sn '100'",
            "\\trap 'own' EXIT",
            "\\eval 'trap -- '\\''echo\n i'\\'' INT",
            "\\set -o 'xtrace'",
            "\\declare -fx -- 'f'",
            "\\eval 'function f () ",
            "BASH_ALIASES=([ll]=\"ls -l\" )",
        ] {
            assert!(script.contains(expected), "{expected} in {script}");
        }
        for unexpected in ["UID", "errexit", "/proc/9"] {
            assert!(!script.contains(unexpected), "{unexpected} in {script}");
        }
    }

    #[test]
    fn half_a_state_is_no_state() {
        assert_eq!(Snapshot::parse(&OUTPUT[..OUTPUT.len() - 5]), None);
        assert_eq!(Snapshot::parse(b""), None);
        let without = |piece: &str| String::from_utf8_lossy(OUTPUT).replacen(piece, "", 1);
        assert_eq!(Snapshot::parse(without("declare -r BASHOPTS=\"\"\n").as_bytes()), None);
        assert_eq!(
            Snapshot::parse(without("Ff\0f () \n{ \n    echo F\n}\n\0").as_bytes()),
            None
        );
    }
}
