//! A rule that a world has broken.

use std::fmt;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breach {
    pub rule: &'static str,
    pub detail: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// Returns a breach unless the rule is kept.
pub fn keep(
    is_kept: bool,
    rule: &'static str,
    detail: impl FnOnce() -> String,
) -> Result<(), Breach> {
    match is_kept {
        true => Ok(()),
        false => Err(Breach {
            rule,
            detail: detail(),
        }),
    }
}
