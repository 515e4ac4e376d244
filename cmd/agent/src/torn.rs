//! What bash says in a call's standard error when a command has left it too few descriptors for the agent's own lines: where
//! the limit is below the standard three it cannot put them back, complains, and tells its status there, since it has no other
//! way out; and the agent's EXIT trap finds none to save the state with. Such a shell reads no further line, and ends.

use std::borrow::Cow;

use crate::script::{self, Channel, Nonce, Status};

/// No more than this is kept back: the complaint, and a status with a path and prompts in it.
const MOST: usize = 8 << 10;

/// Under this limit of open descriptors a shell cannot put back all of the standard three.
pub(crate) const STANDARD_DESCRIPTORS: u64 = 3;

/// Keeps back from the end of a stream what may be such a complaint, until it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Torn {
    held: Vec<u8>,
}

impl Torn {
    /// What can be told of the stream once this was read.
    pub(crate) fn sift<'a>(&mut self, bytes: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let mut all = bytes;
        if !self.held.is_empty() {
            self.held.extend_from_slice(&all);
            all = Cow::Owned(std::mem::take(&mut self.held));
        }
        let window = all.len().saturating_sub(MOST);
        let Some(at) = complaints(&all[window..], any_subject).next() else {
            return all;
        };
        let (told, held) = all.split_at(window + at);
        self.held = held.to_vec();
        Cow::Owned(told.to_vec())
    }

    /// Whether anything is kept back.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// What was kept back, where it is none of that.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Takes away what a shell said that has ended, from its complaint on, of whose call this is the nonce. None where there is
    /// nothing of that; else the status of the call, if it came to that.
    pub(crate) fn cut(&mut self, nonce: &Nonce, channel: &Channel) -> Option<Option<Status>> {
        let Self { held } = self;
        let marks = [nonce.text(), &channel.status, &channel.control];
        let mark = marks.iter().filter_map(|mark| find(held, mark.as_bytes())).min();
        let at = match mark {
            Some(mark) => complaints(&held[..mark], numbered).last()?,
            None => last_words(held)?,
        };
        let status = script::find_status(&held[at..], nonce);
        held.truncate(at);
        Some(status)
    }
}

/// Where the complaint of the EXIT trap begins that is the end of a text, or that about the descriptors which is just before it.
fn last_words(text: &[u8]) -> Option<usize> {
    let of_trap = complaints(text, of_null).last()?;
    let line = text[of_trap..].strip_suffix(b"\n")?;
    if line.contains(&b'\n') {
        return None;
    }
    let before = &text[..of_trap];
    let about_descriptors = complaints(before, numbered).last().filter(|at| {
        let between = before[*at..].split(|byte| *byte == b'\n').skip(1);
        between.into_iter().all(|line| line.is_empty() || line == b"exit")
    });
    Some(about_descriptors.unwrap_or(of_trap))
}

/// Where each line of a text begins that may be a complaint of bash's, whose subject `subject` finds in the line.
fn complaints(text: &[u8], subject: fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = usize> {
    let mut from = 0;
    text.split_inclusive(|byte| *byte == b'\n').filter_map(move |line| {
        let start = from;
        from += line.len();
        let colon = subject(line)?;
        // What stands before the name may be the end of the user's own text.
        let named = line[..colon].ends_with(NAME);
        Some(start + if named { colon - NAME.len() } else { 0 })
    })
}

/// The name by which bash calls itself.
const NAME: &[u8] = b"bash";
/// What the agent's EXIT trap opens first.
const NULL: &[u8] = b": /dev/null: ";

/// Where in a line the last ": number: " is.
fn numbered(line: &[u8]) -> Option<usize> {
    (0..line.len()).rev().find(|at| {
        let Some(rest) = line[*at..].strip_prefix(b": ") else {
            return false;
        };
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits > 0 && rest[digits..].starts_with(b": ")
    })
}

fn of_null(line: &[u8]) -> Option<usize> {
    line.windows(NULL.len()).rposition(|window| window == NULL)
}

fn any_subject(line: &[u8]) -> Option<usize> {
    numbered(line).or_else(|| of_null(line))
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLAINT: &str = "bash: 258: Bad file descriptor\n";

    fn channel() -> Channel {
        Channel {
            control: "/proc/9/fd/17".into(),
            status: "/proc/9/fd/16".into(),
        }
    }

    #[test]
    fn what_a_torn_shell_says_is_cut_and_its_status_read() {
        let nonce = Nonce::new();
        let said = format!(
            "{COMPLAINT}bash: /proc/9/fd/17: Too many open files\n{} 7\u{1f}hB\u{1f}/usr\u{1f}\nbash: 0: Invalid argument\nexit\n",
            nonce.text()
        );
        for before in ["", "err\n", "x: 1: y\n", "no newline"] {
            let all = format!("{before}{said}");
            // Bash writes each line at once.
            for at in (0..all.len()).filter(|at| *at == 0 || all.as_bytes()[at - 1] == b'\n') {
                let mut torn = Torn::default();
                let mut told = torn.sift(all.as_bytes()[..at].into()).into_owned();
                told.extend_from_slice(&torn.sift(all.as_bytes()[at..].into()));
                let status = torn.cut(&nonce, &channel()).unwrap().unwrap();
                told.extend_from_slice(&torn.release());
                assert_eq!(
                    (
                        String::from_utf8(told).unwrap().as_str(),
                        status.code,
                        status.directory.as_slice()
                    ),
                    (before, 7, b"/usr".as_slice()),
                    "{before:?} {at}"
                );
            }
        }
    }

    #[test]
    fn last_words_that_could_not_be_said_are_cut() {
        const TRAP: &str = "bash: /dev/null: Too many open files\n";
        for (said, told) in [
            (format!("err\n{TRAP}"), "err\n"),
            (format!("err\n{COMPLAINT}{TRAP}"), "err\n"),
            (format!("err{COMPLAINT}\nexit\n{TRAP}"), "err"),
            (
                format!("{COMPLAINT}more\n{TRAP}"),
                "bash: 258: Bad file descriptor\nmore\n",
            ),
            (format!("{TRAP}{TRAP}"), TRAP),
            (format!("{TRAP}more\n"), "bash: /dev/null: Too many open files\nmore\n"),
        ] {
            let mut torn = Torn::default();
            let mut heard = torn.sift(said.as_bytes().into()).into_owned();
            let _ = torn.cut(&Nonce::new(), &channel());
            heard.extend_from_slice(&torn.release());
            assert_eq!(String::from_utf8(heard).unwrap(), told, "{said:?}");
        }
    }

    #[test]
    fn what_only_looks_so_is_told() {
        let mut torn = Torn::default();
        let text = format!("a\n{COMPLAINT}b\n");
        let mut told = torn.sift(text.as_bytes().into()).into_owned();
        assert!(torn.holds());
        assert_eq!(torn.cut(&Nonce::new(), &channel()), None);
        told.extend_from_slice(&torn.release());
        assert_eq!(told, text.as_bytes());
        assert!(!torn.holds());
        // Nor is more kept back than so much.
        let long = [COMPLAINT.as_bytes(), &vec![b'x'; 2 * MOST]].concat();
        assert_eq!(torn.sift(long.as_slice().into()).len(), long.len());
    }
}
