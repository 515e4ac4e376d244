//! The line that runs one call.

use super::channel::{
    Channel, NULL, call_is_open, close_call, lead_traces_aside, lead_traces_to, open_call, redirections,
};
use super::status::{Asked, Dialect, refuse, report, report_here};
use super::{
    ALIASES_OFF, Before, Hazards, Nonce, STASHED, builtin, contains, may_rename_time, mentions_aliases, with_own_names,
};

/// `TIMEFORMAT` as bash behaves without one, quoted.
const DEFAULT_TIMEFORMAT: &str = r"$'\nreal\t%3lR\nuser\t%3lU\nsys\t%3lS'";

/// The paths by which bash reaches a call's command and output.
#[derive(Clone, Debug)]
pub struct CallPaths {
    /// The command's bytes.
    pub command: String,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The shell's own descriptors.
    pub channel: Channel,
}

/// How a command gets its descriptors, and where bash saves what it puts back after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Above all numbers that commands use. Bash itself does not have the call's stdout and stderr: neither traces of the
    /// agent's lines are heard, nor what an EXIT trap writes that `errexit` runs.
    Covered,
    /// The same, but bash itself has them: for where an EXIT trap may be set, and nothing would trace the agent's lines.
    Bare,
    /// Among the numbers that commands use: there is no room above, what leads there is the user's, or the command cannot change
    /// the shell.
    Among,
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
    form: Form,
    command: &[u8],
    paths: &CallPaths,
) -> Vec<u8> {
    let mut line = Vec::with_capacity(1024);
    if before.flags.contains(['e', 'u']) {
        line.extend_from_slice(b"\\set +eu; ");
    }
    let renamed = std::str::from_utf8(command).is_ok_and(may_rename_time);
    let after = Hazards {
        time_unusable: hazards.time_unusable || renamed,
        ..hazards.clone()
    };
    let switch_off = hazards.aliased_keywords || mentions_aliases(command);
    let asked = Asked {
        guarded: hazards.time_at_risk || contains(command, b"TIMEFORMAT") || may_run_other_text(command),
        with_options: switch_off,
        with_traces: !after.time_unusable && (before.traces != 0 || contains(command, b"XTRACEFD")),
        with_version: false,
    };
    let CallPaths {
        command,
        stdout,
        stderr,
        channel,
    } = paths;
    // Where `exec` is not what it should be nothing of the command may run: the error of refusal discards the line.
    let begin = match form {
        Form::Covered => format!(
            "{}{} || {}; ",
            open_call(hazards, stdout, stderr),
            call_is_open(stderr),
            refuse(nonce)
        ),
        Form::Bare => format!(
            "{} >{stdout} 2>{stderr}; [[ /proc/self/fd/1 -ef {stdout} ]] || {{ {}; }} 2>{}; ",
            builtin(hazards, "exec"),
            refuse(nonce),
            channel.status,
        ),
        Form::Among => String::new(),
    };
    line.extend_from_slice(begin.as_bytes());
    put_back(&mut line, before, hazards);
    let dot = builtin(hazards, ".");
    let negation = if dialect.negation_exempts { "" } else { "! " };
    let to = match before.traces {
        0 => String::new(),
        number => lead_traces_to(number),
    };
    let aside = if asked.with_traces {
        lead_traces_aside()
    } else {
        String::new()
    };
    let tell = match (form, asked.with_traces) {
        (Form::Bare, _) => format!("{} >/dev/null{aside}", report(nonce, &after, asked, channel)),
        (_, true) => format!("{{ {}; }}{aside}", report_here(nonce, &after, asked, channel)),
        (_, false) => report_here(nonce, &after, asked, channel),
    };
    let run = match form {
        Form::Covered => format!(
            "{negation}{dot} {command}{to} {}; {tell}; {}",
            redirections(),
            close_call(hazards)
        ),
        Form::Bare => format!("{negation}{dot} {command}{to} 0<&{NULL}; {tell}"),
        Form::Among => format!("{negation}{dot} {command}{to} </dev/null >{stdout} 2>{stderr}; {tell}"),
    };
    line.extend_from_slice(run.as_bytes());
    if switch_off {
        line.extend_from_slice(b"; ");
        line.extend_from_slice(ALIASES_OFF.as_bytes());
    }
    line.push(b'\n');
    line
}

/// Whether a command may run text that is not its own: a file that it sources, or words that it puts together.
fn may_run_other_text(command: &[u8]) -> bool {
    [b"source".as_slice(), b". ", b"eval"]
        .iter()
        .any(|word| contains(command, word))
}

/// What a command must find as the last one left it.
fn put_back(line: &mut Vec<u8>, before: &Before, hazards: &Hazards) {
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
        // Without that variable nothing before the command has set it.
        0 if hazards.time_unusable => line.extend_from_slice(b"[[ x ]]; "),
        0 => {}
        1 => line.extend_from_slice(b"[[ '' ]] && [[ x ]]; "),
        code if before.no_room => line.extend_from_slice(set_status_without_child(code, hazards).as_bytes()),
        code => line.extend_from_slice(format!("(\\exit {code}) && [[ x ]]; ").as_bytes()),
    }
}

/// Sets `$?` where no subshell can: by a function that is gone once it has run.
fn set_status_without_child(code: u8, hazards: &Hazards) -> String {
    let (unset, back) = (builtin(hazards, "unset"), builtin(hazards, "return"));
    let setter = with_own_names("CLI_MCP_R");
    format!("{setter}() {{ {unset} -f {setter}; {back} {code}; }}; {setter} && [[ x ]]; ")
}

/// Begins an assignment that is not tried on a variable which could not be taken away either, and so needs no putting back.
fn unless_readonly(name: &str) -> String {
    format!("[[ ${{{name}@a}} == *r* ]] || ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> CallPaths {
        CallPaths {
            command: "/c".into(),
            stdout: "/o".into(),
            stderr: "/e".into(),
            channel: Channel {
                control: "/l".into(),
                status: "/s".into(),
            },
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
            Form::Covered,
            b"x",
            &paths(),
        );
        let line = String::from_utf8(line).unwrap();
        assert!(line.starts_with("\\set +eu; { { \\exec 252>&256 "), "{line}");
        assert!(
            line.contains("(\\exit 42) && [[ x ]]; ! \\. /c 0<&254 >&252 2>&253; TIMEFORMAT="),
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
            Form::Covered,
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
                Form::Covered,
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
        assert!(line(&Before::default(), "readonly TIMEFORMAT").contains("&&1/0,16#${_+}n,"));
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
            Form::Among,
            b"x",
            &paths(),
        );
        assert!(String::from_utf8(line).unwrap().contains(r"; \. /c </dev/null"));
    }
}
