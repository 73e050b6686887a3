//! Styled text for terminals. Text is plain if the output is not a terminal, the terminal has no styles, or `NO_COLOR` is set
//! (<https://no-color.org>).

use std::io::IsTerminal;

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
    /// Returns the parameters of the escape sequence that starts the style.
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

/// Applies styles to text for one output stream.
#[derive(Clone, Copy)]
pub(super) struct Styler {
    enabled: bool,
}

impl Styler {
    pub(super) fn new(output: &impl IsTerminal) -> Self {
        #[expect(clippy::disallowed_methods, reason = "variables of terminals, not options of this program")]
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let enabled = output.is_terminal()
            && variable("NO_COLOR").is_none()
            && variable("TERM").is_none_or(|term| term != "dumb");
        Self { enabled }
    }

    pub(super) fn is_enabled(self) -> bool {
        self.enabled
    }

    pub(super) fn apply(self, style: Style, text: &str) -> String {
        if self.enabled { format!("\x1b[{}m{text}\x1b[0m", style.parameters()) } else { text.to_owned() }
    }
}
