//! Templates: how the data of a task reaches its requests.
//!
//! A [`Template`] is a string with `{{ expressions }}`, a [`JsonTemplate`] a JSON document whose strings
//! are templates, an [`Expression`] a bare condition. Expressions are minijinja; statements
//! (`{% … %}`) are left out, because variables and loops can multiply data past any bound.
//!
//! Each is compiled once and bounded when evaluated: by fuel (instructions), by the length of its
//! source, by what its operators and filters may build, and by the size of what comes out.
//! Reading what is not there is an error that names it, never an empty text.

mod engine;
mod filters;
mod json;
mod path;
mod scan;
mod scope;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use json::JsonTemplate;
pub use scope::Scope;
pub use text::Template;

use super::Payload;
use engine::Code;

/// No rendered text or JSON document is longer, in bytes.
pub const MAX_RENDERED: usize = 1 << 20;

/// No expression is longer, in bytes: with it the copies that `~` can make stay bounded.
pub const MAX_EXPRESSION: usize = 2000;

/// Why a template could not be rendered, in the words an operator reads.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{expression}` cannot be rendered: {reason}")]
pub struct RenderError {
    pub expression: String,
    pub reason: String,
}

impl RenderError {
    pub(super) fn new(expression: &str, reason: impl Into<String>) -> Self {
        const SHOWN: usize = 200;
        let mut shown: String = expression.chars().take(SHOWN).collect();
        if shown.len() < expression.len() {
            shown.push('…');
        }
        Self {
            expression: shown,
            reason: reason.into(),
        }
    }

    fn too_large(expression: &str) -> Self {
        Self::new(
            expression,
            format!(
                "the result is larger than {MAX_RENDERED} bytes; pass a reference instead of the data"
            ),
        )
    }
}

/// What a template looks at, known before it is ever evaluated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Top-level names, such as `input`.
    pub names: BTreeSet<String>,
    /// The steps read as `steps.<name>` or `steps['<name>']`.
    pub steps: BTreeSet<String>,
}

impl Reads {
    pub fn extend(&mut self, other: &Reads) {
        self.names.extend(other.names.iter().cloned());
        self.steps.extend(other.steps.iter().cloned());
    }
}

/// A bare condition such as `input.total > 0`.
#[derive(Debug)]
pub struct Expression(Code);

impl Expression {
    /// The error says what is wrong with the source and how to mend it.
    pub fn parse(source: &str) -> Result<Self, String> {
        if source.trim_start().starts_with("{{") || source.contains("{%") {
            return Err("a condition is written bare: leave out the braces".to_owned());
        }
        Code::parse(source).map(Self)
    }

    /// By truthiness: false, null, zero and what is empty are false.
    pub fn truth(&self, scope: &Scope<'_>) -> Result<bool, RenderError> {
        Ok(self.0.evaluate(scope)?.is_true())
    }

    /// What it gives, as JSON.
    pub fn payload(&self, scope: &Scope<'_>) -> Result<Payload, RenderError> {
        if let Some(whole) = self.0.path().and_then(|path| path.whole(scope)) {
            return Ok(whole.clone());
        }
        let mut json = String::new();
        write::json(&self.0.evaluate(scope)?, self.0.source(), &mut json)?;
        // What was written as JSON is JSON.
        Ok(Payload::parse(json).unwrap_or_else(Payload::null))
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        self.0.source()
    }

    pub fn reads(&self) -> &Reads {
        self.0.reads()
    }
}
