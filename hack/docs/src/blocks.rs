//! Fenced code blocks of Markdown: those that are commands, those that are manifests. Two comments, which nobody sees who reads the
//! page, say what `make test-docs` does with the commands: `<!-- not run: REASON -->` right above a block leaves it out, and
//! `<!-- test: COMMANDS -->` adds what a reader has done before, or has in another way, in one line or in several.

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What stands behind the opening fence, such as `sh` or `yaml`.
    pub info: String,
    /// Line of the opening fence, from 1.
    pub line: usize,
    /// What stands between the fences, without the indentation of the opening one.
    pub text: String,
    /// Why its commands are not run here, where they are not.
    pub not_run: Option<String>,
}

impl Block {
    /// Whether it is commands: `sh` as they stand, `console` behind a prompt and with their output.
    #[must_use]
    pub fn is_commands(&self) -> bool {
        matches!(self.info.as_str(), "sh" | "console")
    }

    /// The commands, without the prompts and the output of `console`.
    #[must_use]
    pub fn commands(&self) -> String {
        if self.info != "console" {
            return self.text.clone();
        }
        let mut commands = String::new();
        let mut continued = false;
        for line in self.text.lines() {
            let command = if continued {
                Some(line)
            } else {
                line.trim_start().strip_prefix("$ ")
            };
            if let Some(command) = command {
                commands.push_str(command);
                commands.push('\n');
            }
            continued = command.is_some_and(|command| command.ends_with('\\'));
        }
        commands
    }
}

/// What a page has besides prose.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Block(Block),
    /// Commands that only the test runs.
    Test(String),
}

const NOT_RUN: &str = "<!-- not run:";
const TEST: &str = "<!-- test:";
const CLOSE: &str = "-->";

/// The fenced blocks of a page (<https://spec.commonmark.org/0.31.2/#fenced-code-blocks>, with backticks).
#[must_use]
pub fn of(page: &str) -> Vec<Block> {
    let blocks = parts(page).into_iter().filter_map(|part| match part {
        Part::Block(block) => Some(block),
        Part::Test(_) => None,
    });
    blocks.collect()
}

/// Lines, from 1, of the reasons for not running that stand above no commands.
#[must_use]
pub fn stray_reasons(page: &str) -> Vec<usize> {
    let blocks = of(page);
    let above_commands = |line: usize| {
        blocks
            .iter()
            .any(|block| block.line == line + 1 && block.is_commands() && block.not_run.is_some())
    };
    page.lines()
        .enumerate()
        .filter(|(_, text)| text.trim_start().starts_with(NOT_RUN))
        .map(|(number, _)| number + 1)
        .filter(|line| !above_commands(*line))
        .collect()
}

fn parts(page: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    let mut test: Option<String> = None;
    let mut not_run = None;
    for (number, line) in page.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some((block, indent)) = &mut open {
            if trimmed == "```" {
                parts.extend(open.take().map(|(block, _)| Part::Block(block)));
            } else {
                let blank = line.bytes().take(*indent).take_while(|byte| *byte == b' ').count();
                block.text.push_str(&line[blank..]);
                block.text.push('\n');
            }
        } else if let Some(commands) = &mut test {
            if trimmed == CLOSE {
                parts.extend(test.take().map(Part::Test));
            } else {
                commands.push_str(line);
                commands.push('\n');
            }
        } else if let Some(info) = trimmed.strip_prefix("```") {
            let block = Block {
                info: info.trim().to_owned(),
                line: number + 1,
                text: String::new(),
                not_run: not_run.take(),
            };
            open = Some((block, line.len() - trimmed.len()));
        } else if let Some(command) = trimmed.strip_prefix(TEST) {
            match command.strip_suffix(CLOSE) {
                Some(command) => parts.push(Part::Test(format!("{}\n", command.trim()))),
                None => test = Some(String::new()),
            }
        } else {
            let reason = trimmed
                .strip_prefix(NOT_RUN)
                .and_then(|reason| reason.strip_suffix(CLOSE));
            not_run = reason
                .map(|reason| reason.trim().to_owned())
                .filter(|reason| !reason.is_empty());
        }
    }
    parts
}

/// What `make test-docs` runs of a page, in its order, as one script that ends at the first command that fails.
#[must_use]
pub fn script(page: &str) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for part in parts(page) {
        match part {
            Part::Test(commands) => script.push_str(&format!("\n{commands}")),
            Part::Block(block) if block.is_commands() && block.not_run.is_none() => {
                let line = block.line;
                let commands = block.commands();
                script.push_str(&format!("\nprintf '==> line %s\\n' {line} >&2\n{commands}"));
            }
            Part::Block(_) => {}
        }
    }
    script
}

/// The page up to a heading, and from it on; nothing where it has no such line.
#[must_use]
pub fn split_at_heading<'a>(page: &'a str, heading: &str) -> Option<(&'a str, &'a str)> {
    let at = page.match_indices(heading).map(|(at, _)| at).find(|at| {
        let whole = page[at + heading.len()..].starts_with('\n');
        whole && (*at == 0 || page[..*at].ends_with('\n'))
    })?;
    Some(page.split_at(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_without_their_indentation() {
        let blocks = of("x\n```sh\nls\n```\n1. y\n   ```yaml\n   a:\n     b: 1\n   ```\n");
        assert_eq!(blocks.len(), 2);
        assert_eq!((blocks[1].line, blocks[1].text.as_str()), (6, "a:\n  b: 1\n"));
    }

    #[test]
    fn commands_are_joined_in_their_order_without_prompts_and_output() {
        let script = script(
            "```sh\nls\n```\n<!-- test: cd /tmp -->\n```console\n$ id \\\n    -u\n0\n$ pwd\n```\n<!-- test:\na\nb\n-->\n```yaml\nno\n```\n",
        );
        let commands: Vec<&str> = script
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("printf"))
            .collect();
        assert_eq!(
            commands,
            ["set -euo pipefail", "ls", "cd /tmp", "id \\", "    -u", "pwd", "a", "b"]
        );
    }

    #[test]
    fn a_reason_holds_for_the_block_right_below_it() {
        let page = "<!-- not run: needs a phone -->\n```sh\ncall\n```\n```sh\nls\n```\n";
        let blocks = of(page);
        assert_eq!(blocks[0].not_run.as_deref(), Some("needs a phone"));
        assert_eq!(blocks[1].not_run, None);
        let script = script(page);
        assert!(script.contains("\nls\n") && !script.contains("call"), "{script}");
        assert!(stray_reasons(page).is_empty());
    }

    #[test]
    fn a_reason_that_is_empty_or_elsewhere_leaves_nothing_out() {
        for page in [
            "<!-- not run: -->\n```sh\nls\n```\n",
            "<!-- not run: x -->\n\n```sh\nls\n```\n",
        ] {
            assert!(script(page).contains("\nls\n"), "{page}");
            assert_eq!(stray_reasons(page), [1]);
        }
        assert_eq!(
            stray_reasons("<!-- not run: no commands -->\n```yaml\na: 1\n```\n"),
            [1]
        );
    }

    #[test]
    fn a_page_is_split_at_a_whole_heading() {
        let page = "a\n## Clean up now\n## Clean up\nb\n";
        assert_eq!(
            split_at_heading(page, "## Clean up"),
            Some(("a\n## Clean up now\n", "## Clean up\nb\n"))
        );
        assert_eq!(split_at_heading(page, "## Gone"), None);
    }
}
