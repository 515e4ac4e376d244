//! The traps of a shell, as `trap -p` prints them.

use crate::script::{EXIT_TRAP_HEAD, WAIT_TRAP, quote};

/// One trap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trap {
    /// The command that sets it, without its newline.
    pub(super) text: Vec<u8>,
    /// What it is for, without `SIG`.
    pub(super) signal: String,
}

impl Trap {
    /// Whether it is one of the agent's own.
    fn is_own(&self) -> bool {
        let begins = |head: String| self.text.starts_with(format!("trap -- {head}").as_bytes());
        begins(format!("'{EXIT_TRAP_HEAD}")) && self.signal == "EXIT" || begins(quote(WAIT_TRAP) + " ")
    }
}

/// Finds the user's traps in a listing, between whose lines a DEBUG trap may have printed. POSIX mode also lists what is at
/// its default.
pub(super) fn read_traps(listing: &[u8]) -> Vec<Trap> {
    let mut traps = Vec::new();
    let mut rest = listing;
    while !rest.is_empty() {
        let length = match first_trap(rest) {
            Some((trap, length)) => {
                if !trap.is_own() && !trap.text.starts_with(b"trap -- - ") {
                    traps.push(trap);
                }
                length
            }
            None => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len() - 1) + 1,
        };
        rest = &rest[length..];
    }
    traps
}

/// The trap that a listing begins with, and the length of its text.
fn first_trap(listing: &[u8]) -> Option<(Trap, usize)> {
    let head = b"trap -- ";
    let command = head.len() + word_length(listing.strip_prefix(head)?);
    let signal = listing.get(command..)?.strip_prefix(b" ")?;
    let end = signal.iter().position(|byte| *byte == b'\n')?;
    let signal = std::str::from_utf8(&signal[..end]).ok()?;
    let trap = Trap {
        text: listing[..command + 1 + end].to_vec(),
        signal: signal.strip_prefix("SIG").unwrap_or(signal).to_owned(),
    };
    Some((trap, command + end + 2))
}

/// The length of the quoted word that a text begins with.
fn word_length(text: &[u8]) -> usize {
    let mut quoted = false;
    let mut in_c_style = false;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' if !quoted || in_c_style => at += 1,
            b'\'' => {
                in_c_style = !quoted && at > 0 && text[at - 1] == b'$';
                quoted = !quoted;
            }
            b' ' | b'\n' if !quoted => break,
            _ => {}
        }
        at += 1;
    }
    at.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::exit_trap;

    fn read(listing: &str) -> Vec<(String, String)> {
        read_traps(listing.as_bytes())
            .into_iter()
            .map(|trap| (String::from_utf8(trap.text).unwrap(), trap.signal))
            .collect()
    }

    #[test]
    fn only_the_users_traps_are_read() {
        let own = quote(&exit_trap(7, "/proc/9/fd/15", "/proc/9/fd/14"));
        let wait = quote(WAIT_TRAP);
        let listing = format!(
            "noise\ntrap -- {own} EXIT\ntrap -- {wait} SIGSTKFLT\ntrap -- - HUP\n\
             trap -- 'a\ntrap -- '\\''b'\\'' DEBUG\n' SIGINT\nD\ntrap -- $'\\'\\377\\n' ERR\ntrap -- '' USR1\n"
        );
        assert_eq!(
            read(&listing),
            [
                (
                    "trap -- 'a\ntrap -- '\\''b'\\'' DEBUG\n' SIGINT".to_owned(),
                    "INT".to_owned()
                ),
                ("trap -- $'\\'\\377\\n' ERR".to_owned(), "ERR".to_owned()),
                ("trap -- '' USR1".to_owned(), "USR1".to_owned()),
            ]
        );
        for cut in 0..listing.len() {
            read_traps(&listing.as_bytes()[..cut]);
        }
    }
}
