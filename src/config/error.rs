//! What is said when settings do not allow a start: which one, where it came from, what was found
//! and what is allowed.

use std::{fmt, path::PathBuf};

#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration file {} cannot be read: {reason}\nName an existing file with --config, or leave --config out to go without one.", path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("the configuration file {} is not TOML: line {line}: {reason}\nprovost.toml.example shows every setting in its form.", path.display())]
    NotToml {
        path: PathBuf,
        line: usize,
        reason: String,
    },

    #[error("{}", report(.0))]
    Settings(Vec<Fault>),
}

/// One setting that stops the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// As it is written in the file, tables joined by dots.
    pub setting: String,
    pub origin: String,
    /// Never a secret.
    pub found: String,
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {}\n    from     {}\n    found    {}\n    allowed  {}",
            self.setting, self.origin, self.found, self.allowed
        )
    }
}

fn report(faults: &[Fault]) -> String {
    let mut text = match faults.len() {
        1 => "a setting is wrong:".to_owned(),
        count => format!("{count} settings are wrong:"),
    };
    for fault in faults {
        text.push_str(&format!("\n\n{fault}"));
    }
    text
}
