//! How mistakes are reported: all of them at once, one message each, and never with a secret in the text.

use std::fmt;

use crate::secret::Scrubber;

/// Everything that is wrong with an input. Each message names what it is about and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    problems: Vec<String>,
}

impl Invalid {
    /// One mistake.
    #[must_use]
    pub fn one(problem: impl Into<String>) -> Self {
        Self {
            problems: vec![problem.into()],
        }
    }

    /// The mistakes, in the order of the input.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(String::as_str)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for Invalid {}

/// Collects mistakes while a whole input is read.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<String>);

impl Problems {
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error, with every run of secret bytes taken out of its messages.
    pub(crate) fn into_invalid(self, scrubber: &Scrubber) -> Invalid {
        Invalid {
            problems: self.0.into_iter().map(|problem| scrubber.scrub(&problem)).collect(),
        }
    }
}

/// A name from the input as messages show it: quoted, escaped, bounded.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN: usize = 120;
    if name.chars().count() > SHOWN {
        let head: String = name.chars().take(SHOWN).collect();
        format!("\"{}…\"", head.escape_debug())
    } else {
        format!("\"{}\"", name.escape_debug())
    }
}
