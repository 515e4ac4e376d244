//! The descriptors of its own by which bash is led, and keeping them out of a command's way.
//!
//! What a redirection is to undo, bash saves under the lowest number that is free from 10 on: numbers that commands use and
//! close. Where it duplicates a descriptor it begins above that one instead. So all that it saves during a call is duplicated
//! from the last of its first 256. What it saves is closed in children; so are duplicates of that, and nothing else that a
//! line could open. So the agent's lines make it save what they want to keep.

use super::{Hazards, builtin, traces};

/// The call's stdout and stderr.
const CALL: [u32; 2] = [252, 253];
/// `/dev/null`.
pub const NULL: u32 = 254;
/// The status pipe: where an interactive bash keeps what its standard error was when it began.
pub const STATUS: u32 = 255;
/// What bash saves the call's stdout and stderr under on their way to their own numbers.
const SAVED: [u32; 2] = [256, 257];
/// What is open during a call alone: the call's own, and what bash saves meanwhile.
const OPEN_IN_CALL: [u32; 5] = [CALL[0], CALL[1], SAVED[0], SAVED[1], 258];
/// Those of them whose being open shows that a call was torn, or leaves the next no room.
pub const TELLING: [u32; 3] = [CALL[0], SAVED[0], SAVED[1]];
/// The limit of open descriptors under which there is room for what is saved during a call.
pub const ROOM: u64 = 264;

/// The paths by which bash finds its own descriptors again when a command has closed them.
#[derive(Clone, Debug, Default)]
pub struct Channel {
    /// Where its lines come from.
    pub control: String,
    /// Where its statuses go.
    pub status: String,
}

impl Channel {
    /// Makes descriptor 0 the one again that lines come from, when a command has closed what it was saved under, or has put
    /// something else there. Then nothing else was put back either.
    pub(super) fn mend_control(&self, hazards: &Hazards) -> String {
        let Self { control, status } = self;
        let exec = builtin(hazards, "exec");
        format!("[[ /proc/self/fd/0 -ef {control} ]] || {exec} <{control} >/dev/null 2>{status}")
    }

    /// The line after which nothing of bash's own is heard in the call that was.
    #[must_use]
    pub fn cover(&self, hazards: &Hazards) -> String {
        let Self { status, .. } = self;
        format!("{} >/dev/null 2>{status}\n", builtin(hazards, "exec"))
    }

    /// The line that puts the status pipe back under its number.
    #[must_use]
    pub fn keep_status(&self, hazards: &Hazards) -> String {
        let Self { status, .. } = self;
        let exec = builtin(hazards, "exec");
        format!("{{ {{ {exec} {STATUS}>&252; }} 2>&251; }} 2>{status} 251</dev/null\n")
    }
}

/// The line that puts `/dev/null` under its number.
#[must_use]
pub fn keep_null(hazards: &Hazards) -> String {
    let exec = builtin(hazards, "exec");
    format!("{{ {{ {exec} {NULL}<&252; }} <&251; }} </dev/null 251</dev/null\n")
}

/// Opens a call's stdout and stderr under their numbers, and leaves bash itself without them.
pub(super) fn open_call(hazards: &Hazards, stdout: &str, stderr: &str) -> String {
    let exec = builtin(hazards, "exec");
    let ([out, err], [saved_out, saved_err]) = (CALL, SAVED);
    format!("{{ {{ {exec} {out}>&{saved_out} {err}>&{saved_err}; }} >&{NULL} 2>&{STATUS}; }} >{stdout} 2>{stderr}; ")
}

/// Whether that went well, as a condition. With bash's first saved number taken both lead elsewhere, with its second this one.
pub(super) fn call_is_open(stderr: &str) -> String {
    format!("[[ /proc/self/fd/{} -ef {stderr} ]]", CALL[1])
}

/// The redirections of a command to what was opened.
pub(super) fn redirections() -> String {
    format!("0<&{NULL} >&{} 2>&{}", CALL[0], CALL[1])
}

/// A redirection that changes nothing but where traces go: from where the command has led them to the status pipe. Only what a
/// redirection does is traced nowhere. The number that was given up is left in a variable of the agent's. One that is readonly
/// stays: as a number in base 64 the attributes' letters tell that, where `r` is 27.
pub(super) fn lead_traces_aside() -> String {
    let own = traces();
    let is_readonly: Vec<String> = (0..6).map(|digit| format!("({own}>>{}&63)==27", 6 * digit)).collect();
    format!(
        " 2>&$(({own}=64#0${{BASH_XTRACEFD+${{BASH_XTRACEFD@a}}}},{own}=({})?0:${{BASH_XTRACEFD:-0}},\
         {own}?(BASH_XTRACEFD={STATUS}):0,2))",
        is_readonly.join("||")
    )
}

/// The same for where the command finds them led.
pub(super) fn lead_traces_to(number: u32) -> String {
    format!(" 0<&$((BASH_XTRACEFD={number},0))")
}

/// Whether a number is none of the agent's own.
pub(super) fn is_users(number: u32) -> bool {
    !(CALL[0]..=258).contains(&number)
}

/// Closes it.
pub(super) fn close_call(hazards: &Hazards) -> String {
    format!("{} {}>&- {}>&-", builtin(hazards, "exec"), CALL[0], CALL[1])
}

/// The line that closes what a call has left open which was torn.
#[must_use]
pub fn close_left(hazards: &Hazards) -> String {
    let closed: String = OPEN_IN_CALL.iter().map(|number| format!(" {number}>&-")).collect();
    format!("{}{closed}\n", builtin(hazards, "exec"))
}
