//! Colours for a terminal. None where the output goes elsewhere, the terminal knows none, or `NO_COLOR` is set
//! (<https://no-color.org>).

use std::io::IsTerminal;

/// Looks of a text.
#[derive(Clone, Copy)]
pub(super) enum Style {
    Address,
    Error,
    Faint,
    Strong,
    Success,
    Warning,
}

impl Style {
    /// The parameters of the escape sequence that begins it.
    const fn parameters(self) -> &'static str {
        match self {
            Self::Address => "36",
            Self::Error => "31;1",
            Self::Faint => "2",
            Self::Strong => "1",
            Self::Success => "32",
            Self::Warning => "33;1",
        }
    }
}

/// Whether an output shows colours.
#[derive(Clone, Copy)]
pub(super) struct Colours(bool);

impl Colours {
    pub(super) fn of(output: &impl IsTerminal) -> Self {
        #[expect(clippy::disallowed_methods, reason = "conventions of terminals; they are no options of ours")]
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self(
            output.is_terminal()
                && variable("NO_COLOR").is_none()
                && variable("TERM").is_none_or(|term| term != "dumb"),
        )
    }

    pub(super) fn paint(self, style: Style, text: &str) -> String {
        if self.0 { format!("\x1b[{}m{text}\x1b[0m", style.parameters()) } else { text.to_owned() }
    }
}
