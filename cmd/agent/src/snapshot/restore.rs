//! The script that brings a state back into a fresh bash.

use std::fmt::Write as _;
use std::path::Path;

use super::{Snapshot, kept};
use crate::script::{WAIT_TRAP, quote, wait_trap};

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

impl Snapshot {
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
        script.push_str(&wait_trap());
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
        self.restore_functions(&mut script);
        if let Some((_, aliases)) = self.aliases.split_once('=') {
            let _ = writeln!(script, "BASH_ALIASES={aliases}");
        }
        script
    }

    /// A function called `declare` comes after all that `declare` is needed for; in POSIX mode nothing stands in for what
    /// gives it its own attributes.
    fn restore_functions(&self, script: &mut String) {
        for (_, text) in self.functions.iter().filter(|(name, _)| *name != "declare") {
            let _ = writeln!(script, "{text}");
        }
        let mut of_declare = "";
        for line in self.function_attributes.lines() {
            match line.strip_prefix("declare -f").and_then(|rest| rest.split_once(' ')) {
                Some(("", _)) | None => {}
                Some((attributes, "declare")) => of_declare = attributes,
                Some(_) => {
                    let _ = writeln!(script, "\\{line}");
                }
            }
        }
        let Some(text) = self.functions.get("declare") else {
            return;
        };
        let _ = writeln!(script, "{text}");
        if of_declare.is_empty() {
            return;
        }
        let _ = writeln!(script, "POSIXLY_CORRECT=y");
        for (attribute, builtin) in [('x', "export"), ('r', "readonly")] {
            if of_declare.contains(attribute) {
                let _ = writeln!(script, "\\{builtin} -f declare");
            }
        }
        if !self.options.iter().any(|option| option == "posix") {
            let _ = writeln!(script, "\\unset -v POSIXLY_CORRECT");
        }
    }

    /// Each trap by itself, without the agent's own.
    pub(super) fn user_traps(&self) -> Vec<String> {
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

/// Whether a line of `trap -p` shows one of the agent's own traps.
fn is_own(trap: &str) -> bool {
    let exit = trap.starts_with("trap -- '{ \\. /proc/") && trap.trim_end().ends_with("2>/dev/null' EXIT");
    exit || trap.starts_with(&format!("trap -- {} ", quote(WAIT_TRAP)))
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
    let directory = change_directory(directory);
    format!("{directory}\\trap {} EXIT\n{}", quote(exit_trap), wait_trap())
}
