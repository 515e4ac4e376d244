//! Functions called like the builtins by which a state is printed. They are taken away before it is, so special builtins,
//! which win over functions in POSIX mode, print them first.

/// The builtins that [`super::PRINT_STATE`] and what leads to it need outside of POSIX mode.
const SHADOWING: [&str; 10] = [
    "printf", "enable", "shopt", "declare", "compgen", "alias", "ulimit", "umask", "local", "unset",
];

/// A function that stands in for a builtin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    pub(super) name: &'static str,
    /// Its definition.
    pub(super) text: Vec<u8>,
    /// What `declare -f` needs besides to give it its attributes, such as `x`.
    pub(super) attributes: String,
}

/// The commands that print them, in POSIX mode: the names of all exported functions, and, in a subshell that leaves this
/// mode, where such a list has definitions, all functions that are exported when these are. Most often there are none, and
/// nothing is forked.
#[must_use]
pub fn print_shadows() -> String {
    let any = SHADOWING.map(|name| format!(r"\export -f {name}")).join(" || ");
    format!(
        r"\export -fp; {any} && ( \unset -f export; \unset POSIXLY_CORRECT; \export -f -- {}; \export -fp ); ",
        SHADOWING.join(" ")
    )
}

/// Finds them in what [`print_shadows`] printed: each definition, followed by a `declare` of its attributes.
pub(super) fn find_shadows(listing: &[u8]) -> Vec<Shadow> {
    SHADOWING
        .into_iter()
        .filter_map(|name| {
            let (text, attributes) = find_definition(listing, name)?;
            let line = format!("export -f {name}");
            let exported = listing
                .split(|byte| *byte == b'\n')
                .any(|other| other == line.as_bytes());
            Some(Shadow {
                name,
                text: text.trim_ascii_end().to_vec(),
                attributes: attributes
                    .chars()
                    .filter(|attribute| exported || *attribute != 'x')
                    .collect(),
            })
        })
        .collect()
}

/// A function's definition, and its attributes.
fn find_definition<'a>(listing: &'a [u8], name: &str) -> Option<(&'a [u8], &'a str)> {
    let header = format!("{name} () \n");
    let mut found = None;
    let mut end = 0;
    let mut closed = false;
    for line in listing.split_inclusive(|byte| *byte == b'\n') {
        if found.is_none() && line == header.as_bytes() {
            found = Some(end);
        }
        if let Some(start) = found {
            let attributes = std::str::from_utf8(line)
                .ok()
                .and_then(|line| line.strip_prefix("declare -f"))
                .and_then(|rest| rest.trim_end().strip_suffix(name)?.strip_suffix(' '));
            match attributes {
                // A here-document may hold such a line too: only what follows the closing brace ends the function.
                Some(attributes) if closed => return Some((&listing[start..end], attributes)),
                _ => closed = line.starts_with(b"}"),
            }
        }
        end += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shadow(name: &'static str, text: &str, attributes: &str) -> Shadow {
        Shadow {
            name,
            text: text.as_bytes().to_vec(),
            attributes: attributes.to_owned(),
        }
    }

    #[test]
    fn functions_called_like_builtins_are_found_with_their_attributes() {
        let before = "a DEBUG trap says so\nexport -f f\nexport -rf alias\nexport -f alias\n";
        let after = "f () \n{ \n    printf () \n    :\n}\ndeclare -fx f\nalias () \n{ \n    :\n}\ndeclare -fx alias\n\
                     printf () \n{ \n    cat <<E\ndeclare -fx printf\nE\n\n} > /dev/null\ndeclare -frx printf\n";
        assert_eq!(
            find_shadows(format!("{before}{after}").as_bytes()),
            [
                shadow(
                    "printf",
                    "printf () \n{ \n    cat <<E\ndeclare -fx printf\nE\n\n} > /dev/null",
                    "r"
                ),
                shadow("alias", "alias () \n{ \n    :\n}", "x"),
            ]
        );
    }

    #[test]
    fn half_a_function_is_none() {
        assert_eq!(find_shadows(b"printf () \n{ \n    :\n"), []);
        assert_eq!(find_shadows(b""), []);
    }
}
