//! The state of a shell: what a bash printed of it, read.

mod commands;
mod plain;
mod print;
mod restore;
mod shadow;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;

pub use plain::{may_change_state, may_set_traps};
pub use print::PRINT_STATE;
pub use restore::{change_directory, startup_script};
pub use shadow::print_shadows;

use crate::script::{Hazards, KEYWORDS};

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

/// Functions that stand in for a way to source a file.
const SHADOWS: [&str; 3] = [".", "builtin", "command"];

/// What the names of the agent's own variables and functions begin with, while a state is printed or brought back.
const OWN_NAMES: &str = "CLI_MCP_";

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
    time_unusable: bool,
}

impl Snapshot {
    /// Reads what [`PRINT_STATE`] printed. None when it is not whole: cut short, or printed by a shell that could not fork
    /// to list what it has.
    #[must_use]
    pub fn parse(output: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(output);
        let (shadows, text) = text.rsplit_once("BEGIN\0")?;
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
        let mut variables_listed = false;
        loop {
            let head = pieces.next()?;
            if head == "END" {
                snapshot.add_shadows(shadows);
                return (variables_listed && snapshot.has_all_functions()).then_some(snapshot);
            }
            let body = pieces.next()?;
            // Every bash has this one.
            variables_listed |= head == "VBASHOPTS";
            match (head.get(..1)?, head.get(1..)?) {
                ("P", _) => body.clone_into(&mut snapshot.positional),
                ("V", "TIMEFORMAT") => snapshot.time_unusable = !body.starts_with("declare -- ") && !body.is_empty(),
                ("V", name) if kept(name) && !body.is_empty() => {
                    snapshot.variables.insert(name.to_owned(), body.to_owned());
                }
                ("F", name) if !body.is_empty() && !name.starts_with(OWN_NAMES) => {
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

    /// Adds the functions that had to be taken away before all others were listed.
    fn add_shadows(&mut self, listing: &str) {
        for shadow in shadow::find_shadows(listing) {
            if !shadow.attributes.is_empty() {
                let _ = writeln!(
                    self.function_attributes,
                    "declare -f{} {}",
                    shadow.attributes, shadow.name
                );
            }
            self.functions.insert(shadow.name.to_owned(), shadow.text);
        }
    }

    /// Whether each function that bash named by itself was printed too.
    fn has_all_functions(&self) -> bool {
        self.function_attributes
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .all(|(_, name)| name.starts_with(OWN_NAMES) || self.functions.contains_key(name))
    }

    /// What of this state the wrapper must mind.
    #[must_use]
    pub fn hazards(&self) -> Hazards {
        let shadowed = SHADOWS
            .into_iter()
            .filter(|name| self.functions.contains_key(*name))
            .map(str::to_owned)
            .collect();
        Hazards {
            shadowed,
            time_unusable: self.time_unusable,
            time_at_risk: self.any_text(|text| text.contains("TIMEFORMAT")),
            aliased_keywords: self.aliases_keywords(),
        }
    }

    /// Whether aliases are called like keywords of the wrapper's lines.
    #[must_use]
    pub fn aliases_keywords(&self) -> bool {
        KEYWORDS.iter().any(|name| {
            self.aliases.contains(&format!("[{name}]=")) || self.aliases.contains(&format!("[\"{name}\"]="))
        })
    }

    /// Puts the user's `expand_aliases` in place of what the idle shell has.
    pub fn set_expand_aliases(&mut self, on: bool) {
        self.shopts.retain(|name| name != "expand_aliases");
        if on {
            self.shopts.push("expand_aliases".to_owned());
        }
    }

    /// Whether the text of a function or alias of this shell is one that `wanted` looks for.
    fn any_text(&self, wanted: impl Fn(&str) -> bool) -> bool {
        wanted(&self.aliases) || self.functions.values().any(|text| wanted(text))
    }

    /// Whether the user has a trap for the end of the shell, or for the signal by which the agent ends one.
    #[must_use]
    pub fn traps_the_end(&self) -> bool {
        self.user_traps().iter().any(|trap| {
            ["EXIT", "VTALRM", "SIGVTALRM"]
                .iter()
                .any(|name| trap.trim_end().ends_with(&format!(" {name}")))
        })
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

    /// Puts another working directory in place of this state's, unless both are one by different names.
    pub fn move_to(&mut self, directory: &str) {
        let same = std::fs::canonicalize(&self.directory).is_ok_and(|path| path.to_str() == Some(directory));
        if !same {
            directory.clone_into(&mut self.directory);
        }
    }

    /// Forgets the resource limits: under them the shell could not even open what it runs a command with.
    pub fn without_limits(&mut self) {
        self.limits.clear();
    }

    /// Forgets the functions that stand in for what the wrapper needs: a shell that has them all runs no command.
    pub fn without_shadows(&mut self) {
        for name in SHADOWS {
            self.functions.remove(name);
        }
    }
}

fn kept(name: &str) -> bool {
    !NOT_RESTORED.contains(&name) && !name.starts_with(OWN_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] = b"D\nBEGIN\x003\0D\ntrap -- '{ \\. /proc/9/fd/15; } </dev/null >/proc/9/fd/14 2>/dev/null' EXIT\ntrap -- 'echo\n i' INT\ntrap -- - HUP\ntrap -- - ERR\n\0extglob\0errexit:xtrace\0/usr\0VIFS\0declare -- IFS=\" \"\n\0VBASHOPTS\0\0\
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
    fn half_a_state_is_no_state() {
        assert_eq!(Snapshot::parse(&OUTPUT[..OUTPUT.len() - 5]), None);
        assert_eq!(Snapshot::parse(b""), None);
        let without = |piece: &str| String::from_utf8_lossy(OUTPUT).replacen(piece, "", 1);
        assert_eq!(Snapshot::parse(without("VBASHOPTS\0\0").as_bytes()), None);
        assert_eq!(
            Snapshot::parse(without("Ff\0f () \n{ \n    echo F\n}\n\0").as_bytes()),
            None
        );
    }
}
