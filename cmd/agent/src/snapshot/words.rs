//! The words of a text, as bash reads them: quotes removed, expansions passed over.

use std::collections::BTreeSet;

/// Texts inside of texts that are looked into: people nest three or four.
const MAX_DEPTH: usize = 32;

/// One word, quotes removed.
#[derive(Debug, Default)]
pub(super) struct Word {
    pub(super) text: String,
    /// How much of the text comes before anything quoted or expanded.
    plain: usize,
    /// How much of it comes before anything expanded, where something is.
    expanded_at: Option<usize>,
    /// Whether an expansion may make several words of it.
    splits: bool,
}

impl Word {
    fn quoted(&mut self) {
        self.plain = self.plain.min(self.text.len());
    }

    fn expanded(&mut self, splits: bool) {
        self.quoted();
        self.expanded_at.get_or_insert(self.text.len());
        self.splits |= splits;
    }

    pub(super) fn known(&self) -> Option<String> {
        self.expanded_at.is_none().then(|| self.text.clone())
    }

    /// Whether it names a file, whatever it expands to: a name with a slash is neither builtin nor alias.
    pub(super) fn is_path(&self) -> bool {
        match self.expanded_at {
            None => false,
            Some(at) => self.text[..at].contains('/') || (!self.splits && self.text.contains('/')),
        }
    }

    /// Whether it is the descriptor of a redirection that follows it: `2`, `{name}`.
    pub(super) fn names_descriptor(&self) -> bool {
        let name = self.text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        match name {
            Some(name) => name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
            None => self.text.bytes().all(|byte| byte.is_ascii_digit()),
        }
    }

    /// The name of the variable that it assigns to.
    pub(super) fn assigns(&self) -> Option<&str> {
        let plain = &self.text[..self.plain.min(self.text.len())];
        let target = &plain[..plain.find('=')?];
        let target = target.strip_suffix('+').unwrap_or(target);
        let name = match target.split_once('[') {
            Some((name, subscript)) if subscript.ends_with(']') => name,
            Some(_) => return None,
            None => target,
        };
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then_some(name)
    }
}

/// A here-document whose body begins on the next line.
#[derive(Debug)]
struct HereDocument {
    delimiter: String,
    strip_tabs: bool,
}

/// Reads a text as bash would.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    pub(super) rest: &'a str,
    pub(super) names: BTreeSet<String>,
    here_documents: Vec<HereDocument>,
    /// How many subshells this is inside of: what runs there is not minded.
    pub(super) subshells: usize,
    /// How many expansions and texts.
    pub(super) depth: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            names: BTreeSet::new(),
            here_documents: Vec::new(),
            subshells: 0,
            depth: 0,
        }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn next_char(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    pub(super) fn accept(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Passes over all up to a text, and over that.
    pub(super) fn pass(&mut self, text: &str) -> Option<()> {
        self.rest = &self.rest[self.rest.find(text)? + text.len()..];
        Some(())
    }

    /// The words up to the end of a command. None where one is only known once it runs.
    pub(super) fn arguments(&mut self) -> Option<Vec<String>> {
        let mut words = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | '(' | ')' | '#') => return Some(words),
                Some(' ' | '\t') => {
                    self.next_char();
                }
                Some('<' | '>') => self.redirection()?,
                Some(_) if self.accept("\\\n") => {}
                Some(_) => words.push(self.word()?.known()?),
            }
        }
    }

    /// Blanks, line ends and comments.
    pub(super) fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\n') => {
                    self.next_char();
                }
                Some('#') => self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..],
                _ if self.accept("\\\n") => {}
                _ => return,
            }
        }
    }

    pub(super) fn redirection(&mut self) -> Option<()> {
        if self.accept("<(") || self.accept(">(") {
            self.shallow()?;
            self.depth += 1;
            self.subshell()?;
            self.depth -= 1;
            return Some(());
        }
        let here = self.rest.starts_with("<<") && !self.rest.starts_with("<<<");
        while matches!(self.peek(), Some('<' | '>' | '&' | '|')) {
            self.next_char();
        }
        let strip_tabs = here && self.accept("-");
        while matches!(self.peek(), Some(' ' | '\t')) || self.rest.starts_with("\\\n") {
            self.next_char();
            self.accept("\n");
        }
        if self.rest.starts_with("<(") || self.rest.starts_with(">(") {
            return self.redirection();
        }
        let word = self.word()?;
        if here {
            self.here_documents.push(HereDocument {
                delimiter: word.known()?,
                strip_tabs,
            });
        }
        Some(())
    }

    /// Passes over the bodies of here-documents: what is expanded in them runs in subshells.
    pub(super) fn pass_here_documents(&mut self) {
        for document in std::mem::take(&mut self.here_documents) {
            while !self.rest.is_empty() {
                let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
                self.rest = rest;
                let line = if document.strip_tabs {
                    line.trim_start_matches('\t')
                } else {
                    line
                };
                if line == document.delimiter {
                    break;
                }
            }
        }
    }

    fn subshell(&mut self) -> Option<()> {
        self.subshells += 1;
        self.list(true)?;
        self.subshells -= 1;
        Some(())
    }

    /// None where a text is nested too deeply to go on.
    pub(super) fn shallow(&self) -> Option<()> {
        (self.depth < MAX_DEPTH).then_some(())
    }

    /// Passes over arithmetic, or a subshell in a subshell, inside so many parentheses. What could hide one is not told.
    pub(super) fn arithmetic(&mut self, parentheses: usize) -> Option<()> {
        let mut open = parentheses;
        while open > 0 {
            match self.next_char()? {
                '(' => open += 1,
                ')' => open -= 1,
                '\'' | '"' | '`' | '\\' => return None,
                '#' if self.rest.starts_with(' ') => return None,
                _ => {}
            }
        }
        Some(())
    }

    pub(super) fn word(&mut self) -> Option<Word> {
        let mut word = Word {
            plain: usize::MAX,
            ..Word::default()
        };
        while let Some(next) = self.peek() {
            match next {
                // A pattern, where `extglob` is set, and so any name.
                '(' if word.text.ends_with(['?', '*', '+', '@', '!']) => return None,
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                _ if self.accept("\\\n") => {}
                '\\' => {
                    self.next_char();
                    word.quoted();
                    word.text.extend(self.next_char());
                }
                '\'' => {
                    self.next_char();
                    word.quoted();
                    let end = self.rest.find('\'')?;
                    word.text.push_str(&self.rest[..end]);
                    self.rest = &self.rest[end + 1..];
                }
                '"' => {
                    self.next_char();
                    self.double_quotes(&mut word)?;
                }
                '$' | '`' => self.expansion(&mut word, false)?,
                '*' | '?' | '[' | '{' => {
                    self.next_char();
                    // Alone they are names, and a subscript is none of the pattern's.
                    let is_name = word.text.is_empty()
                        && matches!(
                            self.peek(),
                            None | Some(' ' | '\t' | '\n' | ';' | '&' | '|' | ')' | '<' | '>')
                        );
                    let is_condition = word.text.is_empty()
                        && next == '['
                        && ["[ ", "[\t", "[\n"].iter().any(|start| self.rest.starts_with(start));
                    if is_condition {
                        self.next_char();
                        word.text.push('[');
                    } else if !is_name {
                        let plain = word.plain;
                        word.expanded(true);
                        if next == '[' {
                            word.plain = plain;
                        }
                    } else if matches!(next, '*' | '?') {
                        word.expanded(true);
                    }
                    word.text.push(next);
                }
                _ => word.text.extend(self.next_char()),
            }
        }
        Some(word)
    }

    /// What follows the first of two double quotes, and the second.
    fn double_quotes(&mut self, word: &mut Word) -> Option<()> {
        word.quoted();
        loop {
            match self.peek()? {
                '"' => {
                    self.next_char();
                    return Some(());
                }
                '\\' => {
                    self.next_char();
                    match self.next_char()? {
                        '\n' => {}
                        escaped @ ('$' | '`' | '"' | '\\') => word.text.push(escaped),
                        other => word.text.extend(['\\', other]),
                    }
                }
                '$' | '`' => self.expansion(word, true)?,
                _ => word.text.extend(self.next_char()),
            }
        }
    }

    fn expansion(&mut self, word: &mut Word, in_quotes: bool) -> Option<()> {
        self.shallow()?;
        self.depth += 1;
        let before = self.rest;
        if self.accept("$((") {
            self.arithmetic(2)?;
        } else if self.accept("$(") {
            self.subshell()?;
        } else if self.accept("${") {
            self.parameter(in_quotes)?;
        } else if self.accept("`") {
            self.pass_escaped('`')?;
        } else if !in_quotes && self.accept("$'") {
            self.pass_escaped('\'')?;
        } else if !in_quotes && self.accept("$\"") {
            self.double_quotes(word)?;
        } else {
            self.accept("$");
            let end = self
                .rest
                .find(|next: char| !(next.is_ascii_alphanumeric() || next == '_'));
            let end = end.unwrap_or(self.rest.len());
            let special = usize::from(end == 0 && self.rest.starts_with(['@', '*', '#', '?', '-', '$', '!']));
            self.rest = &self.rest[end.max(special)..];
        }
        self.depth -= 1;
        let expanded = &before[..before.len() - self.rest.len()];
        word.expanded(!in_quotes || expanded.contains('@'));
        Some(())
    }

    /// The rest of `${…}`.
    fn parameter(&mut self, in_quotes: bool) -> Option<()> {
        // Since 5.3 a command can stand there that runs in the shell itself.
        if self.rest.starts_with([' ', '\t', '\n', '|']) {
            return None;
        }
        let mut ignored = Word::default();
        loop {
            match self.peek()? {
                '}' => {
                    self.next_char();
                    return Some(());
                }
                '\\' => {
                    self.next_char();
                    self.next_char()?;
                }
                '\'' if in_quotes => return None,
                '\'' => {
                    self.next_char();
                    self.pass("'")?;
                }
                '"' => {
                    self.next_char();
                    self.double_quotes(&mut ignored)?;
                }
                '$' | '`' => self.expansion(&mut ignored, in_quotes)?,
                _ => {
                    self.next_char();
                }
            }
        }
    }

    /// Passes over all up to a character without a backslash before it, and over that.
    fn pass_escaped(&mut self, end: char) -> Option<()> {
        loop {
            match self.next_char()? {
                '\\' => {
                    self.next_char()?;
                }
                next if next == end => return Some(()),
                _ => {}
            }
        }
    }
}
