//! What a command may do to the state of a shell, as far as its text tells: whether a snapshot is needed after it, and
//! whether an interrupt may run a trap of its.

use super::Snapshot;

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

/// Words before a command name, besides the separators.
const BEFORE_COMMANDS: [&str; 13] = [
    "if",
    "then",
    "elif",
    "else",
    "while",
    "until",
    "do",
    "!",
    "time",
    "builtin",
    "command",
    "\\builtin",
    "\\command",
];

/// Whether a text may set a trap: it says so, or runs text that is not in it.
#[must_use]
pub fn may_set_traps(text: &str) -> bool {
    let part_of_name = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '/' | '.');
    let mut rest = text;
    while let Some(start) = rest.find(part_of_name) {
        rest = &rest[start..];
        let end = rest.find(|character| !part_of_name(character)).unwrap_or(rest.len());
        match &rest[..end] {
            "trap" => return true,
            // What it runs is here to be read, unless it is expanded first.
            "eval" if rest.contains(['$', '`']) => return true,
            _ => {}
        }
        rest = &rest[end..];
    }
    text.lines().any(sources)
}

/// Whether a line has `.` or `source` where a command name stands.
fn sources(line: &str) -> bool {
    let mut at_command = true;
    for word in line.split_ascii_whitespace() {
        let name = word.trim_start_matches(['(', '{', '`', '"', '$', '\\', ';', '&', '|']);
        let separated = at_command || name.len() < word.trim_start_matches('\\').len();
        if separated && matches!(name, "." | "source") {
            return true;
        }
        at_command = word.ends_with([';', '&', '|', '(', '{', '`', ')']) || BEFORE_COMMANDS.contains(&word);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_words_are_known_to_change_nothing() {
        let output = b"BEGIN\x00\0\0\0\0/usr\0VBASHOPTS\0\0Ff\0f () { :; }\0A\0declare -A BASH_ALIASES=([ll]=\"ls -l\" )\n\0END\0";
        let known = Snapshot::parse(output).unwrap();
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
    fn a_text_that_may_set_a_trap_is_known() {
        for text in [
            "trap 'x' INT",
            "x; builtin trap - INT",
            "eval \"$x\"",
            "eval 'trap x INT'",
            ". ./s",
            "cd /; . s",
            "(. s)",
            "if true; then . s; fi",
            "a &&\n source s",
            "\\. s",
        ] {
            assert!(may_set_traps(text), "{text}");
        }
        for text in [
            "find . -name x",
            "npm run bootstrap",
            "kubectl get source",
            "cd ./evaluate",
            "ls . ; pwd",
        ] {
            assert!(!may_set_traps(text), "{text}");
        }
    }
}
