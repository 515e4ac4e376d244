//! `docs/troubleshoot.md`: its lists of texts, filled in from the code, and complete. A list stands between
//! `<!-- texts: PATTERN … -->` and `<!-- /texts -->`; a pattern is the key of a text, or its beginning and `*`.

use anyhow::{Result, bail};

use crate::source::Text;

const OPEN: &str = "<!-- texts:";
const CLOSE: &str = "<!-- /texts -->";

/// The page with its lists as the code has them.
///
/// # Errors
///
/// When a text belongs to no list or to two, or a pattern means no text: each is named.
pub fn fill(page: &str, texts: &[Text]) -> Result<String> {
    let mut uses = vec![0_usize; texts.len()];
    let mut complaints = Vec::new();
    let mut filled = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(OPEN) {
        let (before, list) = rest.split_at(at);
        let (Some(head_end), Some(end)) = (list.find("-->"), list.find(CLOSE)) else {
            bail!("docs/troubleshoot.md: a list is not closed with {CLOSE}");
        };
        let head = &list[..head_end + 3];
        filled.push_str(before);
        filled.push_str(head);
        filled.push_str("\n\n");
        for pattern in list[OPEN.len()..head_end]
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            let mut found = false;
            for (text, uses) in texts
                .iter()
                .zip(&mut uses)
                .filter(|(text, _)| matches(pattern, &text.key))
            {
                found = true;
                *uses += 1;
                filled.push_str(&format!("- {}\n", code(&text.shown)));
            }
            if !found {
                complaints.push(format!(
                    "no text of the code has the key {pattern:?} any more: remove it"
                ));
            }
        }
        filled.push('\n');
        filled.push_str(CLOSE);
        rest = &list[end + CLOSE.len()..];
    }
    filled.push_str(rest);
    for (text, uses) in texts.iter().zip(&uses) {
        match uses {
            0 => complaints.push(format!(
                "no entry for {:?} ({}): add it with its cause and remedy",
                text.key, text.shown
            )),
            1 => {}
            _ => complaints.push(format!("{:?} stands in two lists", text.key)),
        }
    }
    if complaints.is_empty() {
        Ok(filled)
    } else {
        bail!("docs/troubleshoot.md:\n  {}", complaints.join("\n  "))
    }
}

/// A code span; one that holds backticks has two around it (<https://spec.commonmark.org/0.31.2/#code-spans>).
fn code(text: &str) -> String {
    if text.contains('`') {
        format!("`` {text} ``")
    } else {
        format!("`{text}`")
    }
}

fn matches(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => pattern == key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: &str) -> Text {
        Text {
            key: key.to_owned(),
            shown: format!("shown {key}"),
        }
    }

    #[test]
    fn lists_are_filled_again_and_stay_as_they_are() {
        let page = "a\n<!-- texts:\nserver/A\nproxy/B::*\n-->\nold\n<!-- /texts -->\nb\n";
        let texts = [text("server/A"), text("proxy/B::X")];
        let filled = fill(page, &texts).unwrap();
        assert!(filled.contains("- `shown server/A`\n- `shown proxy/B::X`\n") && !filled.contains("old"));
        assert_eq!(fill(&filled, &texts).unwrap(), filled);
    }

    #[test]
    fn a_text_with_backticks_stays_one_span() {
        assert_eq!(code("only `x` is"), "`` only `x` is ``");
        assert_eq!(code("plain"), "`plain`");
    }

    #[test]
    fn what_is_new_gone_or_twice_is_named() {
        let page = "<!-- texts:\nserver/A\nserver/A*\nserver/Gone\n-->\n<!-- /texts -->";
        let error = fill(page, &[text("server/A"), text("server/New")])
            .unwrap_err()
            .to_string();
        for word in [
            "\"server/A\" stands in two",
            "server/Gone",
            "no entry for \"server/New\"",
        ] {
            assert!(error.contains(word), "{error}");
        }
    }
}
