//! The report about settings that prevent a start: each setting with its source, the value that was found, and the
//! values that are allowed.

use std::{fmt, path::PathBuf};

#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration file {} cannot be read: {reason}\nName an existing file with --config, or omit --config to start without one.", path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("the configuration file {} is not TOML: line {line}: {reason}\nprovost.toml.example shows the form of every setting.", path.display())]
    NotToml {
        path: PathBuf,
        line: usize,
        reason: String,
    },

    #[error("{}", report(.0))]
    Settings(Vec<SettingFault>),
}

/// One setting that prevents the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingFault {
    /// The path in the file, tables joined by dots.
    pub setting: String,
    pub origin: String,
    /// The value that was found. It is never a secret.
    pub found: String,
    pub allowed: String,
}

impl fmt::Display for SettingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {}\n    from     {}\n    found    {}\n    allowed  {}",
            self.setting, self.origin, self.found, self.allowed
        )
    }
}

fn report(faults: &[SettingFault]) -> String {
    let mut text = match faults.len() {
        1 => "a setting is wrong:".to_owned(),
        count => format!("{count} settings are wrong:"),
    };
    for fault in faults {
        text.push_str(&format!("\n\n{fault}"));
    }
    text
}
