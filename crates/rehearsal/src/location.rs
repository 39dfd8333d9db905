//! A location in a text, and a fault there.

use provost_domain::values::DEEPEST;
use thiserror::Error;

/// A location in a text. Both numbers are counted from 1, columns in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SourceLocation {
    pub line: usize,
    pub column: usize,
}

impl SourceLocation {
    pub const START: Self = Self { line: 1, column: 1 };
}

/// The reason why a text cannot be read, and the location.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{message}")]
pub struct SourceFault {
    pub location: SourceLocation,
    pub message: String,
}

impl SourceFault {
    pub fn new(location: SourceLocation, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { location, message }
    }
}

pub(crate) fn nested_too_deeply() -> String {
    format!("is nested deeper than {DEEPEST} levels: reduce the nesting")
}
