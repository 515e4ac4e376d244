//! What a command may do to the state of a shell, as far as its text tells: whether a snapshot is needed after it, and
//! whether an interrupt may run a trap of its.

use std::collections::BTreeSet;

use super::traps::Trap;
use super::{Snapshot, commands};
use crate::script::contains;

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

/// Whether a command may lower a resource limit in a shell that is known to hold this, itself or by a function or alias.
#[must_use]
pub fn may_lower_limits(command: &str, known: &Snapshot) -> bool {
    let names_it = |text: &[u8]| contains(text, b"ulimit");
    names_it(command.as_bytes()) || known.any_text(names_it)
}

/// Whether a command may set a trap in a shell that is known to hold this, or runs one that is set there by what that runs.
///
/// Where the shell's memory does not tell, the text must, and where that does not either, a trap counts as set: where the name
/// of a command is expanded, and where a text is run that is not in it. The functions, aliases and traps that it reaches are
/// read as it is.
#[must_use]
pub fn may_set_traps(command: &str, known: &Snapshot) -> bool {
    let comments_are_none = command.contains('#') && !known.has_shopt("interactive_comments");
    // The one sets options, the other aliases, by any builtin that assigns to a variable.
    let hides = ["interactive_comments", "BASH_ALIAS"]
        .iter()
        .any(|name| command.contains(name));
    if names_trap(command) || hides || comments_are_none {
        return true;
    }
    let Some(own) = commands::commands(command) else {
        return true;
    };
    let Some(trapped) = known.traps.iter().map(commands_of_trap).collect::<Option<Vec<_>>>() else {
        return true;
    };
    let mut found: BTreeSet<String> = own.names;
    found.extend(trapped.into_iter().flatten());
    let mut left: Vec<String> = found.iter().cloned().collect();
    while let Some(name) = left.pop() {
        for text in known.texts_of(&name) {
            let Some(names) = text else { return true };
            left.extend(names.iter().filter(|name| !found.contains(*name)).cloned());
            found.extend(names);
        }
    }
    false
}

/// Whether a text has the word, wherever it stands.
fn names_trap(text: &str) -> bool {
    let part_of_name = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '/' | '.');
    text.split(|character| !part_of_name(character))
        .any(|word| word == "trap")
}

/// The commands that a trap runs.
fn commands_of_trap(trap: &Trap) -> Option<BTreeSet<String>> {
    if trap.signal == "EXIT" {
        return Some(BTreeSet::new());
    }
    let [_, _, text, _] = <[String; 4]>::try_from(commands::words(&String::from_utf8_lossy(&trap.text))?).ok()?;
    commands::commands(&text).map(|found| found.names)
}

impl Snapshot {
    fn has_shopt(&self, name: &str) -> bool {
        self.shopts.iter().any(|other| other == name)
    }

    /// The commands of the function and of the alias of this name, None for one that does not tell.
    fn texts_of(&self, name: &str) -> Vec<Option<BTreeSet<String>>> {
        let function = self.functions.get(name.as_bytes()).map(|text| {
            let text = String::from_utf8_lossy(text);
            let found = commands::commands(&text).filter(|_| !names_trap(&text));
            found.map(|found| found.names)
        });
        let alias = match commands::elements(&String::from_utf8_lossy(&self.aliases)) {
            Some(aliases) => aliases.into_iter().find(|(other, _)| other == name).map(|(_, text)| {
                text.filter(|text| !names_trap(text))
                    .and_then(|text| commands::alias(&text))
            }),
            None => (!self.aliases.is_empty()).then_some(None),
        };
        function.into_iter().chain(alias).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::traps::read_traps;
    use super::*;

    #[test]
    fn only_plain_words_are_known_to_change_nothing() {
        let output = b"BEGIN\x00\0\0\0\0/usr\0V\0declare -r BASHOPTS=\n\0Ff\0f () { :; }\0A\0declare -A BASH_ALIASES=([ll]=\"ls -l\" )\n\0END\0";
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
        let known = Snapshot {
            shopts: vec!["interactive_comments".to_owned()],
            functions: [
                ("sets", "sets () \n{ \n    trap x INT\n}\n"),
                ("hides", "hides () \n{ \n    \"$@\"\n}\n"),
                ("calls", "calls () \n{ \n    plain; sets\n}\n"),
                ("plain", "plain () \n{ \n    kubectl get pods | grep \"$1\"; plain\n}\n"),
            ]
            .map(|(name, text)| (name.into(), text.into()))
            .into(),
            aliases: "declare -A BASH_ALIASES=([ll]=\"ls -l\" [b]=\"builtin \" [s]=\"sets 'x y'\" [n]=$'a\\nb' )\n"
                .into(),
            ..Snapshot::default()
        };
        for text in [
            "trap 'x' INT",
            "x; builtin trap - INT",
            "t\\rap x INT",
            "t'rap' x INT",
            "$'trap' x INT",
            "tr\\\nap x INT",
            "if a; then \"tr\"ap x INT; fi",
            "X=1 t\"\"rap x INT",
            ">x 2>&1 t''rap x INT",
            "$x",
            "sleep 9 | ${x:-a} b",
            "$HOME/x",
            "\"$@/x\"",
            "t*p x INT",
            "{trap,x,INT}",
            "{tr,}ap>x",
            "[[t]rap x INT",
            "eval \"$x\"",
            "eval 'trap x INT'",
            "eval \"t''rap\" x INT",
            ". ./s",
            "cd /; . s",
            "{ . s; }",
            "if true; then . s; fi",
            "a &&\n source s",
            "\\. s",
            "FOO=1 . ~/s",
            ">/dev/null . ~/s",
            "> >(x) . ~/s",
            "X=$(case x in x) y;; esac) . s",
            "cat <<E; . s\nx\nE\n",
            "cat <<E\nx\nE\n. s",
            "case x in x) . s;; esac",
            "case x in (a|'b') ;; *) x\n. s; esac",
            "A=(a 'b' $c) . s",
            "for x in a; do . s; done",
            "function f { . s; }; f",
            "command -p . s",
            "[[ a && b ]] && . s",
            "((1)); . s",
            "shopt -u interactive_comments\n# ' ; . s",
            "alias t='tr''ap'\nt x INT",
            "alias t='builtin '\nt x INT",
            "BASH_ALIASES[t]=x",
            "declare -A BASH_ALIASES=([t]=x)",
            "${ echo x; }",
            "mapfile -C x y",
            "readarray -tC x y",
            "mapfile $x y",
            "printf -v 'BASH_ALIASES[t]' x",
            "declare -n q=BASH_ALIASES; q[t]=x",
            "t@(r)ap x INT",
            "!(x) x INT",
            "sets",
            "hides",
            "calls",
            "b x",
            "s",
            "n",
            "echo 'unclosed",
        ] {
            assert!(may_set_traps(text, &known), "{text}");
        }
        for text in [
            "sleep 100",
            "find . -name x",
            "docker build .",
            "npm run bootstrap",
            "kubectl get source",
            "cd ./evaluate",
            "ls . ; pwd",
            "cd x && make",
            "kubectl get pods -A -o jsonpath='{.items[*]}' | grep \"x\" 2>&1 >/dev/null",
            "X='a b' Y=$(. s) \"kubectl\" get \"$X\" # don't",
            "\"$HOME/bin/x\" --flag; ./\"$x\" {a,b}",
            "cat <<'E' | python3 -\nimport os; 'x'\n$x\nE\nsleep 9",
            "for x in {1..9}; do [ -f \"$x\" ] || [[ $x == *a* && -n ${A[1]} ]] && echo $((x<<2)); done",
            "while :; do case \"$(kubectl get x)\" in Running|\"Done\"*) break;; *) ;; esac; sleep 2; done",
            "f() { sleep 9; }; f <x &> y",
            "A=(a 'b' $c); A[1]=x; A+=(y); echo ${A[@]}",
            "eval 'sleep 100; touch x'",
            "declare -A M=([a]='b c' [\"$k\"]=d); local -a x=(1 $y)",
            "alias l='ls -l'; read -r x < <(sleep 1)",
            "mapfile -t a < <(sleep 9); readarray -d C b",
            "sleep 99 & wait $!",
            "exec 3<>/dev/tcp/x; time -p ls; ! true",
            "plain x",
            "ll",
            "",
        ] {
            assert!(!may_set_traps(text, &known), "{text}");
        }
        let traps = |text: &str| Snapshot {
            traps: read_traps(text.as_bytes()),
            ..known.clone()
        };
        assert!(may_set_traps("ls", &traps("trap -- 'calls' DEBUG\n")));
        assert!(may_set_traps("ls", &traps("trap -- '$x' SIGUSR1\n")));
        assert!(!may_set_traps(
            "ls",
            &traps("trap -- 'echo it\\'\\''s' ERR\ntrap -- '$x' EXIT\n")
        ));
    }
}
