//! The grammar of the sequences of calls.

use proptest::prelude::*;

fn word() -> impl Strategy<Value = String> {
    "[a-c ]{0,4}[*$'\"é]{0,1}[x-z]{0,2}".prop_map(|text| format!("'{}'", text.replace('\'', "'\\''")))
}

fn statement() -> impl Strategy<Value = String> {
    let name = prop_oneof![Just("A"), Just("B"), Just("C")];
    let number = 0_u8..40;
    prop_oneof![
        (name.clone(), word()).prop_map(|(name, word)| format!("{name}={word}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("export {name}={number}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("(( {name}_n += {number} ))")),
        name.clone().prop_map(|name| format!("printf '%s|' \"${name}\"")),
        name.clone().prop_map(|name| format!("unset {name}")),
        name.clone().prop_map(|name| format!("env | grep '^{name}='")),
        (name.clone(), word())
            .prop_map(|(name, word)| format!("L{name}+=({word} ${name}); echo \"${{#L{name}[@]}} ${{L{name}[-1]}}\"")),
        (name.clone(), word())
            .prop_map(|(name, word)| format!("declare -A M; M[{word}k]=${name}; echo \"${{M[{word}k]}}\"")),
        (name.clone(), number.clone())
            .prop_map(|(name, number)| format!("f{name}() {{ echo f{name} \"$@\" >&2; return {number}; }}")),
        (name.clone(), word()).prop_map(|(name, word)| format!("f{name} {word}")),
        (name.clone(), number.clone()).prop_map(|(name, number)| format!("alias a{name}='echo aliased {number}'")),
        name.clone().prop_map(|name| format!("a{name} x")),
        prop_oneof![
            Just("/"),
            Just("/usr"),
            Just("~"),
            Just("sub"),
            Just("-"),
            Just("/nosuch")
        ]
        .prop_map(|to| format!("cd {to} >/dev/null")),
        Just("mkdir -p sub".to_owned()),
        Just("echo \"${PWD##*/}\"".to_owned()),
        Just("echo $?".to_owned()),
        number.clone().prop_map(|status| format!("(exit {status})")),
        Just("false".to_owned()),
        Just("! true".to_owned()),
        Just("set -- p q r".to_owned()),
        Just("shift; echo \"$# $1\"".to_owned()),
        Just("for i in 1 2 3; do (( i == 2 )) && continue; echo $i; done".to_owned()),
        Just("while read -r line; do echo \"<$line>\"; done <<E\none\n $A two\nE".to_owned()),
        Just("echo b a c | tr ' ' '\\n' | sort".to_owned()),
        Just("x=$(echo sub; exit 3); echo $? $x".to_owned()),
        Just("(sleep 0.01; exit 4) & wait $!; echo $?".to_owned()),
        Just("trap 'echo got' USR1; kill -USR1 $$; true".to_owned()),
        Just("case $A in *[xy]*) echo xy;; *) echo other;; esac".to_owned()),
        Just("shopt -s extglob; shopt extglob nullglob".to_owned()),
        Just("shopt -s nullglob; echo /nosuch*".to_owned()),
        Just("shopt -u nullglob".to_owned()),
        Just("set -o pipefail; false | true".to_owned()),
        Just("set +o pipefail; false | true".to_owned()),
        Just("umask 027; umask".to_owned()),
        Just("nosuchcommand".to_owned()),
        Just("echo ${NOPE:-default} ${A:+set} ${#A}".to_owned()),
        Just("printf 'no newline'".to_owned()),
        Just("cat".to_owned()),
        Just("read r; echo \"$? [$r]\"".to_owned()),
        Just("echo out; echo err >&2".to_owned()),
        Just("[[ $A == b* ]] || echo no match".to_owned()),
        Just("echo a \\\n  b # comment".to_owned()),
        Just("IFS=, ; v=1,2; echo $v; unset IFS".to_owned()),
        Just("eval 'E=1; echo $E'".to_owned()),
        Just("cat <(echo \"<$A>\") <(echo two)".to_owned()),
        Just("read -r line < <(echo sub stituted); echo \"$line\"".to_owned()),
        Just("setsid -w sh -c 'echo apart; exit 6'; echo $?".to_owned()),
        Just("trap 'echo interrupted' INT; kill -INT $$; true".to_owned()),
        Just("trap - INT".to_owned()),
        number.prop_map(|status| format!("(sleep 0.02; exit {status}) & J=$!")),
        Just(format!("{WAIT_FOR_JOB} 2>/dev/null; echo job $?")),
        Just("exec 4>>~/four; echo opened >&4".to_owned()),
        Just("echo four >&4; cat ~/four".to_owned()),
        Just("exec 4>&-".to_owned()),
        Just("fi".to_owned()),
        Just("echo 'unclosed".to_owned()),
    ]
}

/// Waits for the last job, whichever call has started it.
pub(crate) const WAIT_FOR_JOB: &str = "wait \"$J\"";

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(statement(), 1..4).prop_map(|statements| statements.join("\n"))
}

/// What sets an option that must not be there in the next call.
fn strict() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u8..9).prop_map(|number| format!("set -eu; A={number}; [[ $- == *e* && $- == *u* ]]; echo $?")),
        Just("set -e -o pipefail; B=strict; (exit 0)".to_owned()),
        Just("set -u; echo \"${NOPE-unset}\"".to_owned()),
    ]
}

/// What changes the state and says nothing.
fn quiet() -> impl Strategy<Value = String> {
    let number = 0_u8..9;
    prop_oneof![
        number.clone().prop_map(|number| format!("A={number}; cd /usr")),
        number
            .clone()
            .prop_map(|number| format!("export B={number}; fC() {{ return {number}; }}")),
        number.prop_map(|number| format!("LC+=({number}); declare -A M; M[k]={number}")),
        Just("set -- left behind; alias aA='echo again'".to_owned()),
        Just("mkdir -p sub; cd sub; unset B".to_owned()),
        Just("shopt -s nullglob; umask 077".to_owned()),
        Just("trap 'echo quiet' USR1; unset -f fA".to_owned()),
    ]
}

/// What never ends, and whether the shell outlives its end where no trap is set.
const HANGS: [(&str, bool); 34] = [
    ("sleep 99", true),
    ("while :; do :; done", true),
    ("while :; do sleep 0.01; done", true),
    ("until sleep 99; do touch ~/after; done", true),
    ("if sleep 99; then touch ~/after; else touch ~/after; fi", true),
    ("sleep 99 || touch ~/after", true),
    ("(sleep 99; touch ~/after)", true),
    ("h=$(sleep 99)", true),
    ("eval 'sleep 99; touch ~/after'", true),
    ("hang() { sleep 99; touch ~/after; }; hang", true),
    ("bash -c 'sleep 99; touch ~/after'", true),
    ("sleep 99 | cat", true),
    ("yes | grep -v y | cat", true),
    ("cat <(sleep 99)", true),
    ("read -r h < <(sleep 99)", true),
    ("coproc sleep 99; read -r h <&${COPROC[0]}", true),
    ("sleep 99 & wait", true),
    ("sleep 99 & wait $!", true),
    ("sleep 99 & wait -n", true),
    ("sleep 99 & kill -STOP $!; sleep 99", true),
    ("kill -STOP $$", true),
    ("nohup sleep 99 & sleep 99", true),
    ("timeout 98 sleep 99", true),
    ("setsid sleep 99; sleep 99", true),
    ("setsid sh -c 'sleep 99 & sleep 99 &' & sleep 99", true),
    ("( (while :; do :; done) & ); sleep 99", true),
    ("(setsid sh -c '(sleep 99 &)' &); sleep 99", true),
    ("bash -c 'while :; do sleep 0.01 & done'", false),
    ("sh -c 'trap \"\" TERM INT HUP QUIT; while :; do sleep 99; done'", false),
    ("sh -c 'trap \"exit 0\" INT; sleep 99 & wait'", false),
    ("env --ignore-signal=INT sleep 99", false),
    ("(kill -STOP $BASHPID; touch ~/after)", false),
    ("trap 'touch ~/after' INT; sleep 99", false),
    ("set -e; sleep 99", false),
];

/// What ends the shell, with which status.
const ENDS: [(&str, i32); 6] = [
    ("exit 3", 3),
    ("set -e; false; touch ~/after", 1),
    ("exec sh -c 'exit 5'", 5),
    ("kill -9 $$; touch ~/after", 137),
    ("kill -9 $BASHPID", 137),
    ("end() { exit 9; }; end; touch ~/after", 9),
];

/// One call of a sequence.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Runs to its end.
    Run(String),
    /// Ended in `hang`, after `text`.
    Ended {
        text: String,
        hang: &'static str,
        keeps_shell: bool,
        by: By,
    },
    /// Ends the shell, after `text`.
    Last {
        text: String,
        end: &'static str,
        status: i32,
    },
}

impl Call {
    /// Whether the shell may have a trap for SIGINT from then on, which costs it with the next call that is ended.
    pub(crate) fn may_trap_interrupts(&self) -> bool {
        let list = match self {
            Self::Run(text) => text,
            Self::Ended { hang, .. } => *hang,
            Self::Last { .. } => return false,
        };
        list.contains("INT; kill -INT") || list.starts_with("trap")
    }
}

/// What ends a call before its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// The shortest timeout.
    Timeout,
    /// A cancel, so many milliseconds after the text has run.
    Cancel(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let by = prop_oneof![1 => Just(By::Timeout), 4 => (0_u64..150).prop_map(By::Cancel)];
    let hang = proptest::sample::select(&HANGS[..]);
    let end = proptest::sample::select(&ENDS[..]);
    prop_oneof![
        24 => text().prop_map(Call::Run),
        2 => strict().prop_map(Call::Run),
        3 => (quiet(), hang, by).prop_map(|(text, (hang, keeps_shell), by)| Call::Ended { text, hang, keeps_shell, by }),
        2 => (quiet(), end).prop_map(|(text, (end, status))| Call::Last { text, end, status }),
    ]
}

pub(crate) fn calls() -> impl Strategy<Value = Vec<Call>> {
    proptest::collection::vec(call(), 1..12)
}
