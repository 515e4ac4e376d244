//! The words that stand where bash looks for the name of a command, as far as a text alone tells them.
//!
//! This is no parser of bash: what it is not sure of it does not guess, and says that it cannot tell. What runs in a subshell
//! is passed over, since it changes nothing in the shell itself.

use std::collections::BTreeSet;

use super::words::{Scanner, Word};

/// What a text would run in the shell itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    /// Names of commands, keywords among them.
    pub(super) names: BTreeSet<String>,
    /// Whether what follows the text would be the name of a command.
    pub(super) open: bool,
}

/// The commands of a text. None where a name is only known once the text runs, or the text can run another that is not
/// in it.
pub(super) fn commands(text: &str) -> Option<Commands> {
    commands_inside(text, 0)
}

fn commands_inside(text: &str, depth: usize) -> Option<Commands> {
    let mut scanner = Scanner::new(text);
    scanner.depth = depth;
    scanner.shallow()?;
    let open = scanner.list(false)?;
    Some(Commands {
        names: scanner.names,
        open,
    })
}

/// The commands of an alias's text. None also where the word after the alias would be looked for as well.
pub(super) fn alias(text: &str) -> Option<BTreeSet<String>> {
    let commands = commands(text)?;
    (!commands.open && !text.ends_with([' ', '\t'])).then_some(commands.names)
}

/// The words of one simple command. None where it is more, or not known before it runs.
pub(super) fn words(text: &str) -> Option<Vec<String>> {
    let mut scanner = Scanner::new(text.trim_end());
    let words = scanner.arguments()?;
    scanner.rest.is_empty().then_some(words)
}

/// Keys and values of an associative array, by the text of `declare -p`; a value that is not told plainly is None. None where
/// the text is none of an array.
pub(super) fn elements(text: &str) -> Option<Vec<(String, Option<String>)>> {
    let mut scanner = Scanner::new(&text[text.find("=(")? + 2..]);
    let mut elements = Vec::new();
    loop {
        scanner.blanks();
        if scanner.accept(")") {
            return Some(elements);
        }
        if !scanner.accept("[") {
            return None;
        }
        let key = &scanner.rest[..scanner.rest.find("]=")?];
        scanner.pass("]=")?;
        elements.push((key.trim_matches('"').to_owned(), scanner.word()?.known()));
    }
}

/// Words after which bash looks for the name of a command again.
const BEFORE_COMMANDS: [&str; 17] = [
    "if", "then", "elif", "else", "while", "until", "do", "!", "time", "{", "}", "fi", "done", "esac", "coproc",
    "builtin", "command",
];

/// Builtins that may run a text which is not to be read here, or set a trap.
const OBSCURE: [&str; 10] = [
    "trap", ".", "source", "enable", "fc", "bind", "complete", "compgen", "compopt", "history",
];

impl Scanner<'_> {
    /// Reads commands to the end of the text, or to the parenthesis that closes the list. Says whether a name could follow.
    pub(super) fn list(&mut self, closed: bool) -> Option<bool> {
        let mut at_command = true;
        let mut depth = 0_usize;
        let mut cases = 0_usize;
        loop {
            let Some(next) = self.peek() else {
                return (!closed).then_some(at_command);
            };
            match next {
                '#' => self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..],
                '\n' => {
                    self.next_char();
                    self.pass_here_documents();
                    at_command = true;
                }
                ' ' | '\t' => {
                    self.next_char();
                }
                _ if self.accept("\\\n") => {}
                _ if self.rest.starts_with("&>") => {
                    self.next_char();
                    self.redirection()?;
                }
                ';' | '&' | '|' => {
                    self.next_char();
                    let item_ends = next == ';' && (self.accept(";&") || self.accept(";") || self.accept("&"));
                    if item_ends && cases > 0 {
                        self.pattern()?;
                    }
                    at_command = true;
                }
                '(' => {
                    if self.accept("((") {
                        self.arithmetic(2)?;
                    } else {
                        self.next_char();
                        depth += 1;
                    }
                    at_command = true;
                }
                ')' => {
                    self.next_char();
                    if depth == 0 && closed {
                        return Some(at_command);
                    }
                    depth = depth.saturating_sub(1);
                    at_command = true;
                }
                '<' | '>' => self.redirection()?,
                _ => {
                    let word = self.word()?;
                    let is_descriptor = self.rest.starts_with(['<', '>']) && word.names_descriptor();
                    if is_descriptor {
                        continue;
                    }
                    let assigned = word.assigns();
                    // That of an array may also be an argument of `declare`.
                    if assigned.is_some() && word.text.ends_with('=') && self.accept("(") {
                        self.words_of_array()?;
                    }
                    if assigned == Some("BASH_ALIASES") && self.subshells == 0 {
                        return None;
                    }
                    if assigned.is_some() || !at_command {
                        continue;
                    }
                    match word.text.as_str() {
                        "case" => {
                            self.blanks();
                            self.word()?;
                            self.blanks();
                            if !self.accept("in") {
                                return None;
                            }
                            cases += 1;
                            self.pattern()?;
                        }
                        "esac" => cases = cases.saturating_sub(1),
                        "function" => {
                            self.blanks();
                            self.word()?;
                        }
                        "[[" => self.condition()?,
                        _ => at_command = self.name(&word)?,
                    }
                }
            }
        }
    }

    /// Minds one word that stands where bash looks for a command. Says whether the next word stands there too.
    fn name(&mut self, word: &Word) -> Option<bool> {
        if self.subshells > 0 {
            return Some(BEFORE_COMMANDS.contains(&word.text.as_str()));
        }
        let Some(name) = word.known() else {
            return word.is_path().then_some(false);
        };
        let name = name.as_str();
        if OBSCURE.contains(&name) {
            return None;
        }
        self.names.insert(name.to_owned());
        match name {
            "eval" => {
                let arguments = self.arguments()?;
                self.depth += 1;
                let run = commands_inside(&arguments.join(" "), self.depth)?;
                self.depth -= 1;
                self.names.extend(run.names);
                return Some(false);
            }
            "alias" => {
                let arguments = self.arguments()?;
                for (_, value) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
                    self.names.extend(alias(value)?);
                }
                return Some(false);
            }
            "mapfile" | "readarray" => {
                let arguments = self.arguments()?;
                let calls_back = arguments.iter().any(|word| word.starts_with('-') && word.contains('C'));
                return (!calls_back).then_some(false);
            }
            _ => {}
        }
        Some(BEFORE_COMMANDS.contains(&name) || name.starts_with('-'))
    }

    /// What stands between the parentheses of an array's assignment.
    fn words_of_array(&mut self) -> Option<()> {
        loop {
            self.blanks();
            if self.accept(")") {
                return Some(());
            }
            match self.peek()? {
                ';' | '&' | '|' | '(' | '<' | '>' => return None,
                _ => {
                    self.word()?;
                }
            }
        }
    }

    /// The rest of `[[ … ]]`.
    fn condition(&mut self) -> Option<()> {
        loop {
            self.blanks();
            match self.peek()? {
                '&' | '|' | '(' | ')' | '<' | '>' | ';' => {
                    self.next_char();
                }
                _ => {
                    if self.word()?.text == "]]" {
                        return Some(());
                    }
                }
            }
        }
    }

    /// The pattern that begins an item of a `case`, unless that ends.
    fn pattern(&mut self) -> Option<()> {
        self.blanks();
        let ends = self
            .rest
            .strip_prefix("esac")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', ';', '&', '|', ')', '<', '>']));
        if ends {
            return Some(());
        }
        self.accept("(");
        loop {
            self.blanks();
            match self.peek()? {
                ')' => {
                    self.next_char();
                    return Some(());
                }
                '|' => {
                    self.next_char();
                }
                ';' | '&' | '(' | '<' | '>' => return None,
                _ => {
                    self.word()?;
                }
            }
        }
    }
}
