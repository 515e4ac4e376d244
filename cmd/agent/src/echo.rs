//! What bash shows of the agent's own traps: with `set -v` the text of each that it runs, before the redirections in it, and
//! whatever the trap is made of (case 53).

use std::borrow::Cow;
use std::sync::Arc;

use crate::script::{EXIT_TRAP_HEAD, WAIT_TRAP};
use crate::torn::Torn;

/// Less than this of a text is not taken for one. Bash writes all of it at once.
const LEAST: usize = EXIT_TRAP_HEAD.len();

/// Keeps such a text back from the end of a stream until it is known to be bash's. Each call has its own, a clone of its
/// shell's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    texts: Arc<[Vec<u8>]>,
    held: Vec<u8>,
    /// What is kept back for another reason.
    pub(crate) torn: Torn,
}

impl Echo {
    /// For the standard error of a shell with this EXIT trap. One that has begun to leave its `wait` may be ended in that.
    pub(crate) fn of(exit_trap: &str) -> Self {
        let texts = [
            format!("{exit_trap}\n"),
            format!("{WAIT_TRAP}\n"),
            format!("{WAIT_TRAP}\n{exit_trap}\n"),
        ];
        Self {
            texts: texts.map(String::into_bytes).into(),
            ..Self::default()
        }
    }

    /// What can be told of the stream once this was read.
    pub(crate) fn sift<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let told = self.sift_texts(bytes);
        self.torn.sift(told)
    }

    fn sift_texts<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut all = Cow::Borrowed(bytes);
        if !self.held.is_empty() {
            self.held.extend_from_slice(bytes);
            all = Cow::Owned(std::mem::take(&mut self.held));
        }
        let kept = self
            .texts
            .iter()
            .filter_map(|text| begun(&all, text))
            .max()
            .unwrap_or(0);
        if kept == 0 {
            return all;
        }
        let (told, held) = all.split_at(all.len() - kept);
        self.held = held.to_vec();
        Cow::Owned(told.to_vec())
    }

    /// What was kept back to the end. `shown`: bash may have shown a text there.
    pub(crate) fn rest(mut self, shown: bool) -> Vec<u8> {
        let mut rest = self.torn.release();
        if !(shown && self.texts.contains(&self.held)) {
            rest.append(&mut self.held);
        }
        rest
    }
}

/// How much of a text there is at the end of another.
fn begun(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let most = text.len().min(bytes.len());
    (LEAST..=most).rev().find(|length| bytes.ends_with(&text[..*length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAP: &str = "{ CLI_MCP_X=$? x; } 2>/dev/null";

    fn told(pieces: &[&str], shown: bool) -> String {
        let mut echo = Echo::of(TRAP);
        let mut told: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| echo.sift(piece.as_bytes()).into_owned())
            .collect();
        told.extend(echo.rest(shown));
        String::from_utf8(told).unwrap()
    }

    #[test]
    fn only_a_whole_text_at_the_end_is_taken_away() {
        let shown = format!("a\n{TRAP}\n");
        for at in 2 + LEAST..shown.len() {
            let pieces = [&shown[..at], &shown[at..]];
            assert_eq!(told(&pieces, true), "a\n", "{at}");
            assert_eq!(told(&pieces, false), shown, "{at}");
            assert_eq!(told(&pieces[..1], true), shown[..at], "{at}");
        }
        let more = [&shown, "b"];
        assert_eq!(told(&more, true), more.concat());
        assert_eq!(
            told(&["a\n", &format!("{WAIT_TRAP}\n"), &format!("{TRAP}\n")], true),
            "a\n"
        );
        assert_eq!(told(&["{", "x"], true), "{x");
    }
}
