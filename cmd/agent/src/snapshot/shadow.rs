//! Functions called like the builtins by which a state is printed. They are taken away before it is, so special builtins,
//! which win over functions in POSIX mode, print them first.

/// The builtins that [`super::PRINT_STATE`] and what leads to it need, and that are no special builtins.
const SHADOWING: [&str; 9] = [
    "printf", "enable", "shopt", "declare", "compgen", "alias", "ulimit", "umask", "local",
];

/// A function that stands in for a builtin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shadow {
    pub(super) name: &'static str,
    /// Its definition.
    pub(super) text: String,
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
pub(super) fn find_shadows(listing: &str) -> Vec<Shadow> {
    SHADOWING
        .into_iter()
        .filter_map(|name| {
            let (text, attributes) = find_definition(listing, name)?;
            let exported = listing.lines().any(|line| line == format!("export -f {name}"));
            Some(Shadow {
                name,
                text: text.trim_end().to_owned(),
                attributes: attributes
                    .chars()
                    .filter(|attribute| exported || *attribute != 'x')
                    .collect(),
            })
        })
        .collect()
}

/// A function's definition, and its attributes.
fn find_definition<'a>(listing: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let header = format!("{name} () \n");
    let start = listing
        .match_indices(&header)
        .map(|(start, _)| start)
        .find(|start| *start == 0 || listing[..*start].ends_with('\n'))?;
    let mut end = start;
    let mut closed = false;
    for line in listing[start..].split_inclusive('\n') {
        let attributes = line
            .strip_prefix("declare -f")
            .and_then(|rest| rest.trim_end().strip_suffix(name)?.strip_suffix(' '));
        match attributes {
            // A here-document may hold such a line too: only what follows the closing brace ends the function.
            Some(attributes) if closed => return Some((&listing[start..end], attributes)),
            _ => closed = line.starts_with('}'),
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
            text: text.to_owned(),
            attributes: attributes.to_owned(),
        }
    }

    #[test]
    fn functions_called_like_builtins_are_found_with_their_attributes() {
        let before = "a DEBUG trap says so\nexport -f f\nexport -rf alias\nexport -f alias\n";
        let after = "f () \n{ \n    printf () \n    :\n}\ndeclare -fx f\nalias () \n{ \n    :\n}\ndeclare -fx alias\n\
                     printf () \n{ \n    cat <<E\ndeclare -fx printf\nE\n\n} > /dev/null\ndeclare -frx printf\n";
        assert_eq!(
            find_shadows(&format!("{before}{after}")),
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
        assert_eq!(find_shadows("printf () \n{ \n    :\n"), []);
        assert_eq!(find_shadows(""), []);
    }
}
