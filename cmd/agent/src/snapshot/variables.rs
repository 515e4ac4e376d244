//! The variables of a shell, as `declare -p` lists them.

/// One line of that list, which is as many lines of text as its value has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declaration<'a> {
    pub(super) name: &'a str,
    /// Its attributes' letters, `-` where it has none.
    pub(super) attributes: &'a str,
    /// The command that makes it, without its newline.
    pub(super) text: &'a [u8],
    pub(super) has_value: bool,
}

/// What a listing declares. Names that no variable can have are none: bash keeps such of its environment.
pub(super) fn declarations(listing: &[u8]) -> impl Iterator<Item = Declaration<'_>> {
    let mut rest = listing;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (text, after) = rest.split_at(length(rest));
        rest = after.get(1..).unwrap_or_default();
        Some(declaration(text))
    })
    .flatten()
}

fn declaration(text: &[u8]) -> Option<Declaration<'_>> {
    let head = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let has_value = head < text.len();
    let head = std::str::from_utf8(&text[..head]).ok()?;
    let (attributes, name) = head.strip_prefix("declare -")?.split_once(' ')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(Declaration {
        name,
        attributes,
        text,
        has_value,
    })
}

/// The length of the declaration that a listing begins with: up to the first newline outside of quotes.
fn length(listing: &[u8]) -> usize {
    let mut at = 0;
    let mut open = None;
    while let Some(byte) = listing.get(at) {
        match (byte, open) {
            (b'\n', None) => break,
            // Of the quotes only the plain single ones take a backslash for itself.
            (b'\\', None | Some(b'"' | b'$')) => at += 1,
            (b'"', None) => open = Some(b'"'),
            (b'\'', None) => open = Some(if at > 0 && listing[at - 1] == b'$' { b'$' } else { b'\'' }),
            (b'"', Some(b'"')) | (b'\'', Some(b'\'' | b'$')) => open = None,
            _ => {}
        }
        at += 1;
    }
    at.min(listing.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_many_lines_hide_no_variable_and_make_none() {
        let listing = b"declare -- A=\"a\ndeclare -- NONE=\\\"1\\\"\n'\"\ndeclare -x B=$'it\\'s\\n\"'\ndeclare -ai C\n\
            declare -A M=([\"\\\"\"]=\"2\" [$'n\\nl']=$'x\\'y' [\"a b\"]=\"\n\" )\nnoise\ndeclare -x a.b=\"1\"\n\
            declare -n R=\"A\"\ndeclare -- D='q\\'\ndeclare -- V=\"\xff\"\ndeclare -r E=\"\"";
        let found: Vec<_> = declarations(listing)
            .map(|found| (found.name, found.attributes, found.has_value))
            .collect();
        assert_eq!(
            found,
            [
                ("A", "-", true),
                ("B", "x", true),
                ("C", "ai", false),
                ("M", "A", true),
                ("R", "n", true),
                ("D", "-", true),
                ("V", "-", true),
                ("E", "r", true),
            ]
        );
        let first = declarations(listing).next().unwrap();
        assert_eq!(first.text, b"declare -- A=\"a\ndeclare -- NONE=\\\"1\\\"\n'\"");
        for cut in 0..listing.len() {
            declarations(&listing[..cut]).for_each(drop);
        }
    }
}
