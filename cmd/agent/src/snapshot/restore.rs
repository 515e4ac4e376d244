//! The script that brings a state back into a fresh bash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::variables::declarations;
use super::{Snapshot, kept};
use crate::script::{FAILED_FUNCTIONS, needs_builtin, quote, quote_bytes, wait_trap};

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

/// Options that come back last: what is traced would only be this script, and in POSIX mode fewer functions have a name.
const LATE_OPTIONS: [&str; 3] = ["xtrace", "verbose", "posix"];
/// Traps that come back last, in this order: those that this script would run.
const LATE_TRAPS: [&str; 2] = ["ERR", "DEBUG"];
/// Builtins that what comes last needs: where a function of the user's is called so, nothing comes last.
const NEEDED_LAST: [&str; 3] = ["eval", "set", "trap"];
/// Functions that come back after all others, since these need the builtins.
const LATE_FUNCTIONS: [&str; 3] = ["shopt", "declare", "eval"];

/// Where the agent comes from is no directory of the user's to go back to.
const NO_EARLIER_DIRECTORY: &str = r"\unset -v OLDPWD";

/// Lines for bash.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn line(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'\n');
    }

    /// A line that evaluates a text by itself, so that an error in it costs nothing else, and then `on_failure`.
    fn eval_or(&mut self, text: &[u8], on_failure: &str) {
        self.0.extend_from_slice(b"\\eval ");
        self.0.extend_from_slice(&quote_bytes(text));
        self.line(on_failure);
    }

    fn eval(&mut self, text: &[u8]) {
        self.eval_or(text, "");
    }
}

impl Snapshot {
    /// The script that brings this state into a fresh bash started with the variables `inherited`.
    ///
    /// Functions come after all that uses a builtin, aliases after them, by assignment.
    #[must_use]
    pub fn restore_script(&self, inherited: &[String], exit_trap: &str) -> Vec<u8> {
        let mut script = Script(change_directory(&self.directory));
        script.line(NO_EARLIER_DIRECTORY);
        for name in inherited.iter().filter(|name| kept(name) && !self.exports(name)) {
            script.line(&format!("\\unset -v {}", quote(name)));
        }
        script.line("for CLI_MCP_N in ${BASHOPTS//:/ }; do \\shopt -u \"$CLI_MCP_N\"; done");
        for name in self.shopts.iter().filter(|name| *name != "login_shell") {
            script.line(&format!("\\shopt -s {}", quote(name)));
        }
        for text in self.variables.values().chain(self.declared.values()) {
            script.eval(text);
        }
        for (name, value) in &self.limits {
            script.line(&format!("\\ulimit -{name} {}", quote(value)));
        }
        if !self.umask.is_empty() {
            script.line(&format!("\\umask {}", quote(&self.umask)));
        }
        if !self.positional.is_empty() {
            script.eval(&[b"set -- ", self.positional.as_slice()].concat());
        }
        if !self.directories.is_empty() {
            let pushed = [
                b"for CLI_MCP_N in ",
                self.directories.as_slice(),
                b"; do pushd -n -- \"$CLI_MCP_N\"; done",
            ];
            script.eval(&pushed.concat());
        }
        if let Some(commands) = values_of(&self.hashed) {
            script.eval(&[b"BASH_CMDS", commands].concat());
        }
        if !self.completions.is_empty() {
            script.eval(&self.completions);
        }
        script.line("\\unset -v CLI_MCP_N");
        script.line(&format!("\\trap {} EXIT", quote(exit_trap)));
        script.line(&wait_trap());
        let come_last = !NEEDED_LAST
            .iter()
            .any(|name| self.functions.contains_key(name.as_bytes()));
        for trap in &self.traps {
            if !(come_last && LATE_TRAPS.contains(&trap.signal.as_str())) {
                script.eval(&trap.text);
            }
        }
        for option in self.restored_options() {
            if !(come_last && LATE_OPTIONS.contains(&option)) {
                script.line(&format!("\\set -o {}", quote(option)));
            }
        }
        for option in ["braceexpand", "hashall"] {
            if !self.options.iter().any(|other| other == option) {
                script.line(&format!("\\set +o {option}"));
            }
        }
        for name in self.switched_off.iter().filter(|name| !needs_builtin(name)) {
            script.line(&format!("\\enable -n {}", quote(name)));
        }
        self.restore_functions(&mut script);
        if let Some(aliases) = values_of(&self.aliases) {
            script.0.extend_from_slice(b"BASH_ALIASES");
            script.0.extend_from_slice(aliases);
            script.line("");
        }
        if come_last {
            for option in self.restored_options().filter(|option| LATE_OPTIONS.contains(option)) {
                script.line(&format!("\\set -o {}", quote(option)));
            }
            for signal in LATE_TRAPS {
                for trap in self.traps.iter().filter(|trap| trap.signal == signal) {
                    // Aliases are there already.
                    script.eval(&[b"\\", trap.text.as_slice()].concat());
                }
            }
        }
        script.0
    }

    /// Whether a variable is set and exported. What has lost that would otherwise have it again from the environment.
    fn exports(&self, name: &str) -> bool {
        self.variables
            .get(name)
            .and_then(|text| declarations(text).next())
            .is_some_and(|found| found.attributes.contains('x'))
    }

    fn restored_options(&self) -> impl Iterator<Item = &str> {
        self.options
            .iter()
            .map(String::as_str)
            .filter(|option| !OPTIONS_NOT_RESTORED.contains(option))
    }

    /// Each function is evaluated by itself, with what its text may need to be read again: its number in the order of names
    /// goes on a list where that fails. In POSIX mode nothing stands in for what gives the late ones their attributes.
    fn restore_functions(&self, script: &mut Script) {
        let is_late = |name: &[u8]| LATE_FUNCTIONS.iter().any(|late| late.as_bytes() == name);
        let extended = self.shopts.iter().any(|name| name == "extglob");
        if !extended && !self.functions.is_empty() {
            script.line("\\shopt -s extglob");
        }
        for (number, (name, text)) in self.functions.iter().enumerate() {
            if !is_late(name) {
                define(script, number, text);
            }
        }
        for (name, attributes) in self.function_attributes() {
            if attributes.is_empty() || is_late(name) {
                continue;
            }
            let mut line = if name.contains(&b'=') {
                // `declare` takes such a name for an assignment; of the other attributes no builtin could have given it any.
                b"\\readonly -f -- ".to_vec()
            } else {
                format!("\\declare -f{attributes} -- ").into_bytes()
            };
            line.extend_from_slice(&quote_bytes(name));
            script.0.extend_from_slice(&line);
            script.line("");
        }
        if !extended && !self.functions.is_empty() {
            script.line("\\shopt -u extglob");
        }
        for late in LATE_FUNCTIONS {
            let found = self.functions.iter().enumerate();
            for (number, (_, text)) in found.filter(|(_, (name, _))| *name == late.as_bytes()) {
                define(script, number, text);
            }
        }
        let mut lines = String::new();
        for (name, attributes) in self.function_attributes().filter(|(name, _)| is_late(name)) {
            for (attribute, builtin) in [('x', "export"), ('r', "readonly")] {
                if attributes.contains(attribute) {
                    lines.push_str(&format!("\\{builtin} -f {}\n", String::from_utf8_lossy(name)));
                }
            }
        }
        if !lines.is_empty() {
            script.line("POSIXLY_CORRECT=y");
            script.line(&lines);
            script.line("\\unset -v POSIXLY_CORRECT");
        }
    }
}

/// What an array is assigned, from its declaration.
fn values_of(declaration: &[u8]) -> Option<&[u8]> {
    let at = declaration.iter().position(|byte| *byte == b'=')?;
    Some(declaration[at..].trim_ascii_end())
}

/// The keyword allows any name.
fn define(script: &mut Script, number: usize, text: &[u8]) {
    let text = [b"function ", text].concat();
    script.eval_or(&text, &format!(" || {FAILED_FUNCTIONS}+=' {number}'"));
}

/// Changes to a directory, or to its nearest parent that is there (case 58).
#[must_use]
pub fn change_directory(directory: &[u8]) -> Vec<u8> {
    let mut tries: Vec<Vec<u8>> = Path::new(OsStr::from_bytes(directory))
        .ancestors()
        .filter(|path| path.is_absolute())
        .map(|path| [b"\\cd -- ", quote_bytes(path.as_os_str().as_bytes()).as_slice()].concat())
        .collect();
    if tries.is_empty() {
        tries.push(b"\\cd /".to_vec());
    }
    [b"{ ", tries.join(b" || ".as_slice()).as_slice(), b"; } 2>/dev/null\n"].concat()
}

/// The script of a bash that has nothing to restore.
#[must_use]
pub fn startup_script(directory: &str, exit_trap: &str) -> Vec<u8> {
    let mut script = Script(change_directory(directory.as_bytes()));
    // As in any new bash.
    script.line(&format!("{NO_EARLIER_DIRECTORY}; \\export OLDPWD"));
    script.line(&format!("\\trap {} EXIT", quote(exit_trap)));
    script.line(&wait_trap());
    script.0
}
