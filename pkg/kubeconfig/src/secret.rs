//! What keeps secrets out of texts: a redacting type, and a scrubber that knows every run of secret bytes.

use std::collections::HashSet;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The shortest run of a secret that must not show anywhere, in bytes (`proxy.md`, "Kubeconfig").
const RUN: usize = 8;

/// Bytes that no `Debug` shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The secret itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[redacted]")
    }
}

/// Knows every run of eight bytes of the secrets it was given, as they stand and in base64.
#[derive(Clone, Default)]
pub(crate) struct Scrubber {
    runs: HashSet<[u8; RUN]>,
}

impl Scrubber {
    pub(crate) fn add(&mut self, secret: &[u8]) {
        self.add_runs(secret);
        if secret.len() >= RUN {
            self.add_runs(STANDARD.encode(secret).as_bytes());
        }
    }

    /// Takes PEM text: the armour lines are no secret, the rest is.
    pub(crate) fn add_pem(&mut self, pem: &[u8]) {
        for line in pem.split(|byte| *byte == b'\n') {
            if !line.starts_with(b"-----") {
                self.add_runs(line.trim_ascii());
            }
        }
    }

    pub(crate) fn add_runs(&mut self, bytes: &[u8]) {
        self.runs
            .extend(bytes.windows(RUN).filter_map(|run| <[u8; RUN]>::try_from(run).ok()));
    }

    fn is_secret(&self, run: &[u8]) -> bool {
        <[u8; RUN]>::try_from(run).is_ok_and(|run| self.runs.contains(&run))
    }

    /// Whether any run of a secret occurs in the text.
    pub(crate) fn touches(&self, text: &str) -> bool {
        text.as_bytes().windows(RUN).any(|run| self.is_secret(run))
    }

    /// The text with every run of a secret replaced.
    pub(crate) fn scrub(&self, text: &str) -> String {
        if !self.touches(text) {
            return text.to_owned();
        }
        let bytes = text.as_bytes();
        let mut hidden = vec![false; bytes.len()];
        for (start, run) in bytes.windows(RUN).enumerate() {
            if self.is_secret(run) {
                hidden.iter_mut().skip(start).take(RUN).for_each(|hide| *hide = true);
            }
        }
        let mut out = String::with_capacity(text.len());
        let mut inside = false;
        for (index, character) in text.char_indices() {
            let hide = (index..index + character.len_utf8()).any(|at| hidden.get(at).copied().unwrap_or(false));
            if hide && !inside {
                out.push_str("[redacted]");
            } else if !hide {
                out.push(character);
            }
            inside = hide;
        }
        out
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scrubber")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Secret::new("s3cr3t-token")), "[redacted]");
    }

    #[test]
    fn scrubs_runs_and_leaves_the_rest() {
        let mut scrubber = Scrubber::default();
        scrubber.add(b"abcdefghij");
        assert_eq!(
            scrubber.scrub("user \"x-abcdefgh-y\": no"),
            "user \"x-[redacted]-y\": no"
        );
        assert_eq!(scrubber.scrub("abcdefg"), "abcdefg");
        assert!(scrubber.touches(&STANDARD.encode("abcdefghij")));
    }
}
