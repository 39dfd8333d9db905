//! A fault of a JSON document, with the pointer of the value at fault.

use std::fmt;

use serde::Serialize;

/// One fault of a request's body.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FieldFault {
    /// RFC 6901, into the body. Empty where the body as a whole is at fault.
    pub pointer: String,
    /// The fault and the remedy.
    pub message: String,
}

impl FieldFault {
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
        }
    }

    /// Returns the fault as one of a larger document, in which the body is at `pointer`.
    #[must_use]
    pub fn below(self, pointer: &str) -> Self {
        Self {
            pointer: format!("{pointer}{}", self.pointer),
            message: self.message,
        }
    }
}

impl fmt::Display for FieldFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.pointer {
            "" => f.write_str(&self.message),
            pointer => write!(f, "{pointer}: {}", self.message),
        }
    }
}
