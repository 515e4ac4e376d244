//! The lines that the agent writes to bash, and the status lines that it reads back. Text only; nothing here runs.
//!
//! Everything rests on keywords, assignments and backslashed names, so that a user's functions and aliases called like
//! builtins change nothing (case 51). Bash's own standard error is the status pipe: the null command after `time` prints
//! `TIMEFORMAT` there, needs no redirection, runs no trap, and is not traced. During a call that descriptor is replaced
//! by the call's stderr, so that no child ever inherits it.

use std::fmt::Write as _;

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

/// Separates the fields of a status line; `${x@Q}` never yields it.
const FIELD: char = '\u{1f}';

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
    /// `time` is an alias, or `TIMEFORMAT` cannot be set.
    pub time_unusable: bool,
}

impl Hazards {
    /// Whether functions of the user's stand in for every way to source a file.
    #[must_use]
    pub fn no_way_to_source(&self) -> bool {
        self.shadowed.len() >= 3
    }
}

/// What the last status line said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `$?` of what ran.
    pub code: u8,
    /// `$-`.
    pub flags: String,
    /// `$PWD`.
    pub directory: String,
    /// What was taken away for the time between calls.
    pub stash: Stash,
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
}

/// Quotes text for bash.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn report(nonce: &Nonce, hazards: &Hazards) -> String {
    let Nonce(nonce) = nonce;
    if hazards.time_unusable {
        // An expansion error prints its word and discards the rest of the line.
        return format!("_=${{999999:?{nonce} ${{PIPESTATUS[0]}}{FIELD}$-{FIELD}$PWD}}");
    }
    let mut line = format!("TIMEFORMAT=\"${{PIPESTATUS[0]}}{FIELD}$-{FIELD}$PWD");
    for name in STASHED {
        let _ = write!(line, "{FIELD}${{{name}:+${{{name}@Q}}}}");
    }
    let _ = write!(line, "{FIELD}${{PROMPT_COMMAND+${{PROMPT_COMMAND[@]@Q}}}}\"");
    let _ = write!(line, "; TIMEFORMAT=\"{nonce} ${{TIMEFORMAT//%/%%}}\"; time; ");
    line.push_str(
        "[[ ${PS0-}${PS1-}${PS2-}${TMOUT-}${PROMPT_COMMAND+x} ]] && { PS0= PS1= PS2= TMOUT=; PROMPT_COMMAND=(); }",
    );
    line
}

/// The line that runs one call: `!` keeps `errexit` and the ERR trap away from the sourcing command itself, whose true
/// status stays in `PIPESTATUS`.
#[must_use]
pub fn call(nonce: &Nonce, before: &Before, hazards: &Hazards, command: &str, stdout: &str, stderr: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(768);
    if before.flags.contains(['e', 'u']) {
        line.extend_from_slice(b"\\set +eu; ");
    }
    for (name, value) in STASHED.iter().zip(&before.stash.values) {
        if !value.is_empty() || *name == "TIMEFORMAT" {
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
        line.extend_from_slice(b"PROMPT_COMMAND=(");
        line.extend_from_slice(&before.stash.prompt_command);
        line.extend_from_slice(b"); ");
    }
    // In a list before its end a failure sets `$?` and triggers nothing.
    match before.code {
        0 => {}
        1 => line.extend_from_slice(b"[[ '' ]] && [[ x ]]; "),
        code => line.extend_from_slice(format!("(\\exit {code}) && [[ x ]]; ").as_bytes()),
    }
    let dot = source_builtin(hazards);
    let run = format!(
        "! {dot} {command} </dev/null >{stdout} 2>{stderr}; {}\n",
        report(nonce, hazards)
    );
    line.extend_from_slice(run.as_bytes());
    line
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

/// The line that only asks for a status: after an interrupt, and when nothing else came.
#[must_use]
pub fn probe(nonce: &Nonce, hazards: &Hazards) -> Vec<u8> {
    format!("{}\n", report(nonce, hazards)).into_bytes()
}

/// The line that reads a start-up or restore script.
#[must_use]
pub fn startup(nonce: &Nonce, script: &str) -> Vec<u8> {
    format!("\\. {script} </dev/null; {}\n", report(nonce, &Hazards::default())).into_bytes()
}

/// Enters the state in which a snapshot can be taken: in POSIX mode special builtins win over functions. Expects the
/// exit status, or nothing, in `$CLI_MCP_X`; leaves by the script.
fn snapshot_body(script: &str) -> String {
    format!(
        "CLI_MCP_B=$BASHOPTS CLI_MCP_S=$SHELLOPTS; POSIXLY_CORRECT=y; \\set +euxvET; \\unset -f printf; \
         \\printf \"BEGIN\\0%s\\0\" \"$CLI_MCP_X\"; \\trap -p; \\printf \"\\0\"; \\trap - DEBUG ERR RETURN EXIT; \\. {script}"
    )
}

/// The line that takes a snapshot in a subshell: whatever happens there, the shell itself is not touched.
#[must_use]
pub fn snapshot(nonce: &Nonce, hazards: &Hazards, script: &str, output: &str) -> Vec<u8> {
    let body = snapshot_body(script);
    format!(
        "( CLI_MCP_X=; {body} ) </dev/null >{output} 2>/dev/null; {}\n",
        report(nonce, hazards)
    )
    .into_bytes()
}

/// The trap that saves the state of a shell that ends itself (case 38). Its redirections come before all else, so that
/// neither a trace nor a DEBUG trap is heard.
#[must_use]
pub fn exit_trap(script: &str, output: &str) -> String {
    format!("{{ \\. {script}; }} </dev/null >{output} 2>/dev/null")
}

/// What that trap reads.
#[must_use]
pub fn exit_script(script: &str) -> String {
    format!("CLI_MCP_X=$?; {}\n", snapshot_body(script))
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
        let line_starts = found == 0 || pipe[found - 1] == b'\n' || pipe[..found].ends_with(b"999999: ");
        let Some(end) = pipe[start..].iter().position(|byte| *byte == b'\n') else {
            continue;
        };
        if line_starts && pipe.get(start) == Some(&b' ') {
            return Some(parse_status(&pipe[start + 1..start + end]));
        }
    }
}

fn parse_status(line: &[u8]) -> Status {
    let mut fields = line.split(|byte| *byte == FIELD as u8);
    let mut next = || fields.next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = text(next()).trim().parse().unwrap_or(1);
    let flags = text(next());
    let directory = text(next());
    let mut values = [const { Vec::new() }; 5];
    for value in &mut values {
        *value = next().to_vec();
    }
    Status {
        code,
        flags,
        directory,
        stash: Stash {
            values,
            prompt_command: next().to_vec(),
        },
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
            (status.code, status.flags.as_str(), status.directory.as_str()),
            (7, "hiBs", "/usr")
        );
        assert_eq!(status.stash.values[2], b"'$ '");
        assert_eq!(status.stash.prompt_command, b"'a' 'b'");
        assert_eq!(find_status(&line.as_bytes()[..20], &nonce), None);
    }

    #[test]
    fn errexit_is_switched_off_and_the_last_status_put_back() {
        let before = Before {
            code: 42,
            flags: "ehB".into(),
            stash: Stash::default(),
        };
        let line = call(&Nonce("n".into()), &before, &Hazards::default(), "/c", "/o", "/e");
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
            time_unusable: false,
        };
        let line = call(&Nonce("n".into()), &Before::default(), &hazards, "/c", "/o", "/e");
        assert!(String::from_utf8(line).unwrap().contains(r"! \builtin . /c"));
    }

    #[test]
    fn quoting_survives_quotes() {
        assert_eq!(quote("a'b"), r"'a'\''b'");
    }
}
