//! What became of the commands of a session, as their answers say, and whether the marks that they left agree.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use cli_mcp_demo::session::{BashResult, FailedCall, SessionError};

/// What is known of a command that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has a result: it ran once, and left its mark.
    Ran,
    /// It has a result that says that it failed: it ran once, and may have left no mark.
    Failed,
    /// The answer says that it was not run.
    NotRun,
    /// It broke off, and the answer says so or the connection does: it ran once or never.
    Unknown,
}

/// How a call ended.
#[derive(Debug)]
pub enum Ending {
    /// With an answer of the tool.
    Answer(BashResult),
    /// With a broken connection.
    Unanswered,
    /// The server turned the request away before it looked at the call.
    Refused,
    /// In a way that no call may end.
    Wrong(String),
}

impl From<Result<BashResult, SessionError>> for Ending {
    fn from(result: Result<BashResult, SessionError>) -> Self {
        match result {
            Ok(answer) => Self::Answer(answer),
            Err(error) => match error.tells() {
                FailedCall::Unanswered => Self::Unanswered,
                FailedCall::Refused => Self::Refused,
                FailedCall::Wrong => Self::Wrong(error.to_string()),
            },
        }
    }
}

/// What a session went through.
#[derive(Debug, Default)]
pub struct Life {
    /// The commands by their marks, over all sandboxes.
    fates: BTreeMap<u64, Fate>,
    /// The first command that is known to have found the shell that there is now.
    first: u64,
    /// The value of the variable that the first command set: another one is another shell.
    kept: Option<String>,
    /// Whether an answer was lost since the last result: what it would have told is not known.
    pub answer_lost: bool,
    /// Calls with a result.
    pub served: u64,
    /// Times that the session began anew.
    pub resets: u64,
    /// What must never be.
    violations: Vec<String>,
}

impl Life {
    /// Takes note of how a call ended.
    pub fn record(&mut self, mark: u64, ending: &Ending) {
        let fate = match fate(mark, ending) {
            Ok(fate) => fate,
            Err(violation) => return self.violations.push(violation),
        };
        if let (Fate::Ran, Ending::Answer(result)) = (fate, ending) {
            let kept = result.stdout.split_whitespace().nth(1).map(str::to_owned);
            if self.kept.is_some() && self.kept != kept {
                if result.session_reset.is_none() && !self.answer_lost {
                    self.violations.push(format!(
                        "command {mark} found another shell, and its answer does not say so"
                    ));
                }
                self.resets += 1;
                self.first = mark;
            }
            self.kept = kept;
            self.answer_lost = false;
            self.served += 1;
        } else if fate == Fate::Unknown {
            self.answer_lost = true;
        }
        self.fates.insert(mark, fate);
    }

    /// The commands so far, over all sandboxes.
    #[must_use]
    pub fn all(&self) -> BTreeMap<u64, Fate> {
        self.fates.clone()
    }

    /// The commands of the shell that there is now.
    #[must_use]
    pub fn here(&self) -> BTreeMap<u64, Fate> {
        self.fates
            .range(self.first..)
            .map(|(mark, fate)| (*mark, *fate))
            .collect()
    }

    /// What was wrong so far.
    ///
    /// # Errors
    ///
    /// The first of what must never be.
    pub fn verdict(&self) -> Result<()> {
        match self.violations.first() {
            Some(violation) => bail!("{violation}"),
            None => Ok(()),
        }
    }
}

/// What the end of a call says of its command.
///
/// # Errors
///
/// When it says nothing, or something that cannot be.
fn fate(mark: u64, ending: &Ending) -> Result<Fate, String> {
    let answer = match ending {
        Ending::Answer(answer) => answer,
        Ending::Unanswered => return Ok(Fate::Unknown),
        Ending::Refused => return Ok(Fate::NotRun),
        Ending::Wrong(error) => return Err(format!("command {mark} ended as no call may: {error}")),
    };
    let says = |word: &str| answer.text.contains(word);
    match answer.exit_code {
        Some(0) if answer.stdout.split(' ').next() == Some(mark.to_string().as_str()) => Ok(Fate::Ran),
        Some(0) => Err(format!("command {mark} got the answer of another: {answer:?}")),
        _ if !answer.is_error || answer.text.trim().is_empty() => {
            Err(format!("command {mark} failed without a word: {answer:?}"))
        }
        Some(_) => Ok(Fate::Failed),
        None if says("was not run") => Ok(Fate::NotRun),
        None if says("may have run") || says("ran in part") => Ok(Fate::Unknown),
        None => Err(format!(
            "command {mark} failed, and its answer does not say whether it ran: {answer:?}"
        )),
    }
}

/// No command left its mark twice, and none whose answer says that it was not run left any.
///
/// # Errors
///
/// The first that did.
pub fn at_most_once(fates: &BTreeMap<u64, Fate>, marks: &BTreeMap<u64, u32>) -> Result<()> {
    for (mark, count) in marks {
        ensure!(*count == 1, "command {mark} ran {count} times");
        ensure!(
            fates.get(mark) != Some(&Fate::NotRun),
            "command {mark} ran, and its answer says not"
        );
    }
    Ok(())
}

/// Every command with a result left its mark.
///
/// # Errors
///
/// The first that did not.
pub fn none_is_missing(fates: &BTreeMap<u64, Fate>, marks: &BTreeMap<u64, u32>) -> Result<()> {
    for (mark, fate) in fates {
        ensure!(
            *fate != Fate::Ran || marks.contains_key(mark),
            "command {mark} has a result and did not run"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(exit_code: Option<i32>, stdout: &str, text: &str) -> Ending {
        Ending::Answer(BashResult {
            exit_code,
            stdout: stdout.into(),
            text: text.into(),
            is_error: exit_code != Some(0),
            ..BashResult::default()
        })
    }

    fn marks(marks: &[(u64, u32)]) -> BTreeMap<u64, u32> {
        marks.iter().copied().collect()
    }

    #[test]
    fn a_session_that_begins_anew_must_say_so() {
        let mut life = Life::default();
        life.record(1, &answer(Some(0), "1 a\n", ""));
        life.record(2, &answer(Some(0), "2 b\n", ""));
        assert_eq!((life.resets, life.violations.len()), (1, 1));
        let mut told = answer(Some(0), "3 c\n", "");
        if let Ending::Answer(told) = &mut told {
            told.session_reset = Some("evicted".into());
        }
        life.record(3, &told);
        life.record(4, &Ending::Unanswered);
        life.record(5, &answer(Some(0), "5 d\n", ""));
        assert_eq!((life.resets, life.violations.len(), life.served), (3, 1, 4));
    }

    #[test]
    fn a_reset_leaves_the_commands_of_before_on_record() {
        let mut life = Life::default();
        life.record(1, &answer(Some(0), "1 a\n", ""));
        life.record(2, &Ending::Unanswered);
        life.record(3, &answer(Some(0), "3 b\n", ""));
        assert_eq!(life.here().into_keys().collect::<Vec<_>>(), [3]);
        assert_eq!(life.all().into_keys().collect::<Vec<_>>(), [1, 2, 3]);
        life.verdict().unwrap();
    }

    #[test]
    fn the_end_of_a_call_says_what_became_of_its_command() {
        assert_eq!(fate(7, &answer(Some(0), "7 1 2\n", "")), Ok(Fate::Ran));
        assert_eq!(fate(7, &answer(Some(1), "", "No space left")), Ok(Fate::Failed));
        assert_eq!(
            fate(7, &answer(None, "", "Not ready. The command was not run.")),
            Ok(Fate::NotRun)
        );
        for text in ["It may have run.", "The command was stopped: it ran in part."] {
            assert_eq!(fate(7, &answer(None, "", text)), Ok(Fate::Unknown));
        }
        assert_eq!(fate(7, &Ending::Unanswered), Ok(Fate::Unknown));
        assert_eq!(fate(7, &Ending::Refused), Ok(Fate::NotRun));
        for wrong in [
            answer(Some(0), "6 1 2\n", ""),
            answer(Some(1), "", " "),
            answer(None, "", ""),
            answer(None, "", "Something went wrong."),
            Ending::Wrong("MCP: internal error".into()),
        ] {
            assert!(fate(7, &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_commands_left_is_compared_with_what_their_answers_say() {
        let fates = BTreeMap::from([
            (1, Fate::Ran),
            (2, Fate::Unknown),
            (3, Fate::NotRun),
            (4, Fate::Failed),
            (5, Fate::Ran),
        ]);
        for whole in [&[(1, 1), (5, 1)][..], &[(1, 1), (2, 1), (4, 1), (5, 1), (6, 1)]] {
            at_most_once(&fates, &marks(whole)).unwrap();
            none_is_missing(&fates, &marks(whole)).unwrap();
        }
        for twice in [&[(2, 2)][..], &[(6, 2)], &[(3, 1)]] {
            assert!(at_most_once(&fates, &marks(twice)).is_err(), "{twice:?}");
        }
        assert!(none_is_missing(&fates, &marks(&[(1, 1)])).is_err());
    }
}
