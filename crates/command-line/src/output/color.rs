//! Colours of a terminal.

use std::ffi::OsString;

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum ColorChoice {
    /// In a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorChoice {
    /// Returns whether there are colours. NO_COLOR counts if it is not empty (no-color.org).
    pub fn is_on(self, is_terminal: bool, no_color: Option<OsString>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => is_terminal && no_color.is_none_or(|value| value.is_empty()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Color {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
}

impl Color {
    /// Returns the colour of the state of a task, a step, an agent, a job or an alert.
    pub fn of_state(state: &str) -> Self {
        match state {
            "error" | "failed" | "dead" | "open" | "unhealthy" | "unreadable" => Self::Red,
            "processed" | "succeeded" | "passed" | "ended" | "active" | "healthy" | "closed" => {
                Self::Green
            }
            "processing" | "running" | "started" => Self::Blue,
            "paused" | "stopped" | "stopping" | "throttled" | "half_open" => Self::Yellow,
            "undoing" | "undone" => Self::Magenta,
            "cancelled" | "skipped" | "waiting" => Self::Dim,
            _ => Self::Plain,
        }
    }

    pub fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Blue => "34",
            Self::Magenta => "35",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_and_no_color_turns_them_off() {
        assert!(ColorChoice::Auto.is_on(true, None));
        assert!(ColorChoice::Auto.is_on(true, Some(OsString::new())));
        assert!(!ColorChoice::Auto.is_on(true, Some("1".into())));
        assert!(!ColorChoice::Auto.is_on(false, None));
        assert!(ColorChoice::Always.is_on(false, Some("1".into())));
        assert!(!ColorChoice::Never.is_on(true, None));
    }
}
