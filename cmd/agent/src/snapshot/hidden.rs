//! What a function hides of the state of a shell that ends inside it: bash has put it away until the function returns.

use super::{DEBUG, Snapshot};

/// Traps that functions do not see, and the option by which they do.
const HIDDEN_TRAPS: [(&str, &str); 3] = [(DEBUG, "functrace"), ("ERR", "errtrace"), ("RETURN", "functrace")];

impl Snapshot {
    /// Whether the shell ended inside a function.
    #[must_use]
    pub fn ended_in_function(&self) -> bool {
        self.in_function
    }

    /// The traps that this function has hidden.
    pub fn hidden_traps(&self) -> impl Iterator<Item = &'static str> {
        let seen = |option: &str| self.options.iter().any(|other| other == option);
        HIDDEN_TRAPS
            .into_iter()
            .filter(move |(_, option)| !seen(option))
            .map(|(signal, _)| signal)
    }

    /// Takes over from an earlier state what this function has hidden. A trap of this state's own stays where the earlier one
    /// had none: that was set in the function, which bash does not undo.
    pub fn take_hidden(&mut self, earlier: &Self) {
        earlier.positional.clone_into(&mut self.positional);
        let hidden: Vec<&str> = self.hidden_traps().collect();
        for trap in earlier
            .traps
            .iter()
            .filter(|trap| hidden.contains(&trap.signal.as_str()))
        {
            self.traps.retain(|own| own.signal != trap.signal);
            self.traps.push(trap.clone());
        }
    }
}
