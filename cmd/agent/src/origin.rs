//! What every bash of an agent begins with: its environment, directory, limits and mask.

use std::ffi::OsString;
use std::path::Path;

use crate::handoff::OWN_VARIABLES;
use crate::processes;
use crate::snapshot::Snapshot;
use crate::sys::{self, ResourceLimit};

/// Variables of bash that would make it act on its own, or ask; and those of the agent.
const NOT_PASSED_ON: [&str; 10] = [
    "BASHOPTS",
    "SHELLOPTS",
    "POSIXLY_CORRECT",
    "PROMPT_COMMAND",
    "PS0",
    "PS1",
    "PS2",
    "TMOUT",
    "TIMEFORMAT",
    "HISTFILE",
];

/// Builtins and keywords of bash. It would fall over functions of these names before it can be told anything.
const OWN_NAMES: &str = ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown \
    echo enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd \
    pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias \
    unset wait ! [[ ]] { } case coproc do done elif else esac fi for function if in select then time until while";

/// What keeps programs from waiting for a human, where the image and the pod say nothing else.
const DEFAULTS: [(&str, &str); 10] = [
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("EDITOR", "false"),
    ("VISUAL", "false"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("TERM", "dumb"),
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
];

/// What every bash of this agent is started with.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its first working directory.
    pub directory: String,
    /// The limits that the agent itself was started with.
    pub limits: Vec<ResourceLimit>,
    /// The mask that the agent itself was started with.
    pub umask: u32,
    /// Whether what it runs comes behind the agent wherever both want the processor: among a thousand processes of a fork bomb the
    /// agent's even share is nothing, and it could end none. In a pod of their own commands keep their share of the node by that,
    /// and lose only that they interrupt others when they wake; elsewhere they would come behind everybody.
    pub behind_the_agent: bool,
}

impl Origin {
    /// What this agent was started with, as its commands may have it.
    #[must_use]
    pub fn of_agent(home: &Path) -> Self {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        Self {
            environment: shell_environment(std::env::vars_os(), home),
            directory: home.to_string_lossy().into_owned(),
            limits: leave_room_for_signals(sys::resource_limits(own)),
            umask: processes::umask(own).unwrap_or(0o022),
            behind_the_agent: own == 1,
        }
    }

    /// The environment of a bash that gets this state. Among its functions are those that the first bash found there: what has
    /// become of them holds.
    pub(crate) fn environment_with(&self, state: Option<&Snapshot>) -> Vec<(OsString, OsString)> {
        let is_function = |name: &OsString| name.to_str().and_then(exported_function).is_some();
        let mut environment = self.environment.clone();
        environment.retain(|(name, _)| state.is_none() || !is_function(name));
        environment
    }
}

/// The environment of bash: built from that of the agent, without anything of the agent's own.
fn shell_environment<I: IntoIterator<Item = (OsString, OsString)>>(
    inherited: I,
    home: &Path,
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = inherited
        .into_iter()
        .filter(|(name, _)| {
            name.to_str().is_none_or(|name| {
                name != "HOME"
                    && !name.starts_with(OWN_VARIABLES)
                    && !NOT_PASSED_ON.contains(&name)
                    && exported_function(name)
                        .is_none_or(|function| !OWN_NAMES.split_ascii_whitespace().any(|own| own == function))
            })
        })
        .collect();
    let has = |environment: &[(OsString, OsString)], name: &str| environment.iter().any(|(other, _)| other == name);
    for (name, value) in DEFAULTS {
        if !has(&environment, name) {
            environment.push((name.into(), value.into()));
        }
    }
    if !["LANG", "LC_ALL", "LC_CTYPE"]
        .iter()
        .any(|name| has(&environment, name))
    {
        environment.push(("LANG".into(), "C.UTF-8".into()));
    }
    environment.push(("HOME".into(), home.into()));
    // Set but empty keeps bash from its own prompts.
    environment.extend(["PS1", "PS2"].map(|name| (name.into(), OsString::new())));
    environment
}

/// The function that a variable holds for every bash that is started with it.
fn exported_function(variable: &str) -> Option<&str> {
    variable.strip_prefix("BASH_FUNC_")?.strip_suffix("%%")
}

/// The limits of commands: half as many waiting signals as the agent may have. Signals that wait are counted for each user,
/// and beyond its limit a process gets them without their sender, as if they came from outside.
fn leave_room_for_signals(mut limits: Vec<ResourceLimit>) -> Vec<ResourceLimit> {
    for (resource, soft, hard) in &mut limits {
        if *resource == sys::WAITING_SIGNALS {
            *soft /= 2;
            *hard = *soft;
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let inherited = pairs
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let text = |text: OsString| text.into_string().unwrap();
        shell_environment(inherited, Path::new("/w"))
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn nothing_of_the_agents_own_is_passed_on() {
        let names: Vec<String> = environment(&[
            ("SANDBOX_AUTH_TOKEN", "t"),
            ("SANDBOX_X", "y"),
            ("TMOUT", "1"),
            ("A", "b"),
        ])
        .into_iter()
        .map(|(name, _)| name)
        .collect();
        assert!(names.contains(&"A".to_owned()));
        assert!(
            !names.iter().any(|name| name.starts_with("SANDBOX_") || name == "TMOUT"),
            "{names:?}"
        );
    }

    #[test]
    fn functions_are_passed_on_unless_called_like_what_bash_has() {
        let own = ["BASH_FUNC_.%%", "BASH_FUNC_[[%%", "BASH_FUNC_declare%%"];
        let users = ["BASH_FUNC_ll%%", "BASH_FUNC_cd", "BASH_FUNC_"];
        let pairs: Vec<_> = own.iter().chain(&users).map(|name| (*name, "() { :; }")).collect();
        let found = environment(&pairs);
        let passed = found
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with("BASH_FUNC_"));
        assert_eq!(passed.collect::<Vec<_>>(), users);
    }

    #[test]
    fn the_users_own_values_win() {
        let environment = environment(&[("PAGER", "less"), ("LC_ALL", "de_DE.UTF-8")]);
        let value = |name: &str| {
            environment
                .iter()
                .filter(|(other, _)| other == name)
                .map(|(_, value)| value.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(value("PAGER"), ["less"]);
        assert_eq!(value("GIT_PAGER"), ["cat"]);
        assert!(value("LANG").is_empty());
        assert_eq!(value("HOME"), ["/w"]);
    }
}
