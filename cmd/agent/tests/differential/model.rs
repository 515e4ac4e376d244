//! The model: the texts of all calls as one bash script.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::grammar::{By, Call, WAIT_FOR_JOB};
use crate::{Given, harness, without_places};

/// In which state a call has left the shell to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It is the same shell.
    Kept,
    /// Another one, in the state of the call's end.
    AtEnd,
    /// Another one, in the state before the call.
    Before,
    /// The same, but for the working directory.
    BeforeElsewhere,
}

impl Left {
    /// What the notice of the next call says.
    pub(crate) fn told(notice: Option<&str>) -> Self {
        let Some(notice) = notice else { return Self::Kept };
        if notice.contains("traps and options are restored;") {
            Self::AtEnd
        } else if notice.contains("are restored as they were before that call") {
            Self::Before
        } else if notice.contains("the working directory is restored as that call left it") {
            Self::BeforeElsewhere
        } else {
            panic!("a state that no model has: {notice}");
        }
    }
}

/// Functions of the model. A job that another shell had is nobody's, and its descriptors are closed; a shell that begins in
/// another folder did not go there.
const FUNCTIONS: &str = "__go() { local old=${OLDPWD-}; cd -P -- \"$1\"; OLDPWD=$old; [[ $old ]] || unset OLDPWD; }\n__lose() { __lost=$J; exec 4>&-; }\n__wait() { [[ -n $J && $J == \"$__lost\" ]] && return 127; wait \"$1\"; }\n";

/// What the calls give, where each leaves the shell so.
pub(crate) fn model(home: &Path, calls: &[Call], left: &[Left]) -> Vec<Given> {
    let folder = tempfile::tempdir().unwrap();
    let at = |kind: char, index: usize| folder.path().join(format!("{kind}{index}")).display().to_string();
    let mut script = format!("shopt -s expand_aliases\n{FUNCTIONS}");
    for (index, (call, left)) in calls.iter().zip(left).enumerate() {
        let (text, status) = match call {
            Call::Run(text) => (text, "$?".to_owned()),
            Call::Ended {
                text, by: By::Timeout, ..
            } => (text, "124".to_owned()),
            Call::Ended { text, .. } => (text, "130".to_owned()),
            Call::Last { text, status, .. } => (text, status.to_string()),
        };
        let mut text = text.clone();
        if let Call::Ended { hang, .. } = call
            && let Some((trap, _)) = hang.split_once("; ").filter(|(trap, _)| trap.starts_with("trap "))
        {
            // It is part of the state of the call's end.
            text.push_str(&format!("\n{trap}"));
        }
        let text = text.replace(WAIT_FOR_JOB, &WAIT_FOR_JOB.replace("wait", "__wait"));
        std::fs::write(at('c', index), text).unwrap();
        let (command, stdout, stderr) = (at('c', index), at('o', index), at('e', index));
        let source = format!(". {command} </dev/null >{stdout} 2>{stderr}");
        script.push_str(&match left {
            Left::Kept | Left::AtEnd => format!("{source}\n"),
            Left::Before => format!("( {source} )\n"),
            Left::BeforeElsewhere => format!("__go \"$( {source}; pwd -P)\"\n"),
        });
        // `errexit` and `nounset` do not outlive a call.
        script.push_str(&format!(
            "set -- \"{status}\" \"$@\"; set +eu; echo $1 >{}; __s=$1; shift; (exit $__s)\n",
            at('s', index)
        ));
        // A fresh shell has run nothing yet.
        if *left != Left::Kept {
            script.push_str("__lose; (exit 0)\n");
        }
    }
    let path = folder.path().join("script");
    std::fs::write(&path, script).unwrap();
    // A shell that was started with SIGINT ignored, as in the background of a script, would set no trap for it.
    let output = Command::new("env")
        .args(["--default-signal=INT", "bash", "--norc", "--noprofile"])
        .arg(&path)
        .current_dir(home)
        .env_clear()
        .env("HOME", home)
        .env("LANG", "C.UTF-8")
        .env("PATH", harness::path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.code().is_some());
    let read = |kind, index| String::from_utf8_lossy(&std::fs::read(at(kind, index)).unwrap_or_default()).into_owned();
    (0..calls.len())
        .map(|index| {
            let status = read('s', index).trim().parse().unwrap_or(-1);
            (read('o', index), without_places(&read('e', index)), status)
        })
        .collect()
}
