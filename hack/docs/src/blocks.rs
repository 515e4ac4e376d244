//! Fenced code blocks of Markdown: those that are commands, those that are manifests.

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What stands behind the opening fence, such as `sh` or `yaml`.
    pub info: String,
    /// Line of the opening fence, from 1.
    pub line: usize,
    /// What stands between the fences, without the indentation of the opening one.
    pub text: String,
}

/// The fenced blocks of a page (<https://spec.commonmark.org/0.31.2/#fenced-code-blocks>, with backticks).
#[must_use]
pub fn of(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (number, line) in page.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(info)) => {
                let block = Block {
                    info: info.trim().to_owned(),
                    line: number + 1,
                    text: String::new(),
                };
                open = Some((block, indent));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), _) => {
                let blank = line.bytes().take(*indent).take_while(|byte| *byte == b' ').count();
                block.text.push_str(&line[blank..]);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The commands of a page in their order, as one script that ends at the first that fails. Blocks of another kind than
/// `sh`, such as `console`, are shown to people only.
#[must_use]
pub fn script(page: &str) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for block in of(page).iter().filter(|block| block.info == "sh") {
        script.push_str(&format!("\nprintf '==> line %s\\n' {} >&2\n{}", block.line, block.text));
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_and_commands_are_joined() {
        let page =
            "x\n```sh\nls\n```\n1. y\n   ```yaml\n   a:\n     b: 1\n   ```\n```console\nno\n```\n```sh\nid\n```\n";
        let blocks = of(page);
        assert_eq!(blocks.len(), 4);
        assert_eq!((blocks[1].line, blocks[1].text.as_str()), (6, "a:\n  b: 1\n"));
        let script = script(page);
        assert!(script.find("\nls\n") < script.find("\nid\n"), "{script}");
        assert!(!script.contains("no"));
    }
}
